"""Patterns of expressions, and the rules that use them."""

from __future__ import annotations

import pytest
import torch
from nest_running import MACHINE

import torchmdla
from torchmdla.devices.cpu.ir.accesses import Access, Buffer
from torchmdla.devices.cpu.ir.expressions import accumulator, constant, load, operation
from torchmdla.devices.cpu.ir.loop_program import LoopNest, LoopProgram
from torchmdla.devices.cpu.ir.parser import parse_program
from torchmdla.devices.cpu.ir.patterns import SUM_OF_PRODUCTS, Captured, Rule, any_expression, apply, find_matches, op
from torchmdla.devices.cpu.ir.printer import program_text
from torchmdla.devices.cpu.passes.constants import STORE_CONSTANT_FACTORS
from torchmdla.devices.cpu.passes.defer_factors import DEFER_NORMS, DEFER_SOFTMAX
from torchmdla.devices.cpu.passes.fold_scales import FOLD_SCALES
from torchmdla.testing.compare import assert_matches
from torchmdla.testing.programs.normalisation import rms_and_products

A, B = (load(Access.identity(Buffer("input", "f32", (4,), k))) for k in range(2))
SUM = operation("arith.addf", [operation("arith.mulf", [A, B], "f32"), accumulator(0, "f32")], "f32")


def test_operands_of_commutative_ops_match_in_any_order() -> None:
    assert [(captured["left"], captured["right"]) for captured in SUM_OF_PRODUCTS.matches(SUM)] == [(A, B), (B, A)]
    difference = op("arith.subf", any_expression("first"), op("constant", name="second"))
    unit = constant(1.0, "f32")
    assert list(difference.matches(operation("arith.subf", [A, unit], "f32"))) == [{"first": A, "second": unit}]
    assert not list(difference.matches(operation("arith.subf", [unit, A], "f32")))


def test_matches_within_expressions() -> None:
    product = op("arith.mulf", op("load"), op("load"), name="product")
    (captured, _) = find_matches(product, [operation("math.exp", [SUM], "f32")])
    assert captured == {"product": SUM.operands[0]}
    assert not list(product.matches(SUM))


def test_rms_norm_is_part_of_the_product_behind_it() -> None:
    report = torchmdla.explain(torch.jit.script(rms_and_products().eval()), torch.randn(16, 64), compare=True)
    kernels = [s.kernels for group in report.groups for s in group.specialisations]
    assert [len(each) for each in kernels] == [2]  # the sums of squares, and the product


def test_equal_names_match_one_expression() -> None:
    square = op("arith.mulf", op("load", name="term"), op("load", name="term"))
    assert [captured["term"] for captured in square.matches(operation("arith.mulf", [A, A], "f32"))] == [A, A]
    assert not list(square.matches(operation("arith.mulf", [A, B], "f32")))


def test_a_rule_is_tried_until_it_rewrites() -> None:
    seen: list[Captured] = []
    changed: list[Captured] = []

    def read(step: LoopNest, captured: Captured) -> Captured | None:
        seen.append(captured)
        return captured if len(seen) == 3 else None

    nest = LoopNest((4,), (True,), (A.payload,), (SUM,))
    steps = LoopProgram(
        [nest, LoopNest((4,), (True,), (A.payload,), (SUM,)), LoopNest.elementwise((4,), A.payload, B)], {}
    )
    apply([Rule(SUM_OF_PRODUCTS, lambda steps, machine: read, changed.append)], steps, MACHINE)
    assert changed == [seen[2]]
    assert len(seen) == 3  # twice for the first nest, once for the second, never for the third


def rewritten(rule: Rule, text: str) -> str:
    steps = parse_program(text)
    apply([rule], steps, MACHINE)
    return program_text(steps).partition("entry ")[2]


def test_a_constant_matrix_goes_back_to_memory() -> None:
    text = """
    buffer input0 : f32[4, 6]
    buffer result1 : f32[4, 8]
    entry {
      nest d0:4 d1:8 d2:6+ {
        i0 = input0[d0, d2]
        o0 = from 0.0 : f32
        v0 : f32 = arith.mulf i0, 0.5
        v1 : f32 = arith.addf o0, v0
        result1[d0, d1] = v1
      }
    }
    """
    assert (
        rewritten(STORE_CONSTANT_FACTORS, text)
        == """{
  nest d0:8 d1:6 {
    temporary0[d0, d1] = 0.5
  }
  nest d0:4 d1:8 d2:6+ {
    i0 = input0[d0, d2]
    i1 = temporary0[d1, d2]
    o0 = from 0.0 : f32
    v0 : f32 = arith.mulf i0, i1
    v1 : f32 = arith.addf o0, v0
    result1[d0, d1] = v1
  }
}
"""
    )


