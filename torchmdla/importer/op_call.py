"""A call of an operator, in one of the ways in which it may be written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from torchmdla.importer.emitter import Emitter
from torchmdla.importer.open_floats import has_open_float
from torchmdla.importer.operands import Operand
from torchmdla.importer.operators import Operator, operator
from torchmdla.importer.trace import qualified_name

Results = list[Operand] | None


@dataclass(frozen=True)
class OpCall:
    """What is called, with which operands and results. ``ways``: those that are tried, in order; ``within``: the
    operator whose decomposition it is part of; ``has_rounded_factors``: whether its factors are bfloat16 where they may
    be; ``has_converted_scalars``: whether its numbers and 0-d tensors are what eager's kernel makes of them."""

    ways: Sequence[Way]
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

    @cached_property
    def operator(self) -> Operator:
        return operator(self.name)

    @cached_property
    def has_open_float(self) -> bool:
        return has_open_float(self.operands)

    def written(self) -> list[Operand]:
        """Writes it in the first way that gives results."""
        found = (way(self) for way in self.ways)
        return next(results for results in found if results is not None)


Way = Callable[[OpCall], Results]
