"""Groups whose inputs require grad, called in grad mode: they run compiled, and gradients are eager's."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from graphs import groups
from in_threads import in_threads
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

import torchmdla
from torchmdla.testing.compare import assert_matches
from torchmdla.testing.programs import operators

# Calls until a group is compiled. PyTorch runs the first one as it runs a model that trains. The second one is
# recorded, and the third one shows which outputs require grad.
CALLS = 3

# Steps until a training step is compiled, in a program that was called without backward before: the backward of a call
# permits the next ones to train. PyTorch runs the first of them, whose backward shows what the next ones need.
STEPS = 3


def made_by_group(result: Tensor) -> bool:
    """Return whether compiled code computed ``result``, in a call that autograd follows."""
    return result.grad_fn is not None and result.grad_fn.name() == "GroupBackward"


def compiled(function: Any, *inputs: Any) -> Any:
    """Trace ``function`` unless it is scripted, and call it until its groups run compiled."""
    scripted = function
    if not isinstance(function, torch.jit.ScriptModule | torch.jit.ScriptFunction):
        scripted = torch.jit.trace(function, inputs, check_trace=False)
    for _ in range(CALLS):
        scripted(*inputs)
    return scripted


def leaves(*tensors: Tensor) -> list[Tensor]:
    return [tensor.detach().clone().requires_grad_(tensor.is_floating_point()) for tensor in tensors]


def convolutions(**options: Any) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(3, 8, 3, **options), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 4, 1))


def norms() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.Hardswish(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        nn.Linear(32, 8), nn.LayerNorm(8),
    ).eval()  # fmt: skip


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.table = nn.Embedding(16, 8)
        self.qkv = nn.Linear(8, 24)
        self.out = nn.Linear(8, 8)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out(torch.softmax(q @ k.transpose(-1, -2), -1) @ v) + x


def image(*sizes: int) -> Tensor:
    return torch.randn(*(sizes or (2, 3, 10, 10)))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "convolutions": (convolutions, image),
    "strides": (lambda: convolutions(stride=2, padding=1), image),
    "norms": (norms, image),
    "attention": (Attention, lambda: torch.randint(16, (2, 5))),
}


def of_parameters(module: nn.Module) -> list[Tensor | None]:
    return [parameter.grad for parameter in module.parameters()]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("make", [torch.jit.trace, torch.jit.script], ids=["trace", "script"])
def test_models_run_compiled_and_their_gradients_are_eagers(name: str, make: Any) -> None:
    build, inputs = MODELS[name]
    module, x = build(), inputs()
    twin = copy.deepcopy(module)
    scripted = compiled(torch.jit.script(twin) if make is torch.jit.script else twin, x)
    assert torchmdla.stats().specialisations == 1
    assert not torchmdla.stats().fallbacks
    (argument,), (other,) = leaves(x), leaves(x)
    result, expected = scripted(argument), module(other)
    if not argument.requires_grad:
        assert made_by_group(result)
    assert_matches(result, expected, layers=4)
    result.square().mean().backward()
    expected.square().mean().backward()
    assert_matches([argument.grad, *of_parameters(twin)], [other.grad, *of_parameters(module)], layers=16)


def _differentiable() -> list[Any]:
    """Return the first program of each operator."""
    programs = [program for program in operators.PROGRAMS if any(t.is_floating_point() for t in program.inputs)]
    return list({program.name.partition(":")[0]: program for program in reversed(programs)}.values())


def gradients(function: Any, inputs: tuple[Tensor, ...], calls: int) -> list[Any]:
    """Return which results of the last of ``calls`` calls require grad, and gradients through all of them."""
    for _ in range(calls):
        arguments = leaves(*inputs)
        outputs = [
            value for value in torch.utils._pytree.tree_leaves(function(*arguments)) if isinstance(value, Tensor)
        ]
    required = [value for value in outputs if value.requires_grad]
    if not required:
        return [[value.requires_grad for value in outputs], []]
    wanted = [value for value in arguments if value.requires_grad]
    torch.manual_seed(5)
    seeds = [torch.randn_like(value) for value in required]
    grads = torch.autograd.grad(required, wanted, seeds, allow_unused=True)
    return [[value.requires_grad for value in outputs], list(grads)]


@pytest.mark.parametrize("program", _differentiable(), ids=lambda program: program.name)
@pytest.mark.sampled(15)
def test_operators(program: Any) -> None:
    inputs = program.inputs
    function = program.make()
    try:
        expected = gradients(function, inputs, 1)
        scripted = torch.jit.trace(function, inputs, check_trace=False)
    except (RuntimeError, NotImplementedError):
        pytest.skip("eager PyTorch or tracing refuses")
    # Strides differ: a group adds up the gradients of views of one base, where eager expands a sum.
    assert_matches(gradients(scripted, inputs, CALLS + 1), expected, layers=16, strides=False)


def test_outputs_require_grad_as_eagers_do() -> None:
    def function(x: Tensor, w: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        h = torch.tanh(x * w)
        return h, h.argmax(1), torch.exp(y * 2), h.detach() * 3 + y, (h > 0).float() * 2, h.detach().exp() * w, h.sign()

    for flags in itertools.product((False, True), repeat=3):
        inputs = [torch.randn(3, 4).requires_grad_(flag) for flag in flags]
        scripted = compiled(function, *inputs)
        results, expected = scripted(*inputs), function(*inputs)
        assert [value.requires_grad for value in results] == [value.requires_grad for value in expected]
        assert [value.is_leaf for value in results] == [value.is_leaf for value in expected]
        assert_matches(results, expected)
        assert any(flags) == any(made_by_group(value) for value in results)


def test_inputs_that_require_grad_change_from_call_to_call() -> None:
    module = convolutions()
    scripted = compiled(copy.deepcopy(module), image())
    for frozen in ((), (0,), (0, 1, 2, 3), (5,), ()):
        for each in (module, scripted):
            for index, parameter in enumerate(each.parameters()):
                parameter.requires_grad_(index not in frozen).grad = None
        x = image()
        for _ in range(CALLS):
            result = scripted(x)
        assert made_by_group(result)
        result.sum().backward()
        module(x).sum().backward()
        assert_matches(of_parameters(scripted), of_parameters(module), layers=4)
        for _ in range(CALLS):
            scripted(x)


def test_only_requested_gradients_are_computed() -> None:
    """The weight's gradient alone needs exactly one convolution backward, with regard to the weight."""
    module = convolutions()
    scripted, (x,) = compiled(module, image()), leaves(image())
    for _ in range(CALLS):
        result = scripted(x)
    wanted = [x, module[3].bias]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        gradients_of_bias = torch.autograd.grad(result.sum(), wanted[1:], retain_graph=True)
    assert sum(event.count for event in profile.key_averages() if event.key == "aten::convolution_backward") == 1
    expected = torch.autograd.grad(module(x).sum(), wanted)
    assert_matches([*torch.autograd.grad(result.sum(), wanted[:1]), *gradients_of_bias], list(expected), layers=4)


