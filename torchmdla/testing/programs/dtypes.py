"""Every dtype, taken or not, conversions between them, and promotion."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from torchmdla.testing.programs.inputs import Draw, booleans, integers, normal
from torchmdla.testing.programs.program import Program, functions, modules, with_gradients

F64 = torch.float64
DTYPES = {
    "float64": normal(4, 6, dtype=F64),
    "float32": normal(4, 6),
    "float16": normal(4, 6, dtype=torch.float16),
    "bfloat16": normal(4, 6, dtype=torch.bfloat16),
    "complex64": normal(4, 6, dtype=torch.complex64),
    "int64": integers(4, 6, low=-5, high=6),
    "int32": integers(4, 6, low=-5, high=6, dtype=torch.int32),
    "int16": integers(4, 6, low=-5, high=6, dtype=torch.int16),
    "int8": integers(4, 6, low=-5, high=6, dtype=torch.int8),
    "uint8": integers(4, 6, high=200, dtype=torch.uint8),
    "bool": booleans(4, 6),
}


def arithmetic(x: Tensor, y: Tensor) -> Tensor:
    return (x + y) * x + 2 * y


def to_float_and_back(x: Tensor) -> Tensor:
    return (x.float() * 2.5).to(x.dtype) + 1


def _pairs() -> Iterator[Program]:
    """Arithmetic of every two dtypes that devices take, and conversions of each into each."""
    taken = {name: DTYPES[name] for name in ("float64", "float32", "int64", "int32", "bool")}
    for left, x in taken.items():
        for right, y in taken.items():
            if left < right:
                yield from functions("dtypes", {f"{left}_and_{right}": (arithmetic, x, y)})
            if left != right:
                yield from functions("dtypes", {f"{left}_to_{right}": (_converting(right), x)})


def _converting(name: str) -> object:
    dtype: torch.dtype = getattr(torch, name)
    return lambda x: (x * 2).to(dtype) + 1


def _same(table: dict[str, Draw]) -> Iterator[Program]:
    for name, draw in table.items():
        yield from functions("dtypes", {f"arithmetic_{name}": (arithmetic, draw, draw)})
        yield from functions("dtypes", {f"through_float_{name}": (to_float_and_back, draw)})
        yield from functions("dtypes", {f"sum_{name}": (lambda x: x.sum(1) + x.sum(), draw)})


def _with_itself(x: Tensor) -> tuple[Tensor, ...]:
    return (x == x, x != x, x >= x, x <= x, x < x, x - x)


OTHERS = {
    "number_keeps_dtype": (lambda x: x * 2.5 + 1, DTYPES["float32"]),
    "number_promotes_integers": (lambda x: x * 2.5 + 1, DTYPES["int32"]),
    "zero_dim_keeps_dtype": (lambda x, y: x * y + 1, DTYPES["float32"], normal(dtype=F64)),
    "type_as": (lambda x, y: x.type_as(y) * 2 + y, DTYPES["int64"], DTYPES["float64"]),
    "to_other": (lambda x, y: x.to(y) + y * 2, DTYPES["bool"], DTYPES["float32"]),
    "float_to_integer_truncates": (lambda x: (x * 3).long() + (x * -3).int(), DTYPES["float32"]),
    "mask_arithmetic": (lambda x: (x > 0).float() * x + (x > 0), DTYPES["float32"]),
    "where_promotes": (lambda x, y: torch.where(x > 0, x, y) + 1, DTYPES["int64"], DTYPES["float32"]),
    "cat_promotes": (lambda x, y: torch.cat([x, y]) * 2, DTYPES["int64"], DTYPES["float32"]),
    "bits_of_large_integers": (lambda x: (x * 6364136223846793005 + 1) ^ (x >> 3), DTYPES["int64"]),
    "equal_to_itself_unless_nan": (
        lambda x: _with_itself(x.sqrt()),
        DTYPES["float32"],
    ),
    "negated_large_integers": (lambda x: -(x * 6364136223846793005) + 1, DTYPES["int64"]),
    "booleans_filled_with_a_number": (
        lambda x, y: (x.masked_fill(y, 10) ^ y, x.new_full((4, 6), 2) & y, torch.full_like(x, 0.5) & y),
        *[DTYPES["bool"]] * 2,
    ),
    "sum_in_booleans": (lambda x: x.sum(1, dtype=torch.bool) | x[:, 0], DTYPES["bool"]),
    "booleans_added_at_indices": (
        lambda x, y, at: torch.index_put(x, (at,), y, True) | y[:1],
        *[DTYPES["bool"]] * 2,
        integers(4, high=2),
    ),
    "overflowing_int32": (lambda x: x * 1234567891 + 5, DTYPES["int32"]),
    "softmax_in_float64": (lambda x: torch.softmax(x, 1, dtype=F64) * 2, DTYPES["float32"]),
    "view_as_other": (lambda x: x.view(torch.int32) + 1, DTYPES["float32"]),
    "complex_of_parts": (lambda x, y: torch.view_as_real(torch.complex(x, y) * 2), *[DTYPES["float32"]] * 2),
}

MODULES = {
    "half_linear": (lambda: nn.Linear(6, 3).half(), DTYPES["float16"]),
    "bfloat16_linear": (lambda: nn.Linear(6, 3).bfloat16(), DTYPES["bfloat16"]),
    "float64_network": (lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2)).double(), DTYPES["float64"]),
}

PROGRAMS = [
    *_pairs(),
    *_same(DTYPES),
    *functions("dtypes", OTHERS),
    *with_gradients(modules("dtypes", MODULES, layers=4)),
]
