"""Ways to run a model on one thread: prepared, compared with eager, and timed in turn in one process.

They are timed by the processor time of that thread, so that other processes disturb little.
"""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from harness import children
from torchmdla.testing import timing

# From a module of its own and inputs to what is timed.
Prepare = Callable[[Any, Any], Callable[[], Any]]

_CALLS_TO_WARM_UP = 4


def measure(
    model: str,
    ways: Mapping[str, Prepare],
    rounds: int,
    quick: bool,
    *,
    span: float = timing.SPAN,
    strides: bool = True,
) -> dict[str, Any]:
    """``seconds`` of each round of each way, and ``faults``: results that are not eager's, reasons of fallbacks.

    Args:
        model: a name of ``torchmdla.testing.models.MODELS``; reduced if ``quick``.
        ways: by name.
        span: see :func:`torchmdla.testing.timing.interleaved`.
        strides: whether the strides of results must be eager's.
    """
    import torch

    import torchmdla
    from torchmdla.testing.compare import assert_matches
    from torchmdla.testing.models import MODELS

    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    spec = MODELS[model].reduced() if quick else MODELS[model]
    module, inputs = spec.build(), spec.inputs()
    calls: dict[str, Callable[[], Any]] = {}
    faults = []
    with torch.no_grad():
        expected = module(*inputs)
        for way, prepare in ways.items():
            children.step(f"{model}: preparing {way}")
            calls[way] = prepare(copy.deepcopy(module), inputs)
            for _ in range(_CALLS_TO_WARM_UP):
                result = calls[way]()
            try:
                assert_matches(result, expected, layers=spec.layers, strides=strides)
            except AssertionError as difference:
                faults.append(f"{way}: {difference}")
        seconds = timing.interleaved(
            calls,
            rounds,
            span,
            on_round=lambda index: children.step(f"{model}: round {index + 1} of {rounds}"),
            clock=time.thread_time,
        )
    faults += [f"fell back: {reason}" for reason in torchmdla.stats().fallbacks]
    return {"seconds": seconds, "faults": faults}
