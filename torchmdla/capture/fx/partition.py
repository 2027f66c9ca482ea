"""Partition of an FX graph into groups, by the rules of ``src/fusion/fusion_pass.cpp``.

Every node has a level. It counts the edges from a supported to an unsupported node on a path to the node. Paths follow
data and memory dependencies, and the path with the largest count determines the level. Supported nodes of one level
form one group. The group is convex, because a path between two of its nodes through an unsupported node would raise the
level.
"""

from __future__ import annotations

import operator
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import free_symbols

from torchmdla.capture.fx.group import call_on_examples
from torchmdla.capture.refusals import reason_of_device
from torchmdla.devices import CallSelection, Device, OpSupport
from torchmdla.importer.decompositions.recurrent_steps import STEP_OPERATORS
from torchmdla.importer.fx import attribute, name_of_call, named_arguments
from torchmdla.importer.schemas import aliased_arguments, is_metadata, written_arguments
from torchmdla.importer.trace import leaves, qualified_name


@dataclass
class Partition:
    """Groups of a graph.

    Attributes:
        groups: the nodes of each group in the graph's order.
        alone: groups of one operator, with the nodes that unpack its results. They get no copies.
        sunk: views that are in no group. They stay outside, and every one of ``groups`` that uses one gets a copy.
        copied: constants and integers, of which every group gets a copy.
        order: the graph's nodes in an order in which each group's nodes are adjacent.
        ungrouped: operators that compute with tensors and are in no group, with the reason.
    """

    groups: list[list[fx.Node]]
    alone: list[list[fx.Node]]
    sunk: set[fx.Node]
    copied: set[fx.Node]
    order: list[fx.Node]
    ungrouped: list[tuple[fx.Node, str]]


def partition(
    graph: fx.Graph, device: Device, left_out: Collection[fx.Node] = (), weights: Collection[fx.Node] = ()
) -> Partition:
    """Return the groups of ``graph``.

    Args:
        graph: a flat graph of ATen calls whose nodes have an example value in ``meta["val"]``.
        device: device that the groups are for.
        left_out: nodes that join no group.
        weights: inputs that rarely change.
    """
    return _Partitioner(graph, device, left_out, weights).run()


@dataclass
class _Facts:
    """Facts about a graph that are collected before groups are formed."""

    memory: dict[fx.Node, fx.Node] = field(default_factory=dict)  # the node whose memory a node's result shares
    last_write: dict[fx.Node, fx.Node] = field(default_factory=dict)  # last node that writes to a memory
    before: dict[fx.Node, list[fx.Node]] = field(default_factory=lambda: defaultdict(list))
    effects: set[fx.Node] = field(default_factory=set)


