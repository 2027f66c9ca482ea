"""Objects of TorchScript's code that are not values: operators, functions, classes, and special forms of calls."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from torchmdla.script.ir import Block, Type, Value
from torchmdla.script.schemas import Argument, Schema
from torchmdla.script.types import BOOL, FLOAT, INT, NONE, STR


@dataclass(frozen=True, slots=True)
class Namespace:
    """Operators of a namespace: ``torch`` or ``ops.prim``. ``ops`` itself has the name ``""``."""

    name: str


@dataclass(frozen=True, slots=True)
class Operator:
    """Operator, with the object that it is called on, if there is one."""

    name: str
    self_value: Value | None = None


@dataclass(frozen=True, slots=True)
class Path:
    """Beginning of the name of a class or function: ``__torch__.torch``."""

    name: str


@dataclass(frozen=True, slots=True)
class Function:
    """Function of the file."""

    name: str


@dataclass(frozen=True, slots=True)
class ClassName:
    """Class of the file, as an object that is called."""

    type: Type


@dataclass(frozen=True, slots=True)
class Method:
    """Method of an object."""

    owner: Value
    name: str


@dataclass(frozen=True, slots=True)
class Form:
    """Call with rules of its own, such as ``annotate(T, x)``."""

    name: str
    owner: Value | None = None


@dataclass(frozen=True, slots=True)
class Closure:
    """Function inside a function, which ``fork`` runs: its graph, and the values that it uses from outside."""

    block: Block


Named: TypeAlias = Value | Namespace | Operator | Path | Function | ClassName | Method | Form | Closure

CASTS: Mapping[str, tuple[str, Type]] = {
    "int": ("aten::Int", INT),
    "float": ("aten::Float", FLOAT),
    "bool": ("aten::Bool", BOOL),
    "str": ("aten::str", STR),
}
GLOBALS: Mapping[str, Named] = {
    "torch": Namespace("aten"),
    "ops": Namespace(""),
    "CONSTANTS": Path("CONSTANTS"),
    "__torch__": Path("__torch__"),
    **{
        name: Form(name)
        for name in ("annotate", "unchecked_cast", "uninitialized", "getattr", "isinstance", "fork", "print", *CASTS)
    },
    **{name: Operator(f"aten::{name}") for name in ("len", "sorted", "hash", "ord", "chr", "hex", "oct", "bin")},
    **{name: Operator(f"prim::{name}") for name in ("min", "max", "abs", "rangelist")},
}
TENSOR_PROPERTIES: Mapping[str, str] = {
    **{
        name: f"prim::{name}"
        for name in ("dtype", "device", "layout", "shape", "ndim", "grad", "data", "requires_grad", "is_cuda")
    },
    "is_leaf": "aten::is_leaf",
}
BINARY: Mapping[type[ast.operator], str] = {
    ast.Add: "aten::add",
    ast.Sub: "aten::sub",
    ast.Mult: "aten::mul",
    ast.Div: "aten::div",
    ast.FloorDiv: "aten::floordiv",
    ast.Mod: "aten::remainder",
    ast.Pow: "aten::pow",
    ast.MatMult: "aten::matmul",
}


def result_of(schema: Schema) -> Type:
    """Return the type of a call's result."""
    return schema.returns[0] if schema.returns else NONE


def written_name(name: str) -> str:
    """Return an operator's name as it is written in code."""
    namespace, _, last = name.partition("::")
    return f"torch.{last}" if namespace == "aten" else f"ops.{namespace}.{last}"


def mismatch(schemas: Sequence[Schema], arguments: Sequence[Value]) -> str:
    """Return why arguments do not fit the schemas of an operator."""
    types = ", ".join(str(value.type) for value in arguments)
    names = ", ".join(schema.name for schema in schemas[:5])
    return f"arguments of types ({types}) do not fit any of: {names}{', …' if len(schemas) > 5 else ''}"


def schema_of_named_tuple(type_: Type, attributes: Mapping[str, Type], defaults: Mapping[str, Any]) -> Schema:
    """Return the signature of a named tuple's class."""
    arguments = [
        Argument(name, field, None, name in defaults, defaults.get(name)) for name, field in attributes.items()
    ]
    return Schema(type_.name, arguments, [type_])
