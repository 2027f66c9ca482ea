"""Library functions for ops of the ``math`` dialect: SLEEF on vectors, the C library on scalars."""

from __future__ import annotations

# The function's stem and SLEEF's accuracy suffix (in tenths of an ulp). The C library uses the same stems.
_FUNCTIONS = {
    **{
        f"math.{name}": (name, "u10")
        for name in (
            *("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cos", "cosh", "sin", "sinh", "tan", "tanh"),
            *("cbrt", "erf", "exp", "exp2", "expm1", "log", "log10", "log1p", "log2"),
        )
    },
    "math.erfc": ("erfc", "u15"),
    "math.powf": ("pow", "u10"),
}

# Ops that become instructions, on scalars and on vectors.
_NATIVE = frozenset(
    f"math.{name}"
    for name in (
        "absf", "absi", "ceil", "copysign", "ctlz", "ctpop", "cttz", "floor", "fma", "isfinite", "isinf", "isnan",
        "isnormal", "round", "roundeven", "rsqrt", "sqrt", "trunc",
    )
)  # fmt: skip

# Vectors that SLEEF has functions for, by the size of the target's widest vector in bytes. PyTorch exports the
# functions on 128-bit vectors on AArch64, and not on every x86-64 platform.
_SLEEF_VECTORS = {64: ("f32x16", "f32x8", "f64x8", "f64x4"), 32: ("f32x8", "f64x4"), 16: ("f32x4", "f64x2")}


# A float to an integer power. It becomes products if the power is a small constant, and a call of ``math.powf``
# otherwise.
INTEGER_POWER = "math.fpowi"


def is_call(name: str) -> bool:
    """Return whether a library function computes the op ``name``."""
    return name in _FUNCTIONS


def is_known(name: str) -> bool:
    """Return whether kernels can compute the ``math`` op ``name``."""
    return name in _FUNCTIONS or name in _NATIVE or name == INTEGER_POWER


def vector_function(name: str, element: str, lanes: int, vector_bytes: int) -> str | None:
    """Return the symbol that computes op ``name`` on ``lanes`` values of type ``element``.

    Return None if libraries do not have such a function for vectors of at most ``vector_bytes``
    (:attr:`Machine.called_vector_bytes`).
    """
    if f"{element}x{lanes}" not in _SLEEF_VECTORS.get(vector_bytes, ()):
        return None
    stem, accuracy = _FUNCTIONS[name]
    return f"Sleef_{stem}{'f' if element == 'f32' else 'd'}{lanes}_{accuracy}"


def scalar_function(name: str, element: str) -> str:
    """Return the C library's symbol that computes op ``name`` on one ``f32`` or ``f64``."""
    return _FUNCTIONS[name][0] + ("f" if element == "f32" else "")
