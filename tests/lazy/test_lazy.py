"""PyTorch's lazy device with torchmdla's compiler."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
import torch._lazy
from child_process import run_script
from in_threads import in_threads
from lazy_device import X, check
from torch import nn
from torch.nn import functional

import torchmdla
from torchmdla import _C, lazy
from torchmdla.testing.compare import assert_matches

pytestmark = pytest.mark.usefixtures("lazy_device")

EXAMPLES = Path(__file__).parents[2] / "examples"

# --- the documented example ------------------------------------------------------------------------------------------

EXAMPLE = """\
tensor([[0.7616, 0.9640, 0.9951, 0.9993, 0.9999]], device='lazy:0')
JIT Graph:
graph(%p0 : Float(1, 5)):
  %1 : Float(1, 5) = aten::tanh(%p0)
  return (%p0, %1)

MLIR:
func.func @graph(%arg0: !torch.vtensor<[1,5],f32>) -> (!torch.vtensor<[1,5],f32>, !torch.vtensor<[1,5],f32>) {
  %0 = torch.aten.tanh %arg0 : !torch.vtensor<[1,5],f32> -> !torch.vtensor<[1,5],f32>
  return %arg0, %0 : !torch.vtensor<[1,5],f32>, !torch.vtensor<[1,5],f32>
}

Input/Output Alias Mapping:
Output: 0 -> Input param: 0

In Mark Step: true

"""


@pytest.mark.sampled(0)
def test_the_example_prints_the_documented_output():
    assert run_script(EXAMPLES / "lazy.py").stdout == EXAMPLE


def test_upstream_calls_it_initialize_with_an_underscore():
    lazy._initialize()
    assert torch.equal((torch.ones(3).to("lazy") + 1).cpu(), torch.full((3,), 2.0))


def test_verbose_prints_received_computations(capfd):
    lazy.set_verbose()
    x = torch.arange(7.0).to("lazy")
    y = x.exp() + x  # noqa: F841  (alive, so computed)
    torch._lazy.mark_step()
    assert capfd.readouterr().out == (
        "Received 1 computation instances at Compile!\n"
        "Received 1 arguments, and returned 2 results during ExecuteCompile!\n"
    )


def test_a_value_that_is_looked_at_is_in_no_mark_step():
    x = torch.arange(11.0).to("lazy")
    (x.sin() + 0.125).cpu()
    computation = lazy.get_latest_computation()
    assert not computation.in_mark_step
    assert "In Mark Step: false" in computation.debug_string()
    assert computation.aliases == []


def test_types_come_from_the_lazy_ir():
    x = torch.arange(6).reshape(2, 3).to("lazy")
    result = (x.t().float() @ x.to(torch.float32)).argmax(0)
    text = str(lazy.pending_computation(result).graph)
    assert "Long(2, 3)" in text and "Float(3, 3)" in text and "Long(3)" in text


# --- MLIR ------------------------------------------------------------------------------------------------------------


def operations(module):
    """Return the operations of the module's function."""
    return list(module.body.operations[0].regions[0].blocks[0].operations)


def test_get_mlir_of_a_pending_tensor_runs_nothing():
    x, y = torch.randn(2, 3).to("lazy"), torch.randn(3, 4).to("lazy")
    result = torch.relu(x @ y)
    before = _C.lazy_statistics()["runs"]
    module = torchmdla.get_mlir(result)
    assert _C.lazy_statistics()["runs"] == before
    assert [op.operation.name for op in operations(module)] == ["torch.aten.mm", "torch.aten.relu", "func.return"]
    assert str(torchmdla.get_mlir(result, output="linalg")).count("linalg.matmul") == 1


def test_get_mlir_of_several_results():
    x = torch.randn(2, 3).to("lazy")
    shared = x.sin()
    *inner, last = operations(torchmdla.get_mlir((shared + x, shared * x, shared)))
    assert [op.operation.name for op in inner].count("torch.aten.sin") == 1
    assert last.operation.name == "func.return" and len(last.operands) == 3


