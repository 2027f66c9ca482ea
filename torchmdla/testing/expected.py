"""What is known to fail, by name, with the status and the reason. Whatever is here and passes is an error, too."""

from __future__ import annotations

from collections.abc import Mapping

from torchmdla.testing.checking import PASSING, Outcome, Status

_NOT_LOWERED = "torch-mlir has no lowering for this form of an operator that the cpu device lists"
_COMPILER_DIES = "the compiler process dies of a convolution without a batch dimension"

# Ways of one road → what fails on them in the same way.
_TORCHSCRIPT: Mapping[str, tuple[str, Status, str]] = {
    "convolutions.conv2d_circular": ("trace script freeze", "not compiled", _NOT_LOWERED),
    "convolutions.conv2d_same_even_kernel": ("script freeze", "not compiled", _NOT_LOWERED),
    "convolutions.conv2d_unbatched": ("script freeze", "not compiled", _COMPILER_DIES),
    "losses.cross_entropy_image": ("trace script", "not compiled", _NOT_LOWERED),
    "losses.binary_logits_weighted": ("trace script", "not compiled", _NOT_LOWERED),
    "mutation.write_slices:gradients": ("script", "error", "a tensor cannot be inserted as a constant of the graph"),
}

# (way, program) → status, reason.
EXPECTED_FAILURES: Mapping[tuple[str, str], tuple[Status, str]] = {
    (f"torchscript:{variant}", program): (status, reason)
    for program, (variants, status, reason) in _TORCHSCRIPT.items()
    for variant in variants.split()
}


def expected_failure(outcome: Outcome) -> tuple[bool, str]:
    """Whether ``outcome`` is as it should be, and why it is not, or why it fails as it should."""
    listed = EXPECTED_FAILURES.get((outcome.way, outcome.program))
    if listed is None:
        return outcome.status in PASSING or _is_counted_only(outcome), ""
    status, reason = listed
    if outcome.status == status:
        return True, reason
    return False, f"listed to end as {status!r} ({reason}), but it ends as {outcome.status!r}"


def _is_counted_only(outcome: Outcome) -> bool:
    """PyTorch's database asks for more than devices promise: what they cannot compile of it falls back."""
    return outcome.program.startswith("opinfo.") and outcome.status == "not compiled"
