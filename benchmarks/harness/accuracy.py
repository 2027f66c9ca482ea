"""How far results are from exact ones: those of the same model in float64."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

from torch import Tensor, nn


def exact_results(module: nn.Module, inputs: Sequence[Tensor]) -> list[Tensor]:
    """What a copy of ``module`` in float64 computes from the same numbers; inputs of integers stay as they are."""
    wide = copy.deepcopy(module).double()
    results = wide(*(one.double() if one.is_floating_point() else one for one in inputs))
    return [results] if isinstance(results, Tensor) else list(results)


def relative_rms(results: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    """The root of the mean square error over that of the exact values; the largest of several tensors.

    NaN where numbers or sizes of tensors differ, or a result is not finite.
    """
    if [one.shape for one in results] != [one.shape for one in exact]:
        return math.nan
    errors = [float((one.double() - other).norm() / other.norm()) for one, other in zip(results, exact, strict=True)]
    return max(errors) if all(map(math.isfinite, errors)) else math.nan
