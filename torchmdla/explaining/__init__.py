"""``torchmdla.explain``: a model is called, and what groups, compiler and kernels know of it is gathered."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from torchmdla import _C, api, devices
from torchmdla.capture import refusals, torchscript, ungrouped
from torchmdla.capture.ungrouped import Ungrouped
from torchmdla.explaining.errors import errors_of
from torchmdla.explaining.graphs import graph_of_calls, graph_of_fx, graph_of_group, graph_of_script, timed
from torchmdla.explaining.places import lines_of
from torchmdla.explaining.profile import base_of, events_of, run_outside
from torchmdla.explaining.recording import Recording
from torchmdla.importer.graph import name_of
from torchmdla.importer.sources import source_of
from torchmdla.report.advice import advice
from torchmdla.report.explanation import Explanation, Graph, Outside, Reason
from torchmdla.report.groups import (
    calls_of,
    explain_group,
    live_groups,
    programs_of,
    reset_times,
    timed_ops,
    weights_of,
)
from torchmdla.report.observing import timed_kernels
from torchmdla.report.peak import peak
from torchmdla.support import logs, trace

# Calls are timed for so long, within these bounds.
_SECONDS, _LEAST_CALLS, _MOST_CALLS = 0.5, 3, 200

_NO_GRAPH = "it is no part of a graph that torchmdla sees"
# What checks, and computes nothing.
_CHECKS = "aten::_assert_"
AT_ONCE = "the device has it run at once, and no part of a graph"


def explain(model: Any, *inputs: Any, compare: bool = False) -> Explanation:
    """Says what torchmdla makes of ``model``: groups, kernels and their times, and why anything else is left to
    PyTorch. The first line is logged, too (logger ``torchmdla.explain``, level INFO).

    The model is called some hundred times at most, without gradients, and half a second is measured. What other threads
    run meanwhile is counted as well.

    Args:
        model: a TorchScript module or function; the result of ``torch.compile(…, backend="torchmdla")`` or of
            :func:`torchmdla.compile`; an exported program; a plain module or function, which is traced with the inputs
            unless these are on a lazy device.
        inputs: of a call, on the model's device. An exported program has its own where none are given.
        compare: compare the result of every operator in groups with eager's, too.

    Raises:
        TypeError: ``model`` cannot be called, or is a plain module or function without inputs.
        RuntimeError: it is called while PyTorch's profiler is on, of which there is one in a thread.
        The model's own exceptions.
    """
    if torch._C._autograd._profiler_enabled():
        raise RuntimeError("explain profiles the model itself: call it outside of the block of torch.profiler")
    with torch.no_grad(), Recording() as recording:
        with trace.span("getting ready", "explain"):
            program = _Program(model, inputs)
        before = _Known.now()
        with trace.span("first calls", "explain"), recording.profiled():
            refusals.call_until_whole(program.call, api.WARM_UP_CALLS)
        called = [report for number, report in live_groups().items() if before.calls.get(number) != calls_of(report)]
        reset_times(called)
        with trace.span("timed calls", "explain"):
            calls, seconds = _timed(program.call)
        passed = {report["number"]: _passed(report, before) for report in called}
        called = [live for report in called if (live := live_groups().get(report["number"]))]
        # Read before the model is called again, for other purposes.
        groups = [
            explain_group(report, calls, seconds, *graph_of_group(report["subgraph"], weights_of(report)))
            for report in called
        ]
        compiled = sum(timed_ops(report) for report in called) // calls
        with trace.span("a profiled call", "explain"), recording.profiled() as profile:
            program.call()
        with trace.span("reading the graph", "explain"):
            events = events_of(profile, called, program.is_deferred)
            outside = run_outside(events, called)
            graph = timed(program.graph(called, events), events, {group.name: group.seconds for group in groups})
        with trace.span("comparing", "explain") if compare else nullcontext():
            errors = tuple(errors_of(program.call, called)) if compare else None
        is_new = any(report["number"] not in before.calls for report in called)
        reasons = _Reasons(program, before, outside, is_new).all()
    for report, group in zip(called, groups, strict=True):
        lasting = Counter(group.fallbacks) - passed[report["number"]]
        reasons += [_reason("call", text, group.fallbacks[text]) for text in lasting]
        reasons += [_reason("sizes", text, count) for text, count in group.not_dynamic.items()]
    made = Explanation(
        groups=tuple(group for group in groups if group.specialisations or group.fallbacks),
        outside=tuple(outside),
        reasons=tuple(reasons),
        ops_compiled=compiled,
        ops=compiled + sum(one.calls for one in outside),
        seconds=seconds,
        seconds_compiled=sum(group.seconds for group in groups),
        calls=calls,
        peak=peak(),
        errors=errors,
        graph=graph,
        timeline=recording.timeline({group.name for group in groups}),
        memory=recording.memory(),
        model=_name_of(model),
        programs=programs_of(called),
    )
    logs.logger("explain").info(made.summary)
    return made


class _Program:
    """A model that is ready to be called, and if it is TorchScript's, where its operators stand."""

    def __init__(self, model: Any, inputs: tuple[Any, ...]) -> None:
        self._model, self._inputs = _ready(model, inputs), inputs
        if isinstance(self._model, torch.jit.ScriptModule | torch.jit.ScriptFunction) and api.is_enabled():
            torchscript.optimise_anew(self._model)
        self._keywords: Mapping[str, Any] = {}
        if not inputs and api.is_exported(model):
            self._inputs, self._keywords = model.example_inputs
        self.places = set(_places(self._model))
        self.is_deferred = _is_deferred(inputs)

    def call(self) -> Any:
        """The results, computed: those of a lazy device on the CPU."""
        return tree_map_only(torch.Tensor, _computed, self._model(*self._inputs, **self._keywords))

    def graph(self, groups: Sequence[_C.GroupReport], events: Sequence[tuple[str, float]]) -> Graph:
        """Of the model, or where that is not known, of a call that was seen to run ``events``."""
        called = {report["name"]: report for report in groups}
        seen = dict.fromkeys(name for name, _ in events if name in called)
        # Those that ran no compiled code, or within an operator, are not among the events.
        in_order = [called[name] for name in [*seen, *(name for name in called if name not in seen)]]
        if isinstance(self._model, torch.jit.ScriptModule | torch.jit.ScriptFunction):
            return graph_of_script(api.graph_for(self._model, *self._inputs), in_order)
        unseen = [(name, 0.0) for name in called if name not in seen]
        return graph_of_fx(in_order) or graph_of_calls([*events, *unseen], called)


