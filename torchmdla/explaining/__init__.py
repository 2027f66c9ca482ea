"""``torchmdla.explain``: a call of a model, and the facts that groups, compiler and kernels report about it."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from torchmdla import _C, api
from torchmdla.capture import refusals
from torchmdla.explaining.errors import errors_of
from torchmdla.explaining.graphs import graph_of_group, with_times
from torchmdla.explaining.machine import peak
from torchmdla.explaining.profile import events_of, run_outside
from torchmdla.explaining.program import Program, is_step, model_name
from torchmdla.explaining.reasons import Reasons, Snapshot, reason_of, reasons_by_line
from torchmdla.explaining.recording import Recording
from torchmdla.report.explanation import Explanation, Group, Reason
from torchmdla.report.groups import (
    explain_group,
    groups_called_since,
    moved_ops,
    programs_of,
    reset_times,
    timed_ops,
    weights_of,
)
from torchmdla.report.observing import time_calls
from torchmdla.support import logs, trace

# Seconds of timed calls, and the bounds of their number.
_SECONDS, _LEAST_CALLS, _MOST_CALLS = 0.5, 3, 200


def explain(model: Any, *inputs: Any, compare: bool = False) -> Explanation:
    """Explain how torchmdla runs ``model``: its groups, kernels and times, and its operators left to PyTorch.

    The explanation has the reasons why operators are left to PyTorch. Its first line is also logged (logger
    ``torchmdla.explain``, level INFO).

    The model is called some hundred times at most, without gradients, and half a second is measured. Work of other
    threads at the same time is counted as well. A function without inputs is called as it is, with gradients: it may be
    a step of training.

    Args:
        model: a TorchScript module or function; the result of ``torch.compile(…, backend="torchmdla")`` or of
            :func:`torchmdla.compile`; an exported program; a plain module or function, which is traced with the inputs
            unless these are on a lazy device; a function without inputs.
        inputs: inputs of a call, on the model's device. Without inputs, an exported program uses its own.
        compare: whether the result of every operator in groups is also compared with eager's.

    Raises:
        TypeError: ``model`` cannot be called, or is a plain module without inputs.
        RuntimeError: PyTorch's profiler is on; a thread can have only one profiler.
        Exception: the model's own exceptions.
    """
    if torch._C._autograd._profiler_enabled():
        raise RuntimeError("explain profiles the model itself: call it outside of the block of torch.profiler")
    with torch.set_grad_enabled(is_step(model, inputs)), Recording() as recording:
        with trace.span("getting ready", "explain"):
            program = Program(model, inputs)
        before = Snapshot.now()
        with trace.span("first calls", "explain"), recording.record_profile():
            refusals.call_until_compiled(program.call, api.WARM_UP_CALLS)
        if _C.is_check_speed_on():  # Groups are not compared with PyTorch's operators while a profiler is on.
            refusals.call_until_compiled(program.call)
        measured = _Measurement.of(program, before)
        with trace.span("a profiled call", "explain"), recording.record_profile() as profile:
            program.call()
        with trace.span("reading the graph", "explain"):
            events = events_of(profile, measured.called, program.is_deferred)
            outside = run_outside(events, measured.called)
            device_work = recording.device_work()
            graph = with_times(
                program.graph(measured.called, events), events, {group.name: group.seconds for group in measured.groups}
            )
        with trace.span("comparing", "explain") if compare else nullcontext():
            errors = tuple(errors_of(program.call, measured.called)) if compare else None
        reasons = [*Reasons(program, before, outside, measured.is_new).all(), *measured.reasons]
    explanation = Explanation(
        groups=tuple(group for group in measured.groups if group.specialisations or group.fallbacks),
        outside=tuple(outside),
        reasons=tuple(reasons),
        ops_compiled=measured.ops,
        ops=measured.ops + sum(operator.calls for operator in outside),
        seconds=measured.seconds,
        seconds_compiled=sum(group.seconds for group in measured.groups),
        calls=measured.calls,
        peak=peak(),
        device_work=device_work,
        errors=errors,
        graph=graph,
        timeline=recording.timeline({group.name for group in measured.groups}),
        memory=recording.memory(),
        model=model_name(model),
        programs=programs_of(measured.called),
    )
    logs.logger("explain").info(explanation.summary)
    return explanation


@dataclass(frozen=True)
class _Measurement:
    """Measurements of the timed calls of a program.

    ``calls`` is their number, and ``seconds`` is the time of the fastest. ``called`` are the groups that were called,
    and ``groups`` are their explanations. ``ops`` is the number of their operators that ran compiled in a call.
    ``reasons`` explain why others did not. ``is_new`` means that a group was formed for these calls.
    """

    calls: int
    seconds: float
    called: list[_C.GroupReport]
    groups: list[Group]
    ops: int
    reasons: list[Reason]
    is_new: bool

    @classmethod
    def of(cls, program: Program, before: Snapshot) -> _Measurement:
        """Return the measurements of a program.

        ``before`` is the state before the program's first calls. It determines which groups belong to the program.
        """
        called = groups_called_since(before.calls)
        reset_times(called)
        with trace.span("timed calls", "explain"):
            spent = time_calls(program.call, _SECONDS, _LEAST_CALLS, _MOST_CALLS)
        calls, seconds = len(spent), min(spent)
        # PyTorch makes some of the first calls of a new group under its own modes. While a program is compiled in the
        # background, calls always fall back.
        passed = {
            report["number"]: Counter() if report["number"] in before.calls else Counter(report["fallbacks"])
            for report in called
        }
        called = _C.groups({report["number"] for report in called})
        # The reports are read before the model is called again for other purposes.
        groups = [
            explain_group(report, calls, seconds, *graph_of_group(report["subgraph"], weights_of(report)))
            for report in called
        ]
        reasons = []
        for report, group in zip(called, groups, strict=True):
            lasting = Counter(group.fallbacks) - passed[report["number"]]
            reasons += [reason_of("call", text, group.fallbacks[text]) for text in lasting]
            reasons += [reason_of("sizes", text, count) for text, count in group.not_dynamic.items()]
        reasons += reasons_by_line("device", moved_ops(called))
        ops = sum(timed_ops(report) for report in called) // calls
        is_new = any(report["number"] not in before.calls for report in called)
        return cls(calls, seconds, called, groups, ops, reasons, is_new)
