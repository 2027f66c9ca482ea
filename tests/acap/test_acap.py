"""The acap device: a PyTorch device that computes nothing until a value is read."""

from __future__ import annotations

import copy
import io
import pickle
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from child_process import run_script
from torch import Tensor, nn

import torchmdla
from torchmdla.testing.compare import assert_matches

_EXAMPLES = Path(__file__).parents[2] / "examples"


# --- the example -------------------------------------------------------------------------------------------------

_FIRST = """\
module {
  func.func @graph(%arg0: tensor<1x2x3xf32>, %arg1: tensor<1x2x3xf32>) -> tensor<1x2x3xf32> {
    %0 = "aten.constant"() {type = "i32", value = 1 : i32} : () -> i32
    %1 = "aten.add"(%arg0, %arg1, %0) : (tensor<1x2x3xf32>, tensor<1x2x3xf32>, i32) -> tensor<1x2x3xf32>
    return %1 : tensor<1x2x3xf32>
  }
}
"""

_SECOND = """\
module {
  func.func @graph(%arg0: tensor<1x2x3xf32>, %arg1: tensor<1x2x3xf32>, %arg2: tensor<1x2x3xf32>, %arg3: tensor<1x2x3xf32>) -> tensor<1x2x3xf32> {
    %0 = "aten.constant"() {type = "i32", value = 1 : i32} : () -> i32
    %1 = "aten.add"(%arg0, %arg1, %0) : (tensor<1x2x3xf32>, tensor<1x2x3xf32>, i32) -> tensor<1x2x3xf32>
    %2 = "aten.constant"() {type = "i32", value = 1 : i32} : () -> i32
    %3 = "aten.add"(%1, %arg2, %2) : (tensor<1x2x3xf32>, tensor<1x2x3xf32>, i32) -> tensor<1x2x3xf32>
    %4 = "aten.mul"(%3, %arg3) : (tensor<1x2x3xf32>, tensor<1x2x3xf32>) -> tensor<1x2x3xf32>
    return %4 : tensor<1x2x3xf32>
  }
}
"""  # noqa: E501

_CANONICAL = """\
module {
  func.func @graph(%arg0: tensor<1x2x3xf32>) -> tensor<1x2x3xf32> {
    %0 = "aten.constant"() {type = "i32", value = 1 : i32} : () -> i32
    %1 = "aten.add"(%arg0, %arg0, %0) {layer_name = "L0-add-0"} : (tensor<1x2x3xf32>, tensor<1x2x3xf32>, i32) -> tensor<1x2x3xf32>
    return %1 : tensor<1x2x3xf32>
  }
}
"""  # noqa: E501


def test_example(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(_EXAMPLES / "acap.py"))
    torch.manual_seed(0)
    result = (torch.ones(1, 2, 3) * 2 + torch.randn(1, 2, 3)) * torch.randn(1, 2, 3)
    shown = repr(result)[:-1] + ", device='acap:0')\n"
    assert capsys.readouterr().out == f"{_FIRST}\n{_SECOND}\n{shown}{_CANONICAL}\n"


def test_looking_at_the_graph_computes_nothing(dev: torch.device) -> None:
    r = torch.ones(3, device=dev) * 2
    for output in (None, "torch", "aten", "linalg"):
        torchmdla.get_mlir(r, output=output)
    assert torchmdla.acap.is_pending(r)
    assert r.tolist() == [2, 2, 2]
    assert not torchmdla.acap.is_pending(r)


def test_a_first_layers_gradient(dev: torch.device) -> None:
    """The input of a first layer needs no gradient, so its operator has a result that is None."""
    layer = nn.Conv2d(1, 4, 3).to(dev)
    layer(torch.ones(2, 1, 8, 8).to(dev)).sum().backward()
    assert layer.weight.grad is not None
    for output in (None, "torch", "aten"):
        assert "aten.convolution_backward" in str(torchmdla.get_mlir(layer.weight.grad, output=output))
    torchmdla.get_mlir(layer.weight.grad, output="linalg")


@pytest.mark.parametrize("output", [None, "torch", "aten", "linalg"])
def test_several_results(dev: torch.device, output: Any) -> None:
    x = torch.ones(3, device=dev)
    shared = x.sin()
    for results in ([shared + x, shared * x], (shared, x, shared)):
        module = torchmdla.get_mlir(results, output=output)
        returned = list(module.body.operations[0].regions[0].blocks[0].operations)[-1]
        assert len(returned.operands) == len(results)
        assert str(module).count("aten.sin") == (output != "linalg")
    assert torchmdla.acap.is_pending(shared)


