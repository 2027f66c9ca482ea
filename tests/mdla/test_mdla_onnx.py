"""Tests of the mdla device's ONNX models, run with ONNX Runtime, against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from graphs import kinds
from torch import Tensor, nn

import torchmdla
from torchmdla import CompileError, devices
from torchmdla.compiler.artifact import Artifact
from torchmdla.compiler.program import Program
from torchmdla.devices.mdla import MdlaDevice
from torchmdla.devices.mdla.device_program import DeviceProgram
from torchmdla.importer import ImportedGraph, ImportOptions, import_graph
from torchmdla.importer.interpreter import run_and_record
from torchmdla.importer.script_graph import convert_graph
from torchmdla.script.ir import Graph
from torchmdla.testing.compare import assert_matches
from torchmdla.testing.models import MODELS

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

_DEVICE = MdlaDevice()


def _imported(function: Any, inputs: tuple[Tensor, ...]) -> tuple[Graph, ImportedGraph, list[object]]:
    """Import a traced module or function. Its weights are constants, and batch norms are not folded."""
    if isinstance(function, nn.Module):
        function.eval()
    traced = torch.jit.trace(function, inputs, check_trace=False)
    if isinstance(traced, torch.jit.ScriptModule):
        traced = torch.jit.freeze(traced, optimize_numerics=False)
    graph = traced.graph.copy()
    if isinstance(traced, torch.jit.ScriptModule):
        graph.eraseInput(0)
    torch._C._jit_pass_inline(graph)
    torch._C._jit_pass_lower_all_tuples(graph)
    graph = convert_graph(graph)
    outputs, record = run_and_record(graph, inputs)
    return graph, import_graph(graph, record, (), ImportOptions(_DEVICE.composite_ops)), outputs


def _lower(imported: ImportedGraph) -> Artifact:
    return _DEVICE.lower(Program(imported.mlir, imported.arguments, imported.results, _DEVICE.target()))


def _run(program: DeviceProgram, arguments: list[np.ndarray[Any, Any]]) -> list[Tensor]:
    """Return the results of ONNX Runtime."""
    from torchmdla.devices.levels.onnx.graph import add_weights
    from torchmdla.devices.levels.onnx.weights import evaluate

    parameters = {position: arguments[position] for position in program.parameters()}
    weights = {name: evaluate(recipe, parameters) for name, recipe in program.weights.items()}
    model = add_weights(onnx.load_from_string(program.model), weights)
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    names = [source.name for source in session.get_inputs()]
    inputs = [arguments[port.position] for port in program.inputs]
    return [torch.from_numpy(result) for result in session.run(None, dict(zip(names, inputs, strict=True)))]


def _check(function: Any, *inputs: Tensor, layers: int = 1) -> DeviceProgram:
    """Compare with eager, and return the lowered program."""
    with torch.no_grad():
        graph, imported, expected = _imported(function, inputs)
        program = DeviceProgram.from_bytes(_lower(imported).object_code)
        arguments = []
        for binding in imported.bindings:
            is_input = binding.source == "input"
            value: Any = inputs[binding.index] if is_input else graph.nodes[binding.index].attributes["value"]
            value = value if binding.element is None else value[binding.element]
            arguments.append(value.detach().permute(binding.permutation).contiguous().numpy())
        computed = _run(program, arguments)
        results = [computed[output.index].permute(output.permutation) for output in imported.outputs]
        flat = [tensor for each in expected for tensor in (each if isinstance(each, list | tuple) else [each])]
        assert_matches(results, flat, layers=layers)
    return program


def _kinds(program: DeviceProgram) -> list[str]:
    return [node.op_type for node in onnx.load_from_string(program.model).graph.node]


def _image(*sizes: int) -> Tensor:
    return torch.randn(sizes or (2, 4, 9, 11))


_MODULES: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "conv1d": (lambda: nn.Conv1d(4, 6, 3, stride=2, padding=1, dilation=2), (2, 4, 17)),
    "conv2d": (lambda: nn.Conv2d(4, 6, (3, 2), stride=(1, 2), padding=(1, 0)), (2, 4, 9, 11)),
    "conv2d same": (lambda: nn.Conv2d(4, 6, (4, 3), padding="same"), (2, 4, 9, 11)),
    "conv2d valid without bias": (lambda: nn.Conv2d(4, 6, 3, padding="valid", bias=False), (2, 4, 9, 11)),
    "conv3d": (lambda: nn.Conv3d(2, 3, 3, padding=1), (1, 2, 5, 6, 7)),
    "grouped": (lambda: nn.Conv2d(4, 6, 3, groups=2), (2, 4, 9, 11)),
    "depthwise": (lambda: nn.Conv2d(4, 8, 3, groups=4), (2, 4, 9, 11)),
    "unbatched": (lambda: nn.Conv2d(4, 6, 3), (4, 9, 11)),
    "transposed 1d": (lambda: nn.ConvTranspose1d(4, 6, 4, stride=2, padding=1), (2, 4, 9)),
    "transposed 2d": (
        lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, dilation=2),
        (2, 4, 5, 6),
    ),
    "transposed 3d": (lambda: nn.ConvTranspose3d(2, 3, 2, stride=2), (1, 2, 3, 4, 5)),
    "transposed grouped": (lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2), (2, 4, 5, 6)),
    "linear": (lambda: nn.Linear(11, 5), (7, 11)),
    "linear without bias": (lambda: nn.Linear(11, 5, bias=False), (7, 11)),
    "linear of three dimensions": (lambda: nn.Linear(11, 5), (2, 7, 11)),
    "linear of one dimension": (lambda: nn.Linear(11, 5), (11,)),
    "max_pool1d": (lambda: nn.MaxPool1d(3, 2, 1), (2, 4, 11)),
    "max_pool2d": (lambda: nn.MaxPool2d(3, 2, 1, dilation=2), (2, 4, 11, 12)),
    "max_pool2d ceil": (lambda: nn.MaxPool2d((2, 3), 2, ceil_mode=True), (2, 4, 9, 12)),
    "max_pool3d": (lambda: nn.MaxPool3d(2, ceil_mode=True), (1, 2, 5, 6, 7)),
    "avg_pool1d": (lambda: nn.AvgPool1d(3, 2, 1), (2, 4, 11)),
    "avg_pool2d": (lambda: nn.AvgPool2d(3, 2, 1), (2, 4, 11, 12)),
    "avg_pool2d ceil": (lambda: nn.AvgPool2d(2, ceil_mode=True), (2, 4, 9, 11)),
    "avg_pool2d excluding": (lambda: nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False), (2, 4, 10, 12)),
    "avg_pool3d": (lambda: nn.AvgPool3d(2), (1, 2, 5, 6, 7)),
    "adaptive 1": (lambda: nn.AdaptiveAvgPool2d(1), (2, 4, 9, 11)),
    "adaptive 1d": (lambda: nn.AdaptiveAvgPool1d(4), (2, 4, 12)),
    "adaptive": (lambda: nn.AdaptiveAvgPool2d((3, 2)), (2, 4, 9, 12)),
    "adaptive to its own size": (lambda: nn.AdaptiveAvgPool2d(6), (2, 4, 6, 6)),
    "batch norm": (lambda: _normed(nn.BatchNorm2d(4)), (2, 4, 9, 11)),
    "batch norm of features": (lambda: _normed(nn.BatchNorm1d(11, affine=False)), (7, 11)),
    "nearest": (lambda: nn.Upsample(scale_factor=2), (2, 4, 5, 6)),
    "nearest to a size": (lambda: nn.Upsample(size=(9, 12)), (2, 4, 5, 6)),
    "nearest 1d": (lambda: nn.Upsample(scale_factor=3), (2, 4, 5)),
    "nearest by a fraction": (lambda: nn.Upsample(scale_factor=1.5), (2, 4, 5, 6)),
    "bilinear": (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), (2, 4, 5, 6)),
    "bilinear by a fraction": (lambda: nn.Upsample(scale_factor=1.7, mode="bilinear"), (2, 4, 5, 6)),
    "bilinear aligned": (lambda: nn.Upsample(size=(9, 11), mode="bilinear", align_corners=True), (2, 4, 5, 6)),
    "leaky_relu": (lambda: nn.LeakyReLU(0.2), (3, 4)),
    "relu6": (lambda: nn.ReLU6(), (3, 4)),
    "hardtanh": (lambda: nn.Hardtanh(-0.3, 0.4), (3, 4)),
    "softmax": (lambda: nn.Softmax(1), (3, 4, 5)),
    "dropout in eval": (lambda: nn.Sequential(nn.Dropout(), nn.ReLU()), (3, 4)),
    "zero pad": (lambda: nn.ZeroPad2d((1, 2, 0, 3)), (2, 4, 5, 6)),
    "crop": (lambda: nn.ZeroPad2d((-1, 2, 0, -2)), (2, 4, 5, 6)),
    "lstm": (lambda: nn.LSTM(5, 6, batch_first=True), (2, 3, 5)),
}


def _normed(norm: Any) -> Any:
    """Return the norm with statistics other than 0 and 1."""
    nn.init.normal_(norm.running_mean)
    nn.init.uniform_(norm.running_var, 0.5, 2.0)
    if norm.affine:
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    return norm


@pytest.mark.parametrize("name", _MODULES)
def test_module(name: str) -> None:
    make, sizes = _MODULES[name]
    torch.manual_seed(0)
    _check(make().eval(), torch.randn(sizes), layers=4)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": lambda x, y: x + y,
    "add scaled": lambda x, y: torch.add(x, y, alpha=1),
    "sub": lambda x, y: x - y[:, :, :1],
    "mul": lambda x, y: x * y * 3 - 2.5 + 1,
    "clamp": lambda x, y: x.clamp(-0.5, 0.25) + y.clamp(min=0.1) + y.clamp_max(0.2),
    "tanh and sigmoid": lambda x, y: torch.tanh(x) * torch.sigmoid(y),
    "cat": lambda x, y: torch.cat([x, y, x], 1),
    "split": lambda x, y: tuple(part.relu() for part in x.split(2, 3)),
    "chunk": lambda x, y: x.chunk(3, 1)[1] + y.chunk(3, 1)[2],
    "unbind": lambda x, y: x.unbind(0)[1] + y[1],
    "mean": lambda x, y: x.mean((2, 3)) + y.mean((-1, -2), keepdim=True).flatten(1),
    "views": lambda x, y: x.transpose(1, 2).reshape(2, -1).relu(),
    "permute": lambda x, y: x.permute(0, 2, 3, 1).contiguous() * 2,
    "squeeze": lambda x, y: (x[:1].squeeze(0).unsqueeze(1) + 1).flatten(1),
    "matmul": lambda x, y: torch.matmul(x, y.transpose(2, 3)),
    "mm": lambda x, y: torch.mm(x.flatten(1), y.flatten(1).t()),
    "addmm": lambda x, y: torch.addmm(y.flatten(1)[:, :2], x.flatten(1), y.flatten(1).t(), beta=0.5, alpha=2),
    "pad": lambda x, y: F.pad(x, (1, 0, 2, 1), value=1.5),
    "an input twice": lambda x, y: (x.relu(), x.relu() + 1),
    "softmax of the last": lambda x, y: torch.softmax(x, -1),
}


@pytest.mark.parametrize("name", _FUNCTIONS)
def test_function(name: str) -> None:
    _check(_FUNCTIONS[name], torch.randn(2, 6, 4, 8), torch.randn(2, 6, 4, 8), layers=4)


_KERNEL, _CONSTANT_IMAGE = torch.ones(6, 4, 3, 3), torch.ones(2, 4, 5, 6)
_MEAN, _VARIANCE = torch.full((4,), 0.5), torch.full((4,), 2.0)

# Weights that are inputs at run time. The device's own convolutions and batch norms have constant weights.
_GIVEN_WEIGHTS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "conv1d": (lambda x, w: F.conv1d(x, w, stride=2, dilation=2), ((2, 4, 17), (6, 4, 3))),
    "conv2d": (lambda x, w: F.conv2d(x, w, stride=(1, 2), padding=(1, 0)), ((2, 4, 9, 11), (6, 4, 3, 2))),
    "conv2d of single pixels": (lambda x, w: F.conv2d(x, w), ((2, 4, 9, 11), (6, 4, 1, 1))),
    "conv3d": (lambda x, w: F.conv3d(x, w, padding=1), ((1, 2, 5, 6, 7), (3, 2, 3, 3, 3))),
    "conv2d with a bias": (lambda x, w, b: F.conv2d(x, w, b), ((2, 4, 9, 11), (6, 4, 3, 3), (6,))),
    "the bias alone": (lambda x, b: F.conv2d(x, _KERNEL, b, 2), ((2, 4, 9, 11), (6,))),
    "the bias of a grouped one": (
        lambda x, b: F.conv_transpose2d(x, _KERNEL[:4, :3], b, groups=2),
        ((2, 4, 5, 6), (6,)),
    ),
    "a constant image": (lambda w: F.conv2d(_CONSTANT_IMAGE, w, padding=1), ((6, 4, 3, 3),)),
    "linear": (lambda x, w, b: F.linear(x, w, b), ((2, 7, 11), (5, 11), (5,))),
    "addmm": (lambda b, x, w: torch.addmm(b, x, w, beta=0.5, alpha=2), ((7, 5), (7, 11), (11, 5))),
    "batch norm": (lambda x, w, b: F.batch_norm(x, _MEAN, _VARIANCE, w, b), ((2, 4, 9, 11), (4,), (4,))),
    "batch norm by a weight": (lambda x, w: F.batch_norm(x, _MEAN, _VARIANCE, w), ((2, 4, 9, 11), (4,))),
}


@pytest.mark.parametrize("on_the_device", [False, True])
@pytest.mark.parametrize("name", _GIVEN_WEIGHTS)
def test_weights_that_come_in_at_run_time(name: str, on_the_device: bool) -> None:
    torch.manual_seed(0)
    function, sizes = _GIVEN_WEIGHTS[name]
    inputs = tuple(torch.randn(shape) for shape in sizes)
    if not on_the_device:
        _check(function, *inputs, layers=4)
        return
    torchmdla.enable(device="mdla", strict=True, precision="float32")
    compiled = torch.jit.trace(function, inputs, check_trace=False)
    for _ in range(4):
        result = compiled(*inputs)
    assert_matches(result, function(*inputs), layers=4, strides=False)
    assert torchmdla.stats().compiled > 0


@pytest.mark.parametrize(
    ("anchor", "norm", "x", "expected"),
    [
        (nn.Conv2d(4, 6, 3, bias=False), nn.BatchNorm2d(6), _image(), ["Conv", "Relu"]),
        (nn.Conv2d(4, 6, 3, groups=2), nn.BatchNorm2d(6), _image(), ["Conv", "Relu"]),
        (nn.ConvTranspose2d(4, 6, 3, stride=2), nn.BatchNorm2d(6), _image(), ["ConvTranspose", "Relu"]),
        (nn.Linear(11, 6), nn.BatchNorm1d(6), torch.randn(7, 11), ["Gemm", "Relu"]),
    ],
)
def test_batch_norm_goes_into_the_weights_before_it(
    anchor: nn.Module, norm: nn.Module, x: Tensor, expected: list[str]
) -> None:
    model = nn.Sequential(anchor, _normed(norm), nn.ReLU()).eval()
    assert _kinds(_check(model, x, layers=2)) == expected


def test_batch_norm_of_a_shared_operand() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution, self.norm = nn.Conv2d(4, 6, 3), _normed(nn.BatchNorm2d(6))

        def forward(self, x: Tensor) -> Tensor:
            y = self.convolution(x)
            return self.norm(y) + y

    assert _kinds(_check(Model().eval(), _image(), layers=2)) == ["Conv", "BatchNormalization", "Add"]


def test_channels_last_goes_without_copies() -> None:
    """Check that the device gets the tensor in its memory layout, and that the model transposes it."""
    model = nn.Conv2d(4, 6, 3)
    program = _check(model, _image().to(memory_format=torch.channels_last))
    assert program.inputs[0].shape == (2, 9, 11, 4)


def test_nodes_have_the_names_of_the_users_ops() -> None:
    program = _check(nn.Sequential(nn.Conv2d(4, 6, 3), nn.ReLU()).eval(), _image())
    names = [node.name for node in onnx.load_from_string(program.model).graph.node]
    assert [name.rpartition("_")[0] for name in names] == ["_convolution", "relu"]


def test_the_model_holds_no_weights_and_is_the_same_for_all() -> None:
    programs = [_check(nn.Linear(64, 64), torch.randn(2, 64)) for _ in range(2)]
    assert programs[0] == programs[1]
    assert len(programs[0].to_bytes()) < 64 * 64


def test_a_weight_that_comes_in_gives_the_bits_of_a_constant_one() -> None:
    torchmdla.enable(device="mdla", strict=True, precision="fixed16")
    module, x = nn.Conv2d(4, 6, 3, stride=2, padding=1, bias=False), _image()
    with torch.no_grad():
        traced = torch.jit.trace(lambda x, w: F.conv2d(x, w, None, 2, 1), (x, module.weight), check_trace=False)
        for _ in range(4):
            result = traced(x, module.weight)
        assert torch.equal(result, torchmdla.compile(module.eval(), x)(x))


@pytest.mark.parametrize(
    ("function", "weights", "reason"),
    [
        (nn.AdaptiveAvgPool2d(4), (), "adaptive pooling"),
        (nn.AvgPool2d(3, 2, 1, ceil_mode=True), (), "counts padding"),
        (lambda x: x.mean(1), (), "mean over other axes"),
        (lambda x: x.exp(), (), "no operation for this"),
        # Weights that are inputs at run time.
        (
            lambda x, w: F.conv2d(x, w, groups=2),
            (6, 2, 3, 3),
            "aten::_convolution.*a grouped convolution with a weight",
        ),
        (lambda x, w: F.conv_transpose2d(x, w), (4, 2, 3, 3), "aten::_convolution.*a transposed convolution with a"),
        (lambda x, m: F.batch_norm(x, m, _VARIANCE), (4,), "aten::batch_norm.*statistics that depend on inputs"),
    ],
)
def test_refused(function: Any, weights: tuple[int, ...], reason: str) -> None:
    inputs = (torch.randn(2, 4, 10, 11), *([torch.randn(weights)] if weights else []))
    _, imported, _ = _imported(function, inputs)
    with pytest.raises(CompileError, match=reason):
        _lower(imported)


@pytest.fixture
def onnx_device() -> str:
    from onnx_device import OnnxDevice

    devices.register(OnnxDevice())
    return OnnxDevice.name


# Name, side of the image (None for the smallest), whether the model is frozen.
_WHOLE_MODELS = [
    ("resnet18", None, False),
    ("resnet18", None, True),
    ("mobilenet_v2", None, False),
    ("vgg11", 224, False),
    ("densenet121", None, False),
    ("unet", None, True),
    ("lstm", None, False),
    ("mlp", None, False),
]


@pytest.mark.parametrize(("name", "side", "frozen"), _WHOLE_MODELS)
@pytest.mark.sampled(1)
def test_model(name: str, side: int | None, frozen: bool, onnx_device: str) -> None:
    """Check that the device supports all operators of the model, so that none is outside of groups."""
    torchmdla.enable(device=onnx_device, strict=True)
    spec = MODELS[name].reduced()
    model, inputs = spec.build(), spec.inputs(size=side)
    with torch.no_grad():
        traced = torch.jit.trace(model, inputs, check_trace=False)
        scripted = torch.jit.freeze(traced) if frozen else traced
        graph = torchmdla.graph_for(scripted, *inputs)
        assert_matches(scripted(*inputs), model(*inputs), layers=spec.layers)
    assert torchmdla.stats().fallbacks == {}
    left = {kind for kind in kinds(graph) if kind.startswith("aten::")}
    assert not left, left
