"""Graphs of small models become programs that compute the same values as eager."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from executing import execute
from graphs import unfrozen_graph
from torch import Tensor, nn

import torchmdla
from torchmdla.errors import CompileError
from torchmdla.importer import TensorMeta, import_graph, with_location
from torchmdla.importer.emitter import quote
from torchmdla.importer.interpreter import run_and_record
from torchmdla.importer.layout import exact_memory_order, invert, memory_order
from torchmdla.importer.script_graph import convert_graph
from torchmdla.importer.sources import source_in_ranges
from torchmdla.script.ir import Graph
from torchmdla.testing.compare import assert_matches


def frozen_graph(module: nn.Module, *inputs: Tensor) -> tuple[Graph, list[object]]:
    """Return the graph of a traced module with its weights as constants, and its inputs."""
    with torch.no_grad():
        graph = torch.jit.freeze(torch.jit.trace(module.eval(), inputs)).graph.copy()
    torch._C._jit_pass_lower_all_tuples(graph)
    graph.eraseInput(0)
    return convert_graph(graph), list(inputs)


def scripted_graph(function: Callable[..., object], *inputs: object) -> tuple[Graph, list[object]]:
    graph = torch.jit.script(function).graph.copy()
    torch._C._jit_pass_inline(graph)
    torch._C._jit_pass_lower_all_tuples(graph)
    return convert_graph(graph), list(inputs)


def check(graph: Graph, inputs: list[object]) -> None:
    with torch.no_grad():
        expected, record = run_and_record(graph, inputs)
    results = execute(import_graph(graph, record, range(1, len(inputs))), graph, inputs)
    for result, wanted in zip(results, expected, strict=True):
        if isinstance(wanted, Tensor):
            assert_matches(result, wanted)
            assert result.stride() == wanted.stride()
        else:
            assert result == wanted


def conv_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 4)
    )


class LastStep(nn.Module):
    """Recurrent network and its last results, which most users read."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        output, _ = self.network(x)
        return output, output[:, -1] * 1.0


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


IMAGE = torch.randn(2, 3, 9, 8)
SEQUENCE = torch.randn(2, 5, 16)
MODELS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "convolution": (conv_net, IMAGE),
    "channels last": (
        lambda: conv_net().to(memory_format=torch.channels_last),
        IMAGE.to(memory_format=torch.channels_last),
    ),
    "instance norm": (lambda: nn.InstanceNorm2d(3, affine=True), IMAGE),
    "lstm": (lambda: LastStep(nn.LSTM(16, 12, 2, bidirectional=True, batch_first=True)), SEQUENCE),
    "gru": (lambda: LastStep(nn.GRU(16, 12, batch_first=True)), SEQUENCE),
    "rnn": (lambda: LastStep(nn.RNN(16, 12, batch_first=True)), SEQUENCE),
    "encoder layer": (lambda: nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), SEQUENCE),
    "attention": (Attention, SEQUENCE),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("graph_of", [frozen_graph, unfrozen_graph])
def test_models(name: str, graph_of: Callable[..., tuple[Graph, list[object]]]) -> None:
    make, example = MODELS[name]
    check(*graph_of(make(), example))


def test_weights_are_parameters() -> None:
    graph, inputs = frozen_graph(conv_net(), IMAGE)
    imported = import_graph(graph, run_and_record(graph, inputs)[1], ())
    assert {(a.role, b.source) for a, b in zip(imported.arguments, imported.bindings, strict=True)} == {
        ("input", "input"),
        ("parameter", "constant"),
    }
    assert "dense" not in imported.mlir


