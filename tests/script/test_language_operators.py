"""Operators of TorchScript's language give libtorch's results and errors, on samples of each type of operand."""

from __future__ import annotations

import copy
import itertools
import re
from typing import Any

import pytest
import torch

from torchmdla.script.operators import OPERATORS, ScriptException, text_of

GREATEST = 2**63 - 1

SAMPLES: dict[str, list[Any]] = {
    "int": [0, 1, -1, 3, -7, 10, 2**62, GREATEST, -(2**63)],
    "float": [0.0, -0.0, 1.5, -2.5, 0.5, 1e30, float("inf"), float("nan"), -3.0],
    "complex": [0j, 1 + 2j, -1.5 - 0.5j],
    "bool": [True, False],
    "str": ["", "a", "ab c", "  xAbA ", "é\n\tz", "12", "-3.5", "a\nb", "Ab Cd"],
    "str?": [None, " ", "b"],
    "int?": [None, 0, 1, -1, 5],
    "number": [0, 2**40, 1e30, 3, -7, 0.5, -2.5, 1 + 2j],
    "int[]": [[], [3, 1, 2, 1], [1]],
    "float[]": [[], [3.0, 1.0, 1.5]],
    "bool[]": [[], [True, False]],
    "str[]": [[], ["b", "a", "é"]],
    "complex[]": [[], [1j, 2 + 1j]],
    "t[]": [[], [3, 1, 2, 1], ["a"]],
    "Any[]": [[1, 2]],
    "t": [1, "x", 1.5, [1, 2], (1,), {"a": 1.0}, None, 1e10, 123456.789],
    "t?": [None, 1],
    "t1": [1, "a", None],
    "t2": [1, "a", None, 1.0],
    **{f"Dict({key}, t)": [{}, dict.fromkeys(values, 1)] for key, values in {"str": ["a", "b"], "int": [3, 1]}.items()},
    "Dict(bool, t)": [{True: 1}],
    "Dict(float, t)": [{}, {1.5: 1, 0.5: 2}],
    "Dict(complex, t)": [{1 + 2j: 1}],
    **{f"({key}, tVal)[]": [[], [(value, 1)]] for key, value in {"str": "a", "int": 1, "bool": True}.items()},
}

# Operators with results of their own in libtorch: the result is not an int; None; a hash; files; C's identities.
OTHERS = {"aten::pow.int_to_int", "aten::eq", "aten::ne", "aten::hash.generic", "prim::RaiseException"}

VARIADIC = {"aten::format", "aten::percentFormat"}


def is_defined(name: str, arguments: tuple[Any, ...]) -> bool:
    """Return whether libtorch's operator neither traps, nor loops without end, nor fills the memory."""
    if any(isinstance(value, dict) for value in arguments) and "-0.0" in map(repr, arguments):
        return False  # equal to 0.0, which libtorch's message has
    integers = [value for value in arguments if type(value) is int]
    if name in ("remainder", "__round_to_zero_floordiv", "gcd", "floordiv", "divmod") and len(integers) == 2:
        return integers[1] not in (0, -1) and -(2**63) not in integers
    if name in ("mul", "mul_", "rangelist", "center", "ljust", "rjust", "zfill", "factorial", "expandtabs"):
        if name in ("mul", "factorial", "mul_") and not any(isinstance(value, (list, str)) for value in arguments):
            return name != "factorial" or abs(arguments[0]) < 100
        return all(0 <= value < 100 for value in integers)
    if name in ("replace", "count", "split", "rsplit", "rpartition", "rfind", "rindex"):
        return arguments[1] != ""
    return name != "__range_length" or all(abs(value) < 2**62 for value in arguments)


def type_name(argument: Any) -> str:
    """Return the type as schemas write it: ``(str, int)[]``."""
    text = str(argument.type)
    for pattern, replacement in (
        (r"Tuple\[([^\[\]]*)\]", r"(\1)"),
        (r"Optional\[(.*)\]", r"\1?"),
        (r"Dict\[(\w+), (\w+)\]", r"Dict(\1, \2)"),
        (r"List\[(.*)\]", r"\1[]"),
    ):
        text = re.sub(pattern, replacement, text)
    return text


def schemas() -> dict[str, Any]:
    return {
        f"{schema.name}.{schema.overload_name}".rstrip("."): schema
        for schema in torch._C._jit_get_all_schemas()
        if schema.name.startswith(("aten::", "prim::"))
    }


SCHEMAS = schemas()

TESTED = [
    name
    for name, schema in sorted(SCHEMAS.items())
    if name in OPERATORS
    and name not in OTHERS | VARIADIC
    and all(type_name(argument) in SAMPLES for argument in schema.arguments)
]


def outcome(function: Any, arguments: tuple[Any, ...]) -> tuple[str, Any]:
    """Return the result with the operands after the call, or the first line of the error."""
    try:
        return "result", exact(function(*arguments))
    except (TypeError, UnicodeError) as error:  # a value of another type; half a character
        return type(error).__name__, "Unicode" * isinstance(error, UnicodeError) or "Expected a value"
    except (RuntimeError, IndexError, ValueError) as error:
        # The interpreter makes all errors RuntimeError. The operator's text is at the end of its own.
        text = str(error)
        is_interpreted = text.startswith("The following operation failed")
        return "error", text.rpartition("RuntimeError: ")[2][:-1] if is_interpreted else text.partition("\nException")[
            0
        ]


