"""Strides of results are eager's in every dimension, also in those of size 1: later operators decide by them."""

from __future__ import annotations

import pytest
import torch

import torchmdla

# Programs of two tensors of one shape. Some results have strides that no permutation of contiguous strides equals.
PRODUCTS = [
    ("x.mT @ y", (3, 1)),
    ("(x @ y.mT).mT", (1, 3)),
    ("torch.einsum('ij,kl->iklj', [x, y])", (1, 3)),
    ("torch.einsum('ij,ik->ijk', [x, y])", (1, 3)),
    ("torch.einsum('bij,bij->jib', [x, y])", (3, 1, 3)),
    ("torch.einsum('bij,bij->jib', [x, y])", (3, 3, 1)),
    ("torch.einsum('bij,bkj->kib', [x, y])", (3, 1, 3)),
    ("torch.einsum('bhij,bhkj->bihk', [x, y])", (1, 3, 3, 1)),
    ("torch.einsum('bhij,bhkj->bihk', [x, y])", (1, 3, 3, 3)),
    ("torch.einsum('bhij,bhkj->bhki', [x, y])", (1, 3, 3, 1)),
    ("torch.bmm(x.mT, y)", (3, 1, 3)),
]


@pytest.mark.parametrize("is_transposed", [False, True], ids=["", "transposed"])
@pytest.mark.parametrize(("product", "shape"), PRODUCTS)
def test_dimensions_of_size_one(product: str, shape: tuple[int, ...], is_transposed: bool) -> None:
    program = torch.jit.CompilationUnit(f"def f(x, y):\n    return {product}, torch.relu(x @ y.mT) * 2\n").f
    x, y = (torch.randn(shape[::-1]).permute(*range(len(shape))[::-1]) for _ in range(2))
    if not is_transposed:
        x, y = torch.randn(shape), torch.randn(shape)
    expected = eval(product, {"torch": torch, "x": x, "y": y})
    with torch.no_grad():
        for _ in range(4):
            assert program(x, y)[0].stride() == expected.stride()
    assert torchmdla.stats().compiled_calls
