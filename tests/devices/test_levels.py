"""Programs at the levels that devices ask for: values, layouts, packs, and operations that a level does not have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import level_devices
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_mlir import ir

import torchmdla
from torchmdla import devices
from torchmdla.compiler.mlir import forward_of, located_text, new_context, ops_named
from torchmdla.compiler.program import Argument, Program, Result, Target
from torchmdla.devices.cpu.ir.printer import program_text
from torchmdla.devices.cpu.lowering import loop_program_text
from torchmdla.devices.levels import LEVELS, Layouts, LegalProgram, Level, composite_ops_of
from torchmdla.devices.levels.fusion import fuse
from torchmdla.devices.levels.legalise import legalise
from torchmdla.errors import CompileError
from torchmdla.mlir.function import separate_results, tensor_type_of
from torchmdla.mlir.kinds import kind_of
from torchmdla.mlir.specs import read_inputs
from torchmdla.testing.compare import assert_matches

pytestmark = pytest.mark.usefixtures("without_gradients")


def network() -> nn.Module:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(72, 8), nn.Softmax(-1),
    )  # fmt: skip
    norm = model[1]
    assert isinstance(norm, nn.BatchNorm2d)
    norm.running_mean, norm.running_var = torch.randn(8), torch.rand(8) + 0.5
    return model.eval()


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(24, 16), nn.Tanh(), nn.Linear(16, 16), nn.Linear(16, 8)).eval()


MODELS = {"network": (network, torch.randn(2, 3, 8, 8)), "perceptron": (perceptron, torch.randn(16, 24))}

DEVICES = {
    "linalg": level_devices.LinalgDevice,
    "channels_last": level_devices.ChannelsLastDevice,
    "tosa": level_devices.TosaDevice,
    "stablehlo": level_devices.StablehloDevice,
}


def compile_for(device: devices.Device, module: nn.Module, *inputs: Tensor) -> Any:
    devices.register(device)
    return torch.compile(module, backend="torchmdla", options={"device": device.name})


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", MODELS)
def test_models_have_eager_values(name: str, device: str) -> None:
    make, x = MODELS[name]
    model = make()
    compiled = compile_for(DEVICES[device](), model)
    assert_matches(compiled(x), model(x), layers=5)
    stats = torchmdla.stats()
    assert stats.specialisations > 0 and stats.fallbacks == {}, stats


class Bounds(nn.Module):
    """Operators whose bounds are open, on infinities and NaN."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        image = x.reshape(1, 1, 2, 4)
        return torch.relu(x), x.clamp(min=-1), x.clamp(max=1), functional.max_pool2d(image, 2), torch.maximum(x, -x)


@pytest.mark.parametrize("device", ["linalg", "channels_last", "tosa"])
def test_infinities_and_nan_are_eager_s(device: str) -> None:
    inf, nan = float("inf"), float("nan")
    for x in ([inf, -inf, 0.0, -0.0, 2.0, -2.0, inf, 1.0], [-inf] * 8, [nan, 1.0, -1.0, 0.0, 0.5, inf, -inf, nan]):
        operand = torch.tensor(x)
        compiled = compile_for(DEVICES[device](), Bounds())
        for actual, expected in zip(compiled(operand), Bounds()(operand), strict=True):
            assert_matches(actual, expected)
    assert torchmdla.stats().specialisations > 0


