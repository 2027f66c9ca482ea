"""Requirements of the cpu device's rules: without one of them, its rule changes the values of a program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from fuzz.passes import costs
from nest_running import MACHINE
from test_moments import BEFORE as MEAN_AND_VARIANCE
from test_patterns import IS_RMS_NORM, IS_SOFTMAX, RMS_NORM, SCALED, SOFTMAX

from torchmdla.devices.cpu.ir.parser import parse_program
from torchmdla.devices.cpu.ir.patterns import Rule, apply
from torchmdla.devices.cpu.ir.printer import program_text
from torchmdla.devices.cpu.ir.verifier import verify
from torchmdla.devices.cpu.passes import pipeline
from torchmdla.devices.cpu.passes.constants import STORE_CONSTANT_FACTORS
from torchmdla.devices.cpu.passes.defer_factors import DEFER_NORMS, DEFER_SOFTMAX, MULTIPLY_SOFTMAX
from torchmdla.devices.cpu.passes.fold_scales import FOLD_SCALES
from torchmdla.devices.cpu.passes.moments import MOMENTS
from torchmdla.devices.cpu.passes.narrow.nibbles import USE_NIBBLES
from torchmdla.devices.cpu.passes.row_maximum import IGNORE_NAN
from torchmdla.devices.cpu.passes.split_reduction import SPLIT_REDUCTIONS
from torchmdla.devices.cpu.passes.strassen import USE_STRASSEN
from torchmdla.devices.cpu.passes.winograd import USE_INTEGER_WINOGRAD, USE_WINOGRAD
from torchmdla.devices.cpu.reference import validation
from torchmdla.devices.cpu.target.machine import Machine
from torchmdla.errors import CompileError

# Machines that use an algorithm at any cost.
MACHINES = {
    "winograd": replace(MACHINE, algorithms="winograd2"),
    "winograd of integers": replace(MACHINE, algorithms="winograd2"),
    "strassen": replace(MACHINE, algorithms="strassen"),
    "nibbles": replace(MACHINE, second_level=32),
}
RULES: Mapping[str, Rule[Any]] = {
    "constants": STORE_CONSTANT_FACTORS,
    "softmax": DEFER_SOFTMAX,
    "rows": MULTIPLY_SOFTMAX,
    "maximum": IGNORE_NAN,
    "norms": DEFER_NORMS,
    "scales": FOLD_SCALES,
    "moments": MOMENTS,
    "winograd": USE_WINOGRAD,
    "winograd of integers": USE_INTEGER_WINOGRAD,
    "strassen": USE_STRASSEN,
    "split": SPLIT_REDUCTIONS,
    "nibbles": USE_NIBBLES,
}

# Rules that keep NaN and infinities.
EXACT = ("maximum",)

CONVOLUTION = """
buffer input0 : f32[16, 8]
buffer parameter1 : f32[16, 16, 3]
buffer result2 : f32[16, 6]
entry {
  nest d0:16 d1:6 d2:16+ d3:3+ {
    i0 = input0[d2, d1 + d3]
    i1 = parameter1[d0, d2, d3]
    o0 = from 0.0 : f32
    v0 : f32 = arith.mulf i0, i1
    v1 : f32 = arith.addf o0, v0
    result2[d0, d1] = v1
  }
}
"""
# A word has four channels.
CONVOLUTION_OF_WORDS = """
buffer input0 : i8[8, 16]
buffer parameter1 : i8[4, 3, 16, 4]
buffer result2 : i32[6, 16]
entry {
  nest d0:16 d1:6 d2:4+ d3:3+ d4:1+ {
    i0 = input0[d1 + d3, d2 * 4] as i32
    i1 = parameter1[d2, d3, d0, 0] as i32
    o0 = from 0 : i32
    v0 : i32 = dot i0, i1
    v1 : i32 = arith.addi o0, v0
    result2[d1, d0] = v1
  }
}
"""
# Columns are in panels, as in packed weights.
PRODUCT = """
buffer input0 : f32[8, 12]
buffer parameter1 : f32[12, 4, 16]
buffer result2 : f32[8, 4, 16]
entry {
  nest d0:8 d1:4 d2:12+ d3:16 {
    i0 = input0[d0, d2]
    i1 = parameter1[d2, d1, d3]
    o0 = from 0.0 : f32
    v0 : f32 = arith.mulf i0, i1
    v1 : f32 = arith.addf o0, v0
    result2[d0, d1, d3] = v1
  }
}
"""
SUM = """
buffer input0 : f32[12, 8]
buffer result1 : f32[]
entry {
  nest d0:12+ d1:8+ {
    i0 = input0[d0, d1]
    o0 = from 0.0 : f32
    v0 : f32 = arith.addf o0, i0
    result1[] = v0
  }
}
"""
# A weight has 4 bits. A group of 8 terms has a zero point and a scale.
MIXED_PRODUCT = """
buffer input0 : f32[2, 16]
buffer parameter1 : i8[16, 4] bits4
buffer parameter2 : f32[2, 4]
buffer parameter3 : f32[2, 4]
buffer result4 : f32[2, 4]
entry {
  nest d0:2 d1:4 d2:2+ d3:8+ {
    i0 = input0[d0, d2 * 8 + d3]
    i1 = parameter1[d2 * 8 + d3, d1]
    i2 = parameter2[d2, d1]
    i3 = parameter3[d2, d1]
    o0 = from 0.0 : f32
    v0 : f32 = arith.sitofp i1
    v1 : f32 = arith.subf v0, i2
    v2 : f32 = arith.mulf v1, i3
    v3 : f32 = arith.mulf i0, v2
    v4 : f32 = arith.addf o0, v3
    result4[d0, d1] = v4
  }
}
"""

# Programs that the rules rewrite.
REWRITTEN: Mapping[str, str] = {
    "softmax": SOFTMAX.format(**IS_SOFTMAX),
    "rows": SOFTMAX.format(**IS_SOFTMAX | {"weights": "result8"}),
    # Enough rows for NaN in some of them.
    "maximum": SOFTMAX.format(**IS_SOFTMAX | {"weights": "result8"}).replace("[4,", "[96,").replace("d0:4", "d0:96"),
    "norms": RMS_NORM.format(**IS_RMS_NORM),
    "scales": SCALED.format(factor="parameter2"),
    "moments": MEAN_AND_VARIANCE,
    "winograd": CONVOLUTION,
    "winograd of integers": CONVOLUTION_OF_WORDS,
    "strassen": PRODUCT,
    "split": SUM,
    "nibbles": MIXED_PRODUCT,
}

# Parts of these programs: the nests that are rewritten last, and the ends of bodies.
PRODUCT_OF_SOFTMAX = "  nest d0:4 d1:8 d2:6+ {\n"
PRODUCT_OF_NORM = "  nest d0:8 d1:6 d2:64+ {\n"
SQUARES = "    i0 = temporary1[d0, d1]\n    o0 = from 0.0 : f32\n    v0 : f32 = arith.mulf i0, i0\n"
SUM_OF_SQUARES = "  nest d0:2 d1:512+ {\n" + SQUARES
DIFFERENCES = "  nest d0:2 d1:512 {\n    i0 = input0[d0, d1]\n"
START_OF_PRODUCTS = "    o0 = from 0.0 : f32\n    v0 : f32 = arith.mulf i0, i1\n"
END_OF_PRODUCTS = "    v1 : f32 = arith.addf o0, v0\n"


SUM_OF_EXPONENTIALS = (
    "  nest d0:4 d1:6+ {\n    i0 = temporary1[d0, d1]\n    o0 = from 0.0 : f32\n"
    "    v0 : f32 = arith.addf i0, o0\n    temporary2[d0, 0] = v0\n"
)
EXPONENTIALS = (
    "    i0 = input0[d0, d1]\n    i1 = temporary0[d0, 0]\n    v0 : f32 = arith.subf i0, i1\n"
    "    v1 : f32 = math.exp v0\n    temporary1[d0, d1] = v1\n"
)
TINY_TERMS = "    temporary1[d0, d1] = 1.0e-310\n"


def doubled(store: str, value: str) -> tuple[str, str]:
    """Return a replacement that makes a nest store twice its value."""
    then = f"yield {value} as {store}\n  }} then {{\n    v0 : f32 = arith.mulf o0, 2.0\n    {store} = v0\n"
    return f"    {store} = {value}\n", f"    o0 = from 0.0 : f32\n    {then}"


def checked_first(operand: str, bound: float) -> tuple[str, str]:
    """Return a replacement that makes a product check that its operand is less than a bound."""
    check = f"    v2 : i1 = arith.cmpf {operand}, {bound} : f32 {{predicate = 4 : i64}}\n    check v2\n"
    return END_OF_PRODUCTS, END_OF_PRODUCTS + check


def with_number(loop: str, store: str) -> tuple[str, str]:
    """Return a replacement that adds the iteration number to a result."""
    then = f"    v0 : i64 = arith.index_cast {loop}\n    v1 : f32 = arith.sitofp v0\n    v2 : f32 = arith.addf o0, v1\n"
    return f"    {store} = v1\n", f"    yield v1 as {store}\n  }} then {{\n{then}    {store} = v2\n"


def of_products(loop: str, store: str) -> Mapping[str, tuple[tuple[str, str], ...]]:
    """Return replacements that break a program of products that a rule rewrites to fewer products."""
    return {
        "the sum starts from zero": ((START_OF_PRODUCTS, START_OF_PRODUCTS.replace("0.0", "1.0")),),
        "nothing is checked of the products": (checked_first("v0", 0.9),),
        "factors and sums are in single precision": (("f32", "f64"),),
        "nothing is computed of the numbers of iterations": (with_number(loop, store),),
    }


def written_before(nest: str, loops: str, store: str) -> tuple[str, str]:
    """Return a replacement that inserts a nest that writes 0.5 before another."""
    return nest, f"  nest {loops} {{\n    {store} = 0.5\n  }}\n{nest}"


# By rule and requirement: the replacements in the program that the rule rewrites.
BROKEN: Mapping[str, Mapping[str, tuple[tuple[str, str], ...]]] = {
    "constants": {},
    "softmax": {
        "one nest writes what is read": (written_before(PRODUCT_OF_SOFTMAX, "d0:6", "temporary3[0, d0]"),),
        "it writes each element at the indices of its loops": (
            ("    temporary3[d0, d1] = v0", "    temporary3[d0, d1 * -1 + 5] = v0"),
        ),
        "it computes each element on its own": (doubled("temporary3[d0, d1]", "v0"),),
        "the sum starts from zero": ((START_OF_PRODUCTS, START_OF_PRODUCTS.replace("0.0", "1.0")),),
        "nothing is checked of the quotients": (checked_first("i0", 0.9),),
        "a product has one quotient": (
            ("    i1 = input1[d2, d1]\n", ""),
            (START_OF_PRODUCTS, START_OF_PRODUCTS.replace("i1", "i0")),
        ),
        "the divisor is one for all terms of a sum": (
            (
                PRODUCT_OF_SOFTMAX + "    i0 = temporary3[d0, d2]",
                "  nest d0:6 d1:8 d2:4+ {\n    i0 = temporary3[d2, d0]",
            ),
            ("result9 : f32[4, 8]", "result9 : f32[6, 8]"),
        ),
        "the divisor is the sum of the terms": ((SUM_OF_EXPONENTIALS, "  nest d0:4 {\n    temporary2[d0, 0] = 0.0\n"),),
        "the divisor has a finite reciprocal": (
            (
                EXPONENTIALS,
                "    v0 : i64 = arith.index_cast d1\n    v1 : f32 = arith.sitofp v0\n"
                "    v2 : f32 = arith.subf v1, 2.5\n    temporary1[d0, d1] = v2\n",
            ),
        ),
    },
    # The reciprocal of this divisor is infinite, in the double precision of the interpreter.
    "rows": {
        "the divisor is the sum of 1 and exponentials up to 1": ((EXPONENTIALS, TINY_TERMS),),
    },
    "maximum": {
        "a row with NaN has NaN in all its results": (
            (
                "    i1 = temporary2[d0, 0]\n    v0 : f32 = arith.divf i0, i1\n",
                "    v0 : f32 = arith.mulf i0, i0\n",
            ),
        ),
    },
    "norms": {
        "one nest writes what is read": (written_before(PRODUCT_OF_NORM, "d0:64", "temporary1[0, d0]"),),
        "it writes each element at the indices of its loops": (
            ("    temporary1[d0, d1] = v5", "    temporary1[d0, d1 * -1 + 63] = v5"),
        ),
        "it computes each element on its own": (doubled("temporary1[d0, d1]", "v5"),),
        "nothing between overwrites what the norm is of": (
            ("buffer parameter1 : f32[64]\n", "buffer parameter1 : f32[64]\nbuffer temporary5 : f32[8, 64]\n"),
            ("input0[d0, d1]", "temporary5[d0, d1]"),
            ("entry {\n", "entry {\n  nest d0:8 d1:64 {\n    i0 = input0[d0, d1]\n    temporary5[d0, d1] = i0\n  }\n"),
            written_before(PRODUCT_OF_NORM, "d0:8 d1:64", "temporary5[d0, d1]"),
        ),
        "the sum starts from zero": ((START_OF_PRODUCTS, START_OF_PRODUCTS.replace("0.0", "1.0")),),
        "nothing is checked of the norm": (checked_first("i0", 0.45),),
        "a product has one norm": (
            ("buffer input0", "buffer parameter0"),
            ("input0[d0, d1]", "parameter0[d0, d1]"),
            ("    i1 = parameter2[d2, d1]\n", ""),
            (START_OF_PRODUCTS, START_OF_PRODUCTS.replace("i1", "i0")),
        ),
        "the row's factor is one for all terms of a sum": (
            ("i2 = parameter1[d1]", "i2 = parameter1[d0]"),
            (PRODUCT_OF_NORM, "  nest d0:64 d1:6 d2:8+ {\n"),
            ("temporary1[d0, d2]", "temporary1[d2, d0]"),
            ("result9 : f32[8, 6]", "result9 : f32[64, 6]"),
        ),
        "the row's factor is of the squares of its elements": (
            (
                "  nest d0:8 d1:64+ {\n    i0 = input0[d0, d1]\n    o0 = from 0.0 : f32\n"
                "    v0 : f32 = arith.mulf i0, i0\n    v1 : f32 = arith.addf v0, o0\n    temporary0[d0, 0] = v1\n",
                "  nest d0:8 {\n    temporary0[d0, 0] = -0.5\n",
            ),
        ),
        "a weight has one scale": (("i2 = parameter1[d1]", "i2 = parameter1[d0]"),),
    },
    "scales": {
        "the sum starts from zero": ((START_OF_PRODUCTS, START_OF_PRODUCTS.replace("0.0", "1.0")),),
        "nothing is checked of the weights": (checked_first("i1", 2.0),),
        "the sum is used in the scaled one alone": (("v1 : f32 = math.exp v0", "v1 : f32 = arith.addf v0, o0"),),
        "a weight has one factor": (
            ("parameter2 : f32[8]", "parameter2 : f32[64]"),
            ("i0 = parameter2[d1]", "i0 = parameter2[d0]"),
        ),
        "a product has one weight": (
            ("    i0 = input0[d0, d2]\n    i1 = parameter1[d2, d1]\n", "    i0 = parameter1[d2, d1]\n"),
            (START_OF_PRODUCTS, START_OF_PRODUCTS.replace("i1", "i0")),
        ),
    },
    "moments": {
        "one nest writes what is read": (written_before(SUM_OF_SQUARES, "d0:64", "temporary1[0, d0]"),),
        "it writes each element at the indices of its loops": (
            ("    temporary1[d0, d1] = v1", "    temporary1[d0 * -1 + 1, d1] = v1"),
        ),
        "it computes each element on its own": (doubled("temporary1[d0, d1]", "v1"),),
        "nothing between overwrites the row": (
            ("buffer temporary2", "buffer temporary5 : f32[2, 512]\nbuffer temporary2"),
            written_before(DIFFERENCES, "d0:2 d1:64", "temporary5[d0, d1]"),
            ("input0[d0, d1]", "temporary5[d0, d1]"),
            ("entry {\n", "entry {\n  nest d0:2 d1:512 {\n    i0 = input0[d0, d1]\n    temporary5[d0, d1] = i0\n  }\n"),
        ),
        "the sum of squares starts from zero": ((SQUARES, SQUARES.replace("0.0", "9.0")),),
        "nothing is checked of the differences": (
            (SQUARES, SQUARES + "    v2 : i1 = arith.cmpf i0, 9.0 : f32 {predicate = 4 : i64}\n    check v2\n"),
        ),
        "nothing else is made of the squares at once": (
            ("    temporary2[d0] = v1\n", "    yield v1 as temporary2[d0]\n  } then {\n    temporary2[d0] = 0.5\n"),
        ),
        "nothing else writes the sums of squares": (written_before(DIFFERENCES, "d0:2", "temporary2[d0]"),),
        "the sum is for the mean alone": (("i1 = temporary2[d0]", "i1 = temporary0[d0]"),),
        "the mean is that of the row": (("v0 : f32 = arith.addf i0, o0", "v0 : f32 = arith.maximumf i0, o0"),),
        "each difference is squared once": ((SQUARES, SQUARES.replace("d1", "0")),),
        "mean and variance are of as many elements": (("arith.divf i1, 512.0", "arith.divf i1, 511.0"),),
        "a variance has one mean": (
            ("d0:2", "d0:16"),
            ("[2", "[16"),
            ("512", "16"),
            (SQUARES, SQUARES.replace("d0, d1", "d1, d0")),
        ),
    },
    "winograd": {
        **of_products("d1", "result2[d0, d1]"),
        "a tap is the next element of the image": (("d1 + d3", "d1 + d3 * 2"), ("f32[16, 8]", "f32[16, 10]")),
        "each tap has a weight, the same for all results": (
            ("parameter1[d0, d2, d3]", "parameter1[d0, d2, d1]"),
            ("f32[16, 16, 3]", "f32[16, 16, 6]"),
        ),
        "a window slides along one dimension": (("d1 + d3]", "d1 + d3, d1]"), ("f32[16, 8]", "f32[16, 8, 6]")),
    },
    "winograd of integers": {
        "the sum starts from zero": (("from 0 ", "from 1 "),),
        "nothing is checked of the products": (
            ("    result2[d1", "    v2 : i1 = arith.cmpi v0, 9 {predicate = 4 : i64}\n    check v2\n    result2[d1"),
        ),
        "nothing is computed of the numbers of iterations": (
            (
                "    result2[d1, d0] = v1\n",
                "    yield v1 as result2[d1, d0]\n  } then {\n    v0 : i32 = arith.index_cast d1\n"
                "    v1 : i32 = arith.addi o0, v0\n    result2[d1, d0] = v1\n",
            ),
        ),
        "a tap is the next element of the image": (("d1 + d3", "d1 + d3 * 2"), ("i8[8, 16]", "i8[10, 16]")),
        "each tap has a weight, the same for all results": (
            ("parameter1[d2, d3, d0, 0]", "parameter1[d2, d1, d0, 0]"),
            ("i8[4, 3, 16, 4]", "i8[4, 6, 16, 4]"),
        ),
        "a window slides along one dimension": (("[d1 + d3, d2", "[d1, d1 + d3, d2"), ("i8[8, 16]", "i8[6, 8, 16]")),
    },
    "strassen": {
        **of_products("d1", "result2[d0, d1, d3]"),
        "loops of both factors are summed, and no others": (
            ("d3:16", "d3:16 d4:2"),
            ("input0[", "input0[d4, "),
            ("parameter1[", "parameter1[d4, "),
            ("result2[", "result2[d4, "),
            ("f32[", "f32[2, "),
        ),
        "columns and terms have two halves": (("d1:4", "d1:3"), ("4, 16]", "3, 16]")),
    },
    "split": {
        "results may be combined in any order": (("addf o0, i0", "addf i0, i0"),),
        "a second start changes no result": (("from 0.0", "from 1.0"),),
    },
    "nibbles": {
        "nothing is checked of the products": (
            ("    result4", "    v5 : i1 = arith.cmpf i0, 1.5 : f32 {predicate = 4 : i64}\n    check v5\n    result4"),
        ),
    },
}
CASES = [
    pytest.param(name, requirement, id=f"{name}-{requirement}")
    for name, programs in BROKEN.items()
    for requirement in programs
]


@pytest.fixture(autouse=True)
def _uncounted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exclude deliberate faults from the counts."""
    monkeypatch.delenv(validation.COUNTS, raising=False)


