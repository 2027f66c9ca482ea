"""Merge of a program's samples into one list of steps for all sizes, with polynomials in the place of numbers.

The samples are walked side by side. Names, types, structure and the identity of buffers must agree. Numbers that differ
become :class:`~torchmdla.compiler.sizes.Size`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from torchmdla.compiler.program import Program
from torchmdla.compiler.sizes import NoPolynomial, Size, at, fit, static
from torchmdla.devices.cpu.ir.accesses import Buffer, Scalar
from torchmdla.devices.cpu.ir.expressions import Expression, constant, operation, size
from torchmdla.devices.cpu.ir.loop_program import LoopProgram, OutlinedRegion, ScalarStep
from torchmdla.devices.cpu.passes.precompute import has_dynamic_sizes
from torchmdla.errors import CompileError

# Fields whose numbers count elements or iterations. In all other fields, a number is an identifier.
_COUNTS = frozenset(("sizes", "strides", "factors", "constant", "offset", "extents", "count", "distance"))

# Types in which a number of the program may be a rounded quotient of sizes.
_ROUNDED: Mapping[str, Callable[[float], Any]] = {"f32": np.float32, "f64": float}


def mark_varying(samples: Sequence[LoopProgram]) -> None:
    """Set each sample's ``varying`` to the sizes of buffers that do not occur in all samples."""
    every = [{static(size) for buffer in steps.buffers() for size in buffer.sizes} for steps in samples]
    common = every[0].intersection(*every)
    for steps, sizes in zip(samples, every, strict=True):
        steps.varying = frozenset(sizes - common)


def generalise(program: Program, samples: Sequence[LoopProgram]) -> LoopProgram:
    """Return the steps of a program, merged from those of its samples; a static program has a single sample.

    Raises:
        CompileError: The samples differ in more than numbers, or a number is not a polynomial of the symbols.
    """
    if len(samples) == 1:
        return samples[0]
    general: LoopProgram = _Generaliser(program).merge([replace(sample, varying=frozenset()) for sample in samples])
    general.typical = program.symbols
    if any(has_dynamic_sizes(step) for packing in general.packings for step in packing.steps):
        raise not_dynamic("what is made of the weights ahead depends on the sizes")
    return general


def not_dynamic(reason: str) -> CompileError:
    """Return the error of a program that has to be compiled for each of its sizes.

    ``reason`` calls these sizes "the sizes".
    """
    return CompileError(f"the program is not dynamic: {reason}")


