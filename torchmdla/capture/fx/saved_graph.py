"""Graphs with groups that PyTorch saves in its own files (``aot_compile``) and caches of compiled functions.

AOT Autograd saves the result of each of its compilers, an ``OutputCode``, beside what it adds around it. A
:class:`SavedGraph` is saved as the graph, in which groups are calls of submodules, and a package with the compiled code
of the groups. A process that loads it forms the same groups from the submodules, and they find their code in the
package. A group without code for the processor is compiled anew.

All that differs between versions of PyTorch is imported here. The module is imported when PyTorch saves a graph.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import fx, nn
from torch._inductor.output_code import OutputCode
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx._graph_pickler import GraphPickler
from torch.fx._graph_pickler import Options as PicklerOptions
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from torchmdla import _C
from torchmdla.capture.cache_artifacts import package_groups
from torchmdla.capture.fx.graph import (
    Boxed,
    boxed,
    group_of,
    is_list_of_inputs,
    operands_of,
    run_without_modes,
    subgraph_of,
)
from torchmdla.capture.fx.group import make_group
from torchmdla.capture.options import Options
from torchmdla.compiler.checksummed import Format
from torchmdla.importer.fx import attribute


class DamagedGraph(ValueError):
    """Error of bytes that are not a saved graph, are altered, or are of another version."""


_FORMAT = Format(b"mdla-graph\n", 1, "a saved graph", "compile and save the function anew", DamagedGraph)

# PyTorch writes calls of submodules and operators. So groups, and functions of torchmdla, are saved as submodules.
_GROUP = "torchmdla_group_"
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {"torchmdla_draw_mask": _C.draw_mask}
_NAMES = {function: name for name, function in _FUNCTIONS.items()}


Weights = Mapping[str, weakref.ref[torch.Tensor]]


class SavedGraph(OutputCode):
    """Function of a list of inputs, which runs a graph in groups and which PyTorch can save.

    PyTorch makes a copy, prepares it for serialisation, pickles it, and calls :meth:`post_compile` of the copy that it
    has read.

    Args:
        run: the function.
        module: the graph that it runs, with groups.
        options: the options of the groups.
        weights: references to tensors that were inputs when the graph was compiled, by the names of placeholders.
    """

    def __init__(self, run: Boxed, module: fx.GraphModule, options: Options, weights: Weights) -> None:
        super().__init__()
        # AOT Autograd passes a list, which the function empties. It copies the attribute to its wrappers.
        self._boxed_call = True
        self._run: Boxed | None = run
        self._live: tuple[fx.GraphModule, Options, Weights] | None = module, options, weights
        # The graph, and the records of its package.
        self._saved: tuple[bytes, Mapping[str, bytes]] | None = None

    def __call__(self, inputs: Sequence[Any]) -> Any:
        assert self._run is not None and isinstance(inputs, list)
        return self._run(inputs)

    def prepare_for_serialization(self) -> None:
        if self._live is not None:
            self._saved = _write(*self._live)
            self._run = self._live = None

    def post_compile(self, example_inputs: Any, constants: Any, graph_kwargs: Any) -> None:
        if self._run is None:
            assert self._saved is not None
            self._run = _read(*self._saved)

    def set_triton_bundle(self, triton_bundle: Any) -> None:
        """Ignore kernels of Triton, which groups do not have."""


def _write(module: fx.GraphModule, options: Options, weights: Weights) -> tuple[bytes, Mapping[str, bytes]]:
    """Return a graph with groups in the form that is saved, and the package of its groups."""
    calls = [(group, node) for node in module.graph.nodes if (group := group_of(node)) is not None]
    description = {
        "options": asdict(options),
        "gives_up_inputs": any(node.kwargs for _, node in calls),
        "groups": [
            {"name": group.__name__, "parameters": group.parameters, "written": list(group.subgraph.written.items())}
            for group, _ in calls
        ],
    }
    graph = _Pickler.dumps(_with_submodules(module), PicklerOptions(ops_filter=None, node_metadata_key_filter=_is_kept))
    examples = [(group, partial(_examples, node, weights)) for group, node in calls]
    return _FORMAT.seal(description, graph), package_groups(examples)


class _Pickler(GraphPickler):
    """Writer of graphs that leaves out examples of values which PyTorch's cannot write. They only guide a division."""

    def reducer_override(self, obj: object) -> Any:
        if isinstance(obj, torch.SymFloat | torch.SymBool | torch.ScriptObject):
            return type(None), ()
        return super().reducer_override(obj)