def test_higher_derivatives() -> None:
    module = nn.Sequential(nn.Conv1d(2, 3, 3), nn.Tanh(), nn.Conv1d(3, 1, 2)).double()
    scripted, (x,) = compiled(module, image(1, 2, 8).double()), leaves(image(1, 2, 8).double())
    for _ in range(CALLS):
        scripted(x)
    derivatives = []
    for each in (scripted, module):
        result = each(x)
        assert made_by_group(result) == (each is scripted)
        (first,) = torch.autograd.grad(result.square().sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), x, create_graph=True)
        third = torch.autograd.grad(second.sum(), [x, *module.parameters()], allow_unused=True)
        derivatives.append([first, second, third])
    assert_matches(*derivatives, layers=16)
    for _ in range(20):
        scripted(x)
    assert made_by_group(scripted(x))
    assert torch.autograd.gradgradcheck(scripted, (x,))


def test_an_input_that_depends_on_another() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return torch.tanh(x * y) @ y

    x, w = leaves(torch.randn(3, 3), torch.randn(3, 3))
    scripted = compiled(function, x, w)
    for create_graph in (False, True):
        for _ in range(2 * CALLS):
            result = scripted(x, x * w)
        assert made_by_group(result)
        grads = torch.autograd.grad(result.sum(), (x, w), create_graph=create_graph)
        expected = torch.autograd.grad(function(x, x * w).sum(), (x, w), create_graph=create_graph)
        assert_matches(grads, expected, layers=4)
        if create_graph:
            again = [torch.autograd.grad(first.square().sum(), (x, w)) for first, _ in (grads, expected)]
            assert_matches(*again, layers=16)


def test_several_backwards() -> None:
    module = convolutions()
    scripted, x = compiled(module, image()), image()
    result = scripted(x).sum()
    for _ in range(3):
        result.backward(retain_graph=True)
    grads = of_parameters(module)
    module.zero_grad()
    expected = module(x).sum()
    for _ in range(3):
        expected.backward(retain_graph=True)
    assert_matches(grads, of_parameters(module), layers=4)
    result.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        result.backward()


