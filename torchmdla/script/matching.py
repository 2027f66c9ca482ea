"""Matching of a call's arguments with schemas, with TorchScript's implicit conversions.

It follows ``torch/csrc/jit/frontend/schema_matching.cpp``: the schemas of an operator are tried in order, first without
conversions, and the first that fits is taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torchmdla.script.builder import GraphBuilder
from torchmdla.script.ir import Type, Value
from torchmdla.script.schemas import Argument, Schema
from torchmdla.script.types import (
    DEVICE,
    FLOAT,
    INT,
    NUMBER,
    STR,
    TENSOR,
    bind,
    has_variables,
    is_list_of_tuple,
    is_subtype,
    substitute,
)

# The operators that convert a tensor, or a number of any type, to a type.
_FROM_TENSOR: Mapping[str, str] = {
    "float": "aten::FloatImplicit",
    "complex": "aten::ComplexImplicit",
    "int": "aten::IntImplicit",
    "number": "aten::ScalarImplicit",
}
_FROM_NUMBER: Mapping[str, str] = {
    "float": "aten::Float.Scalar",
    "complex": "aten::Complex.Scalar",
    "int": "aten::Int.Scalar",
}
_NOT_BY_ARGUMENTS = "aten::view.dtype"


class Matcher(GraphBuilder):
    """Builder that inserts calls."""

    def convert(self, value: Value, wanted: Type, allow_conversions: bool = True) -> Value:
        """Return a value, converted to the type that is wanted if there is an implicit conversion."""
        type_ = value.type
        if type_ == wanted:
            return value
        if wanted.kind == "Optional" and type_.kind not in ("Optional", "NoneType"):
            return self.convert(value, wanted.arguments[0], allow_conversions)
        if type_.kind in ("Tuple", "NamedTuple"):
            value = self._convert_tuple(value, wanted, allow_conversions)
        if not allow_conversions:
            return value
        if type_ == TENSOR and wanted.kind in _FROM_TENSOR:
            return self.insert_one(_FROM_TENSOR[wanted.kind], [value], wanted)
        if type_ == NUMBER and wanted.kind in _FROM_NUMBER:
            return self.insert_one(_FROM_NUMBER[wanted.kind], [value], wanted)
        if type_ == STR and wanted == DEVICE:
            return self.device(value)
        return value

    def device(self, name: Value) -> Value:
        """Return the device of a name."""
        if self.is_constant(name):
            return self.constant(self.constant_value(name), DEVICE)
        return self.insert_one("aten::device", [name], DEVICE)

    def _convert_tuple(self, value: Value, wanted: Type, allow_conversions: bool) -> Value:
        if is_list_of_tuple(value.type, wanted):
            element = (wanted.arguments[0] if wanted.kind == "Optional" else wanted).arguments[0]
            return self.list(element, self.unpack(value))
        count = len(value.type.arguments)
        if (
            wanted.kind in ("Tuple", "NamedTuple")
            and len(wanted.arguments) == count
            and not is_subtype(value.type, wanted)
        ):
            elements = zip(self.unpack(value), wanted.arguments, strict=True)
            return self.tuple([self.convert(element, type_, allow_conversions) for element, type_ in elements])
        return value

    def match(
        self, schemas: Sequence[Schema], arguments: Sequence[Value], keywords: Mapping[str, Value]
    ) -> tuple[Schema, list[Value], dict[str, Type]] | None:
        """Return the first schema that fits, its inputs, and its type variables; None if none fits."""
        attempts = (True,) if len(schemas) == 1 else (False, True)
        for allow_conversions in attempts:
            for schema in schemas:
                if schema.name == _NOT_BY_ARGUMENTS:
                    continue
                variables: dict[str, Type] = {}
                start = len(self.block.nodes)
                inputs = self._match_schema(schema, arguments, keywords, variables, allow_conversions)
                if inputs is not None:
                    return schema, inputs, variables
                del self.block.nodes[start:]
        return None

    def _match_schema(
        self,
        schema: Schema,
        arguments: Sequence[Value],
        keywords: Mapping[str, Value],
        variables: dict[str, Type],
        allow_conversions: bool,
    ) -> list[Value] | None:
        inputs: list[Value] = []
        used, used_keywords, formals = 0, 0, schema.arguments
        for number, formal in enumerate(formals):
            value: Value | None
            if used < len(arguments) and not formal.is_keyword:
                value = arguments[used]
                if allow_conversions and self._takes_rest(formals, number, value):
                    value = self._rest(formal, arguments[used:], variables)
                    used = len(arguments)
                    if value is None:
                        return None
                    inputs.append(value)
                    continue
                used += 1
            elif formal.name in keywords:
                value = keywords[formal.name]
                used_keywords += 1
            elif formal.has_default:
                type_ = formal.type if formal.default is not None else None
                value = self.constant(formal.default, _concrete(type_))
            else:
                return None
            if formal.type != value.type:
                value = self._match_argument(formal, value, variables, allow_conversions)
                if value is None:
                    return None
            inputs.append(value)
        if schema.is_variadic:
            inputs += arguments[used:]
            used = len(arguments)
        return inputs if used == len(arguments) and used_keywords == len(keywords) else None

    def _match_argument(
        self, formal: Argument, value: Value, variables: dict[str, Type], allow_conversions: bool
    ) -> Value | None:
        type_ = formal.type
        if formal.length and value.type in (INT, FLOAT):
            inner = type_.arguments[0] if type_.kind == "Optional" else type_
            if inner.kind == "List" and inner.arguments[0] == value.type:
                value = self.list(value.type, [value] * formal.length)
        if has_variables(type_):
            if not bind(type_, value.type, variables):
                return None
            concrete = substitute(type_, variables)
            if concrete is None:
                return None
            type_ = concrete
        value = self.convert(value, type_, allow_conversions)
        return value if is_subtype(value.type, type_) else None

    @staticmethod
    def _takes_rest(formals: Sequence[Argument], number: int, value: Value) -> bool:
        """Return whether all remaining arguments are the elements of a list: ``torch.zeros(2, 3)``."""
        formal = formals[number]
        if formal.type.kind != "List" or formal.length or formal.type.arguments[0].kind == "Variable":
            return False
        is_last = number + 1 == len(formals) or formals[number + 1].is_keyword
        return is_last and value.type.kind != "List" and not is_list_of_tuple(value.type, formal.type)

    def _rest(self, formal: Argument, values: Sequence[Value], variables: dict[str, Type]) -> Value | None:
        element = Argument("", formal.type.arguments[0])
        matched = [self._match_argument(element, value, variables, True) for value in values]
        if None in matched:
            return None
        return self.list(element.type, [value for value in matched if value is not None])


def _concrete(type_: Type | None) -> Type | None:
    """Return the type of a default value other than None: that without ``Optional``, if it is one type."""
    while type_ is not None and type_.kind == "Optional":
        type_ = type_.arguments[0]
    return None if type_ is None or type_.kind in ("number", "Any", "Variable") else type_
