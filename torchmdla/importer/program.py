"""Nodes of a graph in a program: numbers that follow from sizes are known, and the rest is computed."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchmdla.errors import CompileError
from torchmdla.importer.builder import ProgramBuilder, is_known
from torchmdla.importer.operands import Operand
from torchmdla.importer.schemas import is_metadata
from torchmdla.importer.trace import leaves
from torchmdla.importer.types import TensorMeta


class GraphProgram(ProgramBuilder):
    """:class:`~torchmdla.importer.reader.GraphBuilder` of programs."""

    def is_seen(self, op: str) -> bool:
        return is_metadata(op)

    def node(
        self, op: str, schema: torch._C.FunctionSchema | None, operands: Sequence[Operand], metas: Sequence[object]
    ) -> Sequence[Operand]:
        has_tensors = any(isinstance(leaf, TensorMeta) for leaf in leaves(metas))
        if not has_tensors and is_known(operands):
            return metas
        if not has_tensors and not _makes_floats(schema, metas):
            raise CompileError("it makes a number from data that is known only at run time", scope="place")
        if schema is None:
            raise CompileError("only operators of PyTorch's registry are supported in a group")
        return self.call(schema, operands, metas)


def _makes_floats(schema: torch._C.FunctionSchema | None, metas: Sequence[object]) -> bool:
    """Return whether all results are floats, which may be known only at run time."""
    returned = [] if schema is None else [result.type.kind() for result in schema.returns]
    return bool(returned) and all(
        isinstance(meta, float) and kind in ("FloatType", "NumberType")
        for meta, kind in zip(metas, returned, strict=True)
    )