SCALED = """
buffer input0 : f32[64, 6]
buffer parameter1 : f32[6, 8]
buffer {factor} : f32[8]
buffer temporary0 : f32[64, 8]
buffer result3 : f32[64, 8]
entry {{
  nest d0:64 d1:8 d2:6+ {{
    i0 = input0[d0, d2]
    i1 = parameter1[d2, d1]
    o0 = from 0.0 : f32
    v0 : f32 = arith.mulf i0, i1
    v1 : f32 = arith.addf o0, v0
    yield v1 as temporary0[d0, d1]
  }} then {{
    i0 = {factor}[d1]
    v0 : f32 = arith.mulf o0, i0
    v1 : f32 = math.exp v0
    result3[d0, d1] = v1
  }}
}}
"""


def test_a_factor_of_a_sum_multiplies_its_weights() -> None:
    result = rewritten(FOLD_SCALES, SCALED.format(factor="parameter2"))
    weights, _, product = result.partition("  nest d0:64")
    assert weights.count("nest") == 1 and "parameter1[" in weights and "parameter2[" in weights
    assert "parameter" not in product and "math.exp o0" in product
    plain = rewritten(FOLD_SCALES, SCALED.format(factor="input2"))
    assert plain == SCALED.format(factor="input2").partition("entry ")[2]


SOFTMAX = """
buffer input0 : f32[4, 6]
buffer temporary0 : f32[4, 1]
buffer temporary1 : f32[4, 6]
buffer temporary2 : f32[4, 1]
buffer {weights} : f32[4, 6]
buffer input1 : f32[6, 8]
buffer result9 : f32[4, 8]
entry {{
  nest d0:4 d1:6+ {{
    i0 = input0[d0, d1]
    o0 = from {start} : f32
    v0 : f32 = arith.maximumf i0, o0
    temporary0[d0, 0] = v0
  }}
  nest d0:4 d1:6 {{
    i0 = input0[d0, d1]
    i1 = temporary0[{row}, 0]
    v0 : f32 = arith.subf i0, i1
    v1 : f32 = {function} v0
    temporary1[d0, d1] = v1
  }}
  nest d0:4 d1:6+ {{
    i0 = temporary1[d0, d1]
    o0 = from 0.0 : f32
    v0 : f32 = arith.addf i0, o0
    temporary2[d0, 0] = v0
  }}
  nest d0:4 d1:6 {{
    i0 = temporary1[d0, d1]
    i1 = temporary2[d0, 0]
    v0 : f32 = arith.divf i0, i1
    {weights}[d0, d1] = v0
  }}
  nest d0:4 d1:8 d2:6+ {{
    i0 = {weights}[d0, d2]
    i1 = input1[d2, d1]
    o0 = from 0.0 : f32
    v0 : f32 = arith.mulf i0, i1
    v1 : f32 = arith.addf o0, v0
    result9[d0, d1] = v1
  }}
}}
"""
IS_SOFTMAX = {"weights": "temporary3", "start": "0xFF800000", "row": "d0", "function": "math.exp"}


def test_softmax_is_divided_behind_the_product() -> None:
    result = rewritten(DEFER_SOFTMAX, SOFTMAX.format(**IS_SOFTMAX))
    _, _, product = result.partition("nest d0:4 d1:8")
    assert result.count("nest") == 4 and "i0 = temporary1[d0, d2]" in product
    assert product.count("arith.divf 1.0, i0") == 1 and "i0 = temporary2[d0, 0]" in product


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"weights": "result8"}, id="weights that are a result"),
        pytest.param({"start": "1.0"}, id="another number than the largest"),
        pytest.param({"row": "3"}, id="the largest of another row"),
        pytest.param({"function": "math.absf"}, id="no exponentials"),
    ],
)
def test_divisors_without_reciprocal_are_divided_first(change: dict[str, str]) -> None:
    text = SOFTMAX.format(**IS_SOFTMAX | change)
    assert rewritten(DEFER_SOFTMAX, text) == text.partition("entry ")[2]


