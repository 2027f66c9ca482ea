"""Tests of ``get_mlir``: each kind of program in each dialect, dynamic sizes, and errors."""

from __future__ import annotations

import ctypes
import runpy
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import Tensor, fx, nn
from torch.export import Dim
from torch.fx.experimental.proxy_tensor import make_fx
from torch_mlir import ir
from torch_mlir.execution_engine import ExecutionEngine
from torch_mlir.passmanager import PassManager
from torch_mlir.runtime import get_ranked_memref_descriptor, make_nd_memref_descriptor, ranked_memref_to_numpy

import torchmdla
from torchmdla import CompileError, TensorSpec, get_mlir
from torchmdla.devices.cpu.codegen.entry import ENTRY
from torchmdla.devices.cpu.codegen.loader import address_of
from torchmdla.mlir import FunctionArgument, Inputs, Kind, TorchFunction, kinds, register_kind
from torchmdla.mlir.get import Output
from torchmdla.testing.compare import assert_matches

OUTPUTS = get_args(Output)

# A name that the text of each output contains for the program below.
SIGNS = {
    "torch": "torch.aten.relu",
    "linalg": "linalg.matmul",
    "tosa": "tosa.matmul",
    "stablehlo": "stablehlo.dot_general",
    "llvm": "llvm.func",
    "aten": '"aten.relu"',
}


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 12).view(3, 4))
        self.bias: Tensor
        self.register_buffer("bias", torch.linspace(0, 1, 4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(torch.mm(x, self.weight) + self.bias)


class Branching(Layer):
    """Layer with a branch on data."""

    def forward(self, x: Tensor) -> Tensor:
        y = torch.mm(x, self.weight)
        if bool(y.sum() > 0):
            y = y + self.bias
        return y


def product(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.relu(torch.mm(x, weight) + bias)


def chain(x: Tensor) -> Tensor:
    return torch.tanh(torch.sigmoid(x) * x)


def rows(x: Tensor) -> int:
    return x.size(0)


def layer_inputs() -> tuple[Tensor, ...]:
    return (torch.linspace(-1, 1, 6).view(2, 3),)


def product_inputs() -> tuple[Tensor, ...]:
    layer = Layer()
    return (*layer_inputs(), layer.weight.detach(), layer.bias)


# Programs and inputs for get_mlir. All compute the same results from the same three arguments.
KINDS: dict[str, Callable[[], tuple[Any, tuple[Any, ...]]]] = {
    "module": lambda: (Layer(), layer_inputs()),
    "function": lambda: (product, product_inputs()),
    "scripted module": lambda: (torch.jit.script(Layer()), layer_inputs()),
    "scripted function": lambda: (torch.jit.script(product), product_inputs()),
    "traced module": lambda: (torch.jit.trace(Layer(), layer_inputs()), layer_inputs()),
    "exported program": lambda: (torch.export.export(Layer(), layer_inputs()), ()),
    "graph": lambda: (torch.jit.script(product).graph, product_inputs()),
    "graph of a module": lambda: ((scripted := torch.jit.script(Layer())).graph, (scripted, *layer_inputs())),
    "fx": lambda: (torch.export.export(Layer(), layer_inputs()).module(), layer_inputs()),
    "symbolically traced": lambda: (torch.fx.symbolic_trace(Layer()), layer_inputs()),
}
ESSENTIAL = ("module", "function", "scripted module", "exported program", "graph")

TO_LLVM = (
    "one-shot-bufferize{bufferize-function-boundaries=1 function-boundary-type-conversion=identity-layout-map}",
    "func.func(convert-linalg-to-loops)",
    "convert-scf-to-cf",
    "expand-strided-metadata",
    "lower-affine",
    "finalize-memref-to-llvm",
    "func.func(llvm-request-c-wrappers)",
    "convert-arith-to-llvm",
    "convert-cf-to-llvm",
    "convert-func-to-llvm",
    "convert-index-to-llvm",
    "reconcile-unrealized-casts",
)


def function_of(module: ir.Module) -> Any:
    return ir.SymbolTable(module.operation)["forward"]


def argument_names(module: ir.Module) -> list[str]:
    """Return the names in the locations of the arguments."""
    return [str(value.location).split('"')[1] for value in function_of(module).regions[0].blocks[0].arguments]


def run_linalg(module: ir.Module, *arguments: Tensor) -> Tensor:
    """Run a module in linalg with one result of rank 2, and return the result."""
    with module.context:
        PassManager.parse(f"builtin.module({','.join(TO_LLVM)})").run(module.operation)
        engine = ExecutionEngine(module)
    result = make_nd_memref_descriptor(2, np.ctypeslib.as_ctypes_type(np.float32))()
    descriptors = [get_ranked_memref_descriptor(tensor.detach().numpy()) for tensor in arguments]
    pointers = [ctypes.pointer(ctypes.pointer(descriptor)) for descriptor in (result, *descriptors)]
    engine.invoke("forward", *pointers)
    return torch.from_numpy(ranked_memref_to_numpy([result]).copy())


def run_generated(module: ir.Module, buffers: Sequence[Tensor]) -> None:
    """Call the entry of the cpu device's code. The code has no packs and needs little workspace."""
    engine = ExecutionEngine(module)
    for op in module.body.operations:
        if op.operation.name == "llvm.func" and not len(op.regions[0].blocks):
            name = op.attributes["sym_name"].value
            engine.raw_register_runtime(name, ctypes.c_void_p(address_of(name)))
    workspace = torch.empty(1 << 20, dtype=torch.uint8)
    aligned = -(-workspace.data_ptr() // 64) * 64
    table = (ctypes.c_void_p * (3 + len(buffers)))(aligned, None, None, *(tensor.data_ptr() for tensor in buffers))
    status = ctypes.c_int32(-1)
    argument = ctypes.c_void_p(ctypes.addressof(table))
    # The engine returns a wrapper whose parameters are pointers to the arguments and to the result.
    pointers = (ctypes.c_void_p * 2)(ctypes.addressof(argument), ctypes.addressof(status))
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(engine.raw_lookup(ENTRY))(ctypes.addressof(pointers))
    assert status.value == 0


# Kinds and outputs


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("kind", ESSENTIAL)
def test_every_output(kind: str, output: Output) -> None:
    x, inputs = KINDS[kind]()
    module = get_mlir(x, *inputs, output=output)
    assert module.operation.verify()
    assert SIGNS[output] in str(module)


@pytest.mark.parametrize("kind", KINDS)
def test_values_and_order_of_arguments(kind: str) -> None:
    x, inputs = KINDS[kind]()
    module = get_mlir(x, *inputs, output="linalg")
    assert argument_names(module) == ["x", "weight", "bias"]
    assert_matches(run_linalg(module, *product_inputs()), product(*product_inputs()))


def test_flat_fx_graph_needs_no_inputs() -> None:
    module = get_mlir(torch.export.export(Layer(), layer_inputs()).graph_module)
    assert len(function_of(module).regions[0].blocks[0].arguments) == 3
    assert "torch.aten.mm" in str(module)


def test_generated_code_runs() -> None:
    a, b = torch.randn(5, 7), torch.randn(5, 7)
    module = get_mlir(lambda a, b: (torch.tanh(a) * b, a), a, b, output="llvm")
    results = [torch.empty(5, 7), torch.empty(5, 7)]
    run_generated(module, [a, b, *results])
    # An input that is returned is copied, because the device's results have separate buffers.
    assert_matches(results, [torch.tanh(a) * b, a])


def test_parameters_are_marked_in_the_aten_dialect() -> None:
    text = str(get_mlir(Layer(), *layer_inputs(), output="aten"))
    assert "(%arg0: tensor<2x3xf32>, %arg1: tensor<3x4xf32> {aten.parameter}, %arg2: tensor<4xf32> {aten.par" in text


@pytest.mark.parametrize("kind", ["module", "scripted module", "exported program"])
def test_weights_as_literals(kind: str) -> None:
    x, inputs = KINDS[kind]()
    module = get_mlir(x, *inputs, output="linalg", weights="literals")
    assert argument_names(module) == ["x"]
    assert_matches(run_linalg(module, *layer_inputs()), product(*product_inputs()))


@pytest.mark.parametrize(
    "dtype",
    [torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float64, torch.complex64],
    ids=str,
)
def test_literals_of_every_dtype(dtype: torch.dtype) -> None:
    class Held(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.held: Tensor
            self.register_buffer("held", torch.tensor([[1, 0, 2]]).to(dtype))

        def forward(self, x: Tensor) -> Tensor:
            return torch.reshape(self.held, (3, 1)), x  # type: ignore[return-value]

    module = get_mlir(Held(), torch.ones(2), weights="literals")
    assert "torch.vtensor.literal" in str(module)
    assert argument_names(module) == ["x"]


def test_signature_has_unused_inputs_and_returned_ones_but_no_numbers() -> None:
    def f(x: Tensor, unused: Tensor, n: int) -> tuple[Tensor, int, Tensor, Tensor]:
        y = torch.relu(x)
        return x, n, y, y

    text = str(get_mlir(torch.jit.script(f), torch.ones(2), torch.ones(3), 4))
    assert "@forward(%arg0: !torch.vtensor<[2],f32>, %arg1: !torch.vtensor<[3],f32>)" in text
    assert "return %arg0, %0, %0 : " in text


def test_shapes_are_logical_whatever_the_strides() -> None:
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    text = str(get_mlir(torch.relu, x))
    assert text.count("!torch.vtensor<[2,3,4,5],f32>") == 5
    assert "permute" not in text


def test_branches_loops_and_containers_of_sizes_unfold() -> None:
    @torch.jit.script
    def f(x: Tensor, times: int) -> tuple[Tensor, Tensor]:
        parts = []
        for i in range(times):
            x = torch.tanh(x) + i
            parts.append(x)
        if x.size(0) > 2:
            x = -x
        named = {"last": x, "all": torch.stack(parts)}
        return named["last"], named["all"]

    text = str(get_mlir(f, torch.ones(3), 3))
    assert text.count("torch.aten.tanh") == 3
    assert text.count("torch.aten.neg") == 1
    assert "prim.If" not in text


def read_before_the_write(x: Tensor) -> Tensor:
    y = x + 1
    z = y * 2
    y.mul_(x)
    return y + z


def written_in_a_loop(x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    for i in range(3):
        y.add_(x, alpha=i)
    return y.relu_()


def containers(x: Tensor) -> Tensor:
    parts = [x, x * 2, x * 3]
    parts.reverse()
    parts.insert(1, parts.pop())
    named = {"a": parts[0], "b": parts[1]}
    named.update({"c": x - 1})
    if f"c{len(named)}" == "c3":
        named["a"] = named.pop("c") * (7 // -2) + (-7 % 3)
    return named["a"] + named["b"]


@pytest.mark.parametrize("function", [read_before_the_write, written_in_a_loop, containers])
def test_writes_to_own_tensors_and_containers_unfold(function: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(3, 4)
    module = get_mlir(torch.jit.script(function), x, output="linalg", weights="literals")
    assert_matches(run_linalg(module, x), function(x))


def written_view(x: Tensor) -> Tensor:
    y = x + 1
    y[0].add_(1)
    return y


def written_base(x: Tensor) -> Tensor:
    y = x + 1
    z = y[0]
    y.add_(1)
    return z * 2


def written_argument(x: Tensor) -> Tensor:
    return torch.dropout(x, 0.5, False).add_(1)


@pytest.mark.parametrize("function", [written_view, written_base, written_argument])
def test_writes_that_others_see_are_refused(function: Callable[[Tensor], Tensor]) -> None:
    error = refused(torch.jit.script(function), torch.ones(3, 3))
    assert error.reason.startswith("it writes to an input, a weight or a view")
    assert error.source.startswith(__file__)


@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate", "circular"])
@pytest.mark.sampled(1)
def test_wide_paddings_are_no_longer_programs_than_narrow_ones(mode: str) -> None:
    def program(width: int) -> str:
        return str(get_mlir(lambda x: nn.functional.pad(x, (width, 1), mode), torch.randn(2, 3, 600), output="linalg"))

    assert program(500).count("%") == program(2).count("%")


def test_many_windows_make_no_longer_programs_than_some() -> None:
    def program(windows: int) -> str:
        pool = nn.AdaptiveAvgPool1d(windows)
        return str(get_mlir(pool, torch.randn(2, 3, 251), output="linalg"))

    assert program(240).count("%") == program(40).count("%")


def test_control_flow_on_data_stays() -> None:
    module = get_mlir(torch.jit.script(Branching()), *layer_inputs())
    assert "torch.prim.If" in str(module)
    signature = function_of(module).attributes["arg_attrs"]
    assert [str(bound["torch.type_bound"]) for bound in signature] == [
        "!torch.vtensor<[2,3],f32>",
        "!torch.vtensor<[3,4],f32>",
        "!torch.vtensor<[4],f32>",
    ]
    literals = get_mlir(torch.jit.script(Branching()), *layer_inputs(), weights="literals")
    assert len(function_of(literals).regions[0].blocks[0].arguments) == 1


def test_optimised_graph_with_groups() -> None:
    x = torch.randn(4, 4)
    scripted = torch.jit.script(chain)
    with torch.no_grad():
        graph = torchmdla.graph_for(scripted, x)
    assert "mdla::CompilationGroup" in str(graph)
    assert str(get_mlir(graph, x)) == str(get_mlir(scripted, x))


def test_nothing_of_the_users_changes() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(3)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(x) + torch.rand(1)

    module = Counting().train()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    torch.manual_seed(5)
    for program in (module, torch.jit.script(module)):
        with pytest.raises(CompileError):
            get_mlir(program, torch.randn(4, 3, generator=torch.Generator()))
    assert torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(5)))
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_exported_training_returns_new_values_of_buffers_last() -> None:
    module = nn.BatchNorm1d(3).train()
    text = str(get_mlir(torch.export.export(module, (torch.randn(4, 3),))))
    types = text.split(") -> (")[1].split("{")[0]
    assert types.startswith("!torch.vtensor<[4,3],f32>, !torch.vtensor<[3],f32>, !torch.vtensor<[3],f32>")


# Dynamic sizes


def marked(tensor: Tensor, dim: int) -> Tensor:
    torch._dynamo.mark_dynamic(tensor, dim)
    return tensor


VARYING: dict[str, Callable[[], ir.Module]] = {
    "spec": lambda: get_mlir(Layer(), TensorSpec((None, 3)), output="linalg"),
    "spec of a scripted module": lambda: get_mlir(torch.jit.script(Layer()), TensorSpec((-1, 3)), output="linalg"),
    "mark": lambda: get_mlir(Layer(), marked(*layer_inputs(), 0), output="linalg"),
    "dynamic_shapes": lambda: get_mlir(
        Layer(), *layer_inputs(), dynamic_shapes={"x": {0: Dim("rows")}}, output="linalg"
    ),
    "export": lambda: get_mlir(
        torch.export.export(Layer(), layer_inputs(), dynamic_shapes={"x": {0: Dim("rows")}}), output="linalg"
    ),
}


@pytest.mark.parametrize("way", VARYING)
@pytest.mark.sampled(2)
def test_sizes_that_vary(way: str) -> None:
    module = VARYING[way]()
    assert "@forward(%arg0: tensor<?x3xf32>, %arg1: tensor<3x4xf32>, %arg2: tensor<4xf32>) -> tensor<?x4xf32>" in str(
        module
    )
    assert argument_names(module) == ["x", "weight", "bias"]
    x = torch.randn(7, 3)
    _, weight, bias = product_inputs()
    assert_matches(run_linalg(module, x, weight, bias), product(x, weight, bias))


@pytest.mark.parametrize("output", ["torch", "stablehlo", "aten"])
@pytest.mark.sampled(1)
def test_sizes_that_vary_in_other_dialects(output: Output) -> None:
    program = torch.jit.script(product)
    _, weight, bias = product_inputs()
    for shapes in ({"x": {0: Dim.DYNAMIC}}, ({0: Dim.DYNAMIC}, None, None)):
        module = get_mlir(program, torch.ones(5, 3), weight, bias, dynamic_shapes=shapes, output=output)
        assert "?" in str(module).splitlines()[1]


def test_specs_have_no_data_and_need_none() -> None:
    text = str(get_mlir(nn.Embedding(5, 2), TensorSpec((1, 6), torch.int64)))
    assert "!torch.vtensor<[1,6],si64>" in text
    assert "!torch.vtensor<[1,6,2],f32>" in text


class Sizes(nn.Module):
    """Module that computes with sizes."""

    def forward(self, x: Tensor) -> Tensor:
        half = x.size(1) // 2
        return (x[:, :half] * x.size(0)).reshape(x.size(0) * 2, -1)


@pytest.mark.parametrize("capture", [torch.jit.script, lambda module: torch.jit.trace(module, torch.ones(4, 8))])
def test_arithmetic_with_sizes_that_vary(capture: Callable[[nn.Module], Any]) -> None:
    module = get_mlir(capture(Sizes()), TensorSpec((None, 8)), output="linalg", weights="literals")
    assert argument_names(module) == ["x"]
    assert "tensor<?x8xf32>) -> tensor<?x2xf32>" in str(module)
    x = torch.randn(5, 8)
    assert_matches(run_linalg(module, x), Sizes()(x))


# Files


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (Layer(), layer_inputs()),
        (Branching(), layer_inputs()),
        (Layer(), (TensorSpec((None, 3)),)),
        (
            nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Sequential(nn.ReLU())).eval(),
            (torch.ones(1, 3, 8, 8),),
        ),
    ],
    ids=["layer", "control flow", "sizes that vary", "calls"],
)
def test_programs_that_torchmdla_reads(model: nn.Module, inputs: Sequence[Any], tmp_path: Path) -> None:
    torch.jit.script(model).save(tmp_path / "model.pt")
    expected = get_mlir(torch.jit.load(tmp_path / "model.pt"), *inputs)
    module = get_mlir(torchmdla.read(tmp_path / "model.pt"), *inputs)
    # The order of constants differs.
    assert sorted(str(module).splitlines()) == sorted(str(expected).splitlines())


# Errors


def test_importing_torchmdla_loads_no_mlir() -> None:
    code = """if True:
        import sys
        import torchmdla
        assert not any(name.startswith(("torch_mlir", "torch._dynamo")) for name in sys.modules)
        import torchmdla.aten
        assert "torch_mlir" not in sys.modules
        torchmdla.ModuleBuilder
        assert "torch_mlir" in sys.modules
        torchmdla.get_mlir
    """
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: get_mlir(Layer(), *layer_inputs(), output="foo"),
            ValueError,
            "unknown output 'foo' (choose from torch, linalg",
        ),
        (lambda: get_mlir(Layer(), *layer_inputs(), weights="foo"), ValueError, "weights are arguments or literals"),
        (lambda: get_mlir(Layer()), TypeError, "needs the inputs of a call"),
        (lambda: get_mlir(torch.jit.script(Layer())), TypeError, "needs the inputs of a call"),
        (lambda: get_mlir(3), TypeError, "a module, a function; got int"),
        (lambda: get_mlir(torch.jit.script(Layer()), *product_inputs()), TypeError, "takes 1 input (x), got 3"),
        (lambda: get_mlir(*KINDS["exported program"]()[:1], torch.ones(1)), TypeError, "has its inputs"),
        (lambda: get_mlir(torch.jit.script(product).graph, TensorSpec((None,))), TypeError, "cannot vary"),
        (
            lambda: get_mlir(Layer(), TensorSpec((None, 3)), dynamic_shapes={"x": {0: Dim("n")}}),
            TypeError,
            "not both",
        ),
        (lambda: TensorSpec((2, -3)), ValueError, "from 0 on"),
        (lambda: get_mlir(Layer(), TensorSpec((None, 3)), output="llvm"), CompileError, "those of x vary"),
        (lambda: get_mlir(lambda x: x.view(32, 3) + 1, TensorSpec((None, 3))), CompileError, "specialized it"),
        (lambda: get_mlir(torch.jit.script(Layer()), torch.ones(2, 5)), CompileError, "cannot be multiplied"),
        (lambda: get_mlir(Branching(), "x"), CompileError, "torch.jit.trace cannot capture it"),
        (lambda: get_mlir(torch.jit.script(rows), torch.ones(2)), CompileError, "no tensor among its results"),
    ],
)
def test_errors(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error) as raised:
        call()
    assert message in str(raised.value)


