"""Groups of an FX graph and their subgraphs: execution by eager operators, records of such runs, and hashes."""

from __future__ import annotations

import hashlib
import operator
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import free_symbols

from torchmdla import _C
from torchmdla.capture.options import Options
from torchmdla.capture.subgraph import Call, Subgraph
from torchmdla.importer import DEFAULT_OPTIONS, ImportedGraph, ImportOptions, Record
from torchmdla.importer.fx import attribute, import_fx, name_of_call, named_arguments, source_of_node
from torchmdla.importer.trace import in_schema_order, map_structure
from torchmdla.importer.types import record_value

if TYPE_CHECKING:
    from torchmdla.capture.symbolic.run import SymbolicRun

# Type of the ``form_groups`` argument of :class:`FxSubgraph`.
FormGroups = Callable[[fx.GraphModule, Collection[fx.Node], Collection[fx.Node]], None]


def make_group(subgraph: FxSubgraph, name: str, options: Options, parameters: Collection[int]) -> _C.Group:
    """Return a group that computes ``subgraph``; ``parameters`` are the indices of inputs that are weights."""
    inputs = subgraph.module.graph.find_nodes(op="placeholder")
    return _C.Group(
        subgraph,
        name,
        options.device_name(),
        list(parameters),
        len(inputs),
        strict=options.strict,
        background=options.background,
        max_specialisations=options.max_specialisations,
        varying=[(index, n) for index, node in enumerate(inputs) for n in _symbolic_numbers(node.meta.get("val"))],
        written=list(subgraph.written.items()),
    )


def _symbolic_numbers(value: object) -> list[int]:
    """Return the dimensions of a tensor whose sizes are symbols, or 0 for an integer that is a symbol."""
    numbers = value.shape if isinstance(value, torch.Tensor) else [value]
    return [k for k, number in enumerate(numbers) if isinstance(number, torch.SymInt) and free_symbols(number)]


