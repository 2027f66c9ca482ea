"""Simulate a fleet's cold start: the requests to a store that machines share, and the times until instances are ready.

Time and network are simulated. The protocol is real: each instance runs the code of ``torchmdla.compile_service``
(``Store``, ``lease.acquire``) as a greenlet, with a clock of discrete events. Options set the assumptions:

- Instances start at random times within ``--window`` seconds, with an empty disk cache. They need ``--programs``
  programs, one after the other (``python -m torchmdla cache info`` reports the number for a model).
- ``--per-machine`` instances share a machine's disk cache. One at a time asks the store for a program, and the others
  find it on disk at no cost.
- A compile lasts ``--compile-seconds``, log-normally distributed (sigma 0.5), whatever else runs on the machine.
- A request lasts ``--latency`` seconds in the median, log-normally distributed (sigma 0.5), plus the time to transfer
  an artifact of ``--artifact-bytes`` at ``--bandwidth`` bytes a second.
- The store answers ``--reads-per-second`` and ``--writes-per-second``, the promise of Amazon S3 for one prefix; more
  requests wait in a queue. A request that lasts longer than the time limit of 5 s fails. A real process
  pauses its requests after a failure; the simulated one does not.
- Other failures do not occur.

Without a store, each machine compiles every program.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import random
import statistics
import types
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import greenlet
from harness import output

from torchmdla.compile_service import lease, store
from torchmdla.compile_service.authentication import Authentication
from torchmdla.compile_service.remote import Unreachable
from torchmdla.compiler.artifact import Artifact, Manifest

SIGMA = 0.5
TIME_LIMIT = 5.0
PATIENCE = 600.0


class Clock:
    """Simulated time: greenlets sleep, and the next one to wake runs."""

    def __init__(self) -> None:
        self.now = 0.0
        self._hub = greenlet.getcurrent()
        self._waking: list[tuple[float, int, Any]] = []
        self._order = itertools.count()

    def start(self, work: Callable[[], None], at: float) -> None:
        heapq.heappush(self._waking, (at, next(self._order), greenlet.greenlet(work, self._hub)))

    def sleep(self, seconds: float) -> None:
        heapq.heappush(self._waking, (self.now + seconds, next(self._order), greenlet.getcurrent()))
        self._hub.switch()

    def monotonic(self) -> float:
        return self.now

    perf_counter = monotonic

    def run(self) -> None:
        while self._waking:
            self.now, _, woken = heapq.heappop(self._waking)
            woken.switch()


class Thread:
    """Thread with the methods of ``threading.Thread`` that leases use, in simulated time."""

    def __init__(self, clock: Clock, target: Callable[[], None]) -> None:
        self._clock, self._target = clock, target

    def start(self) -> None:
        self._clock.start(self._target, self._clock.now)


class Event:
    """Event with the methods of ``threading.Event`` that leases use; a waiter checks it when its time is over."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._is_set = clock, False

    def set(self) -> None:
        self._is_set = True

    def wait(self, seconds: float) -> bool:
        self._clock.sleep(seconds)
        return self._is_set


class Queue:
    """Queue that serves requests of a kind at a fixed rate."""

    def __init__(self, clock: Clock, per_second: float) -> None:
        self._clock, self._each, self._free = clock, 1.0 / per_second, 0.0
        self.by_second: Counter[int] = Counter()

    def delay(self) -> float:
        """Return the seconds until a request that arrives now is served."""
        self.by_second[int(self._clock.now)] += 1
        self._free = max(self._free, self._clock.now) + self._each
        return self._free - self._clock.now


class Folder:
    """Counterpart of ``RemoteFolder`` in simulated time."""

    url = "simulated"
    is_read_only = False

    def __init__(self, clock: Clock, options: argparse.Namespace) -> None:
        self._clock, self._options = clock, options
        self.files: dict[str, bytes] = {}
        self.reads = Queue(clock, options.reads_per_second)
        self.writes = Queue(clock, options.writes_per_second)
        self.failed = 0

    def read(self, name: str, limit: int) -> bytes | None:
        # Read the file when the store answers, which is before the answer arrives.
        data = self.files.get(name)
        self._request(self.reads, self._transfer(name) if data else 0.0)
        return data

    def write(self, name: str, data: bytes) -> None:
        self._request(self.writes, self._transfer(name))
        self.files[name] = data

    def create(self, name: str, data: bytes) -> bool:
        self._request(self.writes, 0.0)
        return self.files.setdefault(name, data) is data

    def remove(self, name: str) -> None:
        self._request(self.writes, 0.0)
        self.files.pop(name, None)

    def _transfer(self, name: str) -> float:
        return self._options.artifact_bytes / self._options.bandwidth if name.endswith(".entry") else 0.0

    def _request(self, queue: Queue, transfer: float) -> None:
        seconds = queue.delay() + _drawn(self._options.latency) + transfer
        self._clock.sleep(min(seconds, TIME_LIMIT))
        if seconds > TIME_LIMIT:
            self.failed += 1
            raise Unreachable("no answer")


