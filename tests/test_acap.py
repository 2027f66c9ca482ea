"""The acap device: everything as on the CPU, and nothing computed before someone looks."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import runpy
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchmdla
from torchmdla import _C
from torchmdla.testing.compare import assert_matches

_EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(scope="module")
def dev() -> torch.device:
    return torchmdla.acap_device()


# --- the example -------------------------------------------------------------------------------------------------

_FIRST = """\
module {
  func.func @graph(%arg0: tensor<1x2x3xf32>, %arg1: tensor<1x2x3xf32>) -> tensor<1x2x3xf32> {
    %0 = "aten.constant"() {value = 1 : i32} : () -> i32
    %1 = "aten.add"(%arg0, %arg1, %0) : (tensor<1x2x3xf32>, tensor<1x2x3xf32>, i32) -> tensor<1x2x3xf32>
    return %1 : tensor<1x2x3xf32>
  }
}
"""

_SECOND = """\
module {
  func.func @graph(%arg0: tensor<1x2x3xf32>, %arg1: tensor<1x2x3xf32>, %arg2: tensor<1x2x3xf32>, %arg3: tensor<1x2x3xf32>) -> tensor<1x2x3xf32> {
    %0 = "aten.constant"() {value = 1 : i32} : () -> i32
    %1 = "aten.add"(%arg0, %arg1, %0) : (tensor<1x2x3xf32>, tensor<1x2x3xf32>, i32) -> tensor<1x2x3xf32>
    %2 = "aten.constant"() {value = 1 : i32} : () -> i32
    %3 = "aten.add"(%1, %arg2, %2) : (tensor<1x2x3xf32>, tensor<1x2x3xf32>, i32) -> tensor<1x2x3xf32>
    %4 = "aten.mul"(%3, %arg3) : (tensor<1x2x3xf32>, tensor<1x2x3xf32>) -> tensor<1x2x3xf32>
    return %4 : tensor<1x2x3xf32>
  }
}
"""  # noqa: E501

_CANONICAL = """\
module {
  func.func @graph(%arg0: tensor<1x2x3xf32>) -> tensor<1x2x3xf32> {
    %0 = "aten.constant"() {value = 1 : i32} : () -> i32
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


def test_canonical_is_for_tensors_of_the_device() -> None:
    with pytest.raises(TypeError, match="acap"):
        torchmdla.get_mlir(nn.ReLU(), torch.ones(2), canonical=True)


# --- training ----------------------------------------------------------------------------------------------------


def _dense() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, 32),
        nn.Tanh(),
        nn.Linear(32, 16),
        nn.LayerNorm(16),
        nn.GELU(),
        nn.Dropout(0.2),
        nn.Linear(16, 5),
    )


def _convolutional(bias: bool) -> nn.Module:
    parts = nn.Conv2d(1, 4, 3, bias=bias), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)
    return nn.Sequential(*parts, nn.Flatten(), nn.Linear(36, 5))


# The gradient of a bias in front of a batch norm is nothing but rounding, of which Adam and RMSprop make whole steps:
# float32 has nothing to compare there, float64 rounds below their eps.
_NETWORKS: dict[str, tuple[Callable[[], nn.Module], torch.dtype, float]] = {
    "dense": (_dense, torch.float32, 1e-6),
    "convolutions": (lambda: _convolutional(bias=False), torch.float32, 1e-6),
    "convolutions with a bias": (lambda: _convolutional(bias=True), torch.float64, 1e-9),
}

_OPTIMISERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, 0.05),
    "momentum": lambda parameters: torch.optim.SGD(parameters, 0.05, momentum=0.9),
    "Adam": lambda parameters: torch.optim.Adam(parameters, 1e-2),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, 1e-2, foreach=False),
    "RMSprop": lambda parameters: torch.optim.RMSprop(parameters, 1e-3),
}


def _train(device: torch.device, network: str, optimiser: str) -> tuple[list[float], dict[str, Tensor]]:
    make, dtype, _ = _NETWORKS[network]
    torch.manual_seed(1)
    model = make().to(device, dtype)
    updating = _OPTIMISERS[optimiser](model.parameters())
    torch.manual_seed(2)
    losses = []
    for _ in range(6):
        x = torch.randn(8, 1, 8, 8, device=device, dtype=dtype)
        y = torch.randint(0, 5, (8,), device=device)
        loss = nn.functional.cross_entropy(model(x), y)
        updating.zero_grad()
        loss.backward()
        updating.step()
        losses.append(loss.item())
    return losses, model.state_dict()