class _Partitioner:
    def __init__(
        self, graph: fx.Graph, device: Device, left_out: Collection[fx.Node], weights: Collection[fx.Node]
    ) -> None:
        self._graph = graph
        self._weights = frozenset(weights)
        self._left_out = frozenset(left_out)
        self._device = device
        self._ops = device.ops
        self._dtypes = frozenset(getattr(torch, name) for name in device.dtypes)
        self._facts = _facts(graph, self._is_random)
        self._copied: set[fx.Node] = set()
        self._kinds: dict[fx.Node, str] = {}
        self._alone: list[list[fx.Node]] = []
        self._refusals: dict[fx.Node, str] = {}
        self._levels: dict[fx.Node, int] = {}
        # Smallest level of the users of a node: of supported nodes, and of others.
        self._levels_behind: dict[fx.Node, tuple[int, int]] = {}

    def run(self) -> Partition:
        for node in self._graph.nodes:
            if _is_copied(node):
                self._copied.add(node)
            elif node not in self._left_out and _is_long_recurrence(node) and not self._refusal(node):
                self._alone.append([node, *node.users])
            elif (kind := self._supported_kind(node)) is not None:
                self._kinds[node] = kind
            self._assign_level(node)
        self._raise_work_on_weights()
        groups, sunk = self._form_groups()
        order = _Order(self._graph, [*groups, *self._alone], self._providers(groups, sunk)).run()
        return Partition(groups, self._alone, sunk, self._copied, order, list(self._ungrouped(groups)))

    # Nodes that the device supports

    def _supported_kind(self, node: fx.Node) -> str | None:
        if node.op != "call_function" or node in self._left_out:
            return None
        if node.target is operator.getitem:
            # An element of a list of views is a view. A result of an operator with several results has that operator's
            # kind.
            kind = self._kinds.get(node.args[0]) if self._supports_types(node) else None  # type: ignore[arg-type]
            return kind if kind in (None, "view") else "shape"
        if reason := self._refusal(node):
            self._refusals[node] = reason
            return None
        return self._ops[qualified_name(node.target._schema)].kind  # type: ignore[union-attr]

    def _refusal(self, node: fx.Node) -> str:
        """Return why a call is not supported, in the words of ``src/fusion/fusion_pass.cpp``; empty if it is."""
        if node in self._facts.effects:
            return "it has effects: it writes to memory that others see, or draws random numbers"
        support = None
        if isinstance(node.target, torch._ops.OpOverload):
            support = self._ops.get(qualified_name(node.target._schema))
        if support is None or support.kind in ("shape", "item"):
            return f"device {self._device.name!r} has no such operator"
        if not self._supports_types(node):
            return f"device {self._device.name!r} does not take the dtype of its inputs or results"
        if not self._conditions_hold(node, support):
            return f"device {self._device.name!r} does not take it with these arguments"
        if not self._results_are_unpacked(node, support.kind):
            return "it takes or returns what is neither a tensor nor a number"
        # A view that may still be written through must stay a view of its base.
        last = self._facts.last_write.get(self._facts.memory[node])
        if support.kind == "view" and last is not None and node < last:
            return "it is a view that the program writes through"
        return self._refusal_of_device(node)

    def _refusal_of_device(self, node: fx.Node) -> str:
        """Return why the device refuses a call with these types and constants.

        Where a size varies, the device is asked in the group's first call, with the sizes of that call.
        """
        if not isinstance(self._device, CallSelection):
            return ""
        try:
            call = call_on_examples(node)
        except ValueError:
            return ""
        return reason_of_device(call, self._device)

    def _ungrouped(self, groups: Sequence[Sequence[fx.Node]]) -> Iterator[tuple[fx.Node, str]]:
        members = {node for group in groups for node in group}
        for node in self._graph.nodes:
            if not any(isinstance(value, torch.Tensor) for value in leaves(node.meta.get("val"))):
                continue
            if node in self._refusals:
                yield node, self._refusals[node]
            elif node not in members and self._kinds.get(node) in ("compute", "cheap"):
                yield node, "it is alone: a group of it would save nothing"

    def _conditions_hold(self, node: fx.Node, support: OpSupport) -> bool:
        named = named_arguments(node)
        return all(
            (type(named.get(name)), named.get(name)) == (type(wanted), wanted) for name, wanted in support.where.items()
        )

    def _is_random(self, node: fx.Node) -> bool:
        """Return whether ``node`` is random with these arguments.

        PyTorch marks operators as random by their schema (dropout, LSTM, attention). They are not random with the
        arguments that a device requires.
        """
        if torch.Tag.nondeterministic_seeded not in node.target.tags:  # type: ignore[union-attr]
            return False
        support = self._ops.get(qualified_name(node.target._schema))  # type: ignore[union-attr]
        return support is None or not self._conditions_hold(node, support)

    def _results_are_unpacked(self, node: fx.Node, kind: str) -> bool:
        """Return whether several results of ``node`` are only unpacked.

        Only a view may return a list, because it can be sunk as a whole.
        """
        value = node.meta.get("val")
        if isinstance(value, list) and kind != "view":
            return False
        return isinstance(value, torch.Tensor) or all(user.target is operator.getitem for user in node.users)

    def _supports_types(self, node: fx.Node) -> bool:
        """Return whether the device supports the dtypes and layouts of all operands and results."""
        return all(
            self._supports_value(value)
            for related in [node, *node.all_input_nodes]
            for value in leaves(related.meta.get("val"))
        )

    def _supports_value(self, value: object) -> bool:
        if isinstance(value, torch.Tensor):
            is_plain = value.layout == torch.strided and value.device.type == "cpu" and not value.is_quantized
            return is_plain and value.dtype in self._dtypes
        return value is None or isinstance(value, int | float | bool | torch.SymInt | torch.SymFloat)

    # Levels

    def _assign_level(self, node: fx.Node) -> None:
        befores = [self._levels_behind[provider] for provider in (*self._facts.before[node], *node.all_input_nodes)]
        for_supported = max((before[0] for before in befores), default=0)
        for_others = max((before[1] for before in befores), default=0)
        level = self._levels[node] = for_supported if node in self._kinds else for_others
        if node in self._copied:  # transparent: its users depend on its operands
            self._levels_behind[node] = (for_supported, for_others)
        else:
            self._levels_behind[node] = (level, level + (node in self._kinds))

    def _raise_work_on_weights(self) -> None:
        """Move work on weights alone to the group of its first user, which then packs the result.

        In an earlier group it would be a result, with the width of its computation.
        """
        known: set[fx.Node] = set()
        for node in self._graph.nodes:
            is_known = node in self._kinds and bool(node.all_input_nodes) and not self._facts.before[node]
            if is_known and all(operand in known or operand in self._weights for operand in node.all_input_nodes):
                known.add(node)
        for node in reversed(self._graph.nodes):
            users = node.users if node in known else ()
            if users and all(user in self._kinds for user in users):
                self._levels[node] = min(self._levels[user] for user in users)

    def _providers(
        self, groups: Sequence[Sequence[fx.Node]], sunk: set[fx.Node]
    ) -> Callable[[fx.Node, set[fx.Node]], Iterator[fx.Node]]:
        members = {node for group in groups for node in group}
        copies = self._copied | sunk

        def providers(node: fx.Node, looked_through: set[fx.Node]) -> Iterator[fx.Node]:
            """Yield the nodes that must come before ``node``; copied nodes are transparent and visited once each."""
            waiting = [node]
            while waiting:
                user = waiting.pop()
                yield from self._facts.before[user]
                for producer in user.all_input_nodes:
                    if node not in members or producer not in copies:
                        yield producer
                    elif producer not in looked_through:
                        looked_through.add(producer)
                        waiting.append(producer)

        return providers

    # Groups

    def _form_groups(self) -> tuple[list[list[fx.Node]], set[fx.Node]]:
        by_level: dict[int, list[fx.Node]] = defaultdict(list)
        for node in self._kinds:
            by_level[self._levels[node]].append(node)
        candidates = [self._remove_escaping_views(nodes) for _, nodes in sorted(by_level.items())]
        groups = [group for group in candidates if self._is_profitable(group)]
        members = {node for group in groups for node in group}
        return groups, {node for node, kind in self._kinds.items() if kind == "view" and node not in members}

    def _remove_escaping_views(self, nodes: Sequence[fx.Node]) -> list[fx.Node]:
        """Return ``nodes`` without the views that have users outside of the group.

        Such a view would come out as a copy. Instead it is taken after the group, from the group's output, so that
        aliasing and strides are those of eager. The loop runs in reverse so that a view of a view leaves too.
        """
        inside = set(nodes)
        for node in reversed(nodes):
            if self._kinds[node] == "view" and any(user not in inside for user in node.users):
                inside.remove(node)
        return [node for node in nodes if node in inside]

    def _is_profitable(self, group: Sequence[fx.Node]) -> bool:
        """Return whether a group pays off: one anchor, or two elementwise ops that fuse.

        The rule is that of ``src/fusion/fusion_pass.cpp``.
        """
        kinds = [self._kinds[node] for node in group]
        return "compute" in kinds or kinds.count("cheap") >= 2


