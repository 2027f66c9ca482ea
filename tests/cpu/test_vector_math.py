"""Vector maths of the cpu device: every function over the range of floats, against double precision."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy
import pytest
import torch
from llvmlite import binding
from nest_running import host_target
from torch_mlir import ir

from torchmdla.compiler.mlir import new_context
from torchmdla.compiler.program import Program
from torchmdla.devices.cpu.codegen.emit import to_llvm, to_object
from torchmdla.devices.cpu.codegen.entry import function_attributes
from torchmdla.devices.cpu.codegen.kernels import write_kernel
from torchmdla.devices.cpu.ir.expressions import numbered_value, operation
from torchmdla.devices.cpu.ir.kernel_spec import KernelSpec, Operand
from torchmdla.devices.cpu.schedule import choose_schedule
from torchmdla.devices.cpu.target.machine import Machine
from torchmdla.devices.cpu.target.vector_math import expand

MOST_ULP = 4.0

# Every float whose bits are a multiple of this prime: all exponents, both signs, and mantissas of any kind.
_STEP = 257

EXACT: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "math.erf": torch.erf,
    "math.exp": torch.exp,
    "math.exp2": torch.exp2,
    "math.expm1": torch.expm1,
    "math.log": torch.log,
    "math.log1p": torch.log1p,
    "math.tanh": torch.tanh,
}

HOST = host_target()


def unary(name: str, size: int, element: str, machine: Machine) -> KernelSpec:
    operand = Operand(element, (1,))
    value = operation(name, [numbered_value("operand", element, 0)], element)
    return expand(KernelSpec((size,), (False,), (operand,), (operand,), (value,)), machine)


class Kernel:
    """Kernel of a nest, compiled alone for a machine, with vectors of one value if ``scalar``."""

    def __init__(self, nest: KernelSpec, machine: Machine, scalar: bool = False) -> None:
        schedule = choose_schedule(nest, Machine(4, 16) if scalar else machine)
        code = write_kernel(nest, schedule, machine, function_attributes(Program("", (), (), HOST)))
        assert code.externals == ()
        text = code.text.replace("{symbol}", "kernel").replace("llvm.func internal", "llvm.func")
        with new_context(), ir.Location.unknown():
            module = ir.Module.parse(text)
            to_llvm(module, HOST, False)
            image = to_object(module, "kernel", ())
        binding.initialize_native_target()
        binding.initialize_native_asmprinter()
        self._jit = binding.create_lljit_compiler()
        builder = binding.JITLibraryBuilder().add_object_img(image)
        builder.export_symbol("kernel")
        self._library = builder.link(self._jit, "kernel")
        self._function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(
            self._library["kernel"]
        )
        self._iterations = schedule.iterations

    def __call__(self, tensors: Sequence[torch.Tensor]) -> None:
        pointers = (ctypes.c_void_p * len(tensors))(*(t.data_ptr() for t in tensors))
        self._function(pointers, 0, self._iterations)


def apply(name: str, values: torch.Tensor, machine: Machine, scalar: bool = False) -> torch.Tensor:
    result = torch.empty_like(values)
    element = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}[values.dtype]
    Kernel(unary(name, values.numel(), element, machine), machine, scalar)([values, result])
    return result


def floats_of_every_kind() -> torch.Tensor:
    bits = numpy.arange(0, 2**32, _STEP, dtype=numpy.uint64).astype(numpy.uint32)
    generator = numpy.random.default_rng(0)
    random = generator.integers(0, 2**32, 2**16, dtype=numpy.uint64).astype(numpy.uint32)
    # Values around zero, the smallest normal number, one, and infinity; NaNs with all kinds of payload.
    edges = [0x0, 0x00800000, 0x3F800000, 0x7F800000, 0x7FC00000, 0x7FFFFFFF]
    near = numpy.array([e + d for e in edges for d in range(-3, 4)], dtype=numpy.int64).astype(numpy.uint32)
    return torch.from_numpy(numpy.concatenate([bits, random, near, near | 0x80000000]).view(numpy.float32))


def thresholds() -> torch.Tensor:
    """Return every float near the places where functions overflow, underflow or saturate."""
    centres = [88.7228, -87.3365, -103.972, 128.0, -126.0, -149.0, -150.0, 9.01, 10.0, 3.92, 4.0, -17.33, -20.0, 0.3466]
    centres += [1.0, 5.96e-8, 1.19e-7]
    centres += [-c for c in centres]
    bits = torch.tensor(centres, dtype=torch.float32).view(torch.int32)
    return (bits[:, None] + torch.arange(-2000, 2000, dtype=torch.int32)).view(torch.float32).reshape(-1)


def ulps_off(actual: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Return the distance from the exact value, in units of the last place of the nearest float."""
    nearest = exact.to(torch.float32)
    finite = torch.isfinite(nearest)
    _, exponent = torch.frexp(torch.where(finite, nearest, torch.ones(())))
    unit = torch.ldexp(torch.ones((), dtype=torch.float64), torch.clamp(exponent, min=-125).to(torch.float64) - 24)
    return torch.where(finite, (actual.double() - exact).abs() / unit, torch.zeros((), dtype=torch.float64))


