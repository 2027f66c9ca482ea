"""Measurement of one kernel alone: compiled, linked into this process, and timed on its own operands.

Data that a model reads once in a call (weights) is not in the caches when a kernel begins. Data that was just computed
is. So a bench has enough copies of the former to fill the caches, and uses them in turn. It runs on one thread and
measures that thread's time. Sharing a kernel's range among threads is measured in a whole program (``whole.py``).
"""

from __future__ import annotations

import ctypes
import itertools
import math
import time
from collections.abc import Collection, Mapping, Sequence

import numpy as np
from llvmlite import binding
from torch_mlir import ir

from torchmdla.compiler.mlir import new_context
from torchmdla.compiler.program import Program
from torchmdla.devices.cpu.codegen.emit import to_llvm, to_object
from torchmdla.devices.cpu.codegen.entry import declaration, function_attributes
from torchmdla.devices.cpu.codegen.kernels import write_kernel
from torchmdla.devices.cpu.codegen.loader import address_of
from torchmdla.devices.cpu.ir.element_types import storage_type
from torchmdla.devices.cpu.ir.kernel_spec import AnyNest, KernelSpec, Operand
from torchmdla.devices.cpu.schedule import Ahead, Schedule, count, ranges
from torchmdla.devices.cpu.target.machine import Machine

# The bytes of copies that evict each other from the caches, and the most copies.
_COLD_BYTES = 48 << 20
_MOST_COPIES = 128

# The alignment of each buffer, and the bytes around it that kernels may prefetch.
_ALIGNMENT = 64
_GUARD = 4096

# The least seconds of one timing of a kernel.
SPAN = 0.002

_DTYPES: Mapping[str, type] = {"f32": np.float32, "f64": np.float64, "i8": np.int8, "i32": np.int32, "i64": np.int64}

_SYMBOL = "kernel"
_KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
_serial = itertools.count()


class Unmeasurable(Exception):
    """Nest that cannot run on generated operands. The message is the reason."""


class Kernel:
    """Kernel of a nest and a schedule, loaded into this process.

    Attributes:
        nest: the nest.
        schedule: the schedule.
        text: the code in the LLVM dialect.
        object: the object code.
        function: the kernel, a function of the operands' pointers and of the range of its iterations.

    Raises:
        CompileError: the code is not valid.
    """

    def __init__(self, nest: AnyNest, schedule: Schedule, program: Program) -> None:
        self.nest, self.schedule = nest, schedule
        code = write_kernel(nest, schedule, Machine.of(program.target, program.options), function_attributes(program))
        externals = [declaration(name, kinds) for name, kinds in code.externals]
        self.text = "\n".join([*externals, code.text.replace("{symbol}", _SYMBOL).replace(" internal", "")])
        names = [name for name, _ in code.externals]
        with new_context(), ir.Location.unknown():
            module = ir.Module.parse(self.text)
            to_llvm(module, program.target, has_regions=False)
            self.object = to_object(module, program.target, _SYMBOL, names)
        builder = binding.JITLibraryBuilder().add_object_img(self.object).add_current_process()
        for name in names:
            builder.import_symbol(name, address_of(name))
        binding.initialize_native_target()
        binding.initialize_native_asmprinter()
        target = binding.Target.from_default_triple().create_target_machine(jit=True)
        self._jit = binding.create_lljit_compiler(target)
        self._library = builder.export_symbol(_SYMBOL).link(self._jit, f"alone{next(_serial)}")
        self.function = _KERNEL(self._library[_SYMBOL])

    def iterations(self, values: Sequence[int] = ()) -> int:
        """Return the iterations of its range, where the symbols have ``values``."""
        return count(ranges(self.nest, self.schedule), values)


