"""Code of a kernel: a nest computed as its schedule specifies, as MLIR text.

A kernel is ``void(void *const *operands, int64_t begin, int64_t end)``. Its operands have the order of
:class:`~torchmdla.devices.cpu.ir.kernel_spec.KernelSpec`:

- buffers, tables, scalars;
- the status, if the nest may fail: an ``i32`` that is set to 1 if an index is out of bounds or a condition fails;
- the values of the symbols, if the nest is dynamic;
- the buffers that the schedule prefetches beside operands.

Each module in this list builds on the modules before it: ``code`` (lines, scopes, constants, sizes), ``instructions``
(of a nest's body), ``memory`` (operands, masks, transposed blocks), ``tile`` (values at the points of the register
tile), ``reduction`` (loops inside the register tile), ``loops`` (loops around it). An integer of a static nest may be
the name of a value in a dynamic nest: an extent, a stride, or the number of lanes left.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchmdla.devices.cpu.codegen.kernels.loops import LoopWriter
from torchmdla.devices.cpu.ir.kernel_spec import AnyNest
from torchmdla.devices.cpu.schedule import Schedule
from torchmdla.devices.cpu.target.machine import Machine

__all__ = ["KernelCode", "write_kernel"]


@dataclass(frozen=True)
class KernelCode:
    """MLIR text of one function, and the external functions that it calls, with their types.

    In the text, ``{symbol}`` stands for the function's name.
    """

    text: str
    externals: tuple[tuple[str, str], ...]


def write_kernel(
    nest: AnyNest, schedule: Schedule, machine: Machine, attributes: str, *, has_infinities: bool = False
) -> KernelCode:
    """Return the kernel of ``nest``.

    ``attributes`` are the function's attributes, as MLIR text. ``has_infinities`` is whether some values of the module
    are known not to be finite.
    """
    writer = LoopWriter(nest, schedule, machine)
    writer.has_infinities = has_infinities
    body = "\n".join(writer.write())
    head = "llvm.func internal @{symbol}(%operands: !llvm.ptr, %begin: i64, %end: i64)"
    text = f"{head} {attributes} {{\n{body}\n}}"
    return KernelCode(text, tuple(sorted(writer.externals.items())))
