"""Which algorithm computes a contraction: the one that all are told to take, or that was measured to be the fastest for
it, or else the one that costs least, which is for the passes to say (``winograd.py``, ``strassen.py``)."""

from __future__ import annotations

import hashlib

from torchmdla.devices.cpu.loop_program import Contraction, LoopNest, LoopProgram
from torchmdla.devices.cpu.machine import Machine
from torchmdla.devices.cpu.printer import nest_text
from torchmdla.devices.cpu.work import work_of

# By which of a machine's algorithms what was measured counts.
_CHOOSING = "fast"


def contraction_name(step: LoopNest) -> str:
    """A hash of what a contraction computes. No kernel has such a name, not that of its plain sum either."""
    return hashlib.sha256(f"algorithm of {nest_text(step.kernel)}".encode()).hexdigest()[:16]


def algorithm_for(steps: LoopProgram, step: LoopNest, machine: Machine) -> str:
    """One of :data:`~torchmdla.devices.cpu.machine.Algorithms`; ``fast`` leaves it to costs."""
    if machine.algorithms == _CHOOSING and steps.measured:
        return steps.measured.get(contraction_name(step), _CHOOSING)
    return machine.algorithms


def note(steps: LoopProgram, step: LoopNest, algorithm: str, is_exact: bool = True) -> None:
    """Lists a contraction, of which there may be several that are equal, with the algorithm that is taken."""
    name = contraction_name(step)
    equal = steps.contractions.get(name)
    nodes, count = (step.nodes | equal.nodes, equal.count + 1) if equal else (step.nodes, 1)
    steps.contractions[name] = Contraction(work_of(step).loops, nodes, algorithm, count, is_exact)