class _Order:
    """Order of a graph in which each group's nodes are adjacent and other nodes keep their order as far as possible."""

    def __init__(
        self,
        graph: fx.Graph,
        groups: Sequence[Sequence[fx.Node]],
        providers: Callable[[fx.Node, set[fx.Node]], Iterator[fx.Node]],
    ) -> None:
        self._nodes = list(graph.nodes)
        self._members: Mapping[fx.Node, Sequence[fx.Node]] = {group[0]: group for group in groups}
        self._leaders = {node: group[0] for group in groups for node in group}
        self._providers = providers

    def run(self) -> list[fx.Node]:
        """Return the nodes, depth first along dependencies, starting from the nodes in the graph's order."""
        self._result: list[fx.Node] = []
        self._placed: set[fx.Node] = set()
        needed = self._needed()
        for node in self._nodes:
            self._place(self._leaders.get(node, node), needed)
        return self._result

    def _needed(self) -> dict[fx.Node, list[fx.Node]]:
        needed: dict[fx.Node, list[fx.Node]] = defaultdict(list)
        looked_through: dict[fx.Node, set[fx.Node]] = defaultdict(set)
        for node in self._nodes:
            leader = self._leaders.get(node, node)
            for before in self._providers(node, looked_through[leader]):
                other = self._leaders.get(before, before)
                if other is not leader:
                    needed[leader].append(other)
        return needed

    def _place(self, leader: fx.Node, needed: Mapping[fx.Node, Sequence[fx.Node]]) -> None:
        stack = [(leader, iter(needed.get(leader, ())))]
        while stack:
            node, rest = stack[-1]
            missing = next((other for other in rest if other not in self._placed), None)
            if missing is not None:
                stack.append((missing, iter(needed.get(missing, ()))))
                continue
            stack.pop()
            if node not in self._placed:
                self._placed.add(node)
                self._result.extend(self._members.get(node, [node]))


