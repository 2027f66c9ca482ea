"""Operation counts of convolutions, pooling and resizing, which read a window of the input for each result."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torchmdla.aten.calls import Call, Tensor, as_list
from torchmdla.aten.op_counts.kinds import Counts, Rule, total


def _products(outside: Tensor, inside: Tensor, weight: Tensor, *, transposed: bool) -> int:
    """Return the number of multiplications of a convolution from ``inside`` to ``outside``.

    A weight has the shape [outputs, inputs / groups, …]. Each output element needs ``weight.numel / outputs`` products.
    A transposed weight has the shape [inputs, outputs / groups, …]. Each input element needs ``weight.numel / inputs``
    products.
    """
    spread = inside if transposed else outside
    return spread.numel * weight.numel // max(weight.shape[0], 1)


def _convolution(transposed: bool | None) -> Rule:
    """Return the rule for a convolution; ``transposed`` None means that the op has an argument for it."""

    def rule(call: Call) -> Counts:
        swapped = call["transposed"] if transposed is None else transposed
        products = _products(call.out, call["input"], call["weight"], transposed=swapped)
        return total({"MAC": products, "+": call.out.numel if call["bias"] is not None else 0})

    return rule


def _convolution_backward(call: Call) -> Counts:
    """Return the counts of the gradients of a convolution.

    The gradients of the input and of the weight each need as many products as the forward pass. The gradient of the
    bias is a sum.
    """
    gradient = call["grad_output"]
    products = _products(gradient, call["input"], call["weight"], transposed=call["transposed"])
    of_input, of_weight, of_bias = call["output_mask"]
    return total({"MAC": products * (of_input + of_weight), "+": gradient.numel if of_bias else 0})


def _window(call: Call, dims: int) -> int:
    sizes: list[int] = list(as_list(call["kernel_size"], dims))
    return math.prod(sizes)


def _max_pool(dims: int) -> Rule:
    return lambda call: {">": call.out.numel * (_window(call, dims) - 1)}


def _average_pool(dims: int) -> Rule:
    return lambda call: {"+": call.out.numel * _window(call, dims), "*": call.out.numel}


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


def _adaptive_average(dims: int) -> Rule:
    return lambda call: {"+": _window_elements(call, dims), "*": call.out.numel}


def _adaptive_maximum(dims: int) -> Rule:
    return lambda call: {">": _window_elements(call, dims) - call.out.numel}


def _interpolation(points: int) -> Rule:
    """Return the rule for ops whose results are weighted sums of ``points`` elements.

    The sizes determine the weights.
    """
    return lambda call: {"MAC": points * call.out.numel}


def _grid_sampler(call: Call) -> Counts:
    """Return the counts of a grid sampler.

    Positions are scaled to the input with a ``MAC`` and a ``*`` for each coordinate. The weights are computed from the
    distances to them.
    """
    dims = len(call["input"].shape) - 2
    places = call["grid"].numel // dims
    nearest = {"round": dims * places}
    corners = 2**dims
    # A weight is a product of one distance per coordinate.
    weights = {"round": dims * places, "-": 2 * dims * places, "*": corners * (dims - 1) * places}
    bilinear = total(weights, {"MAC": corners * call.out.numel})
    cubic = {"MAC": 4**dims * call.out.numel + 16 * dims * places, "round": dims * places, "-": dims * places}
    return total({"MAC": dims * places, "*": dims * places}, (bilinear, nearest, cubic)[call["interpolation_mode"]])


def _nothing(call: Call) -> Counts:
    return {}


_DIMS = (1, 2, 3)

RULES: Mapping[str, Rule] = {
    **{f"conv{dims}d": _convolution(False) for dims in _DIMS},
    "_convolution_mode": _convolution(False),
    **{f"conv_transpose{dims}d": _convolution(True) for dims in _DIMS},
    **dict.fromkeys(("convolution", "_convolution", "convolution_overrideable"), _convolution(None)),
    "convolution_backward": _convolution_backward,
    **{f"max_pool{dims}d": _max_pool(dims) for dims in _DIMS},
    **{f"max_pool{dims}d_with_indices": _max_pool(dims) for dims in _DIMS},
    "max_pool2d_with_indices_backward": lambda call: {"+": call["grad_output"].numel},
    **{f"avg_pool{dims}d": _average_pool(dims) for dims in _DIMS},
    **{f"adaptive_avg_pool{dims}d": _adaptive_average(dims) for dims in _DIMS},
    **{f"_adaptive_avg_pool{dims}d": _adaptive_average(dims) for dims in _DIMS},
    **{f"adaptive_max_pool{dims}d": _adaptive_maximum(dims) for dims in _DIMS},
    **{f"upsample_nearest{dims}d": _nothing for dims in _DIMS},
    **{f"_upsample_nearest_exact{dims}d": _nothing for dims in _DIMS},
    "upsample_linear1d": _interpolation(2),
    "upsample_bilinear2d": _interpolation(4),
    "upsample_trilinear3d": _interpolation(8),
    "upsample_bicubic2d": _interpolation(16),
    **dict.fromkeys(("grid_sampler", "grid_sampler_2d", "grid_sampler_3d"), _grid_sampler),
}
