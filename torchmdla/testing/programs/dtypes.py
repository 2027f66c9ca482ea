"""Programs of every dtype, supported or not, conversions between dtypes, and promotion."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.ao.quantization.fx._decomposed  # registers the operators of `quantized_decomposed`
from torch import Tensor, nn

from torchmdla.testing.programs.inputs import Draw, booleans, booleans_of_any_byte, integers, normal
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
ANY_BYTE = booleans_of_any_byte(5, 33)


def arithmetic(x: Tensor, y: Tensor) -> Tensor:
    return (x + y) * x + 2 * y


def to_float_and_back(x: Tensor) -> Tensor:
    return (x.float() * 2.5).to(x.dtype) + 1


def _pairs() -> Iterator[Program]:
    """Yield arithmetic of every pair of dtypes that devices support, and conversions between them."""
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
    "any_byte_as_numbers": (
        lambda x: (x.to(torch.int64) * 2 + 1, x.float() * 0.5, x.to(torch.uint8) + 3, x * 3, x.sum(1), x.sum() * 2),
        ANY_BYTE,
    ),
    "any_byte_in_logic": (
        lambda x, y: (x & y, x | y, x ^ y, ~x, torch.logical_and(x, y), torch.logical_not(x) | y, x.any(0), y.all(1)),
        *[ANY_BYTE] * 2,
    ),
    "any_byte_compared": (
        lambda x, y: (x == y, x != y, x < y, x >= y, torch.maximum(x, y), x == 1, x.mT.float() @ y.float()),
        *[ANY_BYTE] * 2,
    ),
    "any_byte_as_condition": (
        lambda x, y, z: (torch.where(x, z, -z) * 2, z.masked_fill(x, -1e9).softmax(1), torch.where(x[:1], x, y) ^ y),
        *[ANY_BYTE] * 2,
        normal(5, 33),
    ),
    "any_byte_moved": (
        lambda x, y, at: (torch.cat([x, y.flip(1)]) | x[:1], x.mT.roll(1, 0) & y.mT, x.index_put((at,), y[:3]) ^ y),
        *[ANY_BYTE] * 2,
        integers(3, high=5),
    ),
    "bfloat16_and_float32": (
        lambda x, y: (x * y[0, 0] + x, x + y, torch.cat([x, y]), x.exp().sum(1)),
        DTYPES["bfloat16"],
        DTYPES["float32"],
    ),
    "float16_compared_with_numbers": (
        lambda x: (x < 0.1, x >= 0.1, x == 0.7, torch.where(x > 0.3, x, x * 0.1)),
        torch.tensor([0.1, 0.7, 0.3, 0.0999, -0.1], dtype=torch.float16),
    ),
    "sums_of_bfloat16_in_float32": (lambda x: x.sum(0, dtype=torch.float32) * 2, DTYPES["bfloat16"]),
    "softmax_in_float16": (lambda x: torch.softmax(x, 1, dtype=torch.float16) * 2, DTYPES["float32"]),
    "integers_as_bfloat16": (lambda x: (x * 37).to(torch.bfloat16) * 0.5, DTYPES["int64"]),
    "bfloat16_as_integers": (lambda x: (x * 3).to(torch.int64) + 1, DTYPES["bfloat16"]),
    "float64_as_float16": (lambda x: x.half() + x.double(), DTYPES["float64"]),
    "overflowing_int32": (lambda x: x * 1234567891 + 5, DTYPES["int32"]),
    "softmax_in_float64": (lambda x: torch.softmax(x, 1, dtype=F64) * 2, DTYPES["float32"]),
    "view_as_other": (lambda x: x.view(torch.int32) + 1, DTYPES["float32"]),
    "complex_of_parts": (lambda x, y: torch.view_as_real(torch.complex(x, y) * 2), *[DTYPES["float32"]] * 2),
}


class _Outputs(nn.Module):
    """Module that returns the output of a recurrent network for each step."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)[0]  # type: ignore[no-any-return]


class _Quantised(nn.Module):
    """Convolution and linear layer, quantised as in exported programs.

    Pairs of quantise and dequantise surround each layer. The weights are int8, with one scale for each channel.
    """

    filters: Tensor
    scales: Tensor
    zero_points: Tensor
    weight: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("filters", torch.randint(-127, 128, (8, 4, 3, 3)).to(torch.int8))
        self.register_buffer("scales", torch.rand(8) / 500 + 1e-3)
        self.register_buffer("zero_points", torch.zeros(8, dtype=torch.int64))
        self.register_buffer("weight", torch.randint(-127, 128, (5, 8)).to(torch.int8))
        self.bias = nn.Parameter(torch.randn(5))

    def forward(self, x: Tensor) -> Tensor:
        x = self.rounded(x, 0.05, 128)
        filters = torch.ops.quantized_decomposed.dequantize_per_channel(
            self.filters, self.scales, self.zero_points, 0, -127, 127, torch.int8
        )
        x = self.rounded(torch.relu(nn.functional.conv2d(x, filters, padding=1)), 0.07, 0)
        x = self.rounded(x.mean([2, 3]), 0.03, 3)
        weight = torch.ops.quantized_decomposed.dequantize_per_tensor(self.weight, 0.01, 0, -127, 127, torch.int8)
        return nn.functional.linear(x, weight, self.bias)

    def rounded(self, x: Tensor, scale: float, zero_point: int) -> Tensor:
        small = torch.ops.quantized_decomposed.quantize_per_tensor(x, scale, zero_point, 0, 255, torch.uint8)
        wide: Tensor = torch.ops.quantized_decomposed.dequantize_per_tensor(
            small, scale, zero_point, 0, 255, torch.uint8
        )
        return wide


MODULES = {
    "quantised": (_Quantised, normal(2, 4, 9, 9)),
    "half_linear": (lambda: nn.Linear(6, 3).half(), DTYPES["float16"]),
    "bfloat16_linear": (lambda: nn.Linear(6, 3).bfloat16(), DTYPES["bfloat16"]),
    "bfloat16_convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3)
        ).bfloat16(),
        normal(1, 3, 9, 9, dtype=torch.bfloat16),
    ),
    "bfloat16_lstm": (lambda: _Outputs(nn.LSTM(6, 8).bfloat16()), DTYPES["bfloat16"]),
    "half_gru": (lambda: _Outputs(nn.GRU(6, 8).half()), DTYPES["float16"]),
    "bfloat16_encoder_layer": (
        lambda: nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True).bfloat16(),
        normal(2, 5, 16, dtype=torch.bfloat16),
    ),
    "float64_network": (lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2)).double(), DTYPES["float64"]),
}

PROGRAMS = [
    *_pairs(),
    *_same(DTYPES),
    *functions("dtypes", OTHERS),
    *with_gradients(modules("dtypes", MODULES, layers=4)),
]