def test_results_are_all_of_the_device(dev: torch.device) -> None:
    for tensors in ([], [torch.ones(3, device=dev), torch.ones(3)]):
        with pytest.raises(TypeError, match="get_mlir takes tensors of the acap device"):
            torchmdla.get_mlir(tensors)


def test_several_results_are_given_as_a_list(dev: torch.device) -> None:
    x = torch.ones(3, device=dev)
    with pytest.raises(TypeError, match=r"get_mlir\(\[x, y\]\)"):
        torchmdla.get_mlir(x + 1, x * 2)


def test_canonical_is_for_tensors_of_the_device() -> None:
    with pytest.raises(TypeError, match="acap"):
        torchmdla.get_mlir(nn.ReLU(), torch.ones(2), canonical=True)


# --- a device ----------------------------------------------------------------------------------------------------

_DRAWS: dict[str, Callable[[Any], Tensor]] = {
    "randn": lambda device: torch.randn(5, device=device),
    "rand": lambda device: torch.rand(3, 4, device=device),
    "randint": lambda device: torch.randint(0, 9, (4,), device=device),
    "randperm": lambda device: torch.randperm(6, device=device),
    "bernoulli": lambda device: torch.bernoulli(torch.full((5,), 0.5, device=device)),
    "normal": lambda device: torch.normal(torch.zeros(4, device=device), torch.ones(4, device=device)),
    "randn_like": lambda device: torch.randn_like(torch.ones(3, device=device) * 2),
    "uniform_": lambda device: torch.empty(3, device=device).uniform_(-1, 1),
    "multinomial": lambda device: torch.multinomial(torch.ones(5, device=device), 3),
    "dropout": lambda device: nn.functional.dropout(torch.ones(9, device=device), 0.3),
}


@pytest.mark.parametrize("draw", _DRAWS)
def test_random_numbers_are_the_cpus(dev: torch.device, draw: str) -> None:
    torch.manual_seed(5)
    wanted = _DRAWS[draw]("cpu"), torch.rand(2)
    torch.manual_seed(5)
    result = _DRAWS[draw](dev)
    assert result.device == dev
    assert_matches((result.cpu(), torch.rand(2)), wanted)


def test_generator(dev: torch.device) -> None:
    generator = torch.Generator(device=dev).manual_seed(3)
    state = generator.get_state()
    first = torch.rand(3, device=dev, generator=generator).cpu()
    assert torch.equal(first, torch.rand(3, generator=torch.Generator().manual_seed(3)))
    generator.set_state(state)
    assert torch.equal(first, torch.rand(3, device=dev, generator=generator).cpu())


_FACTORIES: dict[str, Callable[..., Tensor]] = {
    "ones": lambda **options: torch.ones(3, **options),
    "zeros": lambda **options: torch.zeros(2, 0, dtype=torch.int64, **options),
    "arange": lambda **options: torch.arange(5, **options),
    "eye": lambda **options: torch.eye(3, 2, **options),
    "linspace": lambda **options: torch.linspace(0, 1, 4, **options),
    "logspace": lambda **options: torch.logspace(0, 2, 3, **options),
    "tensor": lambda **options: torch.tensor([1.0, 2.0], **options),
    "as_tensor": lambda **options: torch.as_tensor([[1, 2]], **options),
    "full": lambda **options: torch.full((2,), 3, **options),
    "complex": lambda **options: torch.ones(2, dtype=torch.complex64, **options),
    "tril_indices": lambda **options: torch.tril_indices(3, 3, **options),
    "hann_window": lambda **options: torch.hann_window(5, **options),
    "new_ones": lambda **options: torch.eye(3, **options).new_ones(2),
    "full_like": lambda **options: torch.full_like(torch.ones(2, 3, **options).t(), 7),
    "parameter": lambda **options: nn.Linear(3, 2, **options).weight.detach(),
}


@pytest.mark.parametrize("make", _FACTORIES)
@pytest.mark.parametrize("way", ["device=", "with", "set_default_device"])
def test_factories(dev: torch.device, make: str, way: str) -> None:
    torch.manual_seed(0)
    expected = _FACTORIES[make]()
    torch.manual_seed(0)
    if way == "device=":
        result = _FACTORIES[make](device=dev)
    elif way == "with":
        with dev:
            result = _FACTORIES[make]()
    else:
        torch.set_default_device(dev)
        try:
            result = _FACTORIES[make]()
        finally:
            torch.set_default_device(None)
    assert result.device == dev
    assert result.stride() == expected.stride()
    assert_matches(result.cpu(), expected.clone())