def _is_kept(key: str) -> bool:
    """Return whether an entry of a node's ``meta`` is saved: the example of its value, and its place in the program."""
    return key in ("val", "stack_trace")


def _with_submodules(module: fx.GraphModule) -> fx.GraphModule:
    """Return the module with a call of a submodule in place of each group and each function of torchmdla."""
    graph = fx.Graph()
    attributes: dict[str, Any] = {}
    copies: dict[fx.Node, fx.Node] = {}
    for node in module.graph.nodes:
        if is_list_of_inputs(node):
            continue
        if (group := group_of(node)) is not None:
            name = f"{_GROUP}{len(attributes)}"
            attributes[name] = group.subgraph.module
            copies[node] = graph.call_module(name, tuple(copies[operand] for operand in operands_of(node)))
            copies[node].meta = dict(node.meta)
            continue
        copy = copies[node] = graph.node_copy(node, copies.__getitem__)
        if node.op == "get_attr":
            attributes[str(node.target)] = attribute(node)
        elif node.target in _NAMES:
            copy.op, copy.target = "call_module", _NAMES[node.target]
            attributes[copy.target] = nn.Identity()
    return fx.GraphModule(attributes, graph)


def _read(saved: bytes, package: Mapping[str, bytes]) -> Boxed:
    """Return the function of a saved graph.

    Raises:
        DamagedGraph: ``saved`` is damaged, or another version of torchmdla wrote it.
    """
    description, data = _FORMAT.open(saved, lambda description, content: (description, content))
    options = Options(**description["options"])
    module = GraphPickler.loads(data, FakeTensorMode(shape_env=ShapeEnv()))
    assert isinstance(module, fx.GraphModule)
    lifetime = _C.ProgramLifetime()
    _C.take_package_records(package, "a saved function", lifetime)
    facts = iter(description["groups"])
    for node in module.graph.find_nodes(op="call_module"):
        function = _FUNCTIONS.get(node.target) or _group(module, node.target, options, **next(facts))
        node.op, node.target = "call_function", function
    run = boxed(module, description["gives_up_inputs"])
    # Its groups find the code of the package as long as the function exists.
    run.__self__.torchmdla_package = lifetime  # type: ignore[attr-defined]
    return run_without_modes(module, run)


def _group(
    module: fx.GraphModule,
    submodule: str,
    options: Options,
    name: str,
    parameters: Sequence[int],
    written: Sequence[tuple[int, int]],
) -> _C.Group:
    inner = module.get_submodule(submodule)
    assert isinstance(inner, fx.GraphModule)
    return make_group(subgraph_of(module, inner, inner.graph, options, dict(written)), name, options, parameters)


def _examples(node: fx.Node, weights: Weights) -> list[Any]:
    """Return inputs of a group like those of its calls. Tensors are zeros, unless they are constants or ``weights``.

    Raises:
        ValueError: an input depends on the values of tensors, so that examples are not known.
    """

    def example(operand: fx.Node) -> Any:
        if operand.op == "get_attr":
            return attribute(operand)
        weight = weights[operand.name]() if operand.name in weights else None
        return _example(operand.meta["val"]) if weight is None else weight

    return [example(operand) for operand in operands_of(node)]


def _example(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        sizes, strides = (list(map(_number, numbers)) for numbers in (value.shape, value.stride()))
        length = 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True)) if all(sizes) else 0
        return torch.zeros(length, dtype=value.dtype, device=value.device).as_strided(sizes, strides)
    return _number(value)


def _number(value: Any) -> Any:
    if not isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return value
    hint = value.node.hint
    if hint is None:
        raise ValueError(f"the size {value} depends on the values of tensors")
    return hint
