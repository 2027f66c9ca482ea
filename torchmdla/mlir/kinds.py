"""Registry of the kinds of programs that ``get_mlir`` supports, to which other modules add their kinds."""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch_mlir import ir

from torchmdla import _C
from torchmdla.capture.fx.function_module import FunctionModule
from torchmdla.capture.script.module import ScriptProgramModule, make_module
from torchmdla.errors import CompileError
from torchmdla.importer.function import FunctionWriter
from torchmdla.importer.graph import read_graph
from torchmdla.importer.script_graph import convert_graph, inline_graph, types_of
from torchmdla.mlir.context import new_context
from torchmdla.mlir.function import FunctionArgument, TorchFunction, fill_resources, parse
from torchmdla.mlir.specs import Inputs
from torchmdla.script.ir import Graph, Program
from torchmdla.support import jit


@dataclass(frozen=True)
class Kind:
    """One kind of program.

    Args:
        name: name in error messages, such as ``"a function"``.
        takes: predicate for whether an object is of this kind.
        capture: function that converts the object and the inputs of a call to a function in the Torch dialect. It
            raises TypeError if inputs are missing or not allowed.
    """

    name: str
    takes: Callable[[Any], bool]
    capture: Callable[[Any, Inputs], TorchFunction]


_kinds: list[Kind] = []


def register_kind(kind: Kind) -> None:
    """Register a kind. If several kinds match an object, the last registered one is used."""
    _kinds.insert(0, kind)


def kind_of(x: object) -> Kind:
    """Return the kind of ``x``.

    Raises:
        TypeError: ``x`` is of another kind.
    """
    for kind in _kinds:
        if kind.takes(x):
            return kind
    names = ", ".join(kind.name for kind in _kinds)
    raise TypeError(f"get_mlir takes {names}; got {type(x).__name__}")


def _plain(x: Any, inputs: Inputs) -> TorchFunction:
    """Convert a plain module or function: trace it, or export it if sizes vary."""
    from torchmdla.mlir import exported, scripted

    _require_inputs(inputs)
    if inputs.dynamic_shapes is not None:
        if isinstance(x, torch.nn.Module):
            return exported.function_of_module(x, inputs)
        names = list(inspect.signature(x).parameters)
        return exported.function_of_module(FunctionModule(x), inputs.pack_in_one_argument(names), names)
    if getattr(x, "training", False):
        x = copy.deepcopy(x)  # A call may write to buffers.
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            traced = jit.trace(x, inputs.values)
    except Exception as error:
        raise CompileError("torch.jit.trace cannot capture it", diagnostic=str(error)) from error
    return scripted.function_of_graph(convert_graph(traced.inlined_graph), [*_self_argument(traced), *inputs.values])


def _scripted(x: Any, inputs: Inputs) -> TorchFunction:
    """Convert a program of ``torch.jit``."""
    return _script_program(convert_graph(x.inlined_graph), _self_argument(x), inputs)


def _read(x: Program | ScriptProgramModule, inputs: Inputs) -> TorchFunction:
    """Convert a program that torchmdla reads itself."""
    module = make_module(x) if isinstance(x, Program) else x
    return _script_program(module.inlined_graph, [module], inputs)


def _script_program(graph: Graph, module: Sequence[torch.nn.Module], inputs: Inputs) -> TorchFunction:
    """Convert the graph of a program: run it once, or export it if sizes vary. ``module`` is its first input."""
    from torchmdla.mlir import exported

    names = graph.parameters[len(module) :]
    if names:
        _require_inputs(inputs)
    if inputs.dynamic_shapes is None:
        return _run_graph(graph, (*module, *inputs.values))
    program = exported.ScriptedProgram(graph, module)
    return exported.function_of_module(program, inputs.pack_in_one_argument(names), names)


def _graph(x: torch._C.Graph, inputs: Inputs) -> TorchFunction:
    if inputs.dynamic_shapes is not None:
        raise TypeError("sizes of a torch._C.Graph cannot vary; give get_mlir the scripted program")
    return _run_graph(inline_graph(x), inputs.values)


def _run_graph(graph: Graph, inputs: Sequence[Any]) -> TorchFunction:
    from torchmdla.mlir import scripted

    try:
        return scripted.function_of_graph(graph, inputs)
    except scripted.DependsOnData:
        return scripted.function_with_control_flow(graph, inputs)


def _fx(x: torch.fx.GraphModule, inputs: Inputs) -> TorchFunction:
    """Convert a flat graph with known types directly, and any other graph like a plain module."""
    from torchmdla.mlir import exported

    return _plain(x, inputs) if inputs.values or not exported.is_flat(x) else exported.function_of_fx(x)