_MOVES: dict[str, Callable[[Tensor], Tensor]] = {
    "device": lambda x: x.to(torchmdla.acap_device()),
    "name": lambda x: x.to("acap"),
    "dtype": lambda x: x.to("acap:0", torch.float64),
    "copy": lambda x: x.to("acap").to("acap", copy=True),
    "method": lambda x: x.acap(),  # type: ignore[attr-defined]
    "like another": lambda x: x.to(torch.ones(1, dtype=torch.float64, device="acap")),
    "copy_": lambda x: torch.empty_like(x, device="acap").copy_(x),
}


@pytest.mark.parametrize("move", _MOVES)
def test_moving(dev: torch.device, move: str) -> None:
    x = torch.arange(12.0).view(3, 4).t()
    result = _MOVES[move](x)
    assert result.device == dev
    assert result.stride() == x.stride()
    assert_matches(result.cpu(), x.clone().to(result.dtype))
    assert result.to(dev) is result
    with pytest.raises(TypeError, match=r"Use Tensor.cpu\(\) to copy the tensor to host memory first"):
        result.numpy()


@pytest.mark.parametrize("make", [lambda: torch.ones(2, device="acap:1"), lambda: torch.ones(2).to("acap:3")])
def test_there_is_one_device(dev: torch.device, make: Callable[[], Tensor]) -> None:
    with pytest.raises(RuntimeError, match="there is one acap device, acap:0"):
        make()


def test_accelerator(dev: torch.device) -> None:
    assert torch.accelerator.current_accelerator() == torch.device("acap")
    x = torch.ones(2, device=dev) + 1
    torch.accelerator.synchronize()
    assert not torchmdla.acap.is_pending(x)


def test_save_and_load(dev: torch.device) -> None:
    x = torch.randn(4, 6, device=dev)
    saved = {"model": nn.Linear(3, 4).to(dev).state_dict(), "x": x, "view": x[1:3]}
    file = io.BytesIO()
    torch.save(saved, file)
    file.seek(0)
    loaded = torch.load(file)
    assert loaded["x"].device == dev
    assert_matches(loaded["model"]["weight"].cpu(), saved["model"]["weight"].cpu())
    loaded["x"].add_(1)
    assert torch.equal(loaded["view"].cpu(), x[1:3].cpu() + 1)
    file.seek(0)
    assert torch.load(file, map_location="cpu")["x"].device.type == "cpu"
    file = io.BytesIO()
    torch.save({"x": torch.ones(2)}, file)
    file.seek(0)
    assert torch.load(file, map_location=dev)["x"].device == dev


def test_pickle(dev: torch.device) -> None:
    x = torch.arange(6.0).to(dev) * 2
    first, part = pickle.loads(pickle.dumps((x, x[2:4])))
    assert first.device == dev
    assert first.tolist() == [0, 2, 4, 6, 8, 10]
    assert part.tolist() == [4, 6]
    file = io.BytesIO()
    torch.save({"x": x, "part": x[2:4]}, file, _use_new_zipfile_serialization=False)
    file.seek(0)
    loaded = torch.load(file)
    loaded["x"].mul_(2)
    assert loaded["part"].tolist() == [8, 12]


_LOADING = """
import sys, torch
IMPORT
try:
    torch.load(sys.argv[1])
except RuntimeError as error:
    assert "acap:0" in str(error)
else:
    raise AssertionError("the device is not there")
loaded = torch.load(sys.argv[1], map_location="cpu")
assert loaded["x"].device.type == "cpu" and loaded["x"].tolist() == [2, 4]
torch.nn.Linear(3, 2).load_state_dict(loaded["model"])
"""


@pytest.mark.parametrize("imported", ["", "import torchmdla"])
@pytest.mark.sampled(1)
def test_loading_where_the_device_is_not_turned_on(dev: torch.device, tmp_path: Path, imported: str) -> None:
    saved = {"model": nn.Linear(3, 2).to(dev).state_dict(), "x": (torch.arange(3.0).to(dev) * 2)[1:]}
    torch.save(saved, tmp_path / "saved.pt")
    ended = run_script("-c", _LOADING.replace("IMPORT", imported), tmp_path / "saved.pt")
    assert (ended.returncode, ended.stderr) == (0, "")


def test_deepcopy(dev: torch.device) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU()).to(dev)
    twin = copy.deepcopy(model)
    x = torch.randn(2, 3, device=dev)
    assert torch.equal(model(x).cpu(), twin(x).cpu())
    twin[0].weight.data.zero_()
    assert not torch.equal(model(x).cpu(), twin(x).cpu())
    pending = torch.ones(3, device=dev) + 1
    copy.deepcopy(pending).zero_()
    assert pending.tolist() == [2, 2, 2]