class Bench:
    """Operands of a nest, and the calls and timings of its kernels.

    ``cold`` are the numbers of the operands that come from memory. ``ahead`` are the prefetches for other kernels.

    Raises:
        Unmeasurable: the nest has tables or checks, or elements of an unsupported type.
    """

    def __init__(self, nest: KernelSpec, cold: Collection[int], ahead: Ahead = ()) -> None:
        if nest.may_fail:
            raise Unmeasurable("it looks up, or checks, what depends on the data")
        if unknown := {storage_type(o.element) for o in nest.operands} - _DTYPES.keys():
            raise Unmeasurable(f"it has elements of type {min(unknown)}")
        self._generator = np.random.default_rng(0)
        first_output = len(nest.operands) - len(nest.epilogue.outputs if nest.epilogue else nest.outputs)
        self._written = [position for position, number in enumerate(nest.pointer_operands) if number >= first_output]
        size = sum(_span(nest, k)[1] * _bytes(nest.operands[k]) for k in nest.pointer_operands if k in cold)
        copies = max(1, min(_MOST_COPIES, -(-_COLD_BYTES // size))) if size else 1
        self._buffers = [
            [_Buffer(nest, k, self._generator) for _ in range(copies if k in cold else 1)]
            for k in nest.pointer_operands
        ]
        self._scalars: list[np.ndarray] = [np.ones(1, _DTYPES[storage_type(kind)]) for kind in nest.all_scalars]
        # The buffers beside the operands that the kernel prefetches are represented by the first result.
        pointers = max((fetch.beside + 1 for fetch in ahead if fetch.beside is not None), default=0)
        beside = [self._buffers[self._written[0]][0].address] * pointers
        others = [*(array.ctypes.data for array in self._scalars), *beside]
        self._pointers = [
            (ctypes.c_void_p * (len(self._buffers) + len(others)))(
                *(buffers[k % len(buffers)].address for buffers in self._buffers), *others
            )
            for k in range(copies)
        ]
        self._next = 0

    def results(self, kernel: Kernel) -> list[np.ndarray]:
        """Return the results of a kernel whose outputs start at zero."""
        outputs = [self._buffers[k][0] for k in self._written]
        for output in outputs:
            output.array[:] = 0
        kernel.function(self._pointers[0], 0, kernel.iterations())
        return [output.array.copy() for output in outputs]

    def seconds(self, kernel: Kernel, calls: int) -> float:
        """Return the seconds of one call, the mean of ``calls``."""
        iterations = kernel.iterations()
        # The thread's time, which other processes affect little.
        begin = time.thread_time()
        for _ in range(calls):
            kernel.function(self._pointers[self._next], 0, iterations)
            self._next = (self._next + 1) % len(self._pointers)
        return (time.thread_time() - begin) / calls

    def calls_in(self, kernel: Kernel, span: float = SPAN) -> int:
        """Return the number of calls that fill ``span`` seconds."""
        self.seconds(kernel, 1)
        return max(1, math.ceil(span / max(self.seconds(kernel, 1), 1e-7)))


def are_different(results: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> bool:
    """Return whether results differ by more than the reordering of sums explains."""
    return not all(
        np.allclose(result, wanted, rtol=1e-3, atol=1e-4 * float(np.max(np.abs(wanted), initial=0)), equal_nan=True)
        if result.dtype.kind == "f"
        else np.array_equal(result, wanted)
        for result, wanted in zip(results, expected, strict=True)
    )


class _Buffer:
    """Random elements for the pointer to operand ``number`` of a nest.

    Floats are normally distributed. Integers are 0 or 1.
    """

    def __init__(self, nest: KernelSpec, number: int, generator: np.random.Generator) -> None:
        dtype = np.dtype(_DTYPES[storage_type(nest.operands[number].element)])
        before, count = _span(nest, number)
        self._memory = np.zeros(count * dtype.itemsize + 2 * _GUARD + _ALIGNMENT, np.uint8)
        first = -(-(self._memory.ctypes.data + _GUARD) // _ALIGNMENT) * _ALIGNMENT
        begin = first - self._memory.ctypes.data
        self.array = self._memory[begin : begin + count * dtype.itemsize].view(dtype)
        if dtype.kind == "f":
            self.array[:] = generator.standard_normal(count, np.float32)
        else:
            self.array[:] = generator.integers(0, 2, count)
        self.address = first + before * dtype.itemsize


def _span(nest: KernelSpec, number: int) -> tuple[int, int]:
    """Return the number of elements before the one that an operand's pointer points to, and of all elements."""
    ends = [(size - 1) * stride for size, stride in zip(nest.sizes, nest.operands[number].strides, strict=True)]
    offsets = [0, *(operand.offset for operand in nest.operands if operand.base == number)]
    before = -sum(end for end in ends if end < 0) - min(offsets)
    return before, before + sum(end for end in ends if end > 0) + max(offsets) + 1


def _bytes(operand: Operand) -> int:
    return np.dtype(_DTYPES[storage_type(operand.element)]).itemsize
