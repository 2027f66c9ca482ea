"""Operation counts of convolutions, pooling and resizing, which read a window of the input for each result."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torchmdla.aten.calls import Call, Tensor
from torchmdla.aten.op_counts.kinds import Counts, Rule, each


def _products(outside: Tensor, inside: Tensor, weight: Tensor, *, transposed: bool) -> int:
    """Return the number of multiplications of a convolution from ``inside`` to ``outside``.

    A weight has the shape [outputs, inputs / groups, …]. Each output element needs ``weight.numel / outputs`` products.
    A transposed weight has the shape [inputs, outputs / groups, …]. Each input element needs ``weight.numel / inputs``
    products.
    """
    spread = inside if transposed else outside
    return spread.numel * weight.numel // max(weight.shape[0], 1)


def _convolution(transposed: bool | None = None) -> Rule:
    """Return the rule for a convolution; ``transposed`` None means that the op has an argument for it."""

    def rule(call: Call) -> Counts:
        swapped = call["transposed"] if transposed is None else transposed
        products = _products(call.out, call["input"], call["weight"], transposed=swapped)
        return each(products, "MAC") + each(call.out.numel, "+" if call["bias"] is not None else "")

    return rule


def _convolution_backward(call: Call) -> Counts:
    """Return the counts of the gradients of a convolution.

    The gradients of the input and of the weight each need as many products as the forward pass. The gradient of the
    bias is a sum.
    """
    gradient = call["grad_output"]
    products = _products(gradient, call["input"], call["weight"], transposed=call["transposed"])
    of_input, of_weight, of_bias = call["output_mask"]
    return each(products * (of_input + of_weight), "MAC") + each(gradient.numel, "+" if of_bias else "")


def _window(call: Call, dims: int) -> int:
    """Return the number of elements of a window; an ``int[N]`` argument may be one number."""
    sizes = call["kernel_size"]
    listed: list[int] = [sizes] if isinstance(sizes, int) else list(sizes)
    return math.prod(listed) if len(listed) > 1 else listed[0] ** dims


def _window_elements(call: Call, dims: int) -> int:
    """Return the number of elements in all windows of an adaptive pooling.

    Window i of n over s is [⌊is/n⌋, ⌈(i+1)s/n⌉).
    """
    sizes, results = call["self"].shape[-dims:], call.out.shape[-dims:]
    windows: list[int] = [
        sum(-(-(index + 1) * size // result) - index * size // result for index in range(result))
        for size, result in zip(sizes, results, strict=True)
    ]
    return math.prod(windows, start=math.prod(call.out.shape[:-dims]))


def _grid_sampler(call: Call) -> Counts:
    """Return the counts of a grid sampler.

    Positions are scaled to the input with a ``MAC`` and a ``*`` for each coordinate. The weights are computed from the
    distances to them.
    """
    dims = len(call["input"].shape) - 2
    coordinates = call["grid"].numel
    places, corners = coordinates // dims, 2**dims
    interpolated = (
        # A weight of a corner is a product of one distance per coordinate.
        each(coordinates, "round - -")
        + each(corners * (dims - 1) * places, "*")
        + each(corners * call.out.numel, "MAC"),
        each(coordinates, "round"),
        each(4**dims * call.out.numel + 16 * coordinates, "MAC") + each(coordinates, "round -"),
    )
    return each(coordinates, "MAC *") + interpolated[call["interpolation_mode"]]


def _interpolation(points: int) -> Rule:
    """Return the rule for ops whose results are sums of ``points`` elements with weights known from the sizes."""
    return lambda call: each(points * call.out.numel, "MAC")


def _rules_of(dims: int) -> dict[str, Rule]:
    """Return the rules of the ops that have ``dims`` in their name."""

    def max_pool(call: Call) -> Counts:
        return each(call.out.numel * (_window(call, dims) - 1), ">")

    def adaptive_average(call: Call) -> Counts:
        return each(_window_elements(call, dims), "+") + each(call.out.numel, "*")

    return {
        f"conv{dims}d": _convolution(False),
        f"conv_transpose{dims}d": _convolution(True),
        f"max_pool{dims}d": max_pool,
        f"max_pool{dims}d_with_indices": max_pool,
        f"max_pool{dims}d_with_indices_backward": lambda call: each(call["grad_output"].numel, "+"),
        f"avg_pool{dims}d_backward": lambda call: each(call["grad_output"].numel * (_window(call, dims) + 1), "+"),
        f"_adaptive_avg_pool{dims}d_backward": lambda call: each(call["grad_output"].numel + call.out.numel, "+"),
        f"avg_pool{dims}d": lambda call: each(call.out.numel * _window(call, dims), "+") + each(call.out.numel, "*"),
        f"adaptive_avg_pool{dims}d": adaptive_average,
        f"_adaptive_avg_pool{dims}d": adaptive_average,
        f"adaptive_max_pool{dims}d": lambda call: each(_window_elements(call, dims) - call.out.numel, ">"),
        f"upsample_nearest{dims}d": "",
        f"_upsample_nearest_exact{dims}d": "",
    }


RULES: Mapping[str, Rule] = {
    **_rules_of(1),
    **_rules_of(2),
    **_rules_of(3),
    "_convolution_mode": _convolution(False),
    **dict.fromkeys(("convolution", "_convolution", "convolution_overrideable"), _convolution()),
    "convolution_backward": _convolution_backward,
    "upsample_linear1d": _interpolation(2),
    "upsample_bilinear2d": _interpolation(4),
    "upsample_trilinear3d": _interpolation(8),
    "upsample_bicubic2d": _interpolation(16),
    **dict.fromkeys(("grid_sampler", "grid_sampler_2d", "grid_sampler_3d"), _grid_sampler),
}