def test_state_dict(dev: torch.device) -> None:
    there, here = nn.BatchNorm1d(3).to(dev), nn.BatchNorm1d(3)
    here(torch.randn(4, 3))
    there.load_state_dict(here.state_dict())
    assert torch.equal(there.running_mean.cpu(), here.running_mean)
    there(torch.randn(4, 3, device=dev))
    here.load_state_dict(there.state_dict())
    assert torch.equal(there.running_mean.cpu(), here.running_mean)


def test_moving_a_module_keeps_its_parameters(dev: torch.device) -> None:
    model = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
    model[1].weight = model[0].weight
    updating = torch.optim.SGD(model.parameters(), 0.1)
    model.to(dev)
    assert model[1].weight is model[0].weight
    model[0](torch.ones(1, 3, device=dev)).sum().backward()
    before = model[0].weight.detach().cpu()
    updating.step()
    assert not torch.equal(model[0].weight.detach().cpu(), before)
    gradient = model[0].weight.grad
    assert model.cpu()[1].weight is model[0].weight
    assert model[0].weight.grad is gradient
    assert gradient.tolist() == [[1] * 3] * 3


def test_swapped_parameters_keep_their_gradients(dev: torch.device) -> None:
    model = nn.Linear(2, 2)
    model(torch.ones(1, 2)).sum().backward()
    parameter, gradient = model.weight, model.weight.grad
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        model.to(dev)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    assert model.weight is parameter and parameter.grad is gradient
    assert gradient.device == dev
    assert gradient.tolist() == [[1, 1], [1, 1]]


def test_a_module_without_memory_gets_new_parameters(dev: torch.device) -> None:
    model = nn.Linear(2, 2, device="meta")
    before = model.weight
    assert model.to_empty(device=dev).weight is not before
    assert model.weight.device == dev


def test_printing(dev: torch.device) -> None:
    x = torch.arange(4.0).to(dev)
    assert repr(x * 2) == "tensor([0., 2., 4., 6.], device='acap:0')"
    for shown in (torch.tensor(1.5), torch.ones(0, 3), torch.arange(2000), torch.tensor([True]), torch.tensor([1j])):
        assert repr(shown.to(dev)).replace(", device='acap:0'", "") == repr(shown)
    assert f"{(x * 2).sum():.2f}" == "12.00"
    assert repr(nn.Parameter(x)).endswith("tensor([0., 1., 2., 3.], device='acap:0', requires_grad=True)")


def test_autocast(dev: torch.device) -> None:
    model = nn.Linear(3, 2).to(dev)
    with torch.autocast("acap", dtype=torch.bfloat16):
        y = model(torch.randn(4, 3, device=dev))
        assert y.dtype == torch.bfloat16
        assert y.softmax(-1).dtype == torch.float32
    y.sum().backward()
    assert model.weight.grad.dtype == torch.float32


def test_gradient_scaler(dev: torch.device) -> None:
    scaler, parameter = torch.amp.GradScaler("acap"), nn.Parameter(torch.ones(2, device=dev))
    updating = torch.optim.SGD([parameter], 0.1)
    scaler.scale((parameter * 2).sum()).backward()
    scaler.step(updating)
    scaler.update()
    torch.testing.assert_close(parameter.detach().cpu(), torch.full((2,), 0.8))


def test_loader_with_pinned_memory(dev: torch.device) -> None:
    data = torch.utils.data.TensorDataset(torch.arange(8.0))
    loader = torch.utils.data.DataLoader(data, 4, pin_memory=True)
    assert [x.to(dev, non_blocking=True).sum().item() for (x,) in loader] == [6, 22]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "torchmdla"])
def test_torch_compile(dev: torch.device, backend: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: (x * 2).relu() + 1, backend=backend)
    x = torch.randn(3, device=dev)
    assert_matches(compiled(x).cpu(), (x.cpu() * 2).relu() + 1)


@pytest.mark.parametrize("backend", ["aot_eager", "torchmdla"])
def test_training_under_torch_compile(dev: torch.device, backend: str) -> None:
    def trained(device: Any, compiled: bool) -> list[float]:
        torch.manual_seed(0)
        torch._dynamo.reset()
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).to(device)
        updating = torch.optim.SGD(model.parameters(), 0.1)
        forward = torch.compile(model, backend=backend) if compiled else model
        x, losses = torch.linspace(-1, 1, 12).view(4, 3).to(device), []
        for _ in range(4):
            loss = forward(x).square().mean()
            updating.zero_grad()
            loss.backward()
            updating.step()
            losses.append(loss.item())
        return losses

    assert trained(dev, compiled=True) == pytest.approx(trained("cpu", compiled=False), abs=1e-6)