class FxSubgraph:
    """Computation of one group: a flat graph of ATen calls that returns a tuple.

    It is a :class:`~torchmdla.capture.subgraph.Subgraph`. ``_C.Group`` runs it if compiled code is missing.

    Args:
        root: module that holds the constants.
        graph: graph whose placeholders are the group's inputs and whose ``get_attr`` nodes are 0-d constants of
            ``root``.
        form_groups: function that forms groups in a module, given the placeholders that are weights and the nodes to
            leave out. Without it there is at most one group.
        written: the inputs that the group writes to, by the numbers of the outputs with their new values.

    Attributes:
        module: module that runs the graph.
        outer: weak reference to the graph that contains the group, or None.
    """

    def __init__(
        self,
        root: torch.nn.Module,
        graph: fx.Graph,
        form_groups: FormGroups | None = None,
        written: Mapping[int, int] | None = None,
    ) -> None:
        self.module = fx.GraphModule(root, graph)
        self.written = written or {}
        self.outer: weakref.ref[fx.Graph] | None = None
        self._form_groups = form_groups
        # Arguments and result of `import_ahead`.
        self._ahead: tuple[tuple[Record, list[int], ImportOptions], ImportedGraph] | None = None

    def run(self, *inputs: Any) -> Sequence[Any]:
        """Return the results of eager operators."""
        results: Sequence[Any] = self.module.forward(*inputs)
        return results

    def run_and_record(self, *inputs: Any) -> tuple[Sequence[Any], Record]:
        """Return the results of eager operators, run node by node, and a record of every value."""
        recorder = _Recorder(self.module)
        return recorder.run(*inputs), recorder.seen

    def time_nodes(self, *inputs: Any) -> list[float]:
        """Return the seconds of each node in a run by eager operators."""
        timer = _Timer(self.module)
        timer.run(*inputs)
        return timer.seconds

    def divide(self, left_out: Sequence[int], parameters: Sequence[int]) -> Callable[..., Sequence[Any]] | None:
        """Return a function that computes :meth:`run` with groups around the nodes ``left_out``; None without groups.

        ``parameters`` are the indices of inputs that are weights.
        """
        if self._form_groups is None:
            return None
        graph = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        graph.output(graph.graph_copy(self.module.graph, copies))
        nodes = list(self.module.graph.nodes)
        inputs = self.module.graph.find_nodes(op="placeholder")
        module = fx.GraphModule(self.module, graph)
        self._form_groups(module, [copies[inputs[i]] for i in parameters], [copies[nodes[i]] for i in left_out])
        has_groups = any(isinstance(node.target, _C.Group) for node in module.graph.nodes)
        return module.forward if has_groups else None

    @property
    def outputs(self) -> Sequence[str]:
        results: Any = self.module.graph.output_node().args[0]
        return [result.name for result in results]

    def run_symbolic(self, run: SymbolicRun, record: Record) -> Mapping[str, Any]:
        interpreter = _SymbolicInterpreter(self.module, run)
        inputs = [node.name for node in self.module.graph.find_nodes(op="placeholder")]
        interpreter.run(*(run.input(record[name]) for name in inputs))
        return interpreter.seen

    def calls(self, record: Record) -> Iterator[Call]:
        for number, node in enumerate(self.module.graph.nodes):
            if node.op == "call_function":
                yield _call_of(node, number, lambda value: record[value.name])

    def source(self, number: int) -> str:
        return source_of_node(list(self.module.graph.nodes)[number])

    def extract_call(self, number: int, record: Record) -> tuple[Subgraph, Record]:
        graph = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        node = list(self.module.graph.nodes)[number]
        for needed in node.all_input_nodes:
            is_constant = needed.op == "get_attr"
            copies[needed] = graph.node_copy(needed) if is_constant else graph.placeholder(needed.name)
        copies[node] = graph.node_copy(node, copies.__getitem__)
        seen = {copy.name: record[original.name] for original, copy in copies.items()}
        results = [copies[node]]
        if isinstance(several := record[node.name], list):
            results = [graph.call_function(operator.getitem, (copies[node], place)) for place in range(len(several))]
            seen.update((copy.name, original) for copy, original in zip(results, several, strict=True))
        graph.output(tuple(results))
        return FxSubgraph(self.module, graph), seen

    def import_program(
        self, record: Record, parameters: Collection[int], options: ImportOptions = DEFAULT_OPTIONS
    ) -> ImportedGraph:
        ahead, self._ahead = self._ahead, None
        if ahead and ahead[0] == (record, list(parameters), options):
            return ahead[1]
        return import_fx(self.module.graph, record, parameters, options)

    def import_ahead(self, parameters: Collection[int], options: ImportOptions) -> tuple[Record, ImportedGraph]:
        """Return the record of a call with the examples of the graph's values, and what it imports.

        The first :meth:`import_program` returns the same if the call has the same record.

        Raises:
            ValueError: a size varies.
        """
        record = {node.name: record_value(_example(node)) for node in self.module.graph.nodes if node.op != "output"}
        imported = import_fx(self.module.graph, record, parameters, options)
        self._ahead = (record, list(parameters), options), imported
        return record, imported

    def constant(self, index: int) -> object:
        return attribute(list(self.module.graph.nodes)[index])

    def structure(self, device: str, parameters: Sequence[int]) -> bytes | None:
        """Return the hash by which packages identify the group, as ``src/group/structure.h`` does for TorchScript."""
        return _structure_of(self.module.graph, device, parameters)


def call_on_examples(node: fx.Node) -> Call:
    """Return a call with the types of its examples (``meta["val"]``), before it is in a group.

    Raises:
        ValueError: a size or a number varies.
    """
    return _call_of(node, 0, lambda value: record_value(_example(value)))


def _call_of(node: fx.Node, number: int, value_of: Callable[[fx.Node], Any]) -> Call:
    def resolve(argument: object) -> object:
        return value_of(argument) if isinstance(argument, fx.Node) else argument

    arguments = {name: map_structure(resolve, value) for name, value in named_arguments(node).items()}
    result = value_of(node)
    return Call.of(number, name_of_call(node), arguments, result if isinstance(result, list) else [result])