class Arcs(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.relu(torch.atan2(x * 2 + 1, y) * 3 - 1)


def test_an_operation_that_the_level_lacks_is_compiled_around() -> None:
    x, y = torch.randn(2, 4, 6)
    compiled = compile_for(level_devices.TosaDevice(), Arcs())
    for _ in range(2):
        assert_matches(compiled(x, y), Arcs()(x, y))
    stats = torchmdla.stats()
    ((row, count),) = stats.left_out.items()
    assert row.startswith("aten::atan2: no lowering to tosa") and f"{__file__}:" in row and count == 1
    assert stats.specialisations == 2


# The form of a program


def program_of(module: nn.Module, *inputs: Tensor) -> Program:
    function = kind_of(module).capture(module, read_inputs(inputs, None))
    separate_results(function)
    types = function.signature
    return Program(
        located_text(function.module),
        tuple(
            Argument(argument.role, *tensor_type_of(kind))  # type: ignore[arg-type]
            for argument, kind in zip(function.arguments, types.inputs, strict=True)
        ),
        tuple(Result(*tensor_type_of(kind)) for kind in types.results),  # type: ignore[arg-type]
        Target("cpu"),
    )


def convert(program: Program, level: Level, layouts: Layouts | None = None) -> tuple[LegalProgram, str]:
    """Return the program at the level, and its text; the context is gone."""
    with new_context(), ir.Location.unknown():
        legal = legalise(program, level, layouts)
        if level not in ("onnx", "loops"):
            legal.module.operation.verify()
        return legal, str(legal.module)


def test_transpositions_fold_into_neighbours_and_packs() -> None:
    program = program_of(network(), MODELS["network"][1])
    with new_context(), ir.Location.unknown():
        legal = legalise(program, "tosa", Layouts(channels_last=True, packs_weights=True))
        entry = forward_of(legal.module)
        transposed = [list(op.attributes["perms"]) for op in ops_named(entry, {"tosa.transpose"})]
        assert transposed == [[0, 2, 3, 1], [0, 3, 1, 2]]  # the input, and the operand of the dense layer
        assert not ops_named(entry, {"tosa.rsqrt"})
        packs = {tuple(program.arguments[k].shape for k in pack.arguments): pack.size for pack in legal.packs}
        assert packs[((8, 3, 3, 3),)] == 4 * 8 * 27 and packs[((8, 72),)] == 4 * 8 * 72
        read = [program.arguments[number].shape for number in legal.parameters]
        assert read == [(8,), (8,), (8,)]  # the biases
        types = [str(kind) for kind in forward_of(legal.module).type.inputs]
        assert len(types) == len(program.arguments) + len(legal.packs)


def test_recipes_are_equal_for_equal_computations() -> None:
    x = MODELS["network"][1]
    layouts = Layouts(packs_weights=True)
    single, other, blocked = (
        convert(program_of(network(), input_), "linalg", layouts)[0]
        for input_, layouts in ((x, layouts), (x[:1], layouts), (x, Layouts(blocks=(8, 8, 8), packs_weights=True)))
    )
    assert [pack.recipe for pack in single.packs] == [pack.recipe for pack in other.packs] != []
    assert {pack.recipe for pack in single.packs} != {pack.recipe for pack in blocked.packs}


class Broadcast(nn.Module):
    """Weight that only changes its shape, and one that grows."""

    def __init__(self) -> None:
        super().__init__()
        self.bias, self.row = nn.Parameter(torch.randn(6)), nn.Parameter(torch.randn(1, 4))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.bias.reshape(6, 1) * torch.exp(self.row.expand(6, 4).reshape(24)).reshape(6, 4)


@pytest.mark.parametrize("level", ["linalg", "tosa", "stablehlo"])
def test_packs_do_not_grow(level: Level) -> None:
    program = program_of(Broadcast(), torch.randn(6, 4))
    legal, _ = convert(program, level, Layouts(packs_weights=True))
    sizes = [4 * sum(program.arguments[k].shape[-1] for k in pack.arguments) for pack in legal.packs]
    assert all(0 < pack.size <= 8 * size for pack, size in zip(legal.packs, sizes, strict=True))


def test_a_product_in_blocks() -> None:
    """The program is interpreted with NumPy, because the cpu device has no operation for blocks."""
    layer, x = nn.Linear(24, 20, bias=False), torch.randn(12, 24)
    program = program_of(layer, x)
    with new_context(), ir.Location.unknown():
        module = legalise(program, "linalg", Layouts(blocks=(8, 8, 8))).module
        assert not ops_named(module.operation, {"linalg.matmul"})
        (result,) = interpret_blocks(forward_of(module), [x.numpy(), layer.weight.detach().numpy()])
    assert_matches(torch.from_numpy(np.ascontiguousarray(result)), layer(x))


def interpret_blocks(function: Any, arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
    block = function.regions[0].blocks[0]
    values = dict(zip(block.arguments, arguments, strict=True))
    for view in block.operations:
        op = view.operation
        operands = [values.get(value) for value in op.operands]
        if op.name == "func.return":
            return operands  # type: ignore[return-value]
        values[op.results[0]] = INTERPRETERS[op.name](op, *operands)
    raise AssertionError("the function returns nothing")


def _integers(op: Any, name: str) -> list[int]:
    return list(op.attributes[name]) if name in op.attributes else []


def _pack(op: Any, source: np.ndarray, *_: Any) -> np.ndarray:
    places, tiles = _integers(op, "inner_dims_pos"), _integers(op, "static_inner_tiles")
    tile_of = dict(zip(places, tiles, strict=True))
    padded = np.pad(source, [(0, -size % tile_of[axis]) for axis, size in enumerate(source.shape)])
    (m, n), (a, b) = padded.shape, (tile_of[0], tile_of[1])
    outer = _integers(op, "outer_dims_perm") or [0, 1]
    return padded.reshape(m // a, a, n // b, b).transpose([2 * k for k in outer] + [2 * k + 1 for k in places])


def _unpack(op: Any, source: np.ndarray, *_: Any) -> np.ndarray:
    assert _integers(op, "inner_dims_pos") == [0, 1] and _integers(op, "outer_dims_perm") in ([], [0, 1])
    m, n, a, b = source.shape
    rows, columns = ir.RankedTensorType(op.results[0].type).shape
    return source.transpose(0, 2, 1, 3).reshape(m * a, n * b)[:rows, :columns]


def _contract(op: Any, left: np.ndarray, right: np.ndarray, total: np.ndarray) -> np.ndarray:
    body = [inner.operation.name for inner in op.regions[0].blocks[0].operations]
    assert body == ["arith.mulf", "arith.addf", "linalg.yield"]
    maps = [ir.AffineMapAttr(attribute).value for attribute in op.attributes["indexing_maps"]]
    letters = ["".join("abcdef"[ir.AffineDimExpr(each).position] for each in map_.results) for map_ in maps]
    return total + np.einsum(f"{letters[0]},{letters[1]}->{letters[2]}", left, right)


INTERPRETERS: dict[str, Any] = {
    "arith.constant": lambda op: op.attributes["value"].value,
    "tensor.empty": lambda op: np.zeros(ir.RankedTensorType(op.results[0].type).shape, np.float32),
    "linalg.transpose": lambda op, source, out: source.transpose(_integers(op, "permutation")),
    "linalg.fill": lambda op, number, out: np.full_like(out, number),
    "linalg.pack": _pack,
    "linalg.unpack": _unpack,
    "linalg.generic": _contract,
}


def _perceptron() -> tuple[nn.Module, Tensor]:
    make, x = MODELS["perceptron"]
    return make(), x


class Half(nn.Module):
    """Products of float16, whose operands upstream widens first, and of exponentials."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x.half() @ y.half(), torch.relu(x.exp() @ y) + 1


def test_fusion_does_not_repeat_work() -> None:
    program = program_of(Half(), torch.randn(4, 8), torch.randn(8, 4))
    with new_context(), ir.Location.unknown():
        function = fuse(legalise(program, "linalg").module)
        bodies = [
            [op.operation.name for op in generic.regions[0].blocks[0].operations][:-1]
            for generic in ops_named(function, {"linalg.generic"})
        ]
    # The products widen their operands, and do not compute exponentials again for each of their columns.
    assert sorted(body for body in bodies if body) == [
        ["arith.cmpf", "arith.select", "arith.addf"],
        ["arith.extf", "arith.extf", "arith.mulf", "arith.addf"],
        ["arith.mulf", "arith.addf"],
        ["arith.truncf"],
        ["arith.truncf"],
        ["arith.truncf"],
        ["math.exp"],
    ]


def test_loops_are_those_of_the_cpu_device() -> None:
    program = program_of(*_perceptron())
    with new_context(), ir.Location.unknown():
        assert program_text(legalise(program, "loops").module) == loop_program_text(program)


def test_onnx_keeps_its_operators() -> None:
    pytest.importorskip("onnx")
    assert "aten::linear" in composite_ops_of("onnx") and not composite_ops_of("tosa")
    program = program_of(*_perceptron())
    legal, _ = convert(program, "onnx")
    assert [node.op_type for node in legal.module.model.graph.node].count("Gemm") == 3
    assert [port.shape for port in legal.module.outputs] == [(16, 8)]


# What is refused


@pytest.mark.parametrize(
    ("level", "layouts", "name"),
    [
        *((level, Layouts(channels_last=True), "channels_last") for level in LEVELS if level not in ("linalg", "tosa")),
        *((level, Layouts(blocks=(8, 8, 8)), "blocks") for level in LEVELS if level != "linalg"),
        *((level, Layouts(packs_weights=True), "packs_weights") for level in ("torch", "onnx", "loops")),
    ],
)
def test_a_layout_that_the_level_lacks(level: Level, layouts: Layouts, name: str) -> None:
    with pytest.raises(ValueError, match=f"level '{level}' does not have the layout '{name}'"):
        convert(program_of(nn.ReLU(), torch.randn(3)), level, layouts)


def test_unknown_level() -> None:
    with pytest.raises(ValueError, match="unknown level 'hlo'"):
        convert(program_of(nn.ReLU(), torch.randn(3)), "hlo")  # type: ignore[arg-type]


@pytest.mark.parametrize("level", ["linalg", "tosa", "stablehlo"])
def test_a_changed_signature_is_an_error(level: Level) -> None:
    program = program_of(nn.ReLU(), torch.randn(3))
    with pytest.raises(CompileError, match=f"the lowering to {level} changed the types"):
        convert(replace(program, results=(Result("int64", (3,)),)), level)


@pytest.mark.parametrize("level", ["linalg", "tosa", "stablehlo"])
def test_element_types_that_crash_upstream_are_refused(level: Level) -> None:
    program = program_of(nn.ReLU(), torch.randn(3))
    with pytest.raises(CompileError, match=f"level '{level}' does not have element type ui8"):
        convert(replace(program, mlir=program.mlir.replace("[3],f32", "[3],ui8")), level)


def test_sizes_that_vary_have_no_level() -> None:
    program = program_of(nn.ReLU(), torch.randn(3))
    with pytest.raises(CompileError, match="sizes that vary"):
        convert(replace(program, symbols=(3,)), "tosa")
