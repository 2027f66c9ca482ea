"""Vector maths of the cpu device: every function over the range of floats, against double precision."""

from __future__ import annotations

import ctypes
import math
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
from torchmdla.devices.cpu.ir.expressions import Expression, constant, numbered_value, operation
from torchmdla.devices.cpu.ir.kernel_spec import KernelSpec, Operand
from torchmdla.devices.cpu.schedule import choose_schedule
from torchmdla.devices.cpu.target.function_identities import apply_identities
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


def mish_factor(x: torch.Tensor) -> torch.Tensor:
    n = torch.exp(x.clamp(max=100)) * (torch.exp(x.clamp(max=100)) + 2)
    return n / (n + 2)


X, LARGE, ROOT = numbered_value("operand", "f32", 0), constant(20.0, "f32"), constant(math.sqrt(2.0), "f32")
ONE, HALF = constant(1.0, "f32"), constant(0.5, "f32")


def op(name: str, *operands: Expression, type: str = "f32", attributes: str = "") -> Expression:
    return operation(name, operands, type, attributes)


def compare(predicate: int, bound: Expression) -> Expression:
    return op("arith.cmpf", X, bound, type="i1", attributes=f"{{predicate = {predicate} : i64}}")


def softplus(value: Expression) -> Expression:
    return op("arith.select", compare(2, LARGE), X, value)


RECTIFIED = op("arith.select", compare(10, constant(0.0, "f32")), X, constant(0.0, "f32"))
OF_SIZE = op("math.log1p", op("math.exp", op("arith.negf", op("math.absf", X))))
EXPONENTIAL = op("arith.addf", op("math.exp", op("arith.negf", X)), ONE)

# Compositions that have an expansion of their own: the expression, its exact value, and the functions left out.
COMPOSED: dict[str, tuple[Expression, Callable[[torch.Tensor], torch.Tensor], frozenset[str]]] = {
    "erf of a quotient": (
        op("math.erf", op("arith.divf", X, ROOT)),
        lambda x: torch.erf(x / float(ROOT.payload)),
        frozenset(("arith.divf",)),
    ),
    "erf of a product": (op("math.erf", op("arith.mulf", HALF, X)), lambda x: torch.erf(x / 2), frozenset()),
    "tanh of softplus": (
        op("math.tanh", softplus(op("math.log1p", op("math.exp", X)))),
        mish_factor,
        frozenset(("math.copysign",)),
    ),
    "tanh of a sum": (
        op("math.tanh", softplus(op("arith.addf", RECTIFIED, OF_SIZE))),
        mish_factor,
        frozenset(("math.copysign",)),
    ),
    "tanh plus 1": (
        op("arith.addf", op("math.tanh", X), ONE),
        lambda x: 2 * torch.sigmoid(2 * x),
        frozenset(("math.copysign",)),
    ),
    "sigmoid": (op("arith.divf", ONE, EXPONENTIAL), torch.sigmoid, frozenset()),
}


def nest_of(value: Expression, size: int) -> KernelSpec:
    operand = Operand(value.type, (1,))
    return KernelSpec((size,), (False,), (operand,), (operand,), (value,))


def unary(name: str, size: int, element: str, machine: Machine) -> KernelSpec:
    value = operation(name, [numbered_value("operand", element, 0)], element)
    return expand(nest_of(value, size), machine)


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
            image = to_object(module, HOST, "kernel", ())
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
    check_exact(EXACT[name](values.double()), values, actual)


def check_exact(exact: torch.Tensor, values: torch.Tensor, actual: torch.Tensor) -> None:
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


# The host, one with tables of eight numbers only, and one with only the instructions that all machines have.
MACHINES = {
    "host": Machine.of(HOST),
    "eighths": Machine(32, 16, lookup=min(8, Machine.of(HOST).lookup)),
    "plain": Machine(32, 16),
}


@pytest.mark.parametrize("name", sorted(EXACT))
@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.sampled(1)
def test_within_four_ulp_over_the_whole_range(name: str, machine: Machine) -> None:
    values = torch.cat([floats_of_every_kind(), thresholds()])
    for part in values.split(1 << 22):
        check(name, part, apply(name, part, machine))


@pytest.mark.parametrize("name", COMPOSED)
@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_compositions(name: str, machine: Machine) -> None:
    value, exact, absent = COMPOSED[name]
    values = torch.cat([floats_of_every_kind()[::97], thresholds(), torch.linspace(-12, 12, 100_001)])
    nest, actual = expand(nest_of(value, values.numel()), machine), torch.empty_like(values)
    assert absent.isdisjoint(e.op for e in nest.body)
    Kernel(nest, machine)([values, actual])
    wanted = exact(values.double())
    # Results below the normal range may be 0, as those of eager's sigmoid are, whose exponential is infinite there.
    is_compared = (actual != 0) | (wanted.abs() > torch.finfo(torch.float32).smallest_normal) | (wanted == 0)
    check_exact(wanted[is_compared], values[is_compared], actual[is_compared])


def test_scaled_sum_is_one_instruction() -> None:
    nest = expand(nest_of(op("arith.mulf", op("arith.addf", X, ONE), HALF), 1 << 16), Machine.of(HOST))
    assert [e.op for e in nest.body if e.op != "constant"] == ["math.fma"]
    values = torch.cat([torch.linspace(-3, 3, 60_000), floats_of_every_kind()[: (1 << 16) - 60_000]])
    actual = torch.empty_like(values)
    Kernel(nest, Machine.of(HOST))([values, actual])
    assert torch.equal(actual.nan_to_num(7.0), ((values + 1) * 0.5).nan_to_num(7.0))


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(
            op("math.tanh", op("arith.select", compare(2, ONE), X, op("math.log1p", op("math.exp", X)))),
            id="a bound where tanh is not 1",
        ),
        pytest.param(
            op("math.tanh", op("arith.select", compare(4, LARGE), X, op("math.log1p", op("math.exp", X)))),
            id="values below a bound",
        ),
        pytest.param(op("math.tanh", op("math.log1p", X)), id="no exponential"),
        pytest.param(
            op("arith.mulf", op("math.tanh", X), op("arith.addf", op("math.tanh", X), ONE)), id="another reader of tanh"
        ),
    ],
)
def test_other_compositions_stay(value: Expression) -> None:
    assert apply_identities([value]) == (value,)


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
