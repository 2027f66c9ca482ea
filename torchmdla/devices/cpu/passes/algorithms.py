"""Choice of the algorithm of a contraction.

It is the algorithm that the machine's settings require, or the one that was measured to be the fastest. Otherwise the
passes compare costs (``winograd.py``, ``strassen.py``).
"""

from __future__ import annotations

import hashlib

from torchmdla.devices.cpu.loop_program import Contraction, LoopNest, LoopProgram
from torchmdla.devices.cpu.machine import Machine
from torchmdla.devices.cpu.printer import nest_text
from torchmdla.devices.cpu.work import work_of

# Measurements count only if the machine's setting of algorithms is this one.
_COST_MODEL = "fast"


def contraction_name(step: LoopNest) -> str:
    """Return a hash of the computation of a contraction.

    No kernel has the same name, not even that of the plain sum.
    """
    return hashlib.sha256(f"algorithm of {nest_text(step.kernel)}".encode()).hexdigest()[:16]


def select_algorithm(steps: LoopProgram, step: LoopNest, machine: Machine) -> str:
    """Return one of :data:`~torchmdla.devices.cpu.machine.Algorithms`; ``fast`` leaves the choice to cost models."""
    if machine.algorithms == _COST_MODEL and steps.measured:
        return steps.measured.get(contraction_name(step), _COST_MODEL)
    return machine.algorithms


def record_algorithm(steps: LoopProgram, step: LoopNest, algorithm: str, is_exact: bool = True) -> None:
    """List a contraction with the algorithm that was chosen for it.

    Equal contractions share one entry, which counts them.
    """
    name = contraction_name(step)
    equal = steps.contractions.get(name)
    nodes, count = (step.nodes | equal.nodes, equal.count + 1) if equal else (step.nodes, 1)
    steps.contractions[name] = Contraction(work_of(step).loops, nodes, algorithm, count, is_exact)
