"""Timing of the kernels of a whole program, compiled in this process and run on generated arguments.

A schedule that is faster alone may be slower in a program, where data of other kernels fills the caches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from torchmdla import _C, devices
from torchmdla.compiler import records
from torchmdla.compiler.artifact import Artifact
from torchmdla.compiler.program import Argument, Program
from torchmdla.compiler.records import Record

# The seconds of a round for each program, and the most calls in it.
_SPAN, _MOST_CALLS = 0.1, 50


def with_records(program: Program, new: Sequence[Record]) -> Program:
    """Return a program with only the records ``new``."""
    others = (option for option in program.options if option[0] != records.OPTION)
    return replace(program, options=(*others, *records.option_of(new)))


class RunningProgram:
    """Static program of the CPU device that can be called.

    Raises:
        CompileError: the program cannot be compiled.
    """

    def __init__(self, program: Program) -> None:
        device = devices.get(program.target.device)
        artifact = device.lower(program)
        self.kernels = artifact.manifest.kernels
        self._times = _C.KernelTimes([kernel.symbol for kernel in self.kernels])
        self._executable = _executable(artifact, device.load(artifact), self._times)
        self._call(1)
        # In the second call, weights are packed already.
        seconds = self._call(1)[0]
        self._calls = max(1, min(_MOST_CALLS, int(_SPAN / max(seconds, 1e-6))))

    def seconds(self) -> list[float]:
        """Return the seconds of each kernel in the manifest, the least of a round of calls."""
        return self._call(self._calls)[1]

    def _call(self, calls: int) -> tuple[float, list[float]]:
        self._times.reset()
        for _ in range(calls):
            self._executable([])
        sums = self._times.sums()
        return sums["entry"][1] * 1e-9, [least * 1e-9 for _, least in sums["kernels"]]


def measure_in_turn(programs: Sequence[RunningProgram], rounds: int) -> list[list[float]]:
    """Return the seconds of each kernel of each program, the least of ``rounds`` rounds through all programs."""
    _C.observe_kernels(times=True, ranges=False)
    try:
        least = [program.seconds() for program in programs]
        for _ in range(rounds - 1):
            for k, program in enumerate(programs):
                least[k] = [min(pair) for pair in zip(least[k], program.seconds(), strict=True)]
        return least
    finally:
        _C.observe_kernels(times=False, ranges=False)


def _executable(artifact: Artifact, loaded: devices.LoadedCode, times: _C.KernelTimes) -> _C.Executable:
    manifest = artifact.manifest
    packs = [
        (address, pack.recipe, pack.arguments, pack.size, 0, 0)
        for address, pack in zip(loaded.packs, manifest.packs, strict=True)
    ]
    generator = torch.Generator().manual_seed(0)
    strides = [torch.empty(result.shape, device="meta").stride() for result in manifest.results]
    return _C.Executable(
        entry=loaded.entry,
        packs=packs,
        workspace_bytes=manifest.workspace_bytes,
        owner=loaded,
        inputs=[("constant", _value(argument, generator)) for argument in manifest.arguments],
        outputs=[
            ("tensor", (index, getattr(torch, result.dtype), list(result.shape), list(stride), None))
            for index, (result, stride) in enumerate(zip(manifest.results, strides, strict=True))
        ],
        fault=loaded.fault,
        times=times,
    )


def _value(argument: Argument, generator: torch.Generator) -> torch.Tensor:
    """Return the value of an argument: random normal numbers, or zeros for integers, which may be indices.

    Normal numbers grow from layer to layer, so they do not become denormal numbers, which are slow.
    """
    dtype = getattr(torch, argument.dtype)
    if dtype.is_floating_point:
        return torch.randn(argument.shape, dtype=dtype, generator=generator)
    return torch.zeros(argument.shape, dtype=dtype)