# Programs with a sum of products whose weights have a different divisor for each term, or with two weights in a term.
DIVIDED_TERMS = {
    "softmax of the summed rows": (lambda x, y: torch.softmax(x, 0) @ y, (5, 7), (7, 4)),
    "softmax of columns on the right": (lambda x, y: x @ torch.softmax(y, -1), (5, 7), (7, 4)),
    "softmax of rows on the right": (lambda x, y: x @ torch.softmax(y, -2), (5, 7), (7, 4)),
    "softmax of a transposed matrix": (lambda x, y: torch.softmax(x, -1).mT @ y, (7, 5), (7, 4)),
    "softmax of batches": (lambda x, y: torch.softmax(x, 0) @ y, (3, 5, 7), (3, 7, 4)),
    "softmax of both": (lambda x, y: torch.softmax(x, -2) @ torch.softmax(y, -1), (3, 5, 7), (7, 4)),
    "softmax before a cumulated sum": (lambda x, y: torch.softmax(x, -2) @ y.cumsum(-2).mT, (7, 3), (4, 3)),
    "sum of squared weights": (lambda x, y: torch.einsum("ij,ij->i", *2 * [torch.softmax(x @ y, -1)]), (5, 7), (7, 4)),
    "products of a softmax with itself": (
        lambda x, y: torch.softmax(x @ y, -1) @ torch.softmax(x @ y, -1).mT,
        (5, 7),
        (7, 4),
    ),
}


@pytest.mark.parametrize("name", DIVIDED_TERMS)
def test_a_divisor_that_differs_between_the_terms_of_a_sum_stays(name: str) -> None:
    function, *sizes = DIVIDED_TERMS[name]
    inputs = [torch.randn(size) for size in sizes]
    with torch.no_grad():
        traced = torch.jit.trace(function, inputs, check_trace=False)
        results = [traced(*inputs) for _ in range(4)]
    assert_matches(results[-1], function(*inputs), layers=2)
    assert not torchmdla.stats().fallbacks


def test_exponentials_whose_sum_overflows_are_divided_first() -> None:
    """Check that such exponentials are divided first.

    Each quotient is 0, but the product of their sum with 0 would be NaN.
    """

    def weigh(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        powers = x.exp()
        return (powers / powers.sum(-1, keepdim=True).clamp_min(1e-30)) @ y

    x, y = torch.full((5, 7), 88.0), torch.full((7, 4), 3.0)
    with torch.no_grad():
        compiled = torchmdla.compile(torch.jit.trace(weigh, (x, y)), x, y)
        assert_matches(compiled(x, y), weigh(x, y))


RMS_NORM = """
buffer input0 : f32[8, 64]
buffer temporary0 : f32[8, 1]
buffer parameter1 : f32[64]
buffer {normed} : f32[8, 64]
buffer parameter2 : f32[64, 6]
buffer result9 : f32[8, 6]
entry {{
  nest d0:8 d1:64+ {{
    i0 = input0[d0, d1]
    o0 = from 0.0 : f32
    v0 : f32 = arith.mulf i0, i0
    v1 : f32 = arith.addf v0, o0
    temporary0[d0, 0] = v1
  }}
  nest d0:8 d1:64 {{
    i0 = input0[d0, d1]
    i1 = temporary0[{row}, 0]
    i2 = parameter1[d1]
    v0 : i64 = arith.index_cast d1
    v1 : f32 = arith.sitofp v0
    v2 : f32 = arith.addf i1, {shift}
    v3 : f32 = math.rsqrt v2
    v4 : f32 = arith.mulf i0, v3
    v5 : f32 = arith.mulf v4, i2
    {normed}[d0, d1] = v5
  }}
  nest d0:8 d1:6 d2:64+ {{
    i0 = {normed}[d0, d2]
    i1 = parameter2[d2, d1]
    o0 = from 0.0 : f32
    v0 : f32 = arith.mulf i0, i1
    v1 : f32 = arith.addf o0, v0
    result9[d0, d1] = v1
  }}
}}
"""
IS_RMS_NORM = {"normed": "temporary1", "row": "d0", "shift": "0.5"}


@pytest.mark.parametrize(
    ("change", "is_deferred"),
    [
        pytest.param({}, True, id="rms norm"),
        pytest.param({"normed": "result8"}, False, id="a norm that is a result"),
        pytest.param({"row": "3"}, False, id="squares of another row"),
        pytest.param({"shift": "v1"}, False, id="a factor by the loop's index"),
    ],
)
def test_rms_norm_scales_its_consumer(change: dict[str, str], is_deferred: bool) -> None:
    text = program_text(parse_program(RMS_NORM.format(**IS_RMS_NORM | change)))
    result = rewritten(DEFER_NORMS, text)
    assert ("parameter1[" in result.partition("nest d0:64")[2]) is is_deferred
    assert (result == text.partition("entry ")[2]) is not is_deferred