def exact(value: Any) -> Any:
    """Return a value that distinguishes types, signs of zeros and NaNs."""
    if isinstance(value, dict):
        return [(exact(key), exact(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value).__name__, list(map(exact, value))
    return type(value).__name__, repr(value)


def operator_of(schema: Any) -> Any:
    """Return libtorch's operator, on elements of type int. One that only changes its operand returns the operand."""
    types = [re.sub(r"\bt[12]?\b", "int", type_name(argument)) for argument in schema.arguments]
    is_generic = types != list(map(type_name, schema.arguments))
    if schema.returns and not is_generic:
        return torch._C._get_operation_overload(schema.name, schema.overload_name)[0]
    inputs = ", ".join(f"%{place} : {type_}" for place, type_ in enumerate(types))
    names = ", ".join(f"%{place}" for place in range(len(types)))
    result = re.sub(r"\bt(Val)?\b", "int", type_name(schema.returns[0])) if schema.returns else ""
    node = f"%r : {result} = {schema.name}({names})" if result else f"{schema.name}({names})"
    text = f"graph({inputs}):\n  {node}\n  return ({'%r' if result else '%0'})\n"
    return torch._C._create_function_from_graph("operator", torch._C.parse_ir(text))


@pytest.mark.parametrize("name", TESTED)
def test_operator_agrees_with_libtorch(name: str) -> None:
    schema = SCHEMAS[name]
    expected_function, function = operator_of(schema), OPERATORS[name]
    is_changing = not schema.returns
    count = 0
    for arguments in itertools.islice(itertools.product(*(SAMPLES[type_name(a)] for a in schema.arguments)), 300):
        if not is_defined(schema.name.partition("::")[2], arguments):
            continue
        expected = outcome(expected_function, copy.deepcopy(arguments))
        if re.search("INTERNAL ASSERT|Expected a value|Tried to|Unicode", str(expected)):
            continue

        def call(*values: Any) -> Any:
            result = function(*values)
            return values[0] if is_changing else result

        actual = outcome(call, copy.deepcopy(arguments))
        assert actual == expected, f"{name}{arguments}"
        count += 1
    assert count  # of the samples, some were compared


def test_most_of_libtorchs_operators_without_tensors_are_tested() -> None:
    assert len(TESTED) > 450


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("{} {}", (1, "a")),
        ("{}", (1.0, 2)),
        ("{} {}", (1,)),
        ("a{}b", ([1.5, 2.0],)),
        ("{}", ({"a": (1, 2)},)),
        ("{}", (1e-7,)),
        ("{}", (float("inf"),)),
        ("{}", (1 - 2j,)),
    ],
)
def test_format_agrees_with_libtorch(text: str, values: tuple[Any, ...]) -> None:
    check_variadic("aten::format", (text, *values))


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("%d", 3), ("%d", 3.7), ("%i%%", (3,)), ("%f", 1.5), ("%e", (2,)), ("%E", 1e10), ("%c", "a"), ("%c", 65),
        ("%s", "a"), ("%s %s", (1.0, [1])), ("%d", "a"), ("%x", 1), ("%", 1), ("%d %d", (1,)), ("%d", (1, 2)),
        ("%c", "ab"), ("%f", "a"),
    ],
)  # fmt: skip
def test_percent_agrees_with_libtorch(text: str, values: Any) -> None:
    check_variadic("aten::percentFormat", (text, values))


def check_variadic(name: str, arguments: tuple[Any, ...]) -> None:
    inputs = ", ".join(f"%{place} : {spelled(argument)}" for place, argument in enumerate(arguments))
    names = ", ".join(f"%{place}" for place in range(len(arguments)))
    graph = torch._C.parse_ir(f"graph({inputs}):\n  %r : str = {name}({names})\n  return (%r)\n")
    expected = outcome(torch._C._create_function_from_graph("formatted", graph), arguments)
    assert outcome(OPERATORS[name], arguments) == expected


def spelled(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(spelled, value))})"
    if isinstance(value, list):
        return f"{spelled(value[0])}[]"
    if isinstance(value, dict):
        return f"Dict({spelled(next(iter(value)))}, {spelled(next(iter(value.values())))})"
    return type(value).__name__


def test_a_raised_exception_has_its_message_and_class() -> None:
    with pytest.raises(ScriptException, match="wrong") as error:
        OPERATORS["prim::RaiseException"]("wrong", "builtins.ValueError")
    assert error.value.class_name == "builtins.ValueError"


def test_half_a_character_goes_through_operators() -> None:
    first, second = (OPERATORS["aten::__getitem__.str"]("é", place) for place in (0, 1))
    assert OPERATORS["aten::len.str"](first) == 1
    assert OPERATORS["aten::len.str"]("é") == 2
    joined = OPERATORS["aten::add.str"](first, second)
    assert OPERATORS["aten::upper"](joined) == "é"
    assert text_of([first]) == f"[{first}]"
