"""Errors of results relative to exact ones: those of the same model in float64."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

from torch import Tensor, nn


def exact_results(module: nn.Module, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Return the results of a copy of ``module`` in float64; inputs of integers stay unchanged."""
    wide = copy.deepcopy(module).double()
    results = wide(*(tensor.double() if tensor.is_floating_point() else tensor for tensor in inputs))
    return [results] if isinstance(results, Tensor) else list(results)


def relative_rms(results: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    """Return the root mean square error relative to the exact values; the maximum over several tensors.

    NaN if the numbers or sizes of tensors differ, or if a result is not finite.
    """
    if [result.shape for result in results] != [result.shape for result in exact]:
        return math.nan
    errors = [
        float((result.double() - other).norm() / other.norm()) for result, other in zip(results, exact, strict=True)
    ]
    return max(errors) if all(map(math.isfinite, errors)) else math.nan