def refused(program: Any, *inputs: Any, output: Output = "torch") -> CompileError:
    with pytest.raises(CompileError) as raised:
        get_mlir(program, *inputs, output=output)
    return raised.value


def svd(x: Tensor) -> Tensor:
    return torch.linalg.svdvals(x)


def cumulative(x: Tensor) -> Tensor:
    return torch.cumprod(x, 0)


def in_place(x: Tensor) -> Tensor:
    return x.add_(1)


def line_of(function: Callable[..., Any]) -> str:
    """Return the source location of the only statement of ``function``."""
    return f"{__file__}:{function.__code__.co_firstlineno + 1}"


@pytest.mark.parametrize(
    ("program", "output", "op"),
    [
        (svd, "torch", "aten::linalg_svdvals"),
        (in_place, "torch", "aten::add_"),  # A trace has a tensor in place of the number.
        (cumulative, "tosa", "aten::cumprod"),
    ],
)
def test_an_unsupported_op_is_named_with_its_place(program: Any, output: Output, op: str) -> None:
    for x in (program, torch.jit.script(program)):
        error = refused(x, torch.ones(3, 3), output=output)
        assert error.op.partition(".")[0] == op
        assert error.source == line_of(program)


@pytest.mark.parametrize(("limit", "value"), [("SECONDS", "0.01"), ("MEMORY", "8M")])
def test_limits_of_compiles_hold(monkeypatch: pytest.MonkeyPatch, limit: str, value: str) -> None:
    monkeypatch.setenv(f"TORCHMDLA_COMPILE_{limit}", value)
    with pytest.raises(CompileError, match="more than 0.01 seconds" if limit == "SECONDS" else "died|failed"):
        get_mlir(nn.Linear(4, 4).eval(), torch.randn(2, 4), output="linalg")


