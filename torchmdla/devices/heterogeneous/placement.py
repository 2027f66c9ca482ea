"""Placement of a program's calls on devices: the least time of computation, transfers and launches.

Two devices are divided by a minimum cut of a flow network (H. S. Stone, "Multiprocessor Scheduling with the Aid of
Network Flow Algorithms", 1977), which is exact. Several devices are divided one after the other, each from all that
follow it. Parts that do not earn their launch move to a later device one by one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchmdla.devices.heterogeneous.graph import Call, ProgramGraph
from torchmdla.errors import CompileError

OPTION = "placement"

# A call's seconds on a device, or why the device does not take the call.
Cost = float | str


@dataclass(frozen=True)
class Link:
    """Seconds of a part on a device besides its calls: of its launch, of each transfer, and of each byte of these."""

    launch: float
    transfer: float
    byte: float


@dataclass(frozen=True)
class Costs:
    """Costs of the calls of a group on several devices, as one program option.

    Attributes:
        is_modelled: whether the numbers are estimates of time. Otherwise they rank the devices.
        links: the link of each device.
        calls: by number of the node, the cost on each device.
    """

    is_modelled: bool
    links: tuple[Link, ...]
    calls: Mapping[int, tuple[Cost, ...]]

    def to_text(self) -> str:
        links = [(link.launch, link.transfer, link.byte) for link in self.links]
        calls = {str(number): costs for number, costs in self.calls.items()}
        return json.dumps([self.is_modelled, links, calls], separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> Costs:
        is_modelled, links, calls = json.loads(text)
        by_number = {int(number): tuple(costs) for number, costs in calls.items()}
        return cls(is_modelled, tuple(Link(*link) for link in links), by_number)


@dataclass(frozen=True)
class Part:
    """Consecutive calls on one device, by its number, in order."""

    device: int
    calls: tuple[Call, ...]


class Placement:
    """Search for the parts of a program. Devices may turn out not to compile calls, which then move on."""

    def __init__(self, graph: ProgramGraph, costs: Costs) -> None:
        self._graph = graph
        self._costs = costs
        self._links = costs.links
        devices = len(costs.links)
        self._seconds: list[list[float]] = []
        self._reasons: list[list[str]] = []  # why the call does not run on the device
        for call in graph.calls:
            known = costs.calls.get(-1 if call.node is None else call.node, (0.0,) * devices)
            self._seconds.append([math.inf if isinstance(cost, str) else cost for cost in known])
            self._reasons.append([cost if isinstance(cost, str) else "" for cost in known])
            if math.isinf(min(self._seconds[-1])):
                raise CompileError("none of the devices takes it", nodes=() if call.node is None else (call.node,))
        self._values = list(self._find_values())

    def _find_values(self) -> Iterator[_Value]:
        """Yield the values that may move between devices. Weights do not: a device keeps them."""
        users: dict[Any, list[int]] = {}
        for call in self._graph.calls:
            for value in call.reads:
                users.setdefault(value, []).append(call.place)
        for value in dict.fromkeys([*users, *self._graph.results]):
            producer = self._graph.producer(value)
            if not self._graph.is_weight(value):
                yield _Value(
                    None if producer is None else producer.place,
                    tuple(users.get(value, ())),
                    producer is None or value in self._graph.results,
                    self._graph.bytes_of(value),
                )

    def forbid(self, calls: Iterable[Call], device: int, error: CompileError) -> None:
        """Place ``calls`` on other devices than ``device``, which does not compile them.

        Raises:
            CompileError: ``error``, if there is a call that no other device takes.
        """
        for call in calls:
            self._seconds[call.place][device] = math.inf
            self._reasons[call.place][device] = f"it was not compiled: {error.reason}"
            if math.isinf(min(self._seconds[call.place])):
                raise error

    def parts(self) -> list[Part]:
        """Return the parts in the order in which they run."""
        places = self._divide(range(len(self._graph.calls)), 0)
        return self._parts_of(self._without_losses([places[place] for place in range(len(places))]))

    def reason(self, call: Call, device: int, names: Sequence[str]) -> str:
        """Return why ``call`` is on ``device`` and not on the first one; empty if it is on the first one.

        ``names`` are those of the devices.
        """
        if device == 0:
            return ""
        if reason := self._reasons[call.place][0]:
            return reason
        there, here = self._seconds[call.place][0], self._seconds[call.place][device]
        if there == here:  # It is with its neighbours.
            return ""
        if not self._costs.is_modelled:
            return f"a part of it alone on device {names[0]!r} would save nothing"
        return f"it takes {there:.2g} s on device {names[0]!r}, where it needs transfers, and {here:.2g} s here"

    # Division

    def _divide(self, places: Sequence[int], device: int) -> dict[int, int]:
        """Return the device of each of ``places``: ``device``, or one of those that follow it."""
        if device == len(self._links) - 1 or not places:
            return dict.fromkeys(places, device)
        first = self._cut(places, device)
        rest = [place for place in places if place not in first]
        return {**dict.fromkeys(first, device), **self._divide(rest, device + 1)}

    def _cut(self, places: Sequence[int], device: int) -> set[int]:
        """Return the places that run on ``device`` in the cheapest division of ``places`` between it and the others."""
        import networkx

        inside = set(places)
        edges: list[tuple[object, object, float]] = []

        def connect(source: object, target: object, capacity: float) -> None:
            edges.append((source, target, capacity))

        for place in places:
            here, others = self._seconds[place][device], self._seconds[place][device + 1 :]
            # A call is "here" if its node is on the side of "here": it then pays the edge to "there".
            connect(place, "there", here)
            connect("here", place, min(others))
        for number, value in enumerate(self._values):
            seconds = self._transfer(value, device)
            producer: object = value.producer if value.producer in inside else "there"
            users: list[object] = [user if user in inside else "there" for user in value.users]
            if value.is_outside and value.producer is not None:
                users.append("there")
            if {producer, *users} == {"there"} or not seconds:
                continue
            # Extra nodes: a value moves once, whatever the number of its users on the other side.
            connect(producer, ("out", number), seconds)
            connect(("in", number), producer, seconds)
            for user in users:
                connect(("out", number), user, math.inf)
                connect(user, ("in", number), math.inf)
        # Integers: an edge that is full but for rounding would not be part of the cut.
        largest = max((capacity for *_, capacity in edges if 0 < capacity < math.inf), default=1.0)
        network = networkx.DiGraph()
        network.add_nodes_from(("here", "there"))
        for source, target, capacity in edges:
            limit = {} if math.isinf(capacity) else {"capacity": int(capacity / largest * 2**60)}
            network.add_edge(source, target, **limit)
        _, (here_side, _) = networkx.minimum_cut(
            network, "here", "there", flow_func=networkx.algorithms.flow.boykov_kolmogorov
        )
        return {place for place in places if place in here_side}

    def _transfer(self, value: _Value, device: int) -> float:
        return self._links[device].transfer + self._links[device].byte * value.bytes

    # Parts

    def _parts_of(self, places: Sequence[int]) -> list[Part]:
        """Return the parts of a placement.

        The level of a call is the largest number of changes of the device on a path to it. Calls of a device with the
        same level are a part: a path between two of them through another device would raise the level.
        """
        levels: list[int] = []
        parts: dict[tuple[int, int], list[Call]] = {}
        for call in self._graph.calls:
            producers = [producer.place for value in call.reads if (producer := self._graph.producer(value))]
            device = places[call.place]
            levels.append(max((levels[place] + (places[place] != device) for place in producers), default=0))
            parts.setdefault((levels[call.place], device), []).append(call)
        return [Part(device, tuple(calls)) for (_, device), calls in sorted(parts.items(), key=lambda item: item[0])]

    def _without_losses(self, places: list[int]) -> list[int]:
        """Return the placement after every part has moved to a later device where that costs less."""
        best, before = self.total(places), math.inf
        while best < before:
            before = best
            for part in self._parts_of(places):
                for device in range(part.device + 1, len(self._links)):
                    moved = list(places)
                    for call in part.calls:
                        moved[call.place] = device
                    if (total := self.total(moved)) < best:
                        places, best = moved, total
        return places

    def total(self, places: Sequence[int]) -> float:
        """Return the seconds of a placement."""
        seconds = sum(self._seconds[place][device] for place, device in enumerate(places))
        seconds += sum(self._links[part.device].launch for part in self._parts_of(places))
        for value in self._values:
            devices = {places[user] for user in value.users}
            if value.producer is None:
                seconds += sum(self._transfer(value, device) for device in devices)
                continue
            home = places[value.producer]
            elsewhere = devices - {home}
            if elsewhere or value.is_outside:
                seconds += self._transfer(value, home) + sum(self._transfer(value, device) for device in elsewhere)
        return seconds


@dataclass(frozen=True)
class _Value:
    """Value that may move: places of its producer and users, whether the caller has it, and its bytes."""

    producer: int | None
    users: tuple[int, ...]
    is_outside: bool
    bytes: int