def test_get_mlir_of_a_first_layers_gradient():
    """The input of a first layer needs no gradient, so its operator has a result that is None."""
    layer = nn.Conv2d(1, 4, 3).to("lazy")
    layer(torch.ones(2, 1, 8, 8).to("lazy")).sum().backward()
    for output in ("torch", "aten"):
        assert "aten.convolution_backward" in str(torchmdla.get_mlir(layer.weight.grad, output=output))
    torchmdla.get_mlir(layer.weight.grad, output="linalg")


def test_get_mlir_of_an_index_with_gaps():
    """The list of indices is a list of optional tensors, which are values."""
    x = torch.randn(3, 5).to("lazy")
    module = torchmdla.get_mlir(x[:, torch.tensor([4, 0]).to("lazy")] + 1)
    assert "!torch.list<optional<vtensor>>" in str(module)


def test_get_mlir_wants_no_inputs():
    with pytest.raises(TypeError, match="take no inputs"):
        torchmdla.get_mlir(torch.ones(2).to("lazy") + 1, torch.ones(2))


def test_pending_computation_wants_lazy_tensors():
    with pytest.raises(TypeError, match="cpu"):
        lazy.pending_computation(torch.ones(2))


def test_backend_text_is_mlir():
    text = torch._C._lazy._get_tensors_backend([torch.ones(3).to("lazy") * 3.5])
    assert "func.func @graph" in text and "torch.aten.mul" in text


# --- running ---------------------------------------------------------------------------------------------------------


def test_weights_are_packed_and_followed():
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).eval()
    on_device = copy.deepcopy(model).to("lazy")
    torchmdla.reset_stats()
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(32, 64)
            assert_matches(on_device(x.to("lazy")).cpu(), model(x), layers=2, strides=False)
        for module in (model, on_device):
            module[0].weight.mul_(2)
            module[2].load_state_dict(nn.Linear(64, 64).state_dict() if module is model else model[2].state_dict())
        for _ in range(4):
            assert_matches(on_device(x.to("lazy")).cpu(), model(x), layers=2, strides=False)
    assert torchmdla.stats().fallbacks == {}


def test_repeated_steps_reuse_executables():
    x = torch.randn(64, 64)
    check(lambda x: torch.tanh(x @ x) + x, x)
    torchmdla.reset_stats()
    check(lambda x: torch.tanh(x @ x) + x, x, calls=3)
    stats = torchmdla.stats()
    assert (stats.specialisations, stats.lazy.graphs, stats.lazy.runs) == (0, 0, 3)


@pytest.mark.parametrize("number", [lambda step: 1.0 / (step + 3), lambda step: 1 - 0.9 ** (step + 1)])
def test_a_number_that_changes_does_not_recompile(number):
    x = torch.randn(16)
    on_device = x.to("lazy")
    for step in range(8):
        if step == 4:
            torchmdla.reset_stats()
        result = torch.celu(on_device * number(step), alpha=number(step)) + torch.exp(on_device)
        expected = torch.celu(x * number(step), alpha=number(step)) + torch.exp(x)
        assert_matches(result.cpu(), expected, strides=False)
    assert torchmdla.stats().specialisations == 0


def test_factory_results_are_compile_time_constants():
    weight = torch.randn(4, 4)

    def program(x, weight):
        places = torch.arange(3, device=x.device)
        return functional.linear(x + functional.embedding(places, weight), weight) + torch.zeros_like(x)

    torchmdla.reset_stats()
    check(program, X, weight)
    stats = torchmdla.stats()
    assert (stats.groups, stats.specialisations, stats.fallbacks) == (1, 1, {})


