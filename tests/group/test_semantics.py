"""Groups behave as eager PyTorch does: aliasing, mutation, gradients, modes, switches, threads, processes."""

from __future__ import annotations

import contextlib
import math

import pytest
import torch
from graphs import anew, groups_of, warmed_up
from hypothesis import given, settings
from hypothesis import strategies as st
from in_threads import in_threads
from raising import assert_agrees
from torch import Tensor, nn

import torchmdla
from torchmdla.testing.compare import assert_matches
from torchmdla.testing.programs import mutation


def chain(x: Tensor) -> Tensor:
    return torch.sigmoid(torch.tanh(x) * 2 + 1)


# --- new inputs ----------------------------------------------------------------------------------------


class _Lists(nn.Module):
    """A program whose group has inputs that are lists without tensors."""

    def forward(self, x: Tensor, names: list[str], sizes: list[int | None], rows: list[list[int]]) -> Tensor:
        y = torch.tanh(x) * 2
        return y * len(names) + len(sizes) + y * len(rows)


def test_lists_without_tensors_are_part_of_a_specialisation():
    """Compare results for strings, integers that may be None, and lists of lists."""
    scripted, plain = torch.jit.script(_Lists()), _Lists()
    x = torch.randn(3, 4)
    for lists in ((["a"], [None], [[2]]), (["a", "b"], [7, None], [[2], [3]]), (["b"], [None], [[5], []])) * 3:
        assert_matches(scripted(x, *lists), plain(x, *lists))
    assert torchmdla.stats().groups > 0
    assert torchmdla.stats().fallbacks == {}


def test_new_shapes_after_the_first():
    scripted = warmed_up(chain, torch.randn(4, 4))
    for shape in [(4, 4), (2, 8), (3,), (), (0, 5), (2, 3, 4, 5), (4, 4)]:
        x = torch.randn(shape)
        for _ in range(2):
            assert_matches(scripted(x), chain(x))
    assert torchmdla.stats().fallbacks == {}
    assert torchmdla.stats().specialisations == 6


def test_gaps_and_orders_of_memory():
    """The result of an elementwise operator has the layout of its operands, also with gaps, ties and repetitions."""

    def function(x: Tensor) -> Tensor:
        return x * 2 + 1

    def made(strides: tuple[int, ...]) -> Tensor:
        return torch.randn(200).as_strided((4, 3, 2), strides)

    strides = [(40, 12, 2), (2, 40, 12), (12, 2, 40), (1, 1, 40), (1, 2, 1), (0, 2, 20), (20, 0, 2), (40, 12, 2)]
    scripted = warmed_up(function, made(strides[0]))
    for each in [*strides, *strides]:
        x = made(each)
        assert_matches(scripted(x), function(x))
    assert torchmdla.stats().fallbacks == {}


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda x: x.t(), id="transposed"),
        pytest.param(lambda x: x[:, ::2], id="strided"),
        pytest.param(lambda x: x[:1].expand(6, 8), id="expanded"),
        pytest.param(lambda x: x.view(2, 3, 2, 4).contiguous(memory_format=torch.channels_last), id="channels last"),
        pytest.param(lambda x: x[1:, 1:], id="offset"),
        pytest.param(lambda x: x.double(), id="float64"),
        pytest.param(lambda x: x.half(), id="float16"),
        pytest.param(lambda x: x.to_sparse(), id="sparse"),
    ],
)
def test_other_inputs_after_the_first(make):
    scripted = warmed_up(chain, torch.randn(6, 8))
    x = make(torch.randn(6, 8))
    for _ in range(2):
        assert_agrees(scripted, chain, x, kind=RuntimeError)


def test_scalar_inputs():
    @torch.jit.script
    def scaled(x: Tensor, factor: float, count: int, sizes: list[int], flag: bool) -> Tensor:
        return torch.tanh(x * factor + count).view(sizes).sum(0, flag)

    for factor, count, sizes, flag in [(0.5, 1, [2, 8], True), (0.25, 1, [2, 8], True), (0.5, 3, [8, 2], False)] * 3:
        x = torch.randn(4, 4)
        expected = torch.tanh(x * factor + count).view(sizes).sum(0, flag)
        assert_matches(scaled(x, factor, count, sizes, flag), expected)
    # A float is a runtime scalar of the compiled code. Integers are part of the specialisation.
    assert torchmdla.stats().specialisations == 2