@pytest.mark.parametrize("change", ["weight", "input"])
def test_inputs_changed_in_place_raise_eagers_error(change: str) -> None:
    module = convolutions()
    scripted, (leaf,) = compiled(module, image()), leaves(image())
    for each in (module, scripted):
        for _ in range(CALLS):
            x = leaf * 1
            result = each(x)
        with torch.no_grad():
            (module[2].weight if change == "weight" else x).add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            result.sum().backward()


def test_hooks() -> None:
    class Outer(nn.Module):
        def __init__(self, inner: Any) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x * 2).tanh()

    module, x = convolutions(), image()
    seen: list[list[Any]] = []
    for inner in (module, compiled(module, x)):
        outer, (leaf,), calls = Outer(inner), leaves(x), []
        handles = [
            outer.register_full_backward_hook(lambda _, inputs, outputs, calls=calls: calls.append((inputs, outputs))),
            next(module.parameters()).register_hook(lambda grad, calls=calls: calls.append(grad) or grad * 2),
            next(module.parameters()).register_post_accumulate_grad_hook(lambda p, calls=calls: calls.append(p.grad)),
        ]
        for _ in range(CALLS):
            inner(leaf)
        result = inner(leaf)
        result.register_hook(lambda grad, calls=calls: calls.append(grad) or grad * 3)
        result.retain_grad()
        module.zero_grad()
        (result.square().sum() + outer(leaf).sum()).backward()
        seen.append([*calls, result.grad, leaf.grad, *of_parameters(module)])
        for handle in handles:
            handle.remove()
    assert_matches(seen[1], seen[0], layers=16)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoints(use_reentrant: bool) -> None:
    module, x = convolutions(), image()
    scripted, grads = compiled(module, x), []
    for each in (module, scripted):
        for _ in range(2 * CALLS):
            module.zero_grad()
            (leaf,) = leaves(x)
            # Early stop raises an exception, which PyTorch's interpreter of scripts does not pass on.
            with set_checkpoint_early_stop(False):
                checkpoint(each, leaf, use_reentrant=use_reentrant).square().sum().backward()
        grads.append([leaf.grad, *of_parameters(module)])
    assert_matches(grads[1], grads[0], layers=16)


def test_hooks_on_saved_tensors_see_eagers() -> None:
    module, x = convolutions(), image()
    scripted, seen = compiled(module, x), []
    for each in (module, scripted):
        packed: list[tuple[int, ...]] = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t, packed=packed: packed.append(t.shape) or t, lambda t: t
        ):
            each(x)
        seen.append(packed)
    assert seen[0] == seen[1]


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad])
def test_forward_mode(mode: Any) -> None:
    module, x, direction = convolutions(), image(), image()
    scripted, duals = compiled(module, x), []
    with torch.no_grad():
        for _ in range(CALLS):
            scripted(x)
    for each in (module, scripted):
        with forward_ad.dual_level(), mode():
            duals.append(forward_ad.unpack_dual(each(forward_ad.make_dual(x, direction))))
    assert_matches(duals[1].tangent, duals[0].tangent, layers=4)
    assert_matches(duals[1].primal.detach(), duals[0].primal.detach(), layers=4)


def test_tensors_of_inference_mode() -> None:
    module = convolutions()
    scripted = compiled(module, image())
    with torch.inference_mode():
        x = image()
        assert scripted(x).is_inference()
    for each in (module, scripted):
        with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
            each(x)


def test_anomaly_mode() -> None:
    module, x = convolutions(), image()
    scripted = compiled(module, x)
    with torch.autograd.detect_anomaly(check_nan=True):
        result = scripted(x)
        result.sum().backward()
    assert made_by_group(result)
    with torch.autograd.detect_anomaly(check_nan=True):
        for _ in range(CALLS):
            result = scripted(x)
        with pytest.raises(RuntimeError, match="returned nan"):
            result.backward(torch.full_like(result, torch.nan))


def test_autocast_around_backward() -> None:
    module, x = convolutions(), image()
    result = compiled(module, x)(x)
    with torch.autocast("cpu"):
        grads = torch.autograd.grad(result.sum(), list(module.parameters()))
    assert_matches(grads, torch.autograd.grad(module(x).sum(), list(module.parameters())), layers=4)


def test_batches_of_gradients() -> None:
    module, x = nn.Sequential(nn.Conv1d(2, 3, 3), nn.Tanh()), image(1, 2, 6)
    scripted, seeds = compiled(module, x), torch.randn(5, 1, 3, 4)
    batches = [
        torch.autograd.grad(each(x), list(module.parameters()), seeds, is_grads_batched=True)
        for each in (scripted, module)
    ]
    assert_matches(*batches, layers=4)


