"""Requests to an instance, and their latencies.

A load specifies when requests are issued, by the monotonic clock. :func:`serve` answers them in order. A request's
latency starts at its intended time of issue, whether or not the instance was busy then.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

Call = Callable[[], object]

# The order of the requests' inputs repeats after this number.
_ORDER = 1024


class Requests(Protocol):
    """Requests of one run of a load. A lock guards both methods."""

    def next(self) -> float | None:
        """Return the time of issue of the next request; None at the end."""

    def record_answer(self, at: float) -> None:
        """Record that a request was answered at time ``at``."""


class Load(Protocol):
    """Load of an instance; ``servers`` is the number of concurrent calls."""

    @property
    def seed(self) -> int: ...

    def servers(self, slots: int) -> int: ...

    def begin(self) -> Requests: ...


@dataclass(frozen=True)
class Closed:
    """Closed loop: each client issues a request when its last one is answered, for ``seconds``."""

    seconds: float
    clients: int = 1
    seed: int = 0

    def servers(self, slots: int) -> int:
        return min(slots, self.clients)

    def begin(self) -> Requests:
        return _ClosedRequests(self)


class _ClosedRequests:
    def __init__(self, load: Closed) -> None:
        now = time.monotonic()
        self._end = now + load.seconds
        self._issued = deque([now] * load.clients)

    def next(self) -> float | None:
        issued = self._issued.popleft()
        return issued if issued < self._end else None

    def record_answer(self, at: float) -> None:
        self._issued.append(at)


@dataclass(frozen=True)
class Open:
    """Open loop: at least one request, at random times, ``rate`` a second (Poisson's process), for ``seconds``."""

    rate: float
    seconds: float
    seed: int = 0

    def servers(self, slots: int) -> int:
        return slots

    def begin(self) -> Requests:
        return _OpenRequests(self)

    def arrivals(self) -> list[float]:
        """Return seconds from the start. Runs with the same seed differ only by the rate, which scales the times."""
        draw = random.Random(self.seed)
        times = [draw.expovariate(self.rate)]
        while (following := times[-1] + draw.expovariate(self.rate)) < self.seconds:
            times.append(following)
        return times


class _OpenRequests:
    def __init__(self, load: Open) -> None:
        start = time.monotonic()
        self._left = deque(start + after for after in load.arrivals())

    def next(self) -> float | None:
        return self._left.popleft() if self._left else None

    def record_answer(self, at: float) -> None:
        pass


@dataclass(frozen=True)
class Answers:
    """Answers to a load.

    Attributes:
        latencies: in seconds, of all requests.
        seconds: from the start to the last answer.
    """

    latencies: list[float]
    seconds: float

    @property
    def rate(self) -> float:
        """Return answers per second."""
        return len(self.latencies) / self.seconds


def serve(calls: Sequence[Call], load: Load, slots: int = 1) -> Answers:
    """Answer the requests of ``load``.

    Args:
        calls: one for each input; ``load.seed`` determines the input of each request.
        load: the requests.
        slots: the maximum number of concurrent calls of the engine, each in its own thread.

    Raises:
        Exception: the error of a call.
    """
    start = time.monotonic()
    queue = _Queue(load.begin(), random.Random(load.seed).choices(range(len(calls)), k=_ORDER))
    servers = load.servers(slots)
    if servers == 1:
        latencies, errors = queue.serve(calls), list[Exception]()
    else:
        latencies, errors = _serve_by_threads(queue, calls, servers)
    if errors:
        raise errors[0]
    return Answers(latencies, time.monotonic() - start)


class _Queue:
    """Queue of requests that several threads serve."""

    def __init__(self, requests: Requests, order: Sequence[int]) -> None:
        self._requests, self._order = requests, order
        self._lock, self._taken = threading.Lock(), 0

    def serve(self, calls: Sequence[Call]) -> list[float]:
        """Answer requests until the queue is empty. Return the latencies of the requests that this thread answered."""
        latencies = []
        while (taken := self._take()) is not None:
            issued, which = taken
            if (early := issued - time.monotonic()) > 0:
                time.sleep(early)
            calls[which]()
            answered = time.monotonic()
            latencies.append(answered - issued)
            with self._lock:
                self._requests.record_answer(answered)
        return latencies

    def _take(self) -> tuple[float, int] | None:
        with self._lock:
            if (issued := self._requests.next()) is None:
                return None
            self._taken += 1
            return issued, self._order[self._taken % len(self._order)]


def _serve_by_threads(queue: _Queue, calls: Sequence[Call], servers: int) -> tuple[list[float], list[Exception]]:
    latencies, errors = list[float](), list[Exception]()

    def run() -> None:
        try:
            latencies.extend(queue.serve(calls))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(servers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return latencies, errors


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that ``percent`` per cent of all values do not exceed."""
    ordered = sorted(values)
    rank = -(-len(ordered) * percent // 100)  # rounded up
    return ordered[max(int(rank), 1) - 1]