def _clamped(x: Tensor, limit: float) -> Tensor:
    return x.clamp(-1.0, limit * 0.1) * 2


def _clamped_from(x: Tensor, limit: float) -> Tensor:
    return x.clamp(limit * 0.1, 2) * 2


def _tanh_like(x: Tensor, limit: float) -> Tensor:
    return torch.nn.functional.hardtanh(x, -1.0, limit * 0.1) * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("function", [_clamped, _clamped_from, _tanh_like])
def test_a_known_number_beside_one_of_run_time(function, dtype):
    x = torch.randn(4, 5, dtype=dtype)
    scripted = warmed_up(torch.jit.script(function), x, 3.0)
    for limit in (3.0, 5.0, 0.5):
        assert_matches(scripted(x, limit), function(x, limit))
    assert torchmdla.stats().fallbacks == {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_slope_from_a_size(dtype):
    """Tracing converts the size to a float32 tensor, and this tensor to a number."""

    def leaky(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        doubled = x * 2 + 1
        y.view(-1)[::3].neg_()
        slope = (doubled.size(0) * y.size(1) // 3) * 0.25
        return nn.functional.leaky_relu(x, slope), doubled, torch.dot(y[0], y[0])

    traced = torch.jit.trace(leaky, (torch.randn(7, 5, dtype=dtype), torch.randn(7, 7)), check_trace=False)
    for rows in (7, 7, 6, 9, 11, 30):
        x, y = torch.randn(rows, 5, dtype=dtype), torch.randn(rows, rows)
        assert_matches(traced(x, y.clone()), leaky(x, y))
    assert torchmdla.stats().fallbacks == {} and torchmdla.stats().left_out == {}


def test_an_optional_input_that_is_none():
    @torch.jit.script
    def biased(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return torch.relu(nn.functional.linear(x, weight, bias))

    x, weight, bias = torch.randn(3, 4), torch.randn(5, 4), torch.randn(5)
    for given_bias in [bias, None] * 4:
        assert_matches(biased(x, weight, given_bias), torch.relu(nn.functional.linear(x, weight, given_bias)))


def shared_heads(q: Tensor) -> Tensor:
    return nn.functional.scaled_dot_product_attention(q * 1.5, q[:, :2], q[:, 2:4], enable_gqa=True)


def hidden_row(q: Tensor) -> Tensor:
    mask = torch.zeros(5, 5).index_fill(0, torch.tensor([2]), -math.inf)
    return nn.functional.scaled_dot_product_attention(q, q * 2, q, attn_mask=mask) + 1


def little(q: Tensor) -> Tensor:
    return nn.functional.rms_norm(q * 1e-4, [q.size(-1)]) + 1


@pytest.mark.parametrize("frontend", ["trace", "compile"])
@pytest.mark.parametrize("function", [shared_heads, hidden_row, little])
def test_operators_that_frontends_decompose(function, frontend):
    q = torch.randn(2, 4, 5, 8)
    compiled = torch.jit.trace(function, q) if frontend == "trace" else torch.compile(function, backend="torchmdla")
    with torch.no_grad():
        for _ in range(3):
            assert_matches(compiled(q), function(q))
    assert torchmdla.stats().fallbacks == {}


def test_a_product_of_an_expanded_number():
    scripted = warmed_up(lambda x: torch.matmul((x * 2).expand(1, 1, 1), (x * 2).expand(1, 1, 1)) * 3, torch.ones(()))
    assert scripted(torch.tensor(2.0)).item() == 48
    assert torchmdla.stats().fallbacks == {}


# --- aliasing and mutation -----------------------------------------------------------------------------


def write_through_slice(x: Tensor) -> Tensor:
    y = torch.zeros(4, 4)
    y[1:3] = torch.tanh(x[1:3]) * 2
    y[:, 0] += 1
    return torch.relu(y) + x


def input_written(x: Tensor) -> Tensor:
    x.add_(1)
    y = torch.tanh(x) * 2
    x.mul_(3)
    return y + x


def copy_back(x: Tensor) -> Tensor:
    x.copy_(torch.tanh(x) * 2)
    return torch.relu(x) * 2


_OF_THE_REGISTRY = [getattr(mutation, name) for name in ("select_fill", "write_before", "write_between", "write_after")]


@pytest.mark.parametrize("function", [*_OF_THE_REGISTRY, write_through_slice, input_written, copy_back])
@pytest.mark.parametrize("how", ["trace", "script"])
def test_mutation(function, how):
    x = torch.randn(4, 4)
    scripted = torch.jit.trace(function, (x,), check_trace=False) if how == "trace" else torch.jit.script(function)
    for _ in range(4):
        x = torch.randn(4, 4)
        ours, theirs = x.clone(), x.clone()
        assert_matches(scripted(ours), function(theirs))
        assert_matches(ours, theirs)


def test_outputs_do_not_share_memory_with_inputs_or_each_other():
    def function(x):
        y = torch.tanh(x) * 2
        return y, y + 0, y * 1

    x = torch.randn(4, 4)
    scripted = warmed_up(function, x)
    results = scripted(x)
    assert len({result.data_ptr() for result in (*results, x)}) == 4


def test_views_returned_from_a_program_are_views():
    def function(x):
        y = torch.tanh(x) * 2
        return y, y[1:, ::2], y.expand(2, 4, 4)

    x = torch.randn(4, 4)
    scripted = warmed_up(function, x)
    y, part, repeated = scripted(x)
    y.fill_(9)
    assert (part == 9).all()
    assert (repeated == 9).all()


def test_an_input_used_twice_and_passed_twice():
    def function(x, y):
        return torch.tanh(x + y) * x

    x = torch.randn(4, 4)
    scripted = warmed_up(function, x, x)
    assert_matches(scripted(x, x), function(x, x))


# --- gradients -----------------------------------------------------------------------------------------


def _net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 4))


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam])
def test_training_through_groups(make):
    plain, ours = _net(), _net()
    x, target = torch.randn(32, 8), torch.randn(32, 4)
    scripted = torch.jit.trace(ours, (x,))
    optimisers = [make(net.parameters(), lr=0.05) for net in (plain, ours)]
    for _ in range(8):
        losses = []
        for module, optimiser in zip((plain, scripted), optimisers, strict=True):
            optimiser.zero_grad()
            loss = nn.functional.mse_loss(module(x), target)
            loss.backward()
            optimiser.step()
            losses.append(loss.detach())
        assert_matches(losses[1], losses[0], layers=8)
    assert_matches([mine.grad for mine in ours.parameters()], [other.grad for other in plain.parameters()], layers=64)
    assert torchmdla.stats().specialisations > 0


