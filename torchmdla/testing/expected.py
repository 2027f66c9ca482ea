"""Table of programs that are known to fail, with the status and the reason.

A listed program that passes is an error.
"""

from __future__ import annotations

from collections.abc import Mapping

from torchmdla.testing.checking import PASSING, Outcome, Status
from torchmdla.testing.opinfo import DTYPES

# (way, program) → status, reason.
_READS_OUTSIDE = "the sample reads memory outside of its tensor, and a tensor is moved without what is around it"
_LAZY_SPARSE = "PyTorch has no sparse tensors on its lazy device"
_SHARED_ELEMENTS = "the sample's elements share a place in memory, and a tensor is moved without that"
_OUT = "PyTorch's functionalisation of this operator with out= loses or mixes up what is written"
_META = "PyTorch's meta kernel of this operator gives other strides than the operator"
_DECOMPOSED = "PyTorch's decomposition of this operator with out= writes to its input, which PyTorch then refuses"
_SECTIONS = "PyTorch wants the sections of a split on the CPU, whatever the device"
_NORM = "a norm in training is taken apart; the gradient of its parts lies in memory as what comes from behind it does"

EXPECTED_FAILURES: Mapping[tuple[str, str], tuple[Status, str]] = {
    ("lazy:step", "sorting.sparse"): ("error", _LAZY_SPARSE),
    **{
        (way, f"opinfo.tensor_split.{dtype}{form}:{sample}"): ("error", _SECTIONS)
        for way in ("acap:device", "lazy:step")
        for dtype in DTYPES
        for form in ("", "@strided")
        for sample in range(4)
    },
    **{
        ("lazy:step", f"opinfo.{name}.{dtype}:{sample}"): ("error", _LAZY_SPARSE)
        for name in ("sparse.sampled_addmm", "sparse.mm.reduce", "to_sparse")
        for dtype in DTYPES
        for sample in range(16)
    },
    **{
        (way, f"opinfo.{name}.float32@errors:0"): ("no reference", _SHARED_ELEMENTS)
        for way in ("acap:device", "lazy:step")
        for name in ("masked_select", "index_select", "take", "bernoulli", "cat")
    },
    # Only some of their samples fail. A check counts the first one.
    **{
        ("lazy:step", f"opinfo.{name}.float32@out:0"): ("wrong", _OUT)
        for name in (
            "native_batch_norm",
            "_native_batch_norm_legit",
            "linalg.matrix_rank",
            "linalg.matrix_rank.hermitian",
        )
    },
    ("export:export", "opinfo.lu.float32@out:0"): ("wrong", _META),
    ("export:export", "opinfo.native_batch_norm.float32@out:0"): ("error", _DECOMPOSED),
    ("export:export", "normalisation.batch2d_channels_last_training:gradients"): ("wrong", _NORM),
    **{
        (way, f"opinfo.as_strided.partial_views.{dtype}:2"): ("no reference", _READS_OUTSIDE)
        for way in ("acap:device", "lazy:step")
        for dtype in DTYPES
    },
}

_STEP = "relu's gradient steps at 0, and a rounded value may be on the other side"
_SCALED_ROUNDING_ERROR = "what is rounded is multiplied by 256 afterwards"

# (a device's number format, program) → reason why its values must differ, on every variant on which they do.
FORMAT_FAILURES: Mapping[tuple[str, str], str] = {
    ("fixed16", "convolutions.conv_residual:gradients"): _STEP,
    ("fixed16", "models.norms"): _SCALED_ROUNDING_ERROR,
}


def expected_failure(outcome: Outcome) -> tuple[bool, str]:
    """Return whether ``outcome`` is as expected, and the reason why it is not, or why it fails as expected."""
    rounded = FORMAT_FAILURES.get((outcome.precision or "", outcome.program))
    if rounded is not None and outcome.status == "wrong":
        return True, rounded
    listed = EXPECTED_FAILURES.get((outcome.way, outcome.program))
    if listed is None:
        return outcome.status in PASSING or _is_counted_only(outcome), ""
    status, reason = listed
    if outcome.status == status:
        return True, reason
    return False, f"listed to end as {status!r} ({reason}), but it ends as {outcome.status!r}"


def _is_counted_only(outcome: Outcome) -> bool:
    """Return whether the outcome only counts as not compiled.

    PyTorch's database has more samples than devices promise to support; the others fall back.
    """
    return outcome.program.startswith("opinfo.") and outcome.status == "not compiled"