def check(name: str, values: torch.Tensor, actual: torch.Tensor) -> None:
    exact = EXACT[name](values.double())
    nearest = exact.to(torch.float32)
    # A finite value may be infinite only where rounding up by 4 ulp overflows, and the reverse.
    largest = torch.finfo(torch.float32).max
    clear = torch.isnan(nearest) | (exact.abs() < largest * (1 - 2e-7)) | (exact.abs() > largest * (1 + 5e-7))
    nearest, actual, exact, values = nearest[clear], actual[clear], exact[clear], values[clear]
    assert torch.equal(torch.isnan(actual), torch.isnan(nearest))
    infinite = torch.isinf(nearest)
    assert torch.equal(actual[infinite], nearest[infinite])
    error = ulps_off(actual, exact)
    worst = int(error.argmax())
    assert error[worst] <= MOST_ULP, (values[worst].item(), actual[worst].item(), exact[worst].item())
    zero = values == 0
    assert torch.equal(torch.signbit(actual[zero]), torch.signbit(nearest[zero]))


# The host, and a machine with only the instructions that all machines have.
MACHINES = {"host": Machine.of(HOST), "plain": Machine(32, 16)}


@pytest.mark.parametrize("name", sorted(EXACT))
@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.sampled(1)
def test_within_four_ulp_over_the_whole_range(name: str, machine: Machine) -> None:
    values = torch.cat([floats_of_every_kind(), thresholds()])
    for part in values.split(1 << 22):
        check(name, part, apply(name, part, machine))


@pytest.mark.parametrize("name", sorted(EXACT))
@pytest.mark.parametrize(("vector_bytes", "registers"), [(32, 16), (16, 32)], ids=["256-bit", "128-bit"])
def test_same_values_at_any_width(name: str, vector_bytes: int, registers: int) -> None:
    machine = replace(Machine.of(HOST), vector_bytes=vector_bytes, registers=registers)
    values = torch.cat([floats_of_every_kind()[::97], thresholds()])
    wide = apply(name, values, Machine.of(HOST))
    assert torch.equal(apply(name, values, machine).view(torch.int32), wide.view(torch.int32))
    assert torch.equal(apply(name, values, machine, scalar=True).view(torch.int32), wide.view(torch.int32))


@pytest.mark.parametrize("name", sorted(EXACT))
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_rounds_single_precision(name: str, dtype: torch.dtype) -> None:
    values = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    actual = apply(name, values, Machine.of(HOST))
    expected = apply(name, values.float(), Machine.of(HOST)).to(dtype)
    assert torch.equal(torch.isnan(actual), torch.isnan(expected))
    # x86's conversion to bfloat16 turns numbers below the normal range into zeros.
    numbers = (expected.float().abs() > 2.0**-126) | (values == 0)
    assert torch.equal(actual[numbers], expected[numbers])


@pytest.mark.parametrize("size", [1, 2, 15, 16, 17, 33])
def test_rest_of_a_vector(size: int) -> None:
    values = torch.linspace(-3, 3, size)
    check("math.tanh", values, apply("math.tanh", values, Machine.of(HOST)))


def test_double_precision_and_other_functions_stay() -> None:
    for name, element in (("math.exp", "f64"), ("math.sin", "f32")):
        assert [e.op for e in unary(name, 8, element, Machine.of(HOST)).body] == [name]