def test_constants_of_a_group_with_gradients_are_fresh_in_every_call():
    """A group formed without gradients is then called with them: its own executor folds the zeros."""

    scripted = anew(write_through_slice)
    with torch.no_grad():
        for _ in range(4):
            scripted(torch.randn(4, 4))
    for _ in range(4):
        x = torch.randn(4, 4, requires_grad=True)
        result, expected = scripted(x), write_through_slice(x)
        assert_matches(result, expected)
        assert_matches(torch.autograd.grad(result.sum(), x), torch.autograd.grad(expected.sum(), x))


@pytest.fixture
def fuser_of_pytorch():
    """Enable PyTorch's own fuser for the CPU."""
    could = torch._C._jit_can_fuse_on_cpu()
    must = torch._C._jit_get_te_must_use_llvm_cpu()
    torch._C._jit_override_can_fuse_on_cpu(True)
    torch._C._jit_set_te_must_use_llvm_cpu(False)
    yield
    torch._C._jit_set_te_must_use_llvm_cpu(must)
    torch._C._jit_override_can_fuse_on_cpu(could)


def _cell(x: Tensor, state: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    gates = torch.mm(x, weight) + bias
    i, f, c, o = gates.chunk(4, 1)
    state = torch.sigmoid(f) * state + torch.sigmoid(i) * torch.tanh(c)
    return torch.sigmoid(o) * torch.tanh(state), state


def _broadcast(x: Tensor, state: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.tanh(torch.mm(x, weight)[:, :5] * bias[:5]) + state[:, :5]
    return y.sum(0), torch.mm(torch.sigmoid(y).t(), y) * 2


@pytest.mark.parametrize("function", [_cell, _broadcast])
def test_training_beside_pytorchs_own_fuser(fuser_of_pytorch, function):
    """The pass of PyTorch's fuser inserts ops with any number of sizes, to which backward reduces."""
    scripted = torch.jit.script(function)
    inputs = [torch.randn(3, 6), torch.randn(3, 5), torch.randn(6, 20), torch.randn(20)]
    for _ in range(5):
        results, gradients = [], []
        for call in (scripted, function):
            ours = [tensor.clone().requires_grad_() for tensor in inputs]
            results.append(call(*ours))
            gradients.append(torch.autograd.grad([value.sum() for value in results[-1]], ours))
        assert_matches(results[0], results[1])
        assert_matches(gradients[0], gradients[1], layers=4)


# --- modes and switches --------------------------------------------------------------------------------


def test_switched_off_in_the_middle():
    x = torch.randn(4, 4)
    scripted = warmed_up(chain, x)
    torchmdla.reset_stats()
    torchmdla.enable(False)
    assert not torchmdla.is_enabled()
    assert_matches(scripted(x), chain(x))
    assert torchmdla.stats().fallbacks == {"torchmdla is switched off": 1}
    with torchmdla.enabled():
        assert_matches(scripted(x), chain(x))
    torchmdla.enable()
    assert_matches(scripted(x), chain(x))
    assert torchmdla.stats().fallbacks == {"torchmdla is switched off": 1}


def test_enabled_nests_and_restores_the_previous_state():
    off = torchmdla.enabled(False)
    with off:
        assert not torchmdla.is_enabled()
        with torchmdla.enabled(True):
            assert torchmdla.is_enabled()
        with torchmdla.enabled(), off:
            assert not torchmdla.is_enabled()
        assert not torchmdla.is_enabled()
    assert torchmdla.is_enabled()


def test_unknown_device():
    with pytest.raises(ValueError, match=r"no device named 'abacus'; registered devices: .*cpu"):
        torchmdla.enable(device="abacus")


def test_autocast_and_dispatch_modes_fall_back():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Seen(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.ops = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.ops.append(func)
            return func(*args, **(kwargs or {}))

    x = torch.randn(4, 4)
    scripted = warmed_up(chain, x)
    with Seen() as seen:
        scripted(x)
    assert torch.ops.aten.tanh.default in seen.ops

    net = nn.Linear(4, 4)
    traced = torch.jit.trace(net, (x,))
    with torch.no_grad():
        for _ in range(4):
            traced(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert_matches(traced(x), net(x))


def test_profiler_names_groups():
    x = torch.randn(4, 4)
    scripted = warmed_up(chain, x)
    with torch.profiler.profile() as profile:
        scripted(x)
    names = [event.name for event in profile.events()]
    assert any(name.startswith("mdla") and "tanh" in name for name in names)


def test_errors_are_pytorchs():
    def function(x, y):
        return torch.relu(x @ y) + 1

    x = torch.randn(4, 4)
    scripted = warmed_up(function, x, x)
    for inputs in ((torch.randn(3, 5), x), (x, x.to(torch.int64)), (x, x + 1)):
        assert_agrees(scripted, function, *inputs, kind=RuntimeError)


def test_an_error_found_by_compiled_code_is_pytorchs():
    def divide(x, y):
        return torch.div(x + 1, y, rounding_mode="floor") * 2

    x, y = torch.arange(6).view(2, 3), torch.arange(1, 4)
    scripted = warmed_up(divide, x, y)
    assert_matches(scripted(x, y), divide(x, y))
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        scripted(x, torch.zeros_like(y))
    assert torchmdla.stats().fallbacks == {"the compiled code reported an error": 1}


# --- threads -------------------------------------------------------------------------------------------


def test_eight_threads_with_mixed_shapes():
    torchmdla.enable(dynamic=False)
    scripted = warmed_up(chain, torch.randn(4, 4))

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for step in range(30):
            x = torch.randn(1 + (seed + step) % 6, 4, generator=generator)
            assert_matches(scripted(x), chain(x))

    assert in_threads(8, work) == []
    assert torchmdla.stats().specialisations == 6


def test_compiling_in_the_background():
    torchmdla.enable(background=True)
    scripted = torch.jit.trace(chain, (torch.randn(4, 4),), check_trace=False)
    x = torch.randn(4, 4)
    while torchmdla.stats().specialisations == 0:
        assert_matches(scripted(x), chain(x))
    waited = torchmdla.stats().fallbacks
    assert set(waited) <= {"this specialisation is being compiled"}
    assert_matches(scripted(x), chain(x))
    assert torchmdla.stats().fallbacks == waited


def test_intra_op_threads_are_obeyed():
    x = torch.randn(512, 512)

    def function(x):
        return torch.tanh(x @ x).softmax(-1)

    scripted = warmed_up(function, x)
    for count in (1, 2):
        torch.set_num_threads(count)
        result = scripted(x)
        assert torch.equal(result, scripted(x))
        assert_matches(result, function(x), layers=2)


# --- any graph --------------------------------------------------------------------------------------------------------

_STEPS = {
    "tanh": torch.tanh,
    "double": lambda x: x * 2,
    "transpose": lambda x: x.transpose(0, 1),
    "half": lambda x: x[: max(1, x.size(0) // 2)],
    "flat": lambda x: x.reshape(-1, 1),
    "in_place": lambda x: x.clone().add_(1),
    "fill_row": lambda x: x.clone().select(0, 0).fill_(3).unsqueeze(0) + x,
    "unsupported": torch.special.i0e,
    "sum": lambda x: x.sum(0, keepdim=True),
    "mean": lambda x: x.mean(1, keepdim=True) + x,
    "cat": lambda x: torch.cat([x, x * 0.5], dim=0),
    "softmax": lambda x: torch.softmax(x, dim=-1),
}


@settings(max_examples=25)
@given(
    steps=st.lists(st.sampled_from(sorted(_STEPS)), min_size=1, max_size=8),
    returned=st.sets(st.integers(0, 7)),
    rows=st.integers(1, 4),
    columns=st.integers(1, 4),
)
def test_any_chain(steps, returned, rows, columns):
    def function(x: Tensor) -> tuple[Tensor, ...]:
        values = []
        for step in steps:
            x = _STEPS[step](x)
            values.append(x)
        return (x, *(value for i, value in enumerate(values) if i in returned))

    x = torch.randn(rows, columns)
    with torch.no_grad():
        scripted = warmed_up(function, x)
        assert_matches(scripted(x), function(x), layers=len(steps))
    assert torchmdla.stats().fallbacks == {}


# Reductions of a 0-d tensor.
_OF_ONE_NUMBER = {
    "sum": lambda x: x.sum(-1),
    "sum of all": lambda x: x.sum(),
    "prod": lambda x: x.prod(),
    "mean": lambda x: x.mean(-1),
    "amax": lambda x: x.amax(-1),
    "norm": lambda x: torch.linalg.vector_norm(x),
    "var": lambda x: x.var(-1, correction=0),
}


@pytest.mark.parametrize("name", _OF_ONE_NUMBER)
def test_a_reduction_of_one_number_is_computed_once(name):
    """Upstream's fusion computed the reduction again in each loop of its users."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        return torch.where(y > 0, _OF_ONE_NUMBER[name](x) * 3, y) * 2 + 1

    with torch.no_grad():
        scripted = warmed_up(function, torch.randn(()), torch.randn(3, 46))
        for _ in range(3):
            x, y = torch.randn(()), torch.randn(3, 46)
            assert_matches(scripted(x, y), function(x, y))
    assert torchmdla.stats().fallbacks == {}


_OF_CONSTANTS = {
    "multiply": lambda x, n: x * n,
    "add a multiple": lambda x, n: torch.add(x, x, alpha=n),
    "subtract a multiple": lambda x, n: torch.sub(x, x + 1, alpha=n),
    "sign": lambda x, n: torch.sign(x + n),
    "compare": lambda x, n: x + n < n,
    "quotient": lambda x, n: torch.floor_divide(x, torch.full_like(x, n)),
    "tensor": lambda x, n: x + torch.full_like(x, n),
    "convert": lambda x, n: (x + n).bool(),
}


@pytest.mark.parametrize("number", [-1, -3, 2, -0.5], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.int32, torch.bool], ids=str)
def test_operators_of_constant_tensors(dtype, number):
    """The Torch dialect's own folders differ for signs and for integers that meet floats."""

    def function(x: Tensor) -> list[Tensor]:
        tensors = [torch.full((x.size(0), 3), value, dtype=dtype) for value in (0, 1)]
        return [op(value, number) for value in tensors for op in operators]

    operators = []
    for operator in _OF_CONSTANTS.values():
        with contextlib.suppress(RuntimeError):  # eager refuses some of the dtypes
            operator(torch.ones(2, 3, dtype=dtype), number)
            operators.append(operator)
    x = torch.zeros(2, 1)
    traced = torch.jit.trace(lambda x: tuple(function(x)), (x,), check_trace=False)
    with torch.no_grad():
        for _ in range(3):
            assert_matches(list(traced(x)), function(x))
    assert torchmdla.stats().fallbacks == {}


def test_groups_of_a_trained_module_are_found():
    assert len(groups_of(_net().requires_grad_(False), torch.randn(4, 8))) == 1
