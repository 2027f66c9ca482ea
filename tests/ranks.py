"""Processes of one group of ``torch.distributed`` (gloo), which persist and call one function after the other."""

from __future__ import annotations

import multiprocessing
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
from torch import distributed


class Ranks:
    """Group of processes that starts at the first call.

    It restarts after it was stopped. A call that fails in one rank also stops it, since the others may wait for that
    rank.

    Args:
        size: the number of processes.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._processes: list[Any] = []
        self._connections: list[Connection] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def call(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Call ``function`` in each rank, and return the results. Processes import it by its name.

        Raises:
            AssertionError: it raises in a rank, whose traceback the message contains, or a rank ends.
        """
        if not self._processes:
            self._start()
        for connection in self._connections:
            connection.send((function, arguments))
        results: dict[int, Any] = {}
        while len(results) < self.size:
            pending = [channel for rank, channel in enumerate(self._connections) if rank not in results]
            for ready in wait(pending):
                rank = self._connections.index(ready)  # type: ignore[arg-type]
                results[rank], failure = _received(self._connections[rank])
                if failure:
                    self.stop()
                    raise AssertionError(f"rank {rank} of {self.size}: {failure}")
        return [results[rank] for rank in range(self.size)]

    def stop(self) -> None:
        """End the processes in any state."""
        for process in self._processes:
            process.kill()
            process.join()
        for connection in self._connections:
            connection.close()
        self._processes, self._connections = [], []
        if self._folder:
            self._folder.cleanup()
            self._folder = None

    def _start(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="torchmdla-ranks-")
        store = (Path(self._folder.name) / "store").as_uri()
        spawning = multiprocessing.get_context("spawn")
        for rank in range(self.size):
            ours, theirs = spawning.Pipe()
            process = spawning.Process(target=_serve, args=(rank, self.size, store, theirs), daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._connections.append(ours)


def _received(connection: Connection) -> tuple[Any, str]:
    try:
        result, failure = connection.recv()
    except EOFError:
        return None, "it ended"
    return result, failure


def _serve(rank: int, size: int, store: str, connection: Connection) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=size)
    while True:
        try:
            function, arguments = connection.recv()
        except EOFError:  # the test run has ended
            return
        try:
            connection.send((function(*arguments), ""))
        except Exception:
            connection.send((None, traceback.format_exc()))