class _Generaliser:
    def __init__(self, program: Program) -> None:
        self._values = [sample.values for sample in program.samples]
        self._quotients = program.quotients
        # For each sample, the merged buffers and scalars, by the id of the sample's own.
        self._known: list[dict[int, Any]] = [{} for _ in self._values]
        self._expressions: dict[tuple[Expression, ...], Expression] = {}

    def merge(self, things: Sequence[Any], counts: bool = False) -> Any:
        """Return the merged form of the samples' ``things``; ``counts``: integers among them are counts."""
        first = things[0]
        if any(type(thing) is not type(first) for thing in things):
            raise not_dynamic("which operations it runs depends on the sizes")
        if isinstance(first, Buffer | Scalar):
            return self._merge_identity(things)
        if isinstance(first, Expression):
            return self._merge_expression(tuple(things))
        if isinstance(first, ScalarStep):
            return self._merge_scalar_step(things)
        if isinstance(first, OutlinedRegion) and any(thing.text != first.text for thing in things):
            raise not_dynamic("an op that has no kernels (a scan, a sort, a loop) works on what varies with the sizes")
        if isinstance(first, LoopProgram) and any(thing.globals != first.globals for thing in things):
            raise not_dynamic("the values of a constant tensor depend on the sizes")
        if is_dataclass(first):
            return self._merge_record(things)
        if isinstance(first, frozenset):  # of nodes, for debugging
            return first.union(*things)
        if isinstance(first, tuple | list):
            return type(first)(self._merge_items(things, counts))
        if isinstance(first, dict):
            return dict(self._merge_items([list(thing.items()) for thing in things], counts))
        if type(first) is int and counts:
            return self._merge_count(things)
        if any(thing != first for thing in things):
            raise not_dynamic(f"a constant depends on the sizes ({first}, {next(t for t in things if t != first)})")
        return first

    def _merge_items(self, things: Sequence[Any], counts: bool) -> list[Any]:
        if len({len(thing) for thing in things}) > 1:
            raise not_dynamic("how many operations it runs depends on the sizes")
        return [self.merge(items, counts) for items in zip(*things, strict=True)]

    def _merge_identity(self, things: Sequence[Any]) -> Any:
        """Return the merged buffer or scalar, and check that identity agrees in all samples."""
        known = [self._known[k].get(id(thing)) for k, thing in enumerate(things)]
        if any(other is not known[0] for other in known):
            raise not_dynamic("which values share memory depends on the sizes")
        if known[0] is None:
            merged = self._merge_record(things)
            for k, thing in enumerate(things):
                self._known[k][id(thing)] = merged
            return merged
        return known[0]

    def _merge_record(self, things: Sequence[Any]) -> Any:
        """Return a merged dataclass, field by field."""
        names = [field.name for field in fields(things[0]) if field.init]
        return type(things[0])(
            **{name: self.merge([getattr(thing, name) for thing in things], name in _COUNTS) for name in names}
        )

    def _merge_count(self, numbers: Sequence[int]) -> int | Size:
        try:
            return fit(self._values, numbers)
        except NoPolynomial:
            raise not_dynamic(f"a count is not a polynomial of the sizes: {_table(self._values, numbers)}") from None

    def _merge_expression(self, things: tuple[Expression, ...]) -> Expression:
        """Return a merged expression; a constant that varies becomes an expression that reads a size."""
        waiting = [things]
        while waiting:
            group = waiting[-1]
            operands = list(zip(*(expression.operands for expression in group), strict=False))
            missing = [each for each in operands if each not in self._expressions]
            if missing:
                waiting += missing
                continue
            waiting.pop()
            if group not in self._expressions:
                self._expressions[group] = self._merge_node(group, tuple(self._expressions[each] for each in operands))
        return self._expressions[things]

    def _merge_node(self, group: Sequence[Expression], operands: tuple[Expression, ...]) -> Expression:
        first = group[0]
        forms = {(e.op, len(e.operands), e.type, e.attributes) for e in group}
        if len(forms) > 1:
            raise not_dynamic("what it computes depends on the sizes")
        if first.op == "constant":
            if all(expression is first for expression in group):
                return first
            numbers = [expression.payload for expression in group]
            return self._quotient(numbers, first.type) or size(self._merge_constants(numbers), first.type)
        payload = self.merge([expression.payload for expression in group])
        return first.replace(operands, payload)

    def _quotient(self, numbers: Sequence[float], type: str) -> Expression | None:
        """Return the quotient of sizes that all numbers agree with, or None.

        The quotient is computed in ``type``, as PyTorch's kernels do.
        """
        if type not in _ROUNDED:
            return None
        rounded = _ROUNDED[type]
        for sizes in self._quotients:
            quotients = [at(sizes[0], values) / at(sizes[1], values) for values in self._values]
            if all(rounded(quotient) == rounded(number) for quotient, number in zip(quotients, numbers, strict=True)):
                operands = [size(each, type) if isinstance(each, Size) else constant(each, type) for each in sizes]
                return operation("arith.divf", operands, type)
        return None

    def _merge_scalar_step(self, things: Sequence[ScalarStep]) -> ScalarStep:
        first = things[0]
        if first.name != "constant" or all(thing.value == first.value for thing in things):
            step: ScalarStep = self._merge_record(things)
            return step
        result = self.merge([thing.result for thing in things])
        return ScalarStep("constant", (), "", result, self._merge_constants([thing.value for thing in things]))

    def _merge_constants(self, constants: Sequence[object]) -> Size:
        """Return the polynomial of constants that differ."""
        numbers = [int(n) for n in constants if isinstance(n, int | float) and float(n).is_integer()]
        shown = ", ".join(map(str, constants))
        if len(numbers) < len(constants) or any(isinstance(n, bool) for n in constants):
            raise not_dynamic(f"a number is computed from the sizes ahead: {shown}")
        size = self._merge_count(numbers)
        if not isinstance(size, Size):
            raise not_dynamic(f"a constant has several names: {shown}")
        return size


def _table(values: Sequence[Sequence[int]], numbers: Sequence[int]) -> str:
    return ", ".join(f"{number} at {tuple(at)}" for at, number in zip(values, numbers, strict=True))