class Proof(Authentication):
    """Authentication at no cost: the simulation does not study trust."""

    description = "none"
    may_write = True

    def prove(self, message: bytes) -> bytes:
        return b""

    def check(self, message: bytes, proof: bytes) -> None:
        pass


@dataclass
class Machine:
    """State that instances on a machine share: the programs on disk, and those that an instance is getting."""

    on_disk: set[str] = field(default_factory=set)
    getting: set[str] = field(default_factory=set)


@dataclass
class Outcome:
    """Result of a simulation: the number of compiles, and the seconds until each instance was ready."""

    compiles: int = 0
    ready: list[float] = field(default_factory=list)


def simulate(options: argparse.Namespace, shared: bool) -> tuple[Outcome, Folder]:
    """Simulate a cold start of the fleet, with a store or without."""
    clock = Clock()
    for module in (lease, store):
        vars(module)["time"] = clock
    vars(lease)["threading"] = types.SimpleNamespace(
        Thread=lambda target, **_: Thread(clock, target), Event=lambda: Event(clock)
    )
    folder, outcome = Folder(clock, options), Outcome()
    keys = [f"{number:064x}" for number in range(options.programs)]
    shared_store: Any = store.Store(folder, Proof())  # type: ignore[arg-type]

    def compile_program(key: str) -> Artifact:
        clock.sleep(_drawn(options.compile_seconds))
        outcome.compiles += 1
        return Artifact(b"", Manifest(key, "", (), (), workspace_bytes=0))

    def get(key: str) -> None:
        """Get a program as ``CompilerService`` does in a machine's turn."""
        if not shared:
            compile_program(key)
        elif shared_store.load(key) is None:
            with lease.acquire(shared_store, key, PATIENCE) as artifact:
                if artifact is None:
                    shared_store.put(key, compile_program(key))

    def instance(machine: Machine) -> None:
        start = clock.now
        for key in keys:
            while key not in machine.on_disk:
                if key in machine.getting:
                    clock.sleep(0.25)
                    continue
                machine.getting.add(key)
                get(key)
                machine.on_disk.add(key)
        outcome.ready.append(clock.now - start)

    machines = [Machine() for _ in range(-(-options.instances // options.per_machine))]
    for number in range(options.instances):
        machine = machines[number % len(machines)]
        clock.start(lambda machine=machine: instance(machine), random.uniform(0.0, options.window))
    clock.run()
    return outcome, folder


def _drawn(median: float) -> float:
    return median * random.lognormvariate(0.0, SIGMA)


def row(options: argparse.Namespace, shared: bool) -> dict[str, Any]:
    """Return a line of the table."""
    outcome, folder = simulate(options, shared)
    ready = statistics.quantiles(outcome.ready, n=100)
    programs = options.programs * -(-options.instances // options.per_machine)
    return {
        "store": "shared" if shared else "none",
        "compiles": outcome.compiles,
        "reads": folder.reads.by_second.total(),
        "writes": folder.writes.by_second.total(),
        "most reads a second": max(folder.reads.by_second.values(), default=0),
        "most writes a second": max(folder.writes.by_second.values(), default=0),
        "failed": folder.failed,
        "GB read": (programs - outcome.compiles) * options.artifact_bytes / 1e9 if shared else 0.0,
        "ready p50 (s)": ready[49],
        "p99": ready[98],
        "last": max(outcome.ready),
    }


def _text(value: str | int | float) -> str:
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else value


def main() -> None:
    parser = output.parser(__doc__)
    parser.add_argument("--instances", type=output.number, help="(default: 10000)")
    parser.add_argument("--per-machine", type=output.number, default=8, help="(default: %(default)s)")
    parser.add_argument("--programs", type=output.number, default=20, help="of a model (default: %(default)s)")
    parser.add_argument("--window", type=output.positive, default=60.0, help="seconds (default: %(default)s)")
    parser.add_argument("--compile-seconds", type=output.positive, default=2.0, help="(default: %(default)s)")
    parser.add_argument("--latency", type=output.positive, default=0.03, help="seconds (default: %(default)s)")
    parser.add_argument("--artifact-bytes", type=output.number, default=200_000, help="(default: %(default)s)")
    parser.add_argument("--bandwidth", type=output.positive, default=50e6, help="bytes a second (default: 50e6)")
    parser.add_argument("--reads-per-second", type=output.positive, default=5500.0, help="(default: %(default)s)")
    parser.add_argument("--writes-per-second", type=output.positive, default=3500.0, help="(default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn (default: %(default)s)")
    options = parser.parse_args()
    output.fill_in(options, {False: {"instances": 10_000}, True: {"instances": 100}})
    random.seed(options.seed)
    rows = [row(options, shared) for shared in (True, False)]
    table = output.table(f"cold start of {options.instances:,} instances", list(rows[0]))
    for line in rows:
        table.add_row(*map(_text, line.values()))
    output.show(table)
    output.write_json(options.json, {"assumed": {**vars(options), "json": None}, "rows": rows})


if __name__ == "__main__":
    main()