def _example(node: fx.Node) -> object:
    """Return an example of a node's value, which has no sizes that vary.

    Raises:
        ValueError: a size varies.
    """
    value: object = attribute(node) if node.op == "get_attr" else node.meta["val"]
    if free_symbols(value):  # type: ignore[arg-type]
        raise ValueError(f"{node.name} has sizes that vary")
    return value


class _Recorder(fx.Interpreter):
    """Interpreter that runs a graph and stores the value of each node in ``seen``."""

    def __init__(self, module: fx.GraphModule, keep: Callable[[Any], object] = record_value) -> None:
        super().__init__(module)
        self._keep = keep
        self.seen: dict[str, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if n.op != "output":
            self.seen[n.name] = self._keep(value)
        return value


class _Timer(fx.Interpreter):
    """Interpreter that stores the seconds of each node."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.seconds: list[float] = []

    def run_node(self, n: fx.Node) -> Any:
        start = time.perf_counter()
        value = super().run_node(n)
        self.seconds.append(time.perf_counter() - start)
        return value


class _SymbolicInterpreter(_Recorder):
    def __init__(self, module: fx.GraphModule, run: SymbolicRun) -> None:
        super().__init__(module, lambda value: value)
        self._run = run

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if not isinstance(target, torch._ops.OpOverload):
            return super().call_function(target, args, kwargs)
        return self._run.call(target._schema, in_schema_order(target._schema, args, kwargs))


# Structure that subgraphs share if the same compiled code is right for them

# Types of constants whose text determines them.
_PLAIN = (type(None), bool, int, float, str, torch.dtype, torch.device, torch.layout, torch.memory_format)


class _NotSerialisable(Exception):
    """Error of a value whose form differs between processes."""


def _structure_of(graph: fx.Graph, device: str, parameters: Sequence[int]) -> bytes | None:
    """Return a hash of 32 bytes that is equal for subgraphs with the same calls and constants.

    The names of nodes do not matter. The hash is equal in any process and on any machine. If the subgraph holds a value
    without such a form, the function returns None.

    Args:
        graph: graph of a group.
        device: device of the group.
        parameters: indices of placeholders that are weights.
    """
    numbers = {node: number for number, node in enumerate(graph.nodes)}
    digest = hashlib.sha256(f"fx\n{device}\n{list(parameters)}\n".encode())
    try:
        for node in graph.nodes:
            for part in _parts(node, numbers):
                digest.update(part)
                digest.update(b"\0")
    except _NotSerialisable:
        return None
    return digest.digest()


def _parts(node: fx.Node, numbers: Mapping[fx.Node, int]) -> Iterator[bytes]:
    yield node.op.encode()
    if node.op == "get_attr":
        yield from _constant(attribute(node))
    elif node.op == "call_function":
        yield name_of_call(node).encode()
    if node.op != "placeholder":
        yield _text((node.args, dict(sorted(node.kwargs.items()))), numbers).encode()


def _constant(value: Any) -> Iterator[bytes]:
    if not isinstance(value, torch.Tensor) or value.device.type != "cpu" or value.layout != torch.strided:
        raise _NotSerialisable
    if value.is_quantized:
        raise _NotSerialisable
    yield f"{value.dtype} {tuple(value.shape)} {value.stride()}".encode()
    if not value.dim():  # A tensor with dimensions is a weight, which compiled code takes as an argument.
        yield value.detach().reshape(-1).view(torch.uint8).numpy().tobytes()


def _text(value: Any, numbers: Mapping[fx.Node, int]) -> str:
    if isinstance(value, fx.Node):
        return f"%{numbers[value]}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_text(item, numbers) for item in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_text(item, numbers)}' for key, item in value.items())}}}"
    if isinstance(value, slice):
        return f"slice{_text((value.start, value.stop, value.step), numbers)}"
    if not isinstance(value, _PLAIN):
        raise _NotSerialisable
    return repr(value)
