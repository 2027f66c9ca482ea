"""Compilation of exported programs, and of plain modules without TorchScript: groups form in the exported graph."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind

from torchmdla.capture import refusals
from torchmdla.capture.fx.decompositions import decompositions
from torchmdla.capture.fx.graph import form_groups
from torchmdla.capture.fx.partition import memory_of
from torchmdla.capture.options import Options

aten = torch.ops.aten


def compile_module(
    module: nn.Module,
    inputs: Sequence[Any],
    keywords: Mapping[str, Any],
    dynamic_shapes: Any = None,
) -> fx.GraphModule:
    """Export ``module`` as it is, in training or eval mode, and compile the program.

    Args:
        module: the module to export.
        inputs: the positional arguments of one call.
        keywords: the keyword arguments of that call.
        dynamic_shapes: sizes that may vary, as in ``torch.export.export``.

    Raises:
        torch.export's exceptions: the module cannot be exported.
    """
    exported = torch.export.export(module, tuple(inputs), dict(keywords), dynamic_shapes=dynamic_shapes)
    return compile_program(exported, inputs, keywords)


def compile_program(
    program: ExportedProgram, inputs: Sequence[Any] = (), keywords: Mapping[str, Any] | None = None
) -> fx.GraphModule:
    """Return a module that runs ``program`` with groups; the first call after this compiles nothing.

    The module has the program's parameters and buffers under their names, and the same arguments, results and input
    checks. The export fixes whether it trains, so ``train()`` and ``eval()`` raise.

    Args:
        program: the exported program.
        inputs: the positional arguments of one call. Without any arguments, the program's example inputs are used.
        keywords: the keyword arguments of that call.
    """
    program = _prepare(program)
    module = _remove_base_guards(_run_decompositions(program, decompositions())).module()
    assert isinstance(module, fx.GraphModule)
    _detach_random_operands(module.graph)
    _restore_aliases(module.graph, program)
    form_groups(module, (), Options())
    _gather_weights(module)
    if not inputs and not keywords and program.example_inputs is not None:
        inputs, keywords = program.example_inputs
    with torch.no_grad(), _undo_writes(module, inputs, keywords):
        refusals.call_until_compiled(lambda: module(*inputs, **(keywords or {})))
    return module


def decompose_program(program: ExportedProgram, table: Mapping[Any, Callable[..., Any]]) -> ExportedProgram:
    """Return ``program`` without writes, and with the operators of ``table`` decomposed.

    Other composite operators stay whole.
    """
    return _run_decompositions(_prepare(program), dict(table))


def _run_decompositions(program: ExportedProgram, table: dict[Any, Any]) -> ExportedProgram:
    with warnings.catch_warnings():
        # PyTorch 2.13 warns of its own code when it copies a program that was loaded.
        warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)
        result: ExportedProgram = program.run_decompositions(table)
    return result


def _prepare(program: ExportedProgram) -> ExportedProgram:
    return _remove_base_guards(_replace_inactive_dropout(program))


def _remove_base_guards(program: ExportedProgram) -> ExportedProgram:
    """Remove the guards of ``program`` on the memory behind views, which hold for its example inputs only.

    PyTorch checks these guards in every call and raises an AttributeError where an input is not a view. They are
    not needed, because every tensor has enough memory behind it.
    """
    program._guards_code = [guard for guard in program._guards_code if "._base" not in guard]
    return program


def _replace_inactive_dropout(program: ExportedProgram) -> ExportedProgram:
    """Return ``program`` with each dropout that does nothing replaced by an alias of its input, as in eager.

    A write to one of them is a write to the other. PyTorch makes a copy of the input when it decomposes operators,
    whatever the table specifies.
    """
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in program.graph.nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
        # A signature refers to names, and a copy is renamed if its name is a builtin's ("input").
        copies[node].name = node.name
        if node.target is aten.dropout.default and not (node.args[2] and node.args[1] > 0):
            copies[node].target, copies[node].args = aten.alias.default, (copies[node.args[0]],)
    module = fx.GraphModule(program.graph_module, graph)
    module.meta.update(program.graph_module.meta)
    return ExportedProgram(
        module,
        graph,
        program.graph_signature,
        program.state_dict,
        program.range_constraints,
        program.module_call_graph,
        program.example_inputs,
        program.constants,
        verifiers=program.verifiers,
    )


def _detach_random_operands(graph: fx.Graph) -> None:
    """Detach the tensors whose shape random operators use: the drawn numbers do not depend on their values.

    The operators do not have a derivative that states this.
    """
    for target in (aten.bernoulli.p, aten.normal_functional.default):
        for node in graph.find_nodes(op="call_function", target=target):
            with graph.inserting_before(node):
                like = graph.call_function(aten.detach.default, (node.args[0],))
            like.meta = dict(node.args[0].meta)
            node.args = (like, *node.args[1:])


def _restore_aliases(graph: fx.Graph, program: ExportedProgram) -> None:
    """Make the results of ``program`` that are views of written memory views of it again.

    Without writes they are views of the new value, which is written afterwards. Here the views are taken of the written
    tensor instead. A result that equals the new value but is not a view must not be the written tensor.

    Args:
        graph: functional graph with writes only at its end.
        program: the program that the graph was made from, with its writes.
    """
    writes: dict[fx.Node, list[fx.Node]] = {}
    for write in graph.find_nodes(op="call_function", target=aten.copy_.default):
        writes.setdefault(write.args[1], []).append(write)
    end = graph.output_node()
    results = list(end.args[0])  # type: ignore[arg-type]
    for index, is_alias in enumerate(_aliases_of_placeholders(program)):
        *views, value = _view_chain(results[index], writes)
        if is_alias and len(writes.get(value, ())) == 1:
            (results[index],) = writes[value]
            for view in reversed(views):
                with graph.inserting_before(end):
                    again = graph.node_copy(view)
                again.args = (results[index], *view.args[1:])
                results[index] = again
        elif not is_alias and isinstance(value, fx.Node) and value.target is aten.copy_.default:
            results[index] = value.args[1]
    end.args = (tuple(results),)


def _aliases_of_placeholders(program: ExportedProgram) -> list[bool]:
    """Return, for each result of the user's, whether it may be a view of an input, a parameter or a buffer."""
    memory: dict[fx.Node, fx.Node] = {}
    for node in program.graph.nodes:
        memory[node] = memory_of(node, memory)
    results = program.graph.output_node().args[0]
    return [
        isinstance(node, fx.Node) and memory[node].op == "placeholder"
        for spec, node in zip(program.graph_signature.output_specs, results, strict=True)
        if spec.kind is OutputKind.USER_OUTPUT
    ]


