"""Expressions of OpenCL C for the operations on numbers in MLIR's dialects ``arith`` and ``math``."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from torch_mlir import ir

from torchmdla.errors import CompileError

# The type of a number in a kernel, by MLIR's name.
TYPES: Mapping[str, str] = {
    "f32": "float",
    "f64": "double",
    "i1": "bool",
    "i8": "char",
    "i16": "short",
    "i32": "int",
    "i64": "long",
    "index": "long",
}
# The type of an element in memory, where it differs. A bool is one byte, true unless 0.
_STORED: Mapping[str, str] = {"bool": "uchar"}

_COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
# Predicates of arith.cmpf, by number: false, six ordered, ordered, six unordered or equal, unordered, true.
_ORDERED = {1: "==", 2: ">", 3: ">=", 4: "<", 5: "<=", 6: "!="}

# Texts with the operands as {0}, {1}, {2}, the result's type as {t}, and its unsigned type as {u}. Integers wrap
# around. A divisor 0 does not reach these operations: eager raises an error for it.
_TEXTS: Mapping[str, str] = {
    **{
        f"arith.{name}f": f"({{0}} {sign} {{1}})"
        for name, sign in zip(("add", "sub", "mul", "div"), "+-*/", strict=True)
    },
    **{
        f"arith.{name}i": f"({{t}})(({{u}}){{0}} {sign} ({{u}}){{1}})"
        for name, sign in zip(("add", "sub", "mul"), "+-*", strict=True)
    },
    **{f"arith.{name}i": f"({{0}} {sign} {{1}})" for name, sign in zip(("and", "or", "xor"), "&|^", strict=True)},
    "arith.divsi": "({1} == -1 ? ({t})(0 - ({u}){0}) : {1} == 0 ? 0 : {0} / {1})",
    "arith.remsi": "({1} == -1 || {1} == 0 ? 0 : {0} % {1})",
    "arith.shli": "({0} << {1})",
    "arith.shrsi": "({0} >> {1})",
    "arith.maxsi": "max({0}, {1})",
    "arith.minsi": "min({0}, {1})",
    "arith.maxui": "({t})max(({u}){0}, ({u}){1})",
    "arith.minui": "({t})min(({u}){0}, ({u}){1})",
    "arith.negf": "(-{0})",
    "arith.remf": "fmod({0}, {1})",
    "arith.maximumf": "(isnan({0}) || {0} > {1} ? {0} : {1})",
    "arith.minimumf": "(isnan({0}) || {0} < {1} ? {0} : {1})",
    "arith.maxnumf": "fmax({0}, {1})",
    "arith.minnumf": "fmin({0}, {1})",
    "arith.select": "({0} ? {1} : {2})",
    **{
        f"arith.{name}": "(({t}){0})"
        for name in ("extf", "truncf", "sitofp", "uitofp", "fptosi", "trunci", "index_cast")
    },
    "math.absi": "({0} < 0 ? ({t})(0 - ({u}){0}) : {0})",
    "math.absf": "fabs({0})",
    "math.powf": "pow({0}, {1})",
    "math.fpowi": "pown({0}, (int){1})",
    "math.roundeven": "rint({0})",
    "math.atan2": "atan2({0}, {1})",
    "math.copysign": "copysign({0}, {1})",
    "math.fma": "fma({0}, {1}, {2})",
    **{
        f"math.{name}": f"{name}({{0}})"
        for name in (
            *("acos", "acosh", "asin", "asinh", "atan", "atanh", "cbrt", "ceil", "cos", "cosh", "erf", "exp", "exp2"),
            *(
                "expm1",
                "floor",
                "log",
                "log10",
                "log1p",
                "log2",
                "round",
                "rsqrt",
                "sin",
                "sinh",
                "sqrt",
                "tan",
                "tanh",
            ),
            "trunc",
        )
    },
}


def type_of(value: Any) -> str:
    """Return the type of a number in a kernel.

    Raises:
        CompileError: kernels do not have such numbers.
    """
    return register_type(str(value.type))


def register_type(name: str) -> str:
    if name not in TYPES:
        raise CompileError(f"the opencl device does not compute with {name}")
    return TYPES[name]


def stored_type(name: str) -> str:
    """Return the type of an element in memory, by MLIR's name of the element type."""
    register = register_type(name)
    return _STORED.get(register, register)


def expression(op: Any, operands: Sequence[str]) -> str:
    """Return the value of an operation on numbers.

    Raises:
        CompileError: OpenCL C does not have such an operation.
    """
    if op.name == "arith.constant":
        return number(op.attributes["value"], type_of(op.results[0]))
    if op.name in ("arith.cmpf", "arith.cmpi"):
        return _comparison(op, operands)
    kind = type_of(op.results[0])
    is_boolean = str(op.operands[0].type) == "i1"
    if op.name == "arith.extsi":
        return f"(({kind}){'-' if is_boolean else ''}{operands[0]})"
    if op.name == "arith.extui" and is_boolean:
        return f"(({kind}){operands[0]})"
    if op.name not in _TEXTS or (op.name == "arith.uitofp" and not is_boolean):
        raise unsupported(op)
    unsigned = kind if kind in ("bool", "float", "double") else f"u{kind}"
    return _TEXTS[op.name].format(*operands, t=kind, u=unsigned)


def number(attribute: Any, kind: str) -> str:
    """Return a constant, bit by bit."""
    if kind == "float":
        return f"as_float(0x{struct.unpack('<I', struct.pack('<f', attribute.value))[0]:08x}u)"
    if kind == "double":
        return f"as_double(0x{struct.unpack('<Q', struct.pack('<d', attribute.value))[0]:016x}ul)"
    value = int(attribute.value)
    if kind == "bool":
        return str(int(bool(value)))
    return f"(({kind})0x{value % (1 << 64):x}ul)"


def unsupported(op: Any) -> CompileError:
    """Return the error of an operation that kernels cannot compute: its group is compiled without the call."""
    return CompileError(f"the opencl device has no code for {op.name}", diagnostic=str(op.location))


def _comparison(op: Any, operands: Sequence[str]) -> str:
    left, right = operands
    predicate = ir.IntegerAttr(op.attributes["predicate"]).value
    if op.name == "arith.cmpi":
        if predicate < len(_COMPARISONS):
            sign = ("==", "!=", "<", "<=", ">", ">=")[predicate]
            return f"({left} {sign} {right})"
        sign = ("<", "<=", ">", ">=")[predicate - len(_COMPARISONS)]
        return f"((ulong){left} {sign} (ulong){right})"
    if predicate in (0, 15):
        return str(int(predicate == 15))
    is_unordered = f"(isnan({left}) || isnan({right}))"
    if predicate in (7, 14):
        return is_unordered if predicate == 14 else f"(!{is_unordered})"
    if predicate <= 6:
        compared = f"({left} {_ORDERED[predicate]} {right})"
        return f"(!{is_unordered} && {compared})" if predicate == 6 else compared
    return f"({is_unordered} || {left} {_ORDERED[predicate - 7]} {right})"