@pytest.mark.parametrize("optimiser", _OPTIMISERS)
@pytest.mark.parametrize("network", _NETWORKS)
def test_training_agrees_with_the_cpu(dev: torch.device, network: str, optimiser: str) -> None:
    most = _NETWORKS[network][2]
    expected, wanted = _train(torch.device("cpu"), network, optimiser)
    losses, state = _train(dev, network, optimiser)
    assert losses == pytest.approx(expected, abs=most, rel=0)
    for name, tensor in wanted.items():
        torch.testing.assert_close(state[name].cpu(), tensor, rtol=0, atol=10 * most)


def test_nothing_outlives_its_tensors(dev: torch.device) -> None:
    model = nn.Linear(4, 4).to(dev)
    updating = torch.optim.SGD(model.parameters(), 0.1)
    x = torch.randn(2, 4, device=dev)
    pending = []
    for _ in range(1000):
        updating.zero_grad()
        model(x).square().mean().backward()
        updating.step()
        torchmdla.acap.mark_step()
        pending.append(_C.acap.pending_nodes())
    gc.collect()
    assert max(pending) == 0


# Each step makes 2 MiB of activations and gradients.
_THOUSAND_STEPS = """
import resource, torch, torchmdla
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 4)).to(torchmdla.acap_device())
updating = torch.optim.Adam(model.parameters())
x = torch.randn(1024, 64, device="acap")
peaks = {}
for step in range(1000):
    updating.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    updating.step()
    LOOK
    peaks[step] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
assert peaks[999] - peaks[200] < 64 * 2**20, peaks[999] - peaks[200]
"""  # noqa: E501


@pytest.mark.parametrize("look", ["loss.item()", "torchmdla.acap.mark_step()"])
def test_memory_is_flat(look: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _THOUSAND_STEPS.replace("LOOK", look)], capture_output=True, text=True
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_graph_that_nobody_needs_is_dropped(dev: torch.device) -> None:
    gc.collect()
    torchmdla.acap.mark_step()
    before = _C.acap.pending_nodes()
    x = torch.ones(3).to(dev)
    for _ in range(3000):
        x = x + 1  # one chain, released at once
    assert _C.acap.pending_nodes() == before + 3000
    del x
    assert _C.acap.pending_nodes() == before


def test_size_limit(dev: torch.device) -> None:
    torchmdla.acap.set_most_pending_nodes(10)
    try:
        x = torch.zeros(2, device=dev)
        for _ in range(35):
            x = x + 1
            assert _C.acap.pending_nodes() <= 11
        assert x.tolist() == [35, 35]
    finally:
        torchmdla.acap.set_most_pending_nodes(20000)


# --- gradients ---------------------------------------------------------------------------------------------------


