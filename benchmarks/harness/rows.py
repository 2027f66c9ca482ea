"""Rows of tables of models: their names, preparation of their variants, and comparison with eager's results.

This module does not import torch at import time: children import torch after their environment is set.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence
from typing import Any

from harness import children

ROW_NAMES = (
    "resnet18",
    "resnet50",
    "mobilenet_v2",
    "mobilenet_v3_large",
    "vgg11",
    "bert",
    "vit_b16",
    "lstm",
    "mlp",
    "norms_4096x1024",
    "norms_64x256",
)
# Models of the same kinds that were not used to fit costs. They are in the table only on request.
HELD_OUT = ("densenet121", "unet", "transformer_encoder", "gru")
KNOWN = (*ROW_NAMES, *HELD_OUT)
VARIANT_NAMES = (
    "eager",
    "frozen",
    "ofi",
    "inductor",
    "zentorch",
    "onnxruntime",
    "openvino",
    "ncnn",
    "iree",
    "torchmdla-unfrozen",
)
# Peers that the variables of children.LEVELS hold to fewer instructions.
HELD_TO_LEVELS = ("eager", "frozen", "ofi", "inductor")
CONVERTED = "torchmdla-converted"
OURS = "torchmdla"

# PyTorch's variants are blue, others grey and brown, torchmdla's red.
COLOURS = {
    "eager": "midnightblue",
    "frozen": "royalblue",
    "ofi": "cornflowerblue",
    "inductor": "lightsteelblue",
    "zentorch": "peru",
    "onnxruntime": "dimgrey",
    "openvino": "darkgrey",
    "openvino-throughput": "black",
    "ncnn": "silver",
    "iree": "tan",
    "torchmdla-unfrozen": "lightcoral",
    "torchmdla": "crimson",
}


def rows_by_name() -> dict[str, Any]:
    """Return the models by row name. The reduced norms are a second size."""
    from torchmdla.testing.models import MODELS

    norms = {"norms_4096x1024": MODELS["norms"], "norms_64x256": MODELS["norms"].reduced()}
    return {name: norms.get(name) or MODELS[name] for name in KNOWN}


def prepare(subject: Any, ways: Sequence[str]) -> tuple[dict[str, Any], dict[str, float], dict[str, str]]:
    """Prepare ``ways``, torchmdla's last. Return the prepared variants, the seconds, and why others are skipped."""
    from harness import peers

    prepared, seconds, skipped = {}, {}, {}
    for name in sorted(set(ways), key=list(peers.VARIANTS).index):
        if missing := peers.VARIANTS[name].missing():
            skipped[name] = f"not installed: {', '.join(missing)}"
            continue
        children.step(f"preparing {name}")
        start = time.perf_counter()
        try:
            prepared[name] = peers.VARIANTS[name].prepare(subject)
            prepared[name].results(subject.inputs)
        except Exception as error:  # a failure of one peer must not hide the others
            prepared.pop(name, None)
            skipped[name] = f"{type(error).__name__}: {reason(str(error))}"
        seconds[name] = time.perf_counter() - start
    return prepared, seconds, skipped


def reason(text: str) -> str:
    """Return the most informative line of an error's text: the first one that mentions an error, else the last."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if re.search(r"\berror\b|Error:", line)]
    return (telling or lines[-1:] or [""])[0][:300]


def compare(
    prepared: dict[str, Any], spec: Any, module: Any, precision: str | None = None, more: Sequence[Any] = ()
) -> dict[str, dict[str, Any]]:
    """Return the error of each variant, and its difference beyond tolerance; the worst over several inputs.

    The inputs are the timed ones, similar ones, and ``more``. ``precision`` is the number format of the computation if
    it is not float32.

    ``error`` is the largest against eager, relative to the largest element. ``rms_error`` is the root mean square error
    against float64, relative to that of the results. Both are NaN if structures or sizes differ.
    """
    from harness.accuracy import exact_results, relative_rms
    from torchmdla.testing.compare import assert_matches, largest_error

    comparisons: dict[str, dict[str, Any]] = {
        name: {"error": 0.0, "rms_error": 0.0, "differs": None} for name in prepared
    }
    for inputs in (spec.inputs(seed=0), spec.inputs(seed=1), *more):
        children.step("computing in float64")
        exact = exact_results(module, inputs)
        expected = module(*inputs)
        expected = list(expected) if isinstance(expected, tuple | list) else [expected]
        for name, way in prepared.items():
            children.step(f"comparing {name}")
            results = way.results(inputs)
            try:
                strides = name == OURS and precision is None
                assert_matches(results, expected, layers=spec.layers, strides=strides, precision=precision)
                error = largest_error(results, expected)
            except AssertionError as difference:
                comparisons[name]["differs"] = str(difference)
                error = error_or_nan(results, expected)
            for key, value in (("error", error), ("rms_error", relative_rms(results, exact))):
                comparisons[name][key] = max(comparisons[name][key], value, key=lambda e: (math.isnan(e), e))
    return comparisons


def error_or_nan(results: Any, expected: Any) -> float:
    """Return the largest error, or NaN if structures or sizes differ."""
    from torchmdla.testing.compare import largest_error

    try:
        error: float = largest_error(results, expected)
    except AssertionError:
        return math.nan
    return error