def _view_chain(result: Any, written: Container[Any]) -> list[Any]:
    """Return ``result``, its base, the base's base and so on, up to one of ``written`` or a value without a base."""
    chain = [result]
    while result not in written and isinstance(result, fx.Node) and _is_view(result):
        result = result.args[0]
        chain.append(result)
    return chain


def _is_view(node: fx.Node) -> bool:
    """Return whether ``node`` is a view of its first argument, or one of several views (``chunk``)."""
    if node.target is operator.getitem:
        return isinstance(node.args[0], fx.Node) and _is_view(node.args[0])
    return getattr(node.target, "is_view", False)


@contextmanager
def _undo_writes(module: nn.Module, inputs: Any, keywords: Any) -> Iterator[None]:
    """Undo the writes of a call: a module in training updates its statistics and draws random numbers."""
    leaves = torch.utils._pytree.tree_leaves((inputs, keywords))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)] + [*module.buffers()]
    before = [(tensor, tensor._version, tensor.detach().clone()) for tensor in tensors]
    with torch.random.fork_rng(devices=[]):
        yield
    for tensor, version, value in before:
        if tensor._version != version:
            tensor.detach().copy_(value)


# Weights of a module's graph, read together: the lookup of a submodule's attribute costs a microsecond


class Weights:
    """Callable that returns parameters and buffers with their values at the time of the call.

    Args:
        slots: for each, the dictionary of a module that holds it and its name there.
    """

    def __init__(self, slots: list[tuple[Mapping[str, Any], str]]) -> None:
        # FX uses these names of a function in the code that it writes.
        self.__name__ = self.__qualname__ = "mdla_weights"
        self.__module__ = "torchmdla"
        self._weight_slots = slots

    def __call__(self) -> list[Any]:
        return [holder[name] for holder, name in self._weight_slots]


def _gather_weights(module: fx.GraphModule) -> None:
    """Replace the attribute reads of parameters and buffers, in place, by one call of :class:`Weights`."""
    graph = module.graph
    reads = [node for node in graph.find_nodes(op="get_attr") if _weight_slot(module, str(node.target)) is not None]
    if not reads:
        return
    slots: list[Any] = [_weight_slot(module, str(node.target)) for node in reads]
    with graph.inserting_before(reads[0]):
        weights = graph.call_function(Weights(slots))
        for index, node in enumerate(reads):
            value = graph.call_function(operator.getitem, (weights, index))
            value.meta = dict(node.meta)
            node.replace_all_uses_with(value)
    for node in reads:
        graph.erase_node(node)
    module.recompile()


def _weight_slot(module: nn.Module, path: str) -> tuple[Mapping[str, Any], str] | None:
    """Return the dictionary and name of the parameter or buffer ``path`` of ``module``; None if it is neither."""
    owner, _, name = path.rpartition(".")
    holder = module.get_submodule(owner)
    return next(((held, name) for held in (holder._parameters, holder._buffers) if name in held), None)
