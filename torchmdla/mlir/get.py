"""Implementation of ``torchmdla.get_mlir``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

from torch import Tensor
from torch_mlir import ir

from torchmdla import _C, aten, devices
from torchmdla.compile_service.versions import producers
from torchmdla.compiler.mlir import located_text
from torchmdla.compiler.program import Argument, Program, Result
from torchmdla.errors import CompileError, unknown_name
from torchmdla.mlir.function import TorchFunction, parse, separate_results, tensor_type_of, with_literals
from torchmdla.mlir.kinds import kind_of, kind_of_device, refuse_inputs, register_kind, results_of
from torchmdla.mlir.process import run_job
from torchmdla.mlir.specs import read_inputs

Output = Literal["torch", "linalg", "tosa", "stablehlo", "llvm", "aten"]
Weights = Literal["arguments", "literals"]

# Pending tensors of the acap device.
_ACAP = kind_of_device("acap", lambda tensors: _C.acap.pending_graph(tensors, argument_per_use=False))

register_kind(_ACAP)


def get_mlir(
    x: Any,
    *inputs: Any,
    output: Output | None = None,
    weights: Weights = "arguments",
    dynamic_shapes: Any = None,
    canonical: bool = False,
) -> ir.Module:
    """Return ``x`` as an MLIR module.

    Without an ``output``, pending tensors of the acap device return their computation, which does not run. It is one
    function ``@graph`` in the ``aten`` dialect. It has an argument for each use of a tensor and a constant for each use
    of a number. With ``canonical`` it has one argument for each tensor and one constant for each number, and its ops
    have layer names. With an ``output`` these tensors are a program like any other.

    The module has one function ``@forward``. Its arguments are the tensors among the inputs, in their order and with
    their logical shapes, then the weights that are used. The location of each argument is its name
    (``module.operation.print(enable_debug_info=True)``). Its results are the tensors among the results. An exported
    program also returns the new values of the tensors that it writes to. Numbers and ``None`` are part of the program.

    A plain module or function is traced, which fixes its control flow. A scripted program runs once on copies, which
    fixes the values that depend on sizes. Control flow that depends on data is kept. If sizes vary, both kinds of
    programs go through ``torch.export``.

    Args:
        x: a module or function, plain or scripted; a program of :func:`torchmdla.read`; an exported program; a
            ``torch._C.Graph`` (inputs are those of the graph, the scripted module for ``self``); a
            ``torch.fx.GraphModule``, or a ``torch.fx.Graph`` that needs no module (without inputs if it is a flat graph
            of ATen calls with ``meta["val"]``); without inputs, a pending tensor of a lazy device, or a list or tuple
            of them, which are the results.
        inputs: inputs of one call: tensors, or a :class:`TensorSpec` for each. A size that varies is ``?`` in the text.
            A size varies if a spec has None or -1, if ``torch._dynamo.mark_dynamic`` was called for a tensor, or if
            ``dynamic_shapes`` specifies it.
        output: the dialect, by default ``"torch"``. torch-mlir lowers to ``"linalg"``, ``"tosa"`` and ``"stablehlo"``.
            ``"llvm"`` is the code that the cpu device generates: the entry and the packs of its ABI
            (``docs/design/abi.md``), not ``@forward``. ``"aten"`` is the dialect of :mod:`torchmdla.aten`, with
            weights marked ``aten.parameter``.
        weights: ``"arguments"`` makes weights arguments; ``"literals"`` writes their values into the text.
        dynamic_shapes: the sizes of each input that vary, as in ``torch.export.export``.
        canonical: whether uses of a tensor share an argument and uses of a number share a constant, see above.

    Returns:
        ``torch_mlir.ir.Module`` in its own context with all dialects loaded; ``str`` is its text.

    Raises:
        TypeError: ``x`` has another type, or inputs are missing.
        ValueError: ``output`` or ``weights`` has an unknown value.
        CompileError: the program cannot be captured, or an op cannot be lowered. The message names the op, its location
            in the user's program, and the compiler's diagnostic. A crash of the compiler also raises this error,
            because the compiler runs in another process.
    """
    if output is None and _ACAP.takes(x):
        refuse_inputs(inputs or dynamic_shapes)
        return _pending_graph(x, canonical)
    if canonical:
        raise TypeError("canonical is a form of what acap tensors are computed from")
    output = output or "torch"
    if output not in get_args(Output):
        raise ValueError(unknown_name("output", output, get_args(Output)))
    if weights not in get_args(Weights):
        raise ValueError(f"weights are {' or '.join(get_args(Weights))}, got {weights!r}")
    function = kind_of(x).capture(x, read_inputs(inputs, dynamic_shapes))
    if weights == "literals":
        function = with_literals(function)
    return _OUTPUTS[output](function, output)


def _lower(function: TorchFunction, output: str) -> ir.Module:
    text = located_text(function.module)
    return parse(run_job("lower", f"lowering to {output}", text=text, output=output, is_typed=function.is_typed))


def _pending_graph(x: Tensor | Sequence[Tensor], canonical: bool) -> ir.Module:
    """Return the computation of ``x`` as ``@graph`` in the aten dialect.

    Args:
        x: a tensor on the device, or several, which are the results; they stay pending.
        canonical: whether each tensor has one argument, each number one constant, and each op a name. Otherwise every
            use has its own argument or constant.

    Raises:
        CompileError: the dialect cannot express part of the computation.
    """
    graph = _C.acap.pending_graph(results_of(x), argument_per_use=not canonical)
    try:
        module = aten.from_typed_graph(graph, name="graph", share_literals=canonical)
    except aten.AtenError as error:
        raise CompileError(f"it cannot be expressed in the aten dialect: {error}") from error
    if canonical:
        aten.layer_names(module)
    return module


def get_loops(x: Any, *inputs: Any) -> str:
    """Return the loop program that the cpu device reads from ``x``, before any of its passes, as text.

    See ``docs/debugging.md``. Arguments and errors are those of :func:`get_mlir`; sizes do not vary.
    """
    function = kind_of(x).capture(x, read_inputs(inputs, None))
    return _run_cpu_job("loops", "reading loops", function)


def _run_cpu_job(job: str, doing: str, function: TorchFunction) -> str:
    """Run a job on the cpu device's input and return its text."""
    # Each result of the device is a separate buffer.
    separate_results(function)
    types = function.signature
    arguments = tuple(
        Argument(argument.role, *_dtype_and_shape(type_, argument.name))
        for argument, type_ in zip(function.arguments, types.inputs, strict=True)
    )
    results = tuple(Result(*_dtype_and_shape(type_, "a result")) for type_ in types.results)
    device = devices.get("cpu")
    text = located_text(function.module)
    program = Program(text, arguments, results, device.target(), versions=producers(device))
    return run_job(job, doing, program=program.to_json())


def _aten(function: TorchFunction, output: str) -> ir.Module:
    try:
        module = aten.from_torch(function.module)
    except aten.AtenError as error:
        raise CompileError(f"it cannot be expressed in the aten dialect: {error}") from error
    with module.context:
        marks = [
            ir.DictAttr.get({"aten.parameter": ir.UnitAttr.get()} if argument.role == "parameter" else {})
            for argument in function.arguments
        ]
        module.body.operations[0].attributes["arg_attrs"] = ir.ArrayAttr.get(marks)
    return module


_OUTPUTS: Mapping[str, Callable[[TorchFunction, str], ir.Module]] = {
    "torch": lambda function, output: function.module,
    "linalg": _lower,
    "tosa": _lower,
    "stablehlo": _lower,
    "llvm": lambda function, output: parse(_run_cpu_job("generate", "generating code", function)),
    "aten": _aten,
}


def _dtype_and_shape(type_: ir.Type, name: str) -> tuple[str, tuple[int, ...]]:
    dtype, shape = tensor_type_of(type_)
    if None in shape:
        raise CompileError(f"the cpu device compiles for known sizes; those of {name} vary: {type_}")
    return dtype, shape  # type: ignore[return-value]
