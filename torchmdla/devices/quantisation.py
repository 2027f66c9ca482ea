"""Quantisation: the capability of a device that computes with few bits, and the types that it declares."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

# Operators that represent quantised tensors in exported programs. A device that has them in
# :attr:`torchmdla.devices.Legalisation.composite_ops` gets them whole, as operations of the Torch dialect.
QUANTISED_FORMS = frozenset(
    f"quantized_decomposed::{name}"
    for name in ("quantize_per_tensor", "dequantize_per_tensor", "quantize_per_channel", "dequantize_per_channel")
)


@dataclass(frozen=True)
class QuantisedType:
    """Type of integers that represent floats: ``(integer - zero_point) * scale``.

    Attributes:
        bits: number of bits, 2 to 16, or 32 for biases. Integers of up to 8 bits are stored in 8, others in 16 or 32.
        signed: whether integers are negative too. Unsigned integers have up to 8 bits.
        symmetric: whether the zero point is 0, or the middle of the range of unsigned integers.
        axis: dimension with one scale for each index; None means one scale for the whole tensor.
        fraction: number of bits after the point of a fixed-point format, whose scale is ``2 ** -fraction``.
            ``"calibrated"`` means the largest number with which no calibration value is out of range. None means that
            the scale is any number.
        headroom: number of bits that a calibrated fraction leaves above the largest calibration value.
        dynamic: whether scale and zero point are computed from the values of each call.

    Raises:
        ValueError: the attributes contradict each other.
    """

    bits: int
    signed: bool = True
    symmetric: bool = True
    axis: int | None = None
    fraction: int | Literal["calibrated"] | None = None
    headroom: int = 0
    dynamic: bool = False

    def __post_init__(self) -> None:
        problems = {
            "it has 2 to 16 bits, or 32": not (2 <= self.bits <= 16 or self.bits == 32),
            "unsigned integers have at most 8 bits": not self.signed and self.bits > 8,
            "a fixed-point format is symmetric and signed": self.fraction is not None
            and not (self.symmetric and self.signed),
            "a known fraction applies to a whole tensor": isinstance(self.fraction, int) and self.axis is not None,
            "only a calibrated fraction has headroom": self.headroom != 0 and self.fraction != "calibrated",
            "a dynamic type is asymmetric, has 8 bits, and one scale for a tensor": self.dynamic
            and (self.symmetric or self.bits != 8 or self.axis is not None),
        }
        wrong = [problem for problem, holds in problems.items() if holds]
        if wrong:
            raise ValueError(f"{self!r}: {wrong[0]}")

    @property
    def least(self) -> int:
        """Return the smallest integer."""
        return -(1 << (self.bits - 1)) if self.signed else 0

    @property
    def most(self) -> int:
        """Return the largest integer."""
        return self.least + (1 << self.bits) - 1

    @property
    def storage(self) -> str:
        """Return torch's name of the dtype that stores the integers."""
        width = next(width for width in (8, 16, 32) if self.bits <= width)
        return f"{'' if self.signed else 'u'}int{width}"

    def __str__(self) -> str:
        """Return a short text such as ``"uint8 asymmetric"``."""
        details = (
            ("by channel", self.axis is not None),
            ("asymmetric", not self.symmetric),
            (f"fraction {self.fraction}", self.fraction is not None),
            ("in each call", self.dynamic),
        )
        return " ".join([f"{'' if self.signed else 'u'}int{self.bits}", *(text for text, holds in details if holds)])


@dataclass(frozen=True)
class QuantisedPattern:
    """Chain of operators that a device computes in integers, with the types of its tensors.

    Attributes:
        ops: schema names with overload, as ``("aten::conv2d", "aten::relu")``. Each result but the last is an argument
            of the next operator alone, and is not quantised. In-place forms (``aten::relu_``) are included.
        activations: type of the arguments that are neither weights nor biases; None keeps them float.
        results: type of the last result; None keeps it float, unless another pattern quantises it.
        weights: type of the arguments that the schema names ``weight``; None keeps them float.
        bias: type of the arguments that the schema names ``bias``; None keeps them float. Without a fraction, its scale
            is the product of the scales of activations and weights, and its zero point is 0.
        shares_scale: whether the result has the scale and zero point of the arguments, as in pooling, views and
            concatenation. The pattern applies only next to quantised tensors.

    Raises:
        ValueError: the types contradict each other.
    """

    ops: tuple[str, ...]
    activations: QuantisedType | None = None
    results: QuantisedType | None = None
    weights: QuantisedType | None = None
    bias: QuantisedType | None = None
    shares_scale: bool = False

    def __post_init__(self) -> None:
        derives_bias = self.bias is not None and self.bias.fraction is None
        problems = {
            "the chain has no operators": not self.ops,
            "a shared scale needs the type of activations, for results too": self.shares_scale
            and (self.activations is None or self.results is not None or len(self.ops) > 1),
            "the scale of the bias needs the types of activations and weights, in calibration": derives_bias
            and (self.activations is None or self.weights is None or self.activations.dynamic),
            "activations and results have one scale for a tensor": any(
                kind is not None and kind.axis is not None for kind in (self.activations, self.results)
            ),
        }
        wrong = [problem for problem, holds in problems.items() if holds]
        if wrong:
            raise ValueError(f"pattern {' → '.join(self.ops)}: {wrong[0]}")


def quantised_patterns_of(
    names: str,
    *,
    activations: QuantisedType | None = None,
    results: QuantisedType | None = None,
    weights: QuantisedType | None = None,
    bias: QuantisedType | None = None,
    shares_scale: bool = False,
) -> list[QuantisedPattern]:
    """Return patterns with the same types.

    ``names`` are chains of ``aten`` operators separated by white space, as ``"conv2d+relu linear"``.
    """
    chains = [tuple(f"aten::{name}" for name in chain.split("+")) for chain in names.split()]
    return [QuantisedPattern(ops, activations, results, weights, bias, shares_scale) for ops in chains]


class Quantisation(ABC):
    """Computation with integers of few bits that represent floats, as quantised programs describe it.

    Default: :func:`torchmdla.quantise` refuses the device.
    """

    @property
    @abstractmethod
    def quantised_patterns(self) -> Sequence[QuantisedPattern]:
        """Return the operators that the device computes in integers. Long patterns are tried first.

        :func:`torchmdla.quantise` writes programs for it. The device finds in them the operators
        ``quantized_decomposed::quantize_per_tensor`` and others (:data:`QUANTISED_FORMS`), which it has in its
        :attr:`torchmdla.devices.Device.ops`.
        """
