"""Team of threads that share an entry, in an order that a test chooses: a wait that is missing changes the results.

One thread runs at a time. Among those that do not have to wait, it is always the first one in the team's order, which
runs as far ahead of the others as its waits allow.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

from torchmdla.devices.cpu.schedule.footprints import Footprint, KernelWaits, Wait
from torchmdla.devices.cpu.schedule.partition import chunk_size

ENTRY = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
SHARE_ENTRY = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
SHARE_KERNEL = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.POINTER(ctypes.c_int64)
)

# The integers of a kernel before its waits, and those of a wait.
_HEAD, _WAIT = 4, 11


class ThreadTeam:
    """``mdla_share_entry`` and ``mdla_share_kernel`` for a team of threads.

    ``run`` runs a kernel for a range in chunks of a grain. ``kernels`` counts the kernels of all calls.
    """

    def __init__(self, run: Callable[[int, int, int, int, int], None], threads: int = 3) -> None:
        self.kernels = 0
        self._order = list(range(threads))
        self._run = run
        self._entry = SHARE_ENTRY(self._share_entry)
        self._kernel = SHARE_KERNEL(self._share_kernel)
        self._turn = threading.Condition()
        self._finished: dict[int, int] = {}
        # For each thread that waits for a kernel, the numbers of kernels that each thread must have finished.
        self._waiting: dict[int, dict[int, int]] = {}
        self._deadlock = ""

    @property
    def addresses(self) -> dict[str, int]:
        functions = {"mdla_share_entry": self._entry, "mdla_share_kernel": self._kernel}
        return {name: ctypes.cast(function, ctypes.c_void_p).value or 0 for name, function in functions.items()}

    def reverse(self) -> None:
        """Reverse the order of the threads."""
        self._order.reverse()

    def _share_entry(self, entry: int, buffers: int, _tasks: int) -> int:
        status, results = ctypes.c_int32(0), dict[int, int]()
        self._finished, self._waiting = dict.fromkeys(self._order, 0), {}

        def run(thread: int) -> None:
            results[thread] = ENTRY(entry)(buffers, thread + 1, ctypes.addressof(status))
            with self._turn:
                del self._finished[thread]
                self._turn.notify_all()

        threads = [threading.Thread(target=run, args=(thread,)) for thread in self._order]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not self._deadlock, self._deadlock
        assert len(set(results.values())) == 1
        return results[0] | status.value

    def _share_kernel(
        self, member: int, body: int, operands: int, iterations: int, constants: ctypes._Pointer[ctypes.c_int64]
    ) -> None:
        thread, grain, threads = member - 1, constants[1], len(self._order)
        size = chunk_size(iterations, grain, threads)
        first, end = thread * size, min((thread + 1) * size, iterations)
        waits = read_waits(constants)
        with self._turn:
            finished = self._finished[thread]
            needed = dict.fromkeys(self._order, finished - waits.barrier + 1 if waits.barrier else 0)
            for wait in waits.waits if first < end else ():
                for other in wait.threads(first, end, threads):
                    needed[other] = max(needed[other], finished - wait.distance + 1)
            self._waiting[thread] = needed
            self._turn.notify_all()
            self._turn.wait_for(lambda: self._is_next(thread))
            self.kernels += thread == 0
        if first < end:
            self._run(body, operands, first, end, grain or end)
        with self._turn:
            del self._waiting[thread]
            self._finished[thread] += 1

    def _is_next(self, thread: int) -> bool:
        """Return whether it is a thread's turn: all threads wait for a kernel or have returned."""
        if self._waiting.keys() != self._finished.keys():
            return False
        ready = [t for t in self._order if t in self._waiting and self._is_ready(t)]
        if not ready:
            self._deadlock = f"threads wait for each other: {self._waiting}, {self._finished}"
        return not ready or ready[0] == thread

    def _is_ready(self, thread: int) -> bool:
        return all(self._finished.get(other, number) >= number for other, number in self._waiting[thread].items())


def read_waits(constants: ctypes._Pointer[ctypes.c_int64]) -> KernelWaits:
    """Return the waits in a kernel's constants."""
    waits = []
    for number in range(constants[3]):
        distance, iterations, grain, *rest = constants[_HEAD + number * _WAIT : _HEAD + (number + 1) * _WAIT]
        waits.append(Wait(distance, iterations, grain, Footprint(*rest[:4]), Footprint(*rest[4:])))
    return KernelWaits(constants[2], tuple(waits))