def test_a_crash_of_the_compiler_is_an_exception() -> None:
    error = refused(lambda x: x.sum(), torch.ones(3, dtype=torch.complex64), output="linalg")
    assert "the compiler process died while lowering to linalg" in str(error)
    assert "SIG" in error.diagnostic


def scaled(x: Tensor, y: Tensor) -> Tensor:
    return torch.tanh(x) * y.view(-1)


def test_a_bare_fx_graph() -> None:
    x = torch.randn(3)
    text = str(get_mlir(fx.Tracer().trace(scaled), x, x))
    assert text == str(get_mlir(fx.symbolic_trace(scaled), x, x))
    assert str(get_mlir(make_fx(scaled)(x, x + 1).graph)).count("!torch.vtensor<[3],f32>") > 4
    layer = nn.Linear(3, 2)
    owned = fx.symbolic_trace(layer).graph
    assert str(get_mlir(owned, x)) == str(get_mlir(layer, x))
    with pytest.raises(TypeError, match=r"takes 'weight' of one: give get_mlir torch.fx.GraphModule\(root, graph\)"):
        get_mlir(fx.Tracer().trace(layer), x)


def test_the_fx_example(capsys: Any) -> None:
    runpy.run_path(str(Path(__file__).parents[2] / "examples" / "fx_mlir.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert all(sign in printed for sign in ("torch.aten.mm", "linalg.generic", "stablehlo.tanh"))


@pytest.mark.sampled(0)
def test_the_example(capsys: Any) -> None:
    runpy.run_path(str(Path(__file__).parents[2] / "examples" / "get_mlir.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert all(
        sign in printed for sign in ("torch.aten.relu", "linalg.", "tosa.", "stablehlo.", "aten.", "tensor<?x3x")
    )


# Kinds that users register


def test_registered_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds, "_kinds", list(kinds._kinds))

    class Pending:
        """Program without inputs, like a lazy tensor."""

    def capture(x: Pending, inputs: Inputs) -> TorchFunction:
        assert inputs.values == ()
        module = get_mlir(torch.relu, torch.ones(2))
        return TorchFunction(module, (FunctionArgument("x", "input"),))

    register_kind(Kind("a pending tensor", lambda x: isinstance(x, Pending), capture))
    assert "linalg.generic" in str(get_mlir(Pending(), output="linalg"))
    with pytest.raises(TypeError, match="a pending tensor"):
        get_mlir(3)