def sizes(x: Tensor, y: Tensor) -> Tensor:
    a, b = x.chunk(2, 1)
    return torch.relu(a + b * y.size(0)).view(x.size(0) * 2, -1) + float(y.size(0) // 2)


def test_sizes_are_constants_and_their_tensor_no_argument() -> None:
    graph, inputs = scripted_graph(sizes, torch.randn(3, 4), torch.randn(5))
    check(graph, inputs)
    imported = import_graph(graph, run_and_record(graph, inputs)[1], ())
    assert [binding.index for binding in imported.bindings] == [0]
    traced = convert_graph(torch.jit.trace(sizes, tuple(inputs)).graph)
    check(traced, inputs)


def test_lists_of_slices() -> None:
    def script(x: Tensor):  # type: ignore[no-untyped-def]
        a, b = x.split([1, 3], 1)
        c, d, e = x.unbind(0)
        return torch.cat([b * 2.0, a], 1), c + d * e

    check(*scripted_graph(script, torch.randn(3, 4)))


def test_constant_chunk() -> None:
    graph = torch._C.parse_ir(
        "graph(%x : Tensor):\n"
        "  %a : Tensor, %b : Tensor = prim::ConstantChunk[chunks=2, dim=-1](%x)\n"
        "  %c : Tensor = aten::mul(%a, %b)\n  return (%c)\n"
    )
    check(convert_graph(graph), [torch.randn(3, 4)])


def scaled(x: Tensor, factor: float) -> Tensor:
    return torch.relu(x) * factor


def test_float_inputs_are_arguments() -> None:
    graph, inputs = scripted_graph(scaled, torch.randn(3, 4), 0.5)
    record = run_and_record(graph, inputs)[1]
    imported = import_graph(graph, record, ())
    assert [(argument.kind, argument.dtype) for argument in imported.arguments] == [
        ("tensor", "float32"),
        ("scalar", "float64"),
    ]
    (result,) = execute(imported, graph, [inputs[0], 0.25])
    assert_matches(result, scaled(inputs[0], 0.25))  # type: ignore[arg-type]


def outputs(x: Tensor, n: int):  # type: ignore[no-untyped-def]
    y = torch.relu(x)
    return y, y, x, n + 1, y + 1.0


def test_outputs_that_are_inputs_twins_or_numbers() -> None:
    graph, inputs = scripted_graph(outputs, torch.randn(3, 4), 5)
    imported = import_graph(graph, run_and_record(graph, inputs)[1], ())
    assert [output.source for output in imported.outputs] == ["result", "result", "input", "constant", "result"]
    assert [output.index for output in imported.outputs] == [0, 0, 0, -1, 1]
    assert imported.outputs[3].value == 6
    check(graph, inputs)


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(4, 3).t(),
        torch.randn(2, 3, 4).permute(1, 2, 0),
        torch.randn(3, 8)[:, ::2],
        torch.randn(3, 1).expand(3, 4),
        torch.randn(1, 3, 1, 5).to(memory_format=torch.channels_last),
    ],
    ids=["transposed", "permuted", "strided", "expanded", "unit sizes"],
)
def test_memory_orders(x: Tensor) -> None:
    graph = torch._C.parse_ir("graph(%x : Tensor):\n  %y : Tensor = aten::relu(%x)\n  return (%y)\n")
    check(convert_graph(graph), [x])


def test_memory_order_is_a_permutation_to_contiguous() -> None:
    x = torch.empty(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert memory_order(x.shape, x.stride()) == exact_memory_order(x.shape, x.stride()) == (0, 2, 3, 1)
    assert x.permute(0, 2, 3, 1).permute(invert((0, 2, 3, 1))).stride() == x.stride()
    assert memory_order((3, 4), (1, 1)) is None
    assert memory_order((2, 0), (7, 7)) == (0, 1)


def data_dependent(x: Tensor) -> Tensor:
    return x * int(x.sum())


def test_a_number_made_from_data_is_refused() -> None:
    graph, inputs = scripted_graph(data_dependent, torch.ones(3))
    with pytest.raises(CompileError, match="known only at run time") as caught:
        import_graph(graph, run_and_record(graph, inputs)[1], ())
    assert caught.value.op.startswith("aten::Int")
    assert "test_importer.py" in caught.value.source


def test_a_program_does_not_depend_on_where_its_source_lies() -> None:
    texts = []
    for padding in ("", "\n\n\n"):
        unit = torch.jit.CompilationUnit(padding + "def f(x):\n    return x.relu() + 1.0\n")
        graph, inputs = convert_graph(unit.f.graph), [torch.randn(3)]
        texts.append(import_graph(graph, run_and_record(graph, inputs)[1], ()).mlir)
    assert texts[0] == texts[1]


def test_a_diagnostic_leads_back_to_the_source() -> None:
    graph, inputs = scripted_graph(scaled, torch.randn(3), 0.5)
    imported = import_graph(graph, run_and_record(graph, inputs)[1], ())
    node = next(i for i, n in enumerate(graph.nodes) if n.op == "aten::relu")
    for error in (
        CompileError("no", diagnostic=f'loc("aten::relu"("graph":{node}:0)): error: no'),
        CompileError("no", op="aten::relu", source=f"graph:{node}"),
    ):
        error_at = with_location(error, imported)
        assert (error_at.op, error_at.nodes) == ("aten::relu", (node,))
        assert "test_importer.py:" in error_at.source
    assert with_location(CompileError("no"), imported).nodes == ()


def test_a_value_without_record_is_named() -> None:
    graph, _ = scripted_graph(scaled, torch.randn(3), 0.5)
    with pytest.raises(CompileError, match="lacks value"):
        import_graph(graph, {"x.1": TensorMeta(torch.float32, (3,), (1,)), "factor.1": 0.5}, ())


@pytest.mark.parametrize("text", ["plain", 'a "quote" and \\', "ünïcode ✓", "\x00\x1f\x7f\n"])
def test_strings_read_back(text: str) -> None:
    from torch_mlir import ir

    with ir.Context():
        assert ir.StringAttr(ir.Attribute.parse(quote(text))).value_bytes == text.encode()


def test_whose_a_line_is() -> None:
    """Check source lines.

    The innermost line that is neither PyTorch's nor torchmdla's counts. A line of torchvision, installed beside them,
    counts too.
    """
    beside = Path(torch.__file__).parents[1]
    ours = Path(torchmdla.__file__).parent
    files = {
        beside / "torchvision" / "models" / "resnet.py": True,
        beside / "torch" / "nn" / "functional.py": False,
        ours / "api.py": False,
        ours / "testing" / "architectures.py": True,
    }
    for file, is_theirs in files.items():
        stack = f"{file}(12): forward\nmine.py(3): <module>\n"
        assert source_in_ranges(stack) == (f"{file}:12" if is_theirs else "mine.py:3")