def _bare_fx(x: torch.fx.Graph, inputs: Inputs) -> TorchFunction:
    """Convert a graph with the module that owns it, or with an empty module if it needs none."""
    if x.owning_module is not None:
        return _fx(torch.fx.GraphModule(x.owning_module, x), inputs)
    for node in x.nodes:
        if node.op in ("call_module", "get_attr"):
            raise TypeError(
                f"a torch.fx.Graph has no modules or weights, and this one takes {node.target!r} of one: give get_mlir "
                "torch.fx.GraphModule(root, graph)"
            )
    return _fx(torch.fx.GraphModule(torch.nn.Module(), x), inputs)


def _program(x: Any, inputs: Inputs) -> TorchFunction:
    from torchmdla.mlir import exported

    if inputs.values or inputs.dynamic_shapes is not None:
        raise TypeError("an exported program has its inputs, and the sizes that vary, from its export")
    return exported.function_of_program(x)


def _require_inputs(inputs: Inputs) -> None:
    if not inputs.values:
        raise TypeError("get_mlir needs the inputs of a call: tensors, or TensorSpec(shape, dtype)")


def _self_argument(program: Any) -> list[Any]:
    return [program] if isinstance(program, torch.jit.ScriptModule) else []


def module_of_graph(graph: Any, name: str = "graph") -> ir.Module:
    """Return a flat typed graph as a module with the one function ``name``.

    Raises:
        CompileError: the dialect cannot express part of the graph.
    """
    context = new_context()
    text, resources = read_graph(
        convert_graph(graph), FunctionWriter(name, types_of(graph), context.is_registered_operation)
    )
    module = parse(text)
    fill_resources(module, resources, name)
    return module


def results_of(x: Tensor | Sequence[Tensor]) -> Sequence[Tensor]:
    """Return the requested results as a sequence of tensors."""
    return [x] if isinstance(x, Tensor) else x


def refuse_inputs(inputs: object) -> None:
    """Raise an error if there are inputs beside pending tensors.

    Raises:
        TypeError: ``inputs`` is not empty.
    """
    if inputs:
        raise TypeError("pending tensors take no inputs; several of them are given as a list: get_mlir([x, y])")


def kind_of_device(device: str, graph_of: Callable[[Sequence[Tensor]], Any]) -> Kind:
    """Return the kind for tensors of a lazy device: one tensor, or a list or tuple of them.

    Args:
        device: name of the device.
        graph_of: function that returns the flat typed graph that computes pending tensors.
    """

    def is_there(x: object) -> bool:
        return isinstance(x, Tensor) and x.device.type == device

    def takes(x: object) -> bool:
        return is_there(x) or (isinstance(x, list | tuple) and bool(x) and all(map(is_there, x)))

    def capture(x: Tensor | Sequence[Tensor], inputs: Inputs) -> TorchFunction:
        refuse_inputs(inputs.values or inputs.dynamic_shapes)
        graph = graph_of(results_of(x))
        arguments = tuple(FunctionArgument(value.debugName(), "input") for value in graph.inputs())
        return TorchFunction(module_of_graph(graph, "forward"), arguments)

    return Kind(f"tensors of the {device} device", takes, capture)


def _is_exported(x: object) -> bool:
    """Return whether ``x`` is an exported program.

    This does not import torch.export, which takes a second. A caller with an exported program has already imported it.
    """
    export = sys.modules.get("torch.export")
    return export is not None and isinstance(x, export.ExportedProgram)


register_kind(Kind("a function", callable, _plain))
register_kind(Kind("a module", lambda x: isinstance(x, torch.nn.Module), _plain))
register_kind(Kind("a torch.fx.Graph", lambda x: isinstance(x, torch.fx.Graph), _bare_fx))
register_kind(Kind("a torch.fx.GraphModule", lambda x: isinstance(x, torch.fx.GraphModule), _fx))
register_kind(
    Kind("a scripted program", lambda x: isinstance(x, torch.jit.ScriptModule | torch.jit.ScriptFunction), _scripted)
)
register_kind(Kind("a program of torchmdla.read", lambda x: isinstance(x, Program | ScriptProgramModule), _read))
register_kind(Kind("a torch._C.Graph", lambda x: isinstance(x, torch._C.Graph), _graph))
register_kind(Kind("an exported program", _is_exported, _program))
register_kind(kind_of_device("lazy", lambda tensors: _C.lazy_pending_computation(tensors).graph))