def rewritten(rule: Rule[Any], text: str, machine: Machine, is_exact: bool = False) -> str:
    """Return the program after the rule, and check its values."""
    steps = parse_program(text)
    check = validation.Check(steps)
    with costs(are_small=True):
        apply([rule], steps, machine)
    verify(steps, "the rule")
    check.finish("the rule", steps, is_exact=is_exact)
    return program_text(steps)


def test_each_requirement_has_a_program() -> None:
    assert {rule for rules in pipeline.RULES.values() for rule in rules} == set(RULES.values())
    assert {name: list(programs) for name, programs in BROKEN.items()} == {
        name: list(rule.requires) for name, rule in RULES.items()
    }


@pytest.mark.parametrize("name", REWRITTEN)
def test_a_program_that_meets_all_requirements_is_rewritten(name: str) -> None:
    machine = MACHINES.get(name, MACHINE)
    result = rewritten(RULES[name], REWRITTEN[name], machine, name in EXACT)
    assert result != program_text(parse_program(REWRITTEN[name]))


@pytest.mark.parametrize(("name", "requirement"), CASES)
def test_a_rule_needs_each_requirement(name: str, requirement: str) -> None:
    rule, text = RULES[name], REWRITTEN[name]
    for old, new in BROKEN[name][requirement]:
        assert old in text
        text = text.replace(old, new)
    machine = MACHINES.get(name, MACHINE)
    rewritten(rule, text, machine, name in EXACT)
    requires = {each: holds for each, holds in rule.requires.items() if each != requirement}
    with pytest.raises(CompileError, match=r"internal error: (the rule (changes|makes)|after the rule)"):
        rewritten(replace(rule, requires=requires), text, machine, name in EXACT)
