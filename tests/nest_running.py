"""Compile single nests to kernels and call them on numpy arrays, with a slow reference for the values of nests."""

from __future__ import annotations

import ctypes
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from llvmlite import binding

from torchmdla.compiler.program import Program, Target
from torchmdla.devices.cpu.codegen.kernels import KernelCode, write_kernel
from torchmdla.devices.cpu.ir.expressions import Expression, contents
from torchmdla.devices.cpu.ir.kernel_spec import AnyNest, KernelSpec, Operand
from torchmdla.devices.cpu.schedule import Schedule, choose_schedule
from torchmdla.devices.cpu.target.machine import Machine
from torchmdla.devices.cpu.tuning import measuring

KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)

DTYPES = {"f32": np.float32, "f64": np.float64, "i8": np.int8, "i32": np.int32, "i64": np.int64}

FUNCTIONS = {
    "arith.addf": np.add,
    "arith.subf": np.subtract,
    "arith.mulf": np.multiply,
    "arith.maximumf": np.maximum,
    "arith.minimumf": np.minimum,
    "arith.addi": np.add,
    "arith.muli": np.multiply,
    "arith.maxsi": np.maximum,
    "arith.minsi": np.minimum,
    "math.absf": np.abs,
}


def host_target(*features: str) -> Target:
    """Return this machine, with only the given features if there are any. ``""`` stands for an empty list."""
    every = binding.get_host_cpu_features().flatten()
    return Target(
        "cpu", binding.get_process_triple(), binding.get_host_cpu_name(), ",".join(features) if features else every
    )


MACHINE = Machine.of(host_target())


def mark_prefetches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make compiled kernels store a one-byte 1 instead of each prefetch."""
    numbers = itertools.count()

    def store(match: re.Match[str]) -> str:
        name = f"%mark{next(numbers)}"
        return f"{name} = llvm.mlir.constant(1 : i8) : i8\nllvm.store {name}, {match[1]} : i8, !llvm.ptr"

    def marked(*arguments: Any) -> KernelCode:
        code = write_kernel(*arguments)
        return replace(code, text=re.sub(r'"llvm.intr.prefetch"\((%\w+)\).*', store, code.text))

    monkeypatch.setattr(measuring, "write_kernel", marked)


class Kernel(measuring.Kernel):
    """Kernel of a nest, for a target, with a given schedule or the one that costs choose.

    ``typical`` are the values of the symbols that the schedule of a dynamic nest is chosen for.
    """

    def __init__(
        self,
        nest: AnyNest,
        target: Target | None = None,
        schedule: Schedule | None = None,
        typical: tuple[int, ...] = (),
    ) -> None:
        program = Program("", (), (), target or host_target())
        super().__init__(nest, schedule or choose_schedule(nest, Machine.of(program.target), typical), program)

    def __call__(self, arrays: Sequence[np.ndarray], tasks: int = 1, values: Sequence[int] = ()) -> None:
        """Run the whole range as ``tasks`` calls, the last one first.

        ``arrays`` are in the order of :class:`~torchmdla.devices.cpu.ir.kernel_spec.KernelSpec`. An operand starts at
        its array's first element. ``values`` are those of the symbols.
        """
        arrays = [*arrays, *([np.array(values, np.int64)] if values else ())]
        operands = (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))
        edges = [self.iterations(values) * k // tasks for k in range(tasks + 1)]
        for begin, end in reversed(list(itertools.pairwise(edges))):
            self.function(ctypes.addressof(operands), begin, end)


def span(operand: Operand, sizes: Sequence[int]) -> int:
    """Return the number of elements from the operand's first to its last. An empty loop counts as one iteration."""
    return 1 + sum(max(size - 1, 0) * stride for size, stride in zip(sizes, operand.strides, strict=True))


def reference(nest: KernelSpec, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return every stored operand after the nest has run on ``arrays`` (flat), computed by whole-array numpy."""
    retained = tuple(1 if flag else size for size, flag in zip(nest.sizes, nest.reduction, strict=True))
    views = [
        _view(array, operand, nest.sizes if position < len(nest.inputs) else retained)
        for position, (array, operand) in enumerate(zip(arrays, nest.operands, strict=False))
    ]
    scalars = [array[0] for array in arrays[len(views) + len(nest.tables) :]]
    first = len(nest.inputs)
    if nest.accumulates:
        results = _reduced(nest, views, scalars)
    else:
        results = _evaluated(nest.values, {"operand": views, "scalar": scalars, "accumulator": views[first:]})
    if nest.epilogue is not None:
        results = _evaluated(nest.epilogue.values, {"operand": views, "scalar": scalars, "reduced": results})
        first += len(nest.epilogue.inputs)
    stored = []
    for position, result in zip(range(first, len(nest.operands)), results, strict=True):
        copy = arrays[position].copy()
        _view(copy, nest.operands[position], retained)[...] = result
        stored.append(copy)
    return stored


def _view(array: np.ndarray, operand: Operand, sizes: Sequence[int]) -> np.ndarray:
    strides = [array.itemsize * stride for stride in operand.strides]
    return np.lib.stride_tricks.as_strided(array, tuple(sizes), strides)


def _evaluated(roots: Sequence[Expression], leaves: Mapping[str, Sequence[object]]) -> list[np.ndarray]:
    """Evaluate expressions. ``leaves`` maps an operation and a number to a value."""
    values = {}
    for expression in contents(tuple(roots)).expressions:
        if expression.op == "constant":
            values[expression] = DTYPES[expression.type](expression.payload)
        elif expression.op in leaves:
            values[expression] = leaves[expression.op][expression.payload]
        else:
            values[expression] = FUNCTIONS[expression.op](*(values[operand] for operand in expression.operands))
    return [np.asarray(values[root]) for root in roots]


def _reduced(nest: KernelSpec, views: Sequence[np.ndarray], scalars: Sequence[object]) -> list[np.ndarray]:
    """Compute the reduction, element by element along the reduction loops."""
    loops = [d for d, flag in enumerate(nest.reduction) if flag]
    outputs = [nest.outputs[k] for k in range(len(nest.outputs))]
    shape = tuple(1 if d in loops else size for d, size in enumerate(nest.sizes))
    if nest.initial is not None:
        start = _evaluated([nest.initial], {})[0]
        totals = [np.full(shape, start, DTYPES[o.element]) for o in outputs]
    else:
        totals = [view.copy() for view in views[len(nest.inputs) :][: len(outputs)]]
    for steps in itertools.product(*(range(nest.sizes[d]) for d in loops)):
        at = dict(zip(loops, steps, strict=True))
        cut = tuple(slice(at[d], at[d] + 1) if d in at else slice(None) for d in range(len(nest.sizes)))
        inputs = [view[cut] for view in views[: len(nest.inputs)]]
        totals = _evaluated(nest.values, {"operand": inputs, "scalar": scalars, "accumulator": totals})
    return totals
