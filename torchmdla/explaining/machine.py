"""Peak performance of the processor: fused multiply-adds in registers, and copies of memory.

Both loops are LLVM IR that is defined here and compiled by llvmlite. They are therefore independent of the measured
code. They run outside the GIL, on the requested number of threads.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from functools import cache, partial

import torch
from llvmlite import binding

from torchmdla import devices
from torchmdla.report.explanation import Peak

# Two units with a latency of four or five cycles need ten sums in flight; sixteen vector registers hold twelve.
_SUMS = 12
_COPY_UNROLL = 4
_FLOAT_BYTES = 4
# A thread takes about 50 µs to start, so a call must take milliseconds.
_BYTES_A_CALL = 1 << 28

# Bytes read and written: more than the caches hold, so that the copy runs at the speed of memory.
_COPIED_BYTES = 128 << 20

# Each call takes some milliseconds, and the fastest counts.
_LEAST_REPEATS, _SECONDS = 5, 0.1


@cache
def vector_width() -> int:
    """Return the number of float32 elements in the widest vector that programs for the CPU use."""
    features = devices.get("cpu").target().features.split(",")
    return next((width for name, width in (("+avx512f", 16), ("+avx", 8)) if name in features), 4)


class Multiplier:
    """Benchmark of chains of fused multiply-adds that access no memory.

    On a processor without such an instruction, it runs multiplications and additions. A call takes some milliseconds.

    Args:
        threads: number of concurrent threads.
        steps: number of steps of each thread.
    """

    def __init__(self, threads: int = 1, steps: int = 2_000_000) -> None:
        self._function = _compile_functions()[0]
        self._threads = threads
        self._steps = steps
        self._out = [(ctypes.c_float * vector_width())() for _ in range(threads)]
        # Floating-point operations of one call, two for each multiply-add.
        self.work = threads * steps * _SUMS * vector_width() * 2

    def __call__(self) -> None:
        _run_on_threads([partial(self._function, self._steps, ctypes.addressof(out)) for out in self._out])


class Copier:
    """Benchmark that copies ``bytes_moved / 2`` bytes, so that as many are read as written.

    A call repeats the copy, so that the cost of the call is small. The data stays in the caches that the buffers fit.

    Args:
        bytes_moved: bytes read and written, by all threads together.
        threads: number of concurrent threads; each copies a part.
    """

    def __init__(self, bytes_moved: int, threads: int = 1) -> None:
        self._function = _compile_functions()[1]
        block = vector_width() * _COPY_UNROLL
        floats = max(bytes_moved // 2 // _FLOAT_BYTES // threads // block, 1) * block
        self._parts = [(_Buffer(floats), _Buffer(floats)) for _ in range(threads)]
        self._floats = floats
        self._repeat = max(1, _BYTES_A_CALL // bytes_moved)
        # Bytes read and written by one call.
        self.work = threads * floats * _FLOAT_BYTES * 2 * self._repeat

    def __call__(self) -> None:
        _run_on_threads(
            [
                partial(self._function, self._floats, source.address, target.address, self._repeat)
                for source, target in self._parts
            ]
        )


class _Buffer:
    """Floats that begin at a cache line.

    Every page is written to, so that each page has its own memory.
    """

    def __init__(self, floats: int) -> None:
        self._memory = ctypes.create_string_buffer(floats * _FLOAT_BYTES + 64)
        ctypes.memset(self._memory, 1, len(self._memory))
        self.address = -(-ctypes.addressof(self._memory) // 64) * 64


def _run_on_threads(calls: list[Callable[[], object]]) -> None:
    """Run all calls concurrently, the first on the calling thread."""
    others = [threading.Thread(target=call) for call in calls[1:]]
    for thread in others:
        thread.start()
    calls[0]()
    for thread in others:
        thread.join()


@cache
def _compile_functions() -> tuple[Callable[[int, int], None], Callable[[int, int, int, int], None]]:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    module = binding.parse_assembly(_multiply_add_ir() + _copy_ir())
    module.verify()
    machine = binding.Target.from_default_triple().create_target_machine(
        cpu=binding.get_host_cpu_name(), features=binding.get_host_cpu_features().flatten(), opt=3
    )
    engine = binding.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    _kept.append(engine)
    multiply = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p)(engine.get_function_address("multiply_add"))
    copy = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(
        engine.get_function_address("copy_floats")
    )
    return multiply, copy


_kept: list[binding.ExecutionEngine] = []  # Code is valid as long as its engine exists.


def _multiply_add_ir() -> str:
    """Return the IR of ``multiply_add(steps, out)``.

    Each step is one multiply-add on each sum. The total of the sums is stored to ``out``.
    """
    vector = f"<{vector_width()} x float>"
    fma = f"@llvm.fmuladd.v{vector_width()}f32"
    ones = f"<{', '.join(['float 1.0'] * vector_width())}>"
    factor = f"<{', '.join(['float 0.5'] * vector_width())}>"
    # Each sum has another start value, because equal chains could be computed once.
    starts = [f"<{', '.join([f'float {i}.0'] * vector_width())}>" for i in range(_SUMS)]
    start = [f"  %s{i} = phi {vector} [ {starts[i]}, %entry ], [ %n{i}, %loop ]" for i in range(_SUMS)]
    step = [f"  %n{i} = call {vector} {fma}({vector} %s{i}, {vector} {factor}, {vector} {ones})" for i in range(_SUMS)]
    total = [f"  %t{i} = fadd {vector} %{f't{i - 1}' if i > 1 else 'n0'}, %n{i}" for i in range(1, _SUMS)]
    return "\n".join(
        [
            f"declare {vector} {fma}({vector}, {vector}, {vector})",
            "define void @multiply_add(i64 %steps, ptr %out) {",
            "entry:",
            "  br label %loop",
            "loop:",
            "  %i = phi i64 [ 0, %entry ], [ %next, %loop ]",
            *start,
            *step,
            "  %next = add i64 %i, 1",
            "  %more = icmp ult i64 %next, %steps",
            "  br i1 %more, label %loop, label %end",
            "end:",
            *total,
            f"  store {vector} %t{_SUMS - 1}, ptr %out, align 4",
            "  ret void",
            "}",
            "",
        ]
    )


def _copy_ir() -> str:
    """Return the IR of ``copy_floats(count, source, target, repeat)`` with plain loads and stores.

    ``count`` is a multiple of the elements that a step copies.
    """
    width = vector_width()
    vector = f"<{width} x float>"
    body = []
    for i in range(_COPY_UNROLL):
        body += [
            f"  %o{i} = add i64 %i, {i * width}",
            f"  %a{i} = getelementptr float, ptr %source, i64 %o{i}",
            f"  %b{i} = getelementptr float, ptr %target, i64 %o{i}",
            f"  %v{i} = load {vector}, ptr %a{i}, align 64",
            f"  store {vector} %v{i}, ptr %b{i}, align 64",
        ]
    return "\n".join(
        [
            "define void @copy_floats(i64 %count, ptr %source, ptr %target, i64 %repeat) {",
            "entry:",
            "  br label %again",
            "again:",
            "  %r = phi i64 [ 0, %entry ], [ %done, %finished ]",
            "  br label %loop",
            "loop:",
            "  %i = phi i64 [ 0, %again ], [ %next, %loop ]",
            *body,
            f"  %next = add i64 %i, {_COPY_UNROLL * width}",
            "  %more = icmp ult i64 %next, %count",
            "  br i1 %more, label %loop, label %finished",
            "finished:",
            "  %done = add i64 %r, 1",
            "  %left = icmp ult i64 %done, %repeat",
            "  br i1 %left, label %again, label %end",
            "end:",
            "  ret void",
            "}",
            "",
        ]
    )


def peak() -> Peak:
    """Return the peak for PyTorch's number of threads, which is measured at the first call with that number."""
    return _measure_peak(torch.get_num_threads())


@cache
def _measure_peak(threads: int) -> Peak:
    multiplier, copier = Multiplier(threads), Copier(_COPIED_BYTES, threads)
    return Peak(
        threads,
        gflops=multiplier.work / _least_seconds(multiplier) * 1e-9,
        gigabytes=copier.work / _least_seconds(copier) * 1e-9,
    )


def _least_seconds(call: Callable[[], object]) -> float:
    taken: list[float] = []
    while len(taken) < _LEAST_REPEATS or sum(taken) < _SECONDS:
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return min(taken)