class _Clamped(torch.autograd.Function):
    """A function with a gradient of its own."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        context.save_for_backward(x)
        return x.clamp(-1, 1)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        (x,) = context.saved_tensors
        return gradients[0] * x.square()


def _twice(x: Tensor) -> Tensor:
    (gradient,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    return gradient.square()


def _hooked(x: Tensor) -> Tensor:
    y = x * 2
    y.register_hook(lambda gradient: gradient * 3)
    return y.exp()


_DIFFERENTIABLE: dict[str, Callable[[Tensor], Tensor]] = {
    "twice": _twice,
    "function": _Clamped.apply,
    "hook": _hooked,
    "checkpoint": lambda x: torch.utils.checkpoint.checkpoint(lambda y: y.exp().tanh(), x, use_reentrant=False),
    "functional": lambda x: torch.func.vmap(torch.func.grad(lambda row: row.pow(3).sum()))(x),
    "forward mode": lambda x: torch.func.jvp(torch.sin, (x,), (x.detach(),))[1],
    "detached": lambda x: x * x.detach(),
    "without": lambda x: x * torch.no_grad()(torch.exp)(x),
}


@pytest.mark.parametrize("function", _DIFFERENTIABLE)
def test_gradients(dev: torch.device, function: str) -> None:
    def gradient(device: Any) -> Tensor:
        x = torch.linspace(-2, 2, 6).view(2, 3).to(device).requires_grad_()
        _DIFFERENTIABLE[function](x).sum().backward()
        assert x.grad is not None
        return x.grad.cpu()

    assert_matches(gradient(dev), gradient("cpu"))


def test_accumulated_and_clipped_gradients(dev: torch.device) -> None:
    def trained(device: Any) -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Linear(3, 2).to(device)
        x = torch.randn(4, 3).to(device)
        for _ in range(2):
            model(x).square().sum().backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        return [norm.cpu(), *(parameter.grad.cpu() for parameter in model.parameters())]

    for made, wanted in zip(trained(dev), trained("cpu"), strict=True):
        assert_matches(made, wanted)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3)])
@pytest.mark.parametrize("is_causal", [False, True])
def test_attention_is_fused_as_on_the_cpu(dev: torch.device, order: tuple[int, ...], is_causal: bool) -> None:
    def attended(device: Any) -> list[Tensor]:
        torch.manual_seed(0)
        q, k, v = (torch.randn(2, 3, 5, 8).permute(order).to(device).requires_grad_() for _ in range(3))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
        y.square().sum().backward()
        return [y.detach(), *(tensor.grad for tensor in (q, k, v))]

    for made, wanted in zip(attended(dev), attended("cpu"), strict=True):
        assert made.stride() == wanted.stride()
        torch.testing.assert_close(made.cpu(), wanted)


# --- views and writes --------------------------------------------------------------------------------------------

_VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "select": lambda x: x[1],
    "slice": lambda x: x[:, 2],
    "step": lambda x: x[:, ::2],
    "t": lambda x: x.t()[0],
    "permute": lambda x: x.permute(1, 0)[1:],
    "view": lambda x: x.view(-1)[3:5],
    "reshape": lambda x: x.reshape(2, 6),
    "unsafe_chunk": lambda x: x.unsafe_chunk(2)[1],
    "unbind": lambda x: x.unbind(0)[2],
    "split": lambda x: x.split(2)[0],
    "chunk": lambda x: x.chunk(2, 1)[1],
    "diagonal": lambda x: x.diagonal(),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "squeeze": lambda x: x[:1].squeeze(),
    "as_strided": lambda x: x.as_strided((2, 2), (4, 1), 1),
    "bits": lambda x: x.view(torch.int32).view(torch.float32),
    "detach": lambda x: x.detach(),
    "movedim": lambda x: x.movedim(0, 1),
}

_WRITES: dict[str, Callable[[Tensor], object]] = {
    "add_": lambda x: x.add_(1.5),
    "mul_ of itself": lambda x: x.mul_(x),
    "zero_": lambda x: x.zero_(),
    "fill_": lambda x: x.fill_(3),
    "copy_": lambda x: x.copy_(torch.arange(x.numel(), dtype=x.dtype).view(x.shape)),
    "masked_fill_": lambda x: x.masked_fill_(x > 4, -1),
    "clamp_ out": lambda x: torch.clamp(x, 1, 5, out=x),
    "sort": lambda x: x.copy_(x.sort(-1, descending=True)[0]),
    "normal_": lambda x: x.normal_(),
}


@pytest.mark.parametrize("write", _WRITES)
@pytest.mark.parametrize("is_pending", [False, True])
def test_writes_through_views(dev: torch.device, write: str, is_pending: bool) -> None:
    def run(device: torch.device) -> list[Tensor]:
        torch.manual_seed(0)
        x = torch.arange(12.0).view(3, 4).to(device)
        if is_pending:
            x = x + 1
        views = {name: take(x) for name, take in _VIEWS.items()}
        seen = []
        for view in views.values():
            _WRITES[write](view)
            seen += [tensor.cpu().clone() for tensor in (x, *views.values())]
        return seen

    for made, wanted in zip(run(dev), run(torch.device("cpu")), strict=True):
        assert_matches(made, wanted)


def test_writes_and_gradients(dev: torch.device) -> None:
    def gradient(device: torch.device) -> Tensor:
        x = torch.arange(6.0).view(2, 3).to(device).requires_grad_()
        y = x * 2
        y[0].mul_(3)
        y[:, 1] = 7
        y.t()[2].add_(x[:, 0].sum())
        y.pow(2).sum().backward()
        assert x.grad is not None
        return x.grad.cpu()

    assert_matches(gradient(dev), gradient(torch.device("cpu")))


def test_values_read_before_a_write_stay(dev: torch.device) -> None:
    x = torch.ones(3, device=dev)
    y = x + 1  # pending, reads x as it is now
    x.normal_()  # on the CPU, in place
    assert y.tolist() == [2, 2, 2]


_OVERLAPS: dict[str, Callable[[Tensor], object]] = {
    "add_": lambda x: x[1:].add_(x[:-1]),
    "copy_": lambda x: x[1:].copy_(x[:-1]),
    "copy_ transposed": lambda x: x.view(2, 2).copy_(x.view(2, 2).t()),
    "out": lambda x: torch.exp(x[:-1], out=x[1:]),
    "cumsum": lambda x: torch.cumsum(x[:-1], 0, out=x[1:]),
    "index_put_": lambda x: x.index_put_((torch.tensor([0, 1], device=x.device),), x[:2]),
    "scatter_": lambda x: x.scatter_(0, torch.tensor([1, 0, 1, 0], device=x.device), x),
    "fill_ of an expanded": lambda x: x.expand(2, 4).fill_(2),
    "zero_ of an expanded": lambda x: x.expand(2, 4).zero_(),
    "element of an expanded": lambda x: (x * 2).expand(2, 4).t().__setitem__(0, 7),
    "in the same place": lambda x: x[:2].mul_(x[:2]),
    "beside it": lambda x: x[:2].copy_(x[2:]),
}


@pytest.mark.parametrize("write", _OVERLAPS)
def test_writes_to_what_is_read(dev: torch.device, write: str) -> None:
    def written(device: Any) -> Any:
        x = torch.arange(4.0).to(device)
        try:
            _OVERLAPS[write](x)
        except RuntimeError as error:
            return str(error), x.tolist()
        return x.tolist()

    assert written(dev) == written("cpu")


def test_gaps_in_memory(dev: torch.device) -> None:
    x = torch.empty_strided((2, 3), (5, 1), device=dev)
    assert (x.stride(), x.untyped_storage().nbytes()) == ((5, 1), 8 * 4)
    x.copy_(torch.arange(6.0).view(2, 3))
    assert x.as_strided((8,), (1,))[[0, 2, 5, 7]].tolist() == [0, 2, 3, 5]
    a, b = torch.randn(3, 4, 3), torch.randn(3, 4, 3)
    wanted = torch.linalg.lstsq(a, b).solution  # computed on the CPU, in a part of what it returns
    made = torch.linalg.lstsq(a.to(dev), b.to(dev)).solution
    assert made.stride() == wanted.stride()
    assert_matches(made.cpu(), wanted.clone(), layers=4)


def test_metadata_in_place(dev: torch.device) -> None:
    x = torch.arange(6.0).to(dev)
    y = x.view(2, 3)
    y.t_()
    assert y.tolist() == [[0, 3], [1, 4], [2, 5]]
    y.add_(1)
    y.unsqueeze_(0)
    y[0, 1, 1] = 9
    assert x.tolist() == [1, 2, 3, 4, 9, 6]
    x.resize_(2)
    assert x.tolist() == [1, 2]
    x.resize_(7)
    assert x.tolist()[:6] == [1, 2, 3, 4, 9, 6]


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
    made = _DRAWS[draw](dev)
    assert made.device == dev
    assert_matches((made.cpu(), torch.rand(2)), wanted)


def test_generator(dev: torch.device) -> None:
    own = torch.Generator(device=dev).manual_seed(3)
    state = own.get_state()
    first = torch.rand(3, device=dev, generator=own).cpu()
    assert torch.equal(first, torch.rand(3, generator=torch.Generator().manual_seed(3)))
    own.set_state(state)
    assert torch.equal(first, torch.rand(3, device=dev, generator=own).cpu())


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
        made = _FACTORIES[make](device=dev)
    elif way == "with":
        with dev:
            made = _FACTORIES[make]()
    else:
        torch.set_default_device(dev)
        try:
            made = _FACTORIES[make]()
        finally:
            torch.set_default_device(None)
    assert made.device == dev
    assert made.stride() == expected.stride()
    assert_matches(made.cpu(), expected.clone())


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
    made = _MOVES[move](x)
    assert made.device == dev
    assert made.stride() == x.stride()
    assert_matches(made.cpu(), x.clone().to(made.dtype))
    assert made.to(dev) is made
    with pytest.raises(TypeError, match=r"Use Tensor.cpu\(\) to copy the tensor to host memory first"):
        made.numpy()


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
def test_loading_where_the_device_is_not_turned_on(dev: torch.device, tmp_path: Path, imported: str) -> None:
    saved = {"model": nn.Linear(3, 2).to(dev).state_dict(), "x": (torch.arange(3.0).to(dev) * 2)[1:]}
    torch.save(saved, tmp_path / "saved.pt")
    program = [sys.executable, "-c", _LOADING.replace("IMPORT", imported), str(tmp_path / "saved.pt")]
    ended = subprocess.run(program, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("optimiser", _OPTIMISERS)
def test_training_goes_on_from_a_checkpoint(dev: torch.device, optimiser: str) -> None:
    def step(model: nn.Module, updating: torch.optim.Optimizer) -> float:
        loss = model(torch.linspace(-1, 1, 12, device=dev).view(4, 3)).square().mean()
        updating.zero_grad()
        loss.backward()
        updating.step()
        return loss.item()

    torch.manual_seed(0)
    model = nn.Linear(3, 2).to(dev)
    updating = _OPTIMISERS[optimiser](model.parameters())
    step(model, updating)
    file = io.BytesIO()
    torch.save([model.state_dict(), updating.state_dict()], file)
    wanted = [step(model, updating) for _ in range(3)]
    file.seek(0)
    twin = nn.Linear(3, 2).to(dev)
    again = _OPTIMISERS[optimiser](twin.parameters())
    for target, state in zip((twin, again), torch.load(file), strict=True):
        target.load_state_dict(state)
    assert [step(twin, again) for _ in range(3)] == pytest.approx(wanted, abs=1e-6, rel=0)


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
    assert model.cpu()[1].weight is model[0].weight


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


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent(dev: torch.device, kind: type[nn.Module]) -> None:
    def run(device: torch.device) -> list[Tensor]:
        torch.manual_seed(0)
        model = kind(4, 5, 2, batch_first=True, bidirectional=True).to(device)
        x = torch.randn(2, 3, 4).to(device).requires_grad_()
        y, _ = model(x)
        (y * torch.arange(10.0, device=device)).sum().backward()
        return [tensor.detach().cpu() for tensor in (y, x.grad, *(p.grad for p in model.parameters()))]

    for made, wanted in zip(run(dev), run(torch.device("cpu")), strict=True):
        torch.testing.assert_close(made, wanted, rtol=1e-5, atol=1e-6)


def test_values_are_there_when_asked_for(dev: torch.device) -> None:
    x = torch.tensor([1.0, 0, 2, 0], device=dev)
    assert x.nonzero().flatten().tolist() == [0, 2]
    assert bool(x.any())
    assert x[x > 0].tolist() == [1, 2]
    x[x > 1] = 5
    assert x.unique().tolist() == [0, 1, 5]
    assert x.topk(2).values.tolist() == [5, 1]
    assert torch.allclose(x, x)


def test_what_runs_on_the_cpu_is_counted(dev: torch.device) -> None:
    torchmdla.reset_stats()
    torch.ones(3, device=dev).nonzero()
    assert torchmdla.stats().fallbacks == {"acap: aten::nonzero ran on the CPU": 1}


def test_complex_numbers(dev: torch.device) -> None:
    x = torch.view_as_complex(torch.arange(4.0).view(2, 2).to(dev))
    assert (x.conj() * 2).tolist() == [-2j, 4 - 6j]
    x.imag.zero_()
    assert x.tolist() == [0, 2]


_LAZY_BITS: dict[str, Callable[[Tensor], Tensor]] = {
    "conjugate": lambda x: x.conj().clone(),
    "of a pending one": lambda x: (x * 2).conj().resolve_conj(),
    "of a view": lambda x: (x * 2)[1:].conj().resolve_conj(),
    "negated": lambda x: x.conj().imag.clone(),
    "moved": lambda x: x.conj().imag,
    "inverse transform": lambda x: torch.fft.ifft(x.real).resolve_conj(),
    "written": lambda x: (x * 0).copy_(x.conj()),
}


@pytest.mark.parametrize("change", _LAZY_BITS)
def test_lazy_conjugates(dev: torch.device, change: str) -> None:
    x = torch.randn(3, 4, dtype=torch.complex64)
    assert_matches(_LAZY_BITS[change](x.to(dev)).cpu(), _LAZY_BITS[change](x).clone())


_BOOLEAN_NUMBERS: dict[str, Callable[[Any], Tensor]] = {
    "full": lambda device: torch.full((2,), True, device=device),
    "fill": lambda device: torch.zeros(2, dtype=torch.bool, device=device).fill_(True),
    "new_full": lambda device: torch.ones(2, device=device).new_full((2,), True, dtype=torch.bool),
    "or": lambda device: torch.zeros(2, dtype=torch.bool, device=device) | True,
    "sum": lambda device: torch.zeros(2, dtype=torch.bool, device=device) + True,
    "sum of integers": lambda device: torch.ones(2, dtype=torch.int32, device=device) + True,
    "chosen": lambda device: torch.where(torch.ones(2, device=device) > 0, True, False),
    "masked": lambda device: (torch.ones(2, device=device) > 2).masked_fill(torch.ones(2, device=device) > 0, True),
    "masked index": lambda device: torch.ops.aten._unsafe_masked_index(
        torch.ones(3, device=device),
        torch.ones(2, dtype=torch.bool, device=device),
        [torch.arange(2, device=device)],
        True,
    ),
}


@pytest.mark.parametrize("compare", [torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge])
@pytest.mark.parametrize("value", [0, 1])
def test_constants_compared_with_integers(dev: torch.device, compare: Callable[..., Tensor], value: int) -> None:
    """The compiler folds all of such a graph."""

    def chosen(device: Any) -> Tensor:
        x = torch.full((3, 4), float(value), device=device)
        return x.masked_fill(compare(x, 1), -3)

    for _ in range(3):
        assert_matches(chosen(dev).cpu(), chosen("cpu"))
    assert torchmdla.stats().fallbacks == {}


@pytest.mark.parametrize("make", _BOOLEAN_NUMBERS)
def test_boolean_numbers(dev: torch.device, make: str) -> None:
    assert_matches(_BOOLEAN_NUMBERS[make](dev).cpu(), _BOOLEAN_NUMBERS[make]("cpu"))


_LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "convolution": lambda x: nn.functional.conv2d(x, torch.ones(5, 4, 3, 3, device=x.device)),
    "shuffle": lambda x: nn.functional.pixel_shuffle(x, 2),
    "padding": lambda x: nn.functional.pad(x, (1, 1, 1, 1), "reflect"),
    "broadcast": lambda x: x.logical_and(x[:, 0]),
    "svd": lambda x: torch.linalg.svd(x)[0],
    "transform": lambda x: torch.fft.rfft(x),
    "norm": lambda x: nn.functional.batch_norm(x, x[0, 0, 0], x[0, 0, 0] ** 2),
}


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 3, 1, 2), (3, 2, 1, 0)])
@pytest.mark.parametrize("op", _LAYOUTS)
def test_strides_are_the_cpus(dev: torch.device, op: str, order: tuple[int, ...]) -> None:
    x = torch.randn(4, 4, 4, 4).permute(order)
    made, wanted = _LAYOUTS[op](x.to(dev)), _LAYOUTS[op](x)
    assert made.stride() == wanted.stride()
    assert torchmdla.acap.is_pending(made)


# --- errors and threads ------------------------------------------------------------------------------------------


def test_mixing_devices(dev: torch.device) -> None:
    message = "Expected all tensors to be on the same device, but found at least two devices, acap:0 and cpu!"
    with pytest.raises(RuntimeError, match=message):
        torch.ones(2, device=dev) + torch.ones(2)
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        nn.Linear(2, 2).to(dev)(torch.ones(1, 2))
    assert (torch.ones(2, device=dev) + torch.tensor(1.0)).tolist() == [2, 2]


_FAULTS: dict[str, Callable[[Any], object]] = {
    "sizes of a product": lambda device: torch.ones(2, 3, device=device) @ torch.ones(2, 3, device=device),
    "broadcasting": lambda device: torch.ones(3, device=device) + torch.ones(4, device=device),
    "view": lambda device: torch.ones(6, device=device).view(5),
    "memory of a view": lambda device: torch.ones(4, device=device).as_strided((2, 2), (2, 1), 1),
    "dtype of a write": lambda device: torch.ones(2, dtype=torch.int64, device=device).add_(1.5),
    "dtype of an out": lambda device: torch.gather(
        torch.ones(2, device=device),
        0,
        torch.tensor([0], device=device),
        out=torch.ones(1, dtype=torch.float64, device=device),
    ),
    "sizes that a meta kernel takes": lambda device: torch.ones(3, 4, device=device).index_add_(
        0, torch.tensor([0], device=device), torch.ones(1, device=device)
    ),
    "dtypes that a meta kernel takes": lambda device: torch.complex(
        torch.ones(2, device=device), torch.ones(2, dtype=torch.float64, device=device)
    ),
    "write to an expanded": lambda device: torch.ones(3, device=device).expand(2, 3).add_(1),
    "index": lambda device: nn.functional.embedding(
        torch.tensor([9], device=device), torch.ones(3, 2, device=device)
    ).cpu(),
}


@pytest.mark.parametrize("fault", _FAULTS)
def test_errors_are_pytorchs(dev: torch.device, fault: str) -> None:
    with pytest.raises((RuntimeError, IndexError)) as wanted:
        _FAULTS[fault]("cpu")
    with pytest.raises(type(wanted.value)) as raised:
        _FAULTS[fault](dev)
    assert str(raised.value) == str(wanted.value)


def test_tensors_stay_usable_after_an_error(dev: torch.device) -> None:
    rows = torch.ones(3, 2, device=dev) * 2
    picked = nn.functional.embedding(torch.tensor([9], device=dev), rows)
    for _ in range(2):
        with pytest.raises(IndexError):
            picked.cpu()
    assert rows.sum().item() == 12


def test_an_error_costs_a_step_nothing_else(dev: torch.device) -> None:
    rows = torch.ones(3, 2, device=dev) * 2
    picked = nn.functional.embedding(torch.tensor([9], device=dev), rows) + 1
    others = [rows.sum(), torch.zeros(2, device=dev) + 1]
    for _ in range(2):
        with pytest.raises(IndexError):
            torchmdla.acap.mark_step()
    assert torchmdla.acap.is_pending(picked)
    assert not any(torchmdla.acap.is_pending(tensor) for tensor in (rows, *others))
    del picked
    torchmdla.acap.mark_step()


def test_an_error_is_not_raised_at_the_size_limit(dev: torch.device) -> None:
    picked = nn.functional.embedding(torch.tensor([9], device=dev), torch.ones(3, 2, device=dev) * 2)
    torchmdla.acap.set_most_pending_nodes(10)
    try:
        x = torch.zeros(2, device=dev)
        for _ in range(35):
            x = x + 1
            assert _C.acap.pending_nodes() <= 12
        assert x.tolist() == [35, 35]
    finally:
        torchmdla.acap.set_most_pending_nodes(20000)
    with pytest.raises(IndexError):
        picked.cpu()


_AFTER_A_BACKWARD = """
import torch, torchmdla
x = torch.ones(2, requires_grad=True)
x.sum().backward()
y = torch.ones(2, device=torchmdla.acap_device(), requires_grad=True)
(y * 2).sum().backward()
assert y.grad.tolist() == [2, 2]
"""

_LEFT_PENDING = "import torch, torchmdla; x = torch.ones(2, device=torchmdla.acap_device()) + 1"

_OF_ANOTHER = """
import torch, torchmdla
torch.utils.rename_privateuse1_backend("other")
try:
    torchmdla.acap_device()
except RuntimeError as error:
    assert "'other' already" in str(error)
"""

_NOT_ASKED_FOR = "import torch, torchmdla; torch.utils.rename_privateuse1_backend('other')"


@pytest.mark.parametrize("program", [_AFTER_A_BACKWARD, _LEFT_PENDING, _OF_ANOTHER, _NOT_ASKED_FOR])
def test_in_a_process_of_its_own(program: str) -> None:
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_threads(dev: torch.device) -> None:
    shared = torch.eye(4, device=dev) * 2
    faults: list[BaseException] = []

    def work(number: int) -> None:
        def chain(x: Tensor, other: Tensor) -> Tensor:
            for _ in range(30):
                x = (x @ other).softmax(-1) + number
            return x

        try:
            made = chain(torch.full((4, 4), float(number), device=dev), shared)
            wanted = chain(torch.full((4, 4), float(number)), torch.eye(4) * 2)
            torch.testing.assert_close(made.cpu(), wanted)
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