# The most steps of a recurrent layer that are compiled with other operators. The time to compile grows with them. A
# group of one such operator is compiled for all numbers of steps, as its graph contains no sizes.
_MOST_STEPS = 64


def _is_long_recurrence(node: fx.Node) -> bool:
    """Return whether ``node`` runs more steps of a recurrent layer than that, or a number that may vary."""
    if name_of_call(node) not in STEP_OPERATORS:
        return False
    steps = node.args[0].meta["val"].shape[0]  # type: ignore[union-attr]
    return _has_symbols(node) or steps > _MOST_STEPS


def _has_symbols(node: fx.Node) -> bool:
    """Return whether sizes of the operands or of the result vary."""
    values = leaves([related.meta.get("val") for related in (node, *node.all_input_nodes)])
    return any(isinstance(value, torch.Tensor) and free_symbols(value.shape) for value in values)


def _facts(graph: fx.Graph, is_random: Callable[[fx.Node], bool]) -> _Facts:
    """Return the memory, writers and effects of a graph, and the dependencies that follow from them.

    Each node waits for the last nodes that used its memory. These waited for all earlier ones.
    """
    facts = _Facts()
    nodes = list(graph.nodes)
    for node in nodes:
        facts.memory[node] = memory_of(node, facts.memory)
    previous: fx.Node | None = None
    readers: dict[fx.Node, list[fx.Node]] = defaultdict(list)  # by memory, since its last write
    for node in nodes:
        touched = dict.fromkeys(facts.memory[related] for related in [node, *node.all_input_nodes])
        before = dict.fromkeys(facts.last_write[memory] for memory in touched if memory in facts.last_write)
        if _has_effects(node, is_random):
            facts.effects.add(node)
            # Random numbers and unknown calls keep their order.
            if previous is not None:
                before[previous] = None
            previous = node
            for memory in _written(node, facts.memory):
                before |= dict.fromkeys(readers.pop(memory, ()))
                facts.last_write[memory] = node
        for memory in touched:
            readers[memory].append(node)
        if before:
            facts.before[node].extend(before)
    return facts


def memory_of(node: fx.Node, known: Mapping[fx.Node, fx.Node]) -> fx.Node:
    """Return the node whose memory the result of ``node`` may share."""
    if node.target is operator.getitem:
        return known[node.args[0]]  # type: ignore[index]
    if isinstance(node.target, torch._ops.OpOverload):
        values = list(named_arguments(node).values())
        for index in aliased_arguments(node.target._schema):
            if index is not None and isinstance(value := values[index], fx.Node):
                return known[value]
    return node


def _has_effects(node: fx.Node, is_random: Callable[[fx.Node], bool]) -> bool:
    if node.op in ("call_module", "call_method"):
        return True
    if node.op != "call_function" or _is_copied(node) or node.target is operator.getitem:
        return False
    if not isinstance(node.target, torch._ops.OpOverload):
        return True
    return node.target._schema.is_mutable or is_random(node)


def _written(node: fx.Node, memory: Mapping[fx.Node, fx.Node]) -> set[fx.Node]:
    """Return the memory that a node writes to. Calls without a schema (control flow, checks) are functional."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return set()
    values = list(named_arguments(node).values())
    operands = leaves([values[index] for index in written_arguments(node.target._schema)])
    return {memory[leaf] for leaf in operands if isinstance(leaf, fx.Node)}


def _is_copied(node: fx.Node) -> bool:
    """Return whether groups copy ``node``: an integer computed from sizes and integers, or a 0-d constant.

    A float may be unknown until a call, so values computed from one are unknown when a group is imported.
    """
    if node.op == "get_attr":
        return bool(_LITERAL.search(str(node.target))) and attribute(node).dim() == 0
    if node.op != "call_function" or not isinstance(node.meta.get("val"), int | torch.SymInt | torch.SymBool):
        return False
    values = leaves([operand.meta.get("val") for operand in node.all_input_nodes])
    return is_metadata(name_of_call(node)) or not any(
        isinstance(value, torch.Tensor | float | torch.SymFloat) for value in values
    )


# Names of tensors that are literals in the user's code. Any other attribute may change between calls.
_LITERAL = re.compile(r"(^|\.)(_tensor_constant|lifted_tensor_)\d+$")
