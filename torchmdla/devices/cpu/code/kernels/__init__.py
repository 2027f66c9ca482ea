"""The code of a kernel: a nest computed as its schedule says, as MLIR text.

A kernel is ``void(void *const *operands, int64_t begin, int64_t end)`` over operands in the order of
:class:`~torchmdla.devices.cpu.kernel_spec.KernelSpec`: buffers, tables, scalars, if the nest may fail an ``i32`` that
it sets to 1 when an index is out of bounds or a condition fails, the values of the symbols if the nest is dynamic, and
what the schedule fetches beside operands.

Each module writes what the ones before it in this list know nothing of: ``code`` (lines, scopes, constants, sizes),
``instructions`` (of a nest's body), ``memory`` (operands, masks), ``turned`` (blocks of operands,
transposed), ``tile`` (values at the points of the register tile),
``reduction`` (loops inside of it), ``loops`` (loops around it). What is an integer in a static nest may be the name of
a value in a dynamic one: an extent, a stride, how many lanes are left.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchmdla.devices.cpu.code.kernels.loops import LoopWriter
from torchmdla.devices.cpu.kernel_spec import AnyNest
from torchmdla.devices.cpu.machine import Machine
from torchmdla.devices.cpu.schedule import Schedule

__all__ = ["KernelCode", "write_kernel"]


@dataclass(frozen=True)
class KernelCode:
    """MLIR text of one function and the external functions that it calls, with their types. ``{symbol}`` stands for
    the function's name, which is no part of what it does."""

    text: str
    externals: tuple[tuple[str, str], ...]


def write_kernel(
    nest: AnyNest, schedule: Schedule, machine: Machine, attributes: str, *, has_infinities: bool = False
) -> KernelCode:
    """The kernel of ``nest``; ``attributes`` are those of the function, as MLIR text. ``has_infinities``: whether
    values of the module are known not to be finite."""
    writer = LoopWriter(nest, schedule, machine)
    writer.has_infinities = has_infinities
    body = "\n".join(writer.write())
    head = "llvm.func internal @{symbol}(%operands: !llvm.ptr, %begin: i64, %end: i64)"
    text = f"{head} {attributes} {{\n{body}\n}}"
    return KernelCode(text, tuple(sorted(writer.externals.items())))
