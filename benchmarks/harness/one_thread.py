"""Variants of a model on one thread: prepared, compared with eager, and timed in turn in one process.

The clock is the processor time of that thread, so that other processes disturb little.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from typing import Any

from harness import children
from harness.checked import Prepare, prepare_checked
from torchmdla.testing import timing


def measure(
    model: str,
    ways: Mapping[str, Prepare],
    rounds: int,
    quick: bool,
    *,
    span: float = timing.SPAN,
    strides: bool = True,
) -> dict[str, Any]:
    """Return the ``seconds`` of each round of each variant, and ``faults``.

    Faults are differences from eager's results, and reasons of fallbacks.

    Args:
        model: a name of ``torchmdla.testing.models.MODELS``; reduced if ``quick``.
        ways: by name: a function that prepares the variant.
        rounds: the number of rounds.
        quick: whether to use the reduced model.
        span: see :func:`torchmdla.testing.timing.time_interleaved`.
        strides: whether the strides of results must be eager's.
    """
    import torch

    import torchmdla
    from torchmdla.testing.models import MODELS

    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    spec = MODELS[model].reduced() if quick else MODELS[model]
    module, inputs = spec.build(), spec.inputs()
    with torch.no_grad():
        calls, _, faults = prepare_checked(model, ways, module, inputs, spec.layers, strides)
        seconds = timing.time_interleaved(
            calls,
            rounds,
            span,
            on_round=lambda index: children.step(f"{model}: round {index + 1} of {rounds}"),
            clock=time.thread_time,
        )
    faults += [f"fell back: {reason}" for reason in torchmdla.stats().fallbacks]
    return {"seconds": seconds, "faults": faults}
