"""Rules of TorchScript's types: subtypes, common types of branches, and type variables of operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from torchmdla.script.ir import Type

TENSOR, INT, FLOAT, BOOL, STR = Type("Tensor"), Type("int"), Type("float"), Type("bool"), Type("str")
COMPLEX, NUMBER, NONE, ANY, DEVICE = Type("complex"), Type("number"), Type("NoneType"), Type("Any"), Type("Device")
FUNCTION = Type("Function")

_NUMBERS = frozenset({INT, FLOAT, COMPLEX})
# Types of which any list, tuple or object is a subtype.
_FAMILIES: Mapping[str, frozenset[str]] = {
    "AnyList": frozenset({"List"}),
    "AnyTuple": frozenset({"Tuple", "NamedTuple"}),
    "AnyClass": frozenset({"Class", "Interface"}),
    "AnyEnum": frozenset({"Enum"}),
}
_TUPLES = frozenset({"Tuple", "NamedTuple"})
_COVARIANT = frozenset({"Future", "Await", "RRef"})
_MUTABLE = frozenset({"Tensor", "List", "Dict", "Class", "Interface", "Any", "AnyList", "AnyClass"})


def list_of(element: Type) -> Type:
    """Return the type of a list."""
    return Type("List", (element,))


def optional(element: Type) -> Type:
    """Return the type of a value or None."""
    return element if element.kind in ("Optional", "NoneType", "Any") else Type("Optional", (element,))


def is_subtype(type_: Type, other: Type) -> bool:
    """Return whether a value of the first type can be used where the other is declared."""
    if type_ == other or other.kind == "Any":
        return True
    if other.kind == "Optional":
        element = other.arguments[0]
        if type_.kind == "Optional":
            return is_subtype(type_.arguments[0], element)
        return type_.kind == "NoneType" or is_subtype(type_, element)
    if type_.kind == "Union":
        return all(is_subtype(member, other) for member in type_.arguments)
    if other.kind == "Union":
        return any(is_subtype(type_, member) for member in other.arguments)
    if other.kind == "number":
        return type_ in _NUMBERS
    if family := _FAMILIES.get(other.kind):
        return type_.kind in family
    if other.kind in _TUPLES and type_.kind in _TUPLES:
        return (not other.name or other.name == type_.name) and _are_subtypes(type_.arguments, other.arguments)
    if other.kind in _COVARIANT and type_.kind == other.kind:
        return is_subtype(type_.arguments[0], other.arguments[0])
    # A class has the methods of an interface that it is used for; the compiler of the file checked it.
    return other.kind == "Interface" and type_.kind in ("Class", "Interface")


def _are_subtypes(types: Sequence[Type], others: Sequence[Type]) -> bool:
    return len(types) == len(others) and all(map(is_subtype, types, others))


def unify(first: Type, second: Type) -> Type | None:
    """Return the type of a value that has either type, or None."""
    if is_subtype(first, second):
        return second
    if is_subtype(second, first):
        return first
    if first.kind == "NoneType":
        return optional(second)
    if second.kind == "NoneType":
        return optional(first)
    if "Optional" in (first.kind, second.kind):
        inner = unify(_without_optional(first), _without_optional(second))
        return inner and optional(inner)
    if first.kind in _TUPLES and second.kind in _TUPLES and len(first.arguments) == len(second.arguments):
        elements = [unify(*pair) for pair in zip(first.arguments, second.arguments, strict=True)]
        return None if None in elements else Type("Tuple", tuple(filter(None, elements)))
    return None


def unify_all(types: Sequence[Type]) -> Type | None:
    """Return the common type of several values, or None."""
    result: Type | None = types[0]
    for type_ in types[1:]:
        if result is None:
            return None
        result = unify(result, type_)
    return result


def _without_optional(type_: Type) -> Type:
    return type_.arguments[0] if type_.kind == "Optional" else type_


def may_be(type_: Type, tested: Type) -> bool:
    """Return whether a value of a type may be of the type that ``isinstance`` tests for."""
    if is_subtype(tested, type_):
        return True
    inner = type_.arguments[0].kind if type_.kind == "Optional" else type_.kind
    return any(tested.kind in (kind, f"Any{kind}") and inner in (kind, "Any") for kind in ("List", "Tuple"))


def is_list_of_tuple(type_: Type, wanted: Type) -> bool:
    """Return whether a tuple can be converted to the list that is wanted."""
    wanted = _without_optional(wanted)
    if wanted.kind != "List":
        return False
    if type_.kind in _TUPLES:
        return all(is_subtype(element, wanted.arguments[0]) for element in type_.arguments)
    return is_subtype(type_, wanted)


def is_mutable(type_: Type) -> bool:
    """Return whether values of the type can be written to."""
    return type_.kind in _MUTABLE or any(map(is_mutable, type_.arguments))


# Type variables of operators: ``t[]``


def has_variables(type_: Type) -> bool:
    """Return whether a type of a schema has type variables."""
    return type_.kind == "Variable" or any(map(has_variables, type_.arguments))


def bind(formal: Type, actual: Type, variables: dict[str, Type]) -> bool:
    """Bind the type variables of a formal type by the type of an argument, and return whether that is possible."""
    if not has_variables(formal):
        return True
    if formal.kind == "Variable":
        known = variables.get(formal.name)
        common = actual if known is None else unify(known, actual)
        if common is not None:
            variables[formal.name] = common
        return common is not None
    if formal.kind == "Optional":
        if actual.kind == "NoneType":
            return True
        return bind(formal.arguments[0], _without_optional(actual), variables)
    if formal.kind == "List" and actual.kind in _TUPLES:
        element = unify_all(actual.arguments) if actual.arguments else None
        return element is not None and bind(formal.arguments[0], element, variables)
    if formal.kind != actual.kind or len(formal.arguments) != len(actual.arguments):
        return False
    return all(bind(*pair, variables) for pair in zip(formal.arguments, actual.arguments, strict=True))


def substitute(formal: Type, variables: Mapping[str, Type]) -> Type | None:
    """Return a formal type with its variables replaced; None if a variable is not bound."""
    if formal.kind == "Variable":
        return variables.get(formal.name)
    if not has_variables(formal):
        return formal
    arguments = [substitute(argument, variables) for argument in formal.arguments]
    return None if None in arguments else Type(formal.kind, tuple(filter(None, arguments)), formal.name)


# Annotations in code

NAMED_TYPES: Mapping[str, Type] = {
    **{str(type_): type_ for type_ in (TENSOR, INT, FLOAT, BOOL, STR, COMPLEX, NUMBER, NONE, ANY, DEVICE)},
    "None": NONE,
    "list": Type("AnyList"),
    "tuple": Type("AnyTuple"),
    "Generator": Type("Generator"),
    "Stream": Type("Stream"),
    "Capsule": Type("Capsule"),
    "Scalar": NUMBER,
    "List": Type("List", (TENSOR,)),
    **dict.fromkeys(("Layout", "ScalarType", "MemoryFormat", "QScheme"), INT),
}
CONTAINERS = frozenset({"List", "Dict", "Tuple", "Optional", "Union", "Future", "Await", "RRef", "Final"})


def types_in(type_: Type) -> Iterator[Type]:
    """Return a type and all types in it."""
    yield type_
    for argument in type_.arguments:
        yield from types_in(argument)


def container(kind: str, arguments: tuple[Type, ...], fail: Callable[[], None]) -> Type:
    """Return a type with arguments, as it is written in code. ``fail`` raises the error of a wrong count."""
    if kind == "Final" and len(arguments) == 1:
        return arguments[0]
    if kind == "Optional" and len(arguments) == 1:
        return optional(arguments[0])
    counts = {"Dict": 2, "Tuple": None, "Union": None}.get(kind, 1)
    if counts is not None and len(arguments) != counts:
        fail()
    return Type(kind, arguments)
