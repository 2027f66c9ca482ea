"""Timing of several functions, interleaved in one process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

Function = Callable[[], object]

# A round repeats a fast function for this number of seconds: a clock call costs some 50 ns, and after another function
# the caches hold the other's data.
SPAN = 0.01


def time_interleaved(
    functions: Mapping[str, Function],
    rounds: int,
    span: float = SPAN,
    on_round: Callable[[int], object] = lambda _: None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Return the seconds of one call of each function, a value for each round.

    A round goes through all functions in the order of :func:`order_of`, so that a slow phase of the machine affects all
    of them. Each function is called once untimed, then for at least ``span`` seconds. The mean of these calls is the
    value of the round.

    Args:
        functions: by name; their results are dropped.
        rounds: at least 1.
        span: in seconds; 0 for one call a round.
        on_round: called with the round's index before the round begins.
        clock: in seconds; ``time.thread_time`` for functions that run on the calling thread only, beside busy
            processes.
    """
    calls = {name: calls_in(function, span, clock) for name, function in functions.items()}
    times: dict[str, list[float]] = {name: [] for name in functions}
    for index in range(rounds):
        on_round(index)
        for name in order_of(list(functions), index):
            functions[name]()
            times[name].append(time_calls(functions[name], calls[name], clock))
    return times


def order_of(names: Sequence[str], index: int) -> list[str]:
    """Return the order of round ``index``: odd rounds reverse all names but the last.

    So a function does not always follow the same other function. Of two or more functions, none follows itself: it
    would find the caches full of its own data.
    """
    *others, last = names
    return [*(reversed(others) if index % 2 else others), last]


def calls_in(function: Function, span: float, clock: Callable[[], float] = time.perf_counter) -> int:
    """Return the number of calls that fill ``span`` seconds, at least 1.

    The first call does not count: it may set things up.
    """
    function()
    return max(1, int(span / max(time_calls(function, 1, clock), 1e-7)))


def time_calls(function: Function, calls: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the seconds of one call, the mean of ``calls``."""
    start = clock()
    for _ in range(calls):
        function()
    return (clock() - start) / calls


def summary(times: Sequence[float]) -> dict[str, float]:
    """Return the minimum and the median, in milliseconds."""
    return {"min": min(times) * 1e3, "median": statistics.median(times) * 1e3}
