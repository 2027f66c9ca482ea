"""Operators of the language in the runtime's machine against those of ``torchmdla.script.operators``."""

from __future__ import annotations

import math
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import torchmdla_runtime
from torchmdla.packages.native_capture import Captured
from torchmdla.packages.native_file import Model, Target
from torchmdla.packages.native_program import lower_program
from torchmdla.packages.weights import Weights
from torchmdla.script.ir import Graph, Node, Type, Value
from torchmdla.script.operators import OPERATORS

LARGE, SMALL = 2**63 - 1, -(2**63)
PAIRS = [(7, 3), (-7, 3), (7, -3), (LARGE, 2), (SMALL, -1), (5, 0)]
REALS = [(7.5, 2.0), (-7.5, 2.0), (7.5, -0.5), (0.0, 3.0), (1e300, 1e10)]
WORDS = ["", "one", " two words ", "ünï", "a,b,,c"]

CALLS: list[tuple[str, tuple[Any, ...]]] = [
    *(
        (f"aten::{op}.int", pair)
        for op in ("add", "sub", "mul", "div", "floordiv", "remainder", "lt", "ge", "eq", "ne", "__and__", "__xor__")
        for pair in PAIRS
    ),
    *((f"aten::{op}.float", pair) for op in ("add", "mul", "div", "floordiv", "remainder", "gt") for pair in REALS),
    *((f"aten::{op}.float_int", (a, int(b))) for op in ("sub", "pow", "le") for a, b in REALS if int(b)),
    *((f"prim::{op}.int", pair) for op in ("min", "max") for pair in PAIRS),
    *((f"aten::{op}.float", (a,)) for op in ("floor", "ceil", "round", "sqrt", "exp", "Int") for a, _ in REALS[:4]),
    *(("aten::str", (value,)) for value in (1, -2.5, 3.0, 1e20, True, None, "x", [1, 2], (1.5,), {"a": [True]})),
    ("aten::format", ("{} and {}: {}", 1, 2.0, [None, "x"])),
    ("aten::format", ("{} {}", 1)),
    *((f"aten::{op}", (text,)) for op in ("lower", "upper") for text in WORDS),
    *((f"aten::{op}", (text, " \t")) for op in ("strip", "lstrip", "rstrip") for text in WORDS),
    *(("aten::split.str", (text, separator, most)) for text in WORDS for separator in (None, ",") for most in (-1, 1)),
    *(("aten::slice.str", (text, *bounds)) for text in WORDS for bounds in ((None, None, 1), (1, -1, 2))),
    ("aten::join", ("-", ["a", "b", "c"])),
    ("aten::replace", ("banana", "an", "AN", 1)),
    ("aten::startswith", ("banana", "nan", 2, -1)),
    ("aten::endswith", ("banana", "ana", 0, 4)),
    *(("aten::__getitem__.t", ([1, 2, 3], place)) for place in (0, -1, 3, -4)),
    *(
        ("aten::slice.t", ([1, 2, 3, 4, 5], begin, end, step))
        for begin, end, step in ((None, None, 1), (1, 4, 2), (-2, None, 1), (None, None, -1), (4, 0, -2), (3, 1, 1))
    ),
    ("aten::insert.t", ([1, 2], -5, 0)),
    ("aten::pop.t", ([1, 2, 3], -2)),
    ("aten::pop.t", ([], 0)),
    ("aten::append.t", ([1], 2)),
    ("aten::extend.t", ([1], [2, 3])),
    ("aten::reverse.t", ([1, 2, 3],)),
    ("aten::sort.int", ([3, 1, 2], True)),
    ("aten::sorted.str", (["b", "a"],)),
    ("prim::max.self_float", ([1.5, -2.0],)),
    ("prim::min.self_int", ([],)),
    ("aten::sum.int", ([LARGE, 1],)),
    ("aten::index.list_str", (["a", "b"], "b")),
    ("aten::index.list_int", ([1], 2)),
    ("aten::__contains__.int_list", ([1, 2], 3)),
    ("aten::__getitem__.Dict_str", ({"a": 1}, "a")),
    ("aten::__getitem__.Dict_int", ({1: "a"}, 2)),
    ("aten::_set_item.str", ({"a": 1}, "b", 2)),
    ("aten::pop.Dict_str", ({"a": 1, "b": 2, "c": 3}, "b")),
    ("aten::setdefault.int", ({1: 2}, 3, 4)),
    ("aten::get.str", ({"a": 1}, "b")),
    ("aten::keys.str", ({"a": 1, "b": 2},)),
    ("aten::items.int", ({1: "a", 2: "b"},)),
    ("aten::update.str", ({"a": 1}, {"a": 2, "b": 3})),
    *(("aten::__range_length", bounds) for bounds in ((0, 10, 3), (10, 0, -4), (3, 3, 1), (0, 1, 0))),
    ("aten::__derive_index", (2, 10, -3)),
]  # fmt: skip


def method(op: str, count: int) -> Graph:
    """Return a method that calls an operator and returns its result, and its first operand, which may have changed."""
    inputs = [Value(f"a{k}", Type("Any")) for k in range(count)]
    has_result = op.partition(".")[0] not in _WITHOUT_RESULT
    outputs = [Value("r", Type("Any"))] if has_result else []
    return Graph(inputs=inputs, nodes=[Node(op, inputs, outputs)], outputs=[*outputs, inputs[0]])


_WITHOUT_RESULT = {
    "aten::insert", "aten::extend", "aten::reverse", "aten::sort", "aten::_set_item", "aten::update",
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> torchmdla_runtime.Model:
    """Return a program with a method for each operator and number of operands."""
    methods = {f"{op} {len(operands)}": method(op, len(operands)) for op, operands in CALLS}
    anything = torch._C.AnyType.get()
    schemas = {
        name: SimpleNamespace(
            arguments=[
                SimpleNamespace(name=value.name, type=anything, has_default_value=lambda: False)
                for value in graph.inputs
            ],
            returns=[],
        )
        for name, graph in methods.items()
    }
    weights = Weights()
    program = lower_program(Captured(None, methods, schemas, [], {}, {}), weights)
    assert program.refused == []
    path = tmp_path_factory.mktemp("operators") / "operators.tmdla"
    with path.open("wb") as file:
        Model([Target("any", "any", [], "cpu", [])], program, None, weights, {}).write(file)
    return torchmdla_runtime.Model(path)


def outcome(call: Any) -> Any:
    try:
        return call()
    except (RuntimeError, torchmdla_runtime.ModelError) as error:
        return str(error)


@pytest.mark.parametrize(("op", "operands"), CALLS, ids=lambda value: value if isinstance(value, str) else None)
def test_operators(model: torchmdla_runtime.Model, op: str, operands: tuple[Any, ...]) -> None:
    ours, theirs = deepcopy(operands), deepcopy(operands)

    def reference() -> Any:
        result = OPERATORS[op](*theirs)
        return (result, theirs[0]) if op.partition(".")[0] not in _WITHOUT_RESULT else theirs[0]

    result = outcome(lambda: model.session().call(f"{op} {len(operands)}", *ours))
    expected = outcome(reference)
    assert repr(result) == repr(expected) or math.isclose(result[0], expected[0], rel_tol=1e-15)
