"""Call of an operator, and the strategies by which it may be written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from torchmdla.importer.emitter import Emitter
from torchmdla.importer.operands import Operand
from torchmdla.importer.operators import Operator, operator
from torchmdla.importer.runtime_scalars import has_runtime_scalar
from torchmdla.importer.trace import qualified_name

Results = list[Operand] | None


@dataclass(frozen=True)
class OpCall:
    """Call of an operator with its operands and results.

    Attributes:
        strategies: the strategies that are tried, in order.
        emitter: receives the ops.
        schema: the operator's schema.
        operands: in the order of ``schema``.
        metas: the recorded type of each result.
        within: the operator whose decomposition contains this call.
        has_rounded_factors: whether its factors are already rounded to bfloat16 where the device allows it.
        has_converted_scalars: whether its numbers and 0-d tensors are already converted as in eager's kernel.
    """

    strategies: Sequence[Strategy]
    emitter: Emitter
    schema: torch._C.FunctionSchema
    operands: Sequence[Operand]
    metas: Sequence[object]
    within: str
    has_rounded_factors: bool = False
    has_converted_scalars: bool = False

    @cached_property
    def name(self) -> str:
        return qualified_name(self.schema)

    @property
    def named_operands(self) -> dict[str, Operand]:
        """Return the operands by the schema's names."""
        return dict(zip((argument.name for argument in self.schema.arguments), self.operands, strict=True))

    @cached_property
    def operator(self) -> Operator:
        return operator(self.name)

    @cached_property
    def has_runtime_scalar(self) -> bool:
        return has_runtime_scalar(self.operands)

    def write(self) -> list[Operand]:
        """Write the call by the first strategy that gives results, and return them."""
        attempts = (strategy(self) for strategy in self.strategies)
        return next(results for results in attempts if results is not None)


Strategy = Callable[[OpCall], Results]