def _name_of(model: Any) -> str:
    named = getattr(model, "_orig_mod", model)
    return str(
        getattr(named, "original_name", "") or getattr(named, "__name__", "") or getattr(named, "name", "")
        if not isinstance(named, torch.nn.Module) or isinstance(named, torch.jit.ScriptModule)
        else type(named).__name__
    )


def _computed(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.device.type == "cpu" else tensor.cpu()


def _ready(model: Any, inputs: tuple[Any, ...]) -> Any:
    if api.is_exported(model):
        return api.compile(model, *inputs)
    if not callable(model):
        raise TypeError(f"explain takes a model that can be called, got {type(model).__name__}")
    return model if _is_deferred(inputs) or _is_ready(model) else api.compile(model, *inputs)


def _is_deferred(inputs: tuple[Any, ...]) -> bool:
    """Whether the model is on a device that runs whole graphs."""
    return any(isinstance(one, torch.Tensor) and one.device.type != "cpu" for one in inputs)


def _is_ready(model: Any) -> bool:
    if isinstance(model, torch.jit.ScriptModule | torch.jit.ScriptFunction):
        return True
    if hasattr(model, "_torchdynamo_orig_callable") or hasattr(model, "_orig_mod"):
        return True
    fx = sys.modules.get("torchmdla.capture.fx")
    return fx is not None and isinstance(model, torch.fx.GraphModule) and bool(fx.groups(model))


def _places(model: Any) -> Iterator[tuple[str, str]]:
    """Operator and line of every node of a TorchScript program."""

    def walk(block: Any) -> Iterator[tuple[str, str]]:
        for node in block.nodes():
            yield name_of(node), source_of(node)
            for inner in node.blocks():
                yield from walk(inner)

    if isinstance(model, torch.jit.ScriptModule | torch.jit.ScriptFunction):
        yield from walk(model.inlined_graph)


def _passed(report: _C.GroupReport, before: _Known) -> Counter[str]:
    """The fallbacks of the first calls of a group that is new: PyTorch makes some under modes of its own, and while a
    program is compiled in the background there is no other way."""
    return Counter() if report["number"] in before.calls else Counter(report["fallbacks"])


def _timed(call: Callable[[], Any]) -> tuple[int, float]:
    """How often ``call`` was called, and the seconds of the fastest call."""
    spent: list[float] = []
    with timed_kernels():
        while len(spent) < _LEAST_CALLS or (sum(spent) < _SECONDS and len(spent) < _MOST_CALLS):
            start = time.perf_counter()
            call()
            spent.append(time.perf_counter() - start)
    return len(spent), min(spent)


@dataclass(frozen=True)
class _Known:
    """What was known before the model was called: calls of groups by number, operators outside of groups, left out of
    them, and that kept one from being compiled."""

    calls: Mapping[int, int]
    ungrouped: Counter[Ungrouped]
    left_out: Counter[Ungrouped]
    failed: Counter[Ungrouped]

    @classmethod
    def now(cls) -> _Known:
        calls = {number: calls_of(report) for number, report in live_groups().items()}
        return cls(calls, ungrouped.counts(), refusals.counts(), refusals.failures())


class _Reasons:
    """Which of the reasons known in this process are the program's: those that are new, and where it was optimised
    before, those of an operator that was seen to run outside of groups, at a line of it: lines of PyTorch's own modules
    are others' as well."""

    def __init__(self, program: _Program, before: _Known, outside: list[Outside], is_new: bool) -> None:
        self._is_new = is_new
        self._places = program.places
        self._call, self._is_deferred = program.call, program.is_deferred
        self._before = before
        self._seconds = {one.op: one.seconds for one in outside}

    def all(self) -> list[Reason]:
        """Those whose operators take most time first."""
        now = _Known.now()
        found = [
            *self._grouped("operator", self._of_program(now.ungrouped, self._before.ungrouped)),
            *self._grouped("left out", self._of_program(now.left_out, self._before.left_out)),
            *self._grouped("not compiled", self._of_program(now.failed, self._before.failed)),
        ]
        explained = {base_of(reason.op) for reason in found} | _moving()
        reason = AT_ONCE if self._is_deferred else _NO_GRAPH
        left = [op for op in self._seconds if op not in explained and not op.startswith(_CHECKS)]
        found += [_reason("operator", reason, 1, op) for op in left]
        if unplaced := {base_of(one.op) for one in found if not one.sources}:
            lines = lines_of(self._call, unplaced)
            found = [one if one.sources else replace(one, sources=lines.get(base_of(one.op), ())) for one in found]
        return sorted(found, key=lambda reason: -self._seconds.get(base_of(reason.op), 0.0))

    def _of_program(self, now: Counter[Ungrouped], before: Counter[Ungrouped]) -> Counter[Ungrouped]:
        new = now - before
        if self._is_new:
            return new
        if self._places:
            known = {
                one: count
                for one, count in now.items()
                if (one.op, one.source) in self._places and base_of(one.op) in self._seconds
            }
        else:
            searched = self._seconds.keys() - {base_of(one.op) for one in new}
            known = {one: count for one, count in now.items() if base_of(one.op) in searched}
        return Counter({**new, **known})

    def _grouped(self, kind: str, counts: Counter[Ungrouped]) -> list[Reason]:
        """One for each operator and reason."""
        sources: dict[tuple[str, str], dict[str, int]] = {}
        for one, count in counts.items():
            sources.setdefault((one.op, one.reason), {})[one.source] = count
        return [
            _reason(kind, reason, sum(lines.values()), op, tuple(sorted(filter(None, lines))))
            for (op, reason), lines in sources.items()
        ]


def _moving() -> frozenset[str]:
    """Operators that groups leave to eager PyTorch without a reason: views that no group needs, sizes."""
    table = devices.get(devices.in_use()).ops
    return frozenset(base_of(op) for op, support in table.items() if support.kind not in ("compute", "cheap"))


def _reason(kind: str, reason: str, count: int, op: str = "", sources: tuple[str, ...] = ()) -> Reason:
    return Reason(kind, op, reason, count, sources, advice(op, reason))