def test_places_that_vary_recompile_nothing():
    table = torch.randn(20, 4)
    on_device = table.to("lazy")
    for step in range(10):
        if step == 5:
            torchmdla.reset_stats()
        places = torch.arange(step, step + 3), torch.arange(step, step + 3, device="lazy")
        expected, result = (
            torch.tanh(rows[at]) * at[:, None] for rows, at in zip((table, on_device), places, strict=True)
        )
        assert_matches(result.cpu(), expected, strides=False)
    stats = torchmdla.stats()
    assert (stats.specialisations, stats.lazy.graphs, stats.fallbacks) == (0, 0, {})


def test_switched_off_it_interprets():
    with torchmdla.enabled(False):
        torchmdla.reset_stats()
        check(lambda x: torch.exp(x) @ x.t(), X)
        assert torchmdla.stats().specialisations == 0


def test_shared_operands_of_results_are_computed_once():
    x = X.to("lazy")
    hidden = torch.tanh(x @ x.t())
    double, other, apart = hidden * 2, hidden.sum(), x + 5
    torchmdla.reset_stats()
    assert_matches(double.cpu(), torch.tanh(X @ X.t()) * 2, layers=2)
    assert_matches(other.cpu(), torch.tanh(X @ X.t()).sum(), layers=2)
    assert torchmdla.stats().lazy.runs == 1
    assert "tanh" not in str(lazy.pending_computation(hidden + double).graph), "the looked-at is computed again"
    assert "aten::add" in str(lazy.pending_computation(apart).graph), "what shares nothing was computed"


def test_initialising_again_is_fine():
    x = torch.ones(3).to("lazy")
    pending = x + 1
    lazy.initialize()
    lazy.initialize("cpu")
    assert pending.cpu().tolist() == [2, 2, 2]


def test_no_such_device():
    with pytest.raises(ValueError, match="no device named 'nothing'"):
        lazy.initialize("nothing")


def test_mixed_devices_give_pytorchs_error():
    with pytest.raises(RuntimeError, match="lazy"):
        (torch.ones(3).to("lazy") + torch.ones(3)).cpu()


def test_a_mistake_leaves_other_tensors_usable():
    x = torch.ones(3, 4).to("lazy")
    with pytest.raises((RuntimeError, IndexError)):
        (x @ x).cpu()
    assert (x + 1).sum().item() == 24


def test_threads_have_graphs_of_their_own():
    def work(seed):
        x = torch.randn(8, 8, generator=torch.Generator().manual_seed(seed))
        for step in range(20):
            y, z = x.to("lazy"), x
            for _ in range(seed + 1):
                y, z = torch.tanh(y @ y) + step, torch.tanh(z @ z) + step
            assert_matches(y.cpu(), z, layers=8, strides=False)

    assert in_threads(4, work) == []


# --- forward mode ----------------------------------------------------------------------------------------------------

FORWARD_MODE = """
import torch, torch._lazy
from torchmdla import lazy
from torchmdla.testing.compare import assert_matches

lazy.initialize()
x, tangent = torch.linspace(-1, 1, 6).reshape(2, 3), torch.arange(6.0).reshape(2, 3)
function = lambda x: (x.sin() * 2 @ x.t()).exp()
for call in (
    lambda x, tangent: torch.func.jvp(function, (x,), (tangent,)),
    lambda x, tangent: torch.func.jvp(lambda x: function(x.t()), (x.t(),), (tangent.t(),)),
    lambda x, tangent: torch.func.jvp(lambda x: x.view(-1)[1:].clone().mul_(2), (x,), (tangent,)),
    lambda x, tangent: torch.func.jacfwd(lambda x: x.sin().sum(0))(x),
    lambda x, tangent: torch.func.hessian(lambda x: x.sin().prod())(x),
):
    found = torch.utils._pytree.tree_map(lambda result: result.cpu(), call(x.to("lazy"), tangent.to("lazy")))
    assert_matches(found, call(x, tangent), layers=4, strides=False)
print("done")
"""


@pytest.mark.sampled(0)
def test_forward_mode():
    done = run_script("-c", FORWARD_MODE)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
