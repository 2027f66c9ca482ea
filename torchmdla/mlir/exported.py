"""Conversion of exported programs and FX graphs to functions in the Torch dialect.

If every size is known, torchmdla's importer writes the function. If sizes vary, torch-mlir's importer writes it, and
MLIR's inference determines the missing types.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch_mlir import ir
from torch_mlir.extras.fx_decomp_util import get_decomposition_table
from torch_mlir.extras.fx_importer import FxImporter

from torchmdla.capture.export import decompose_program
from torchmdla.capture.fx.decompositions import decompositions
from torchmdla.capture.fx.normalise import normalise
from torchmdla.errors import CompileError
from torchmdla.importer import TensorMeta
from torchmdla.importer.fx import attribute, import_fx, source_of_node
from torchmdla.importer.interpreter import Run
from torchmdla.importer.types import record_value
from torchmdla.mlir.context import new_context
from torchmdla.mlir.function import FunctionArgument, TorchFunction, contiguous, from_imported
from torchmdla.mlir.specs import Inputs
from torchmdla.script.ir import Graph, Node


def function_of_module(module: torch.nn.Module, inputs: Inputs, names: Sequence[str] = ()) -> TorchFunction:
    """Export a plain module for ``inputs`` and return its function.

    Args:
        module: the module.
        inputs: inputs of the call.
        names: names of the inputs, if the module's own names are not meaningful.

    Raises:
        CompileError: ``torch.export`` cannot capture the module, or a dynamic size is not possible.
    """
    try:
        program = torch.export.export(module, inputs.values, dynamic_shapes=inputs.dynamic_shapes)
    except CompileError:
        raise
    except Exception as error:
        raise CompileError("torch.export cannot capture it", diagnostic=str(error)) from error
    return function_of_program(program, names)


def function_of_program(program: ExportedProgram, names: Sequence[str] = ()) -> TorchFunction:
    """Return the function of an exported program; ``names`` as for :func:`function_of_module`.

    Its results are those of the program, then the new values of the buffers and inputs that it writes to.

    Raises:
        CompileError: the program has an op that cannot be expressed; the message names the op and its location.
    """
    varies = _has_dynamic_sizes(program.graph_module.graph)
    program = decompose_program(program, get_decomposition_table() if varies else decompositions())
    signature = program.graph_signature
    weights: dict[str, str] = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    weights |= signature.inputs_to_lifted_tensor_constants
    values = {**dict(program.named_parameters()), **dict(program.named_buffers()), **program.constants}
    arguments = {name: FunctionArgument(target, "parameter", values[target]) for name, target in weights.items()}
    for placeholder, name in zip(signature.user_inputs, names, strict=False):
        arguments[str(placeholder)] = FunctionArgument(name, "input")
    module = copy.copy(program.graph_module)
    module.graph = _copy_graph(program.graph_module)
    results = _outputs(module.graph)
    users = [kind.kind == OutputKind.USER_OUTPUT for kind in signature.output_specs]
    ordered = [r for r, user in zip(results, users, strict=True) if user]
    ordered += [r for r, user in zip(results, users, strict=True) if not user]
    return _function(module, ordered, arguments, varies)


def function_of_fx(module: fx.GraphModule) -> TorchFunction:
    """Return the function of a flat graph of ATen calls with example values in ``meta["val"]``.

    See :func:`is_flat`. Tensors that the module holds are weights.

    Raises:
        CompileError: the graph has an op that cannot be expressed; the message names the op and its location.
    """
    copied = copy.copy(module)
    copied.graph = _copy_graph(module)
    return _function(copied, _outputs(copied.graph), {}, _has_dynamic_sizes(copied.graph))


def is_flat(module: fx.GraphModule) -> bool:
    """Return whether a graph consists of ATen calls and has an example of each value."""
    return all(
        node.op in ("output", "get_attr")
        or ((node.op == "placeholder" or _is_supported_call(node)) and "val" in node.meta)
        for node in module.graph.nodes
    )


def _is_supported_call(node: fx.Node) -> bool:
    is_op = isinstance(node.target, torch._ops.OpOverload)
    return node.op == "call_function" and (is_op or getattr(node.target, "__module__", "") in ("_operator", "math"))


def _copy_graph(module: fx.GraphModule) -> fx.Graph:
    graph = fx.Graph(module)
    values: dict[fx.Node, fx.Node] = {}
    result = graph.graph_copy(module.graph, values)
    graph.output(result)
    return graph


def _outputs(graph: fx.Graph) -> list[Any]:
    (result,) = graph.output_node().args
    return list(torch.utils._pytree.tree_leaves(result, is_leaf=lambda leaf: isinstance(leaf, fx.Node)))


def _function(
    module: fx.GraphModule, results: Sequence[Any], known: Mapping[str, FunctionArgument], varies: bool
) -> TorchFunction:
    """Return the function that returns the nodes among ``results``; other results are known.

    Args:
        module: module whose graph is changed.
        results: results of the program.
        known: arguments of placeholders, by placeholder name; other placeholders are inputs.
        varies: whether some size in the graph varies.
    """
    graph = module.graph
    nodes = [result for result in results if isinstance(result, fx.Node) and result.meta.get("val") is not None]
    if not nodes:
        raise CompileError("the program has no tensor among its results")
    graph.output_node().args = (tuple(nodes),)
    placeholders = graph.find_nodes(op="placeholder")
    named = {node: known.get(node.name, FunctionArgument(node.name, "input")) for node in placeholders}
    order = sorted(placeholders, key=lambda node: named[node].role == "parameter")
    for node in reversed(order):
        next(iter(graph.nodes)).prepend(node)
    arguments = [named[node] for node in order]
    return (_import_dynamic if varies else _import_static)(module, arguments)


def _import_static(module: fx.GraphModule, arguments: Sequence[FunctionArgument]) -> TorchFunction:
    graph = module.graph
    normalise(graph)
    graph.eliminate_dead_code()
    (results,) = graph.output_node().args
    record = {
        node.name: record_value(attribute(node) if node.op == "get_attr" else node.meta["val"])
        for node in graph.nodes
        if node.op != "output"
    }
    placeholders = graph.find_nodes(op="placeholder")
    for node in [*placeholders, *results]:  # type: ignore[union-attr, misc]
        record[node.name] = contiguous(record[node.name])  # type: ignore[union-attr]
    weights = [index for index, argument in enumerate(arguments) if argument.role == "parameter"]
    imported = import_fx(graph, record, weights)
    constants = {
        (index, None): FunctionArgument(str(node.target), "parameter", attribute(node))
        for index, node in enumerate(graph.nodes)
        if node.op == "get_attr"
    }
    inputs = [
        (argument, record[node.name])
        for node, argument in zip(placeholders, arguments, strict=True)
        if isinstance(record[node.name], TensorMeta)
    ]
    return from_imported(imported, inputs, constants)  # type: ignore[arg-type]


def _import_dynamic(module: fx.GraphModule, arguments: Sequence[FunctionArgument]) -> TorchFunction:
    for node in module.graph.nodes:
        file, _, line = source_of_node(node).rpartition(":")
        # torch-mlir uses the innermost frame as an op's location, which is PyTorch's own code.
        node.meta["stack_trace"] = f'File "{file}", line {line}, in user code' if file else None
    context = new_context()
    importer = FxImporter(context=context)
    try:
        importer.import_stateless_graph(module.graph, func_name="forward")
    except Exception as error:
        raise CompileError("torch-mlir's importer does not take the graph", diagnostic=str(error)) from error
    block = importer.module.body.operations[0].regions[0].blocks[0]
    for value, argument in zip(block.arguments, arguments, strict=True):
        value.set_location(ir.Location.name(argument.name, context=context))
    return TorchFunction(importer.module, tuple(arguments), is_typed=False)


def _has_dynamic_sizes(graph: fx.Graph) -> bool:
    """Return whether some size in a graph varies."""
    values = torch.utils._pytree.tree_leaves([node.meta.get("val") for node in graph.nodes])
    return any(
        isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)
        or (isinstance(value, torch.Tensor) and any(isinstance(size, torch.SymInt) for size in value.shape))
        for value in values
    )


# --- TorchScript programs for torch.export ------------------------------------------------------------------------


class ScriptedProgram(torch.nn.Module):
    """TorchScript program that runs node by node from Python, so that ``torch.export`` sees each op.

    Its parameters and buffers are the program's, under the same names.

    Args:
        graph: the graph, with everything inlined.
        program: the module that is the graph's first input, if there is one.
    """

    def __init__(self, graph: Graph, program: Sequence[torch.nn.Module]) -> None:
        super().__init__()
        # A module in a list does not become a submodule.
        self._mdla_program = list(program)
        self._mdla_graph = graph
        for module in self._mdla_program:
            _mirror(module, self)

    def forward(self, *inputs: Any) -> Any:
        run = _TracedRun()
        modules = []
        for program in self._mdla_program:
            run.mirrors[id(program)] = self
            modules.append(program)
        with torch.fx.traceback.preserve_node_meta():
            return run.run(self._mdla_graph, [*modules, *inputs])


def _mirror(program: torch.nn.Module, module: torch.nn.Module) -> None:
    """Add the parameters, buffers and submodules of a scripted module to ``module``."""
    for name, parameter in program.named_parameters(recurse=False, remove_duplicate=False):
        # torch.jit.load returns plain tensors.
        module.register_parameter(name, torch.nn.Parameter(parameter.detach(), parameter.requires_grad))
    for name, buffer in program.named_buffers(recurse=False, remove_duplicate=False):
        module.register_buffer(name, buffer)
    for name, child in program.named_children():
        module.add_module(name, torch.nn.Module())
        _mirror(child, module.get_submodule(name))


class _TracedRun(Run):
    """Run under a tracer.

    ``mirrors`` maps the id of a scripted module to the module that its tensors are read from.
    """

    def __init__(self) -> None:
        super().__init__()
        self.mirrors: dict[int, torch.nn.Module] = {}
        # These references keep the ids valid.
        self._held: list[Any] = []

    def attribute(self, owner: Any, name: str) -> Any:
        value = getattr(owner, name)
        if isinstance(value, torch.nn.Module):
            self.mirrors[id(value)] = getattr(self.mirrors[id(owner)], name)
            self._held.append(value)
        return getattr(self.mirrors[id(owner)], name) if isinstance(value, torch.Tensor) else value

    def node(self, node: Node) -> None:
        file, _, line = node.source.rpartition(":")
        if file:
            torch.fx.traceback.set_stack_trace([f'File "{file}", line {line}, in {node.op}\n'])
        super().node(node)
