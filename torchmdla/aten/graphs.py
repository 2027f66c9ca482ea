"""Conversion of PyTorch graphs to the aten dialect, one op per op of the user's program, without decomposition.

A TorchScript graph runs once on eager kernels, and each op is written as it runs. Every type is therefore known, and
sizes and other numbers are literals. Only the executed control flow remains. An FX graph already contains its types.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch_mlir import ir

from torchmdla.aten.builder import DialectWriter
from torchmdla.aten.dialect import AtenError
from torchmdla.errors import CompileError
from torchmdla.importer.flatten import Flattening
from torchmdla.importer.fx import read_fx
from torchmdla.importer.graph import read_graph
from torchmdla.importer.interpreter import tensors_in
from torchmdla.importer.script_graph import convert_graph, types_of
from torchmdla.script.ir import Graph, Type, Value
from torchmdla.support import jit


def from_module(module: Any, *inputs: Any, name: str = "forward", context: ir.Context | None = None) -> ir.Module:
    """Convert a module or function to the aten dialect by running a copy once with ``inputs``.

    A plain module or function is traced first. Its parameters and buffers become arguments after the inputs and are
    marked ``aten.parameter``. The state of PyTorch's random number generator is preserved.

    Raises:
        TypeError: PyTorch cannot trace ``module``.
        AtenError: the aten dialect cannot express part of the program.
    """
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        scripted = _to_script(module, inputs)
        if isinstance(scripted, torch.jit.ScriptModule):
            inputs = (scripted, *inputs)
        return from_graph(scripted.inlined_graph, inputs, name=name, context=context)


def from_graph(
    graph: torch._C.Graph | Graph,
    inputs: Sequence[object],
    parameters: Collection[int] = (),
    *,
    name: str = "forward",
    context: ir.Context | None = None,
) -> ir.Module:
    """Convert a TorchScript graph to the aten dialect by running it once on ``inputs``.

    Args:
        graph: graph of a scripted or traced program with everything inlined, or its conversion to the IR of
            ``torchmdla.script``; it is not changed.
        inputs: one value for each input of the graph, the scripted module for ``self``. Tensors become arguments, other
            values literals. In-place ops that cannot be removed write to the tensors.
        parameters: indices of the inputs that are weights; their arguments are marked ``aten.parameter``.
        name: name of the function.
        context: context of the new module; creating a context costs a few tenths of a second.

    Raises:
        AtenError: the aten dialect cannot express part of the graph; the message names the node and its location.
    """
    if isinstance(graph, torch._C.Graph):
        copied = graph.copy()
        torch._C._jit_pass_remove_mutation(copied)  # type: ignore[attr-defined]
        graph = convert_graph(copied)
    with _as_aten_error():
        run = _GraphRun(graph, inputs, parameters)
        return read_graph(run.graph, DialectWriter(name, run.record, run.parameters, context=context))


def from_typed_graph(
    graph: torch._C.Graph, *, name: str = "forward", share_literals: bool = True, context: ir.Context | None = None
) -> ir.Module:
    """Convert a flat TorchScript graph with known dtypes and sizes to the aten dialect, without running it.

    Args:
        graph: graph of ATen calls, constants, and lists that are packed and unpacked. A tensor constant becomes an
            argument that is marked ``aten.parameter``.
        name: name of the function.
        share_literals: whether a literal is written once, or before each use.
        context: context of the new module; creating a context costs a few tenths of a second.

    Raises:
        AtenError: the aten dialect cannot express part of the graph; the message names the op.
    """
    with _as_aten_error():
        writer = DialectWriter(name, types_of(graph), context=context, share_literals=share_literals)
        return read_graph(convert_graph(graph), writer)


def from_fx(
    program: torch.fx.GraphModule | torch.export.ExportedProgram,
    parameters: Collection[str] = (),
    *,
    name: str = "forward",
    context: ir.Context | None = None,
) -> ir.Module:
    """Convert an FX graph of ATen ops, from ``torch.export`` or ``torch.compile``, to the aten dialect.

    Args:
        program: graph whose nodes have a tensor, fake or not, in ``meta["val"]``. Symbolic sizes become ``?``.
        parameters: names of the placeholders that are weights; an exported program already specifies its own.
        name: name of the function.
        context: context of the new module; creating a context costs a few tenths of a second.

    Raises:
        AtenError: a node has no ``meta["val"]``, or calls a function other than an ATen op. The message names the node
            and its location.
    """
    if isinstance(program, torch.export.ExportedProgram):
        signature = program.graph_signature
        weights = [*parameters, *signature.inputs_to_parameters, *signature.inputs_to_buffers]
        return from_fx(program.graph_module, weights, name=name, context=context)
    record = {node.name: _meta(node) for node in program.graph.nodes if node.op in ("placeholder", "call_function")}
    with _as_aten_error():
        return read_fx(program.graph, DialectWriter(name, record, parameters, context=context))


@contextmanager
def _as_aten_error() -> Iterator[None]:
    """Convert the importer's errors into those of the dialect."""
    try:
        yield
    except CompileError as error:
        raise AtenError(str(error)) from None


def _meta(node: torch.fx.Node) -> object:
    if "val" not in node.meta and node.target is not operator.getitem:
        raise AtenError(f'node {node.name}: it has no meta["val"]')
    return node.meta.get("val")


def _to_script(module: Any, inputs: tuple[Any, ...]) -> Any:
    if isinstance(module, torch.jit.ScriptFunction):
        return module
    if isinstance(module, torch.nn.Module):  # A call may update buffers.
        module = copy.deepcopy(module)
    if isinstance(module, torch.jit.ScriptModule):
        return module
    if not callable(module):
        raise TypeError(f"a module, a function or a TorchScript program is needed, got {type(module).__name__}")
    return jit.trace(module, inputs)


class _GraphRun(Flattening):
    """Run of a graph on ``inputs``.

    A tensor that is passed twice becomes two inputs of the flat graph. A weight, a buffer or a constant that is not yet
    an input becomes a further input and a parameter. ``parameters`` has the names of weights.
    """

    def __init__(self, graph: Graph, inputs: Sequence[object], parameters: Collection[int]) -> None:
        super().__init__()
        if len(graph.inputs) != len(inputs):
            raise AtenError(f"the graph takes {len(graph.inputs)} inputs, got {len(inputs)}")
        values = [[self.argument(tensor) for tensor in tensors_in(item)] for item in inputs]
        self.parameters = {value.name for index in parameters for value in values[index]}
        leaves = pytree.tree_leaves(self.run(graph, inputs))
        self.graph.outputs = [self.operand(leaf, Type("Any")) for leaf in leaves]

    def value_of(self, tensor: torch.Tensor) -> Value:
        if id(tensor) not in self._made:
            self.parameters.add(self.argument(tensor).name)
        return super().value_of(tensor)

    def number(self, value: Any) -> Any:
        return value.item()