def test_threads_call_and_go_back_at_once() -> None:
    module, x = convolutions(), image()
    scripted = compiled(module, x)
    expected = torch.autograd.grad(module(x).sum(), list(module.parameters()))
    shared = scripted(x).sum()

    def work(number: int) -> None:
        for call in range(10):
            result = shared if call % 2 else scripted(x).sum()
            grads = torch.autograd.grad(result, list(module.parameters()), retain_graph=True)
            assert_matches(grads, expected, layers=4)

    assert not in_threads(4, work)


def test_gradients_add_up_over_calls() -> None:
    """Run many calls before the first backward, as in recurrences and in accumulation over batches."""
    module = nn.Sequential(nn.Conv1d(2, 2, 3, padding=1), nn.Tanh())
    x, grads = image(1, 2, 6), []
    scripted = torch.jit.trace(module, x, check_trace=False)
    for each in (module, scripted):
        for _ in range(3):
            module.zero_grad()
            state, total = x, torch.zeros(())
            for _ in range(8):
                state = each(state)
                total = total + state.sum()
            total.backward()
            grads.append(of_parameters(module))
    assert_matches(grads[3:], grads[:3], layers=16)


def test_a_group_runs_training_steps_until_backwards_stop() -> None:
    module, x = convolutions(), image()
    scripted = compiled(module, x)

    def is_step(trains: bool) -> bool:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            result = scripted(x)
            if trains:
                result.sum().backward()
        return any(event.key == "mdla::train" for event in profile.key_averages())

    assert not is_step(False)
    for _ in range(STEPS):
        scripted(x).sum().backward()
    assert is_step(True)
    for _ in range(20):
        scripted(x)
    assert not is_step(False)


def test_differentiable_graphs_have_groups_forward_and_backward() -> None:
    module = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Sigmoid())
    scripted, x = torch.jit.trace(module, torch.randn(4, 8), check_trace=False), torch.randn(4, 8)
    for _ in range(5):
        torchmdla.reset_stats()
        scripted(x).sum().backward()
    statistics = torchmdla.stats()
    assert statistics.specialisations == 0
    assert not statistics.fallbacks
    torchmdla.reset_stats()
    again = torch.jit.trace(module, x, check_trace=False)
    for _ in range(5):
        again(x).sum().backward()
    assert torchmdla.stats().specialisations == 2, "one forward, one backward; none of the whole"


def test_tracing_compiles_nothing() -> None:
    scripted = torch.jit.trace(convolutions(), image())
    assert torchmdla.stats().specialisations == 0
    with torch.no_grad():
        scripted(image())
    assert torchmdla.stats().specialisations == 1


def test_one_plan_for_calls_with_and_without_gradients() -> None:
    module, x = convolutions(), image()
    scripted = compiled(module, x)
    with torch.no_grad():
        assert not scripted(x).requires_grad
    assert len(groups(torchmdla.graph_for(scripted, x))) == 1
    assert made_by_group(scripted(x))
    assert torchmdla.stats().specialisations == 1


def test_profiling_is_left_out_only_while_switched_on() -> None:
    def runs() -> int:
        before = torch._C._jit_set_num_profiled_runs(1)
        torch._C._jit_set_num_profiled_runs(before)
        return before

    assert runs() == 0
    with torchmdla.enabled(False):
        assert runs() == 1
    assert runs() == 0


def test_gradients_of_a_chunk_of_which_one_part_is_used_have_its_sizes() -> None:
    """PyTorch's executor does not track the unused part."""

    def gate(x: Tensor) -> Tensor:
        first, _ = x.chunk(2, 1)
        return (first * 2 + first.sigmoid()).tanh() * first

    x = torch.randn(4, 8)
    traced = torch.jit.trace(gate, (x,), check_trace=False)
    for _ in range(CALLS + 2):
        (wanted,), (ours,) = leaves(x), leaves(x)
        gate(wanted).sum().backward()
        traced(ours).sum().backward()
        assert_matches(ours.grad, wanted.grad)


def test_a_backward_graph_is_planned_once() -> None:
    """The derivative of a scripted function is planned once.

    Executors create another plan for each pattern of missing gradients, as deep as their strategy allows. Each plan
    would have groups.
    """

    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.tanh(x * w) * w
        return y, torch.sigmoid(y * x) + w

    scripted = torch.jit.script(function)
    x, w = (torch.randn(3, 4, requires_grad=True) for _ in range(2))
    for _ in range(6):
        first, second = scripted(x, w)
        torch.autograd.grad(first.sum() + second.sum(), [x, w])
    # One group each for the function, its differentiable graph, and the derivative.
    assert torchmdla.stats().groups <= 3
