"""Instructions of a nest's body, on scalars and vectors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from torchmdla.devices.cpu.codegen.kernels.code import CodeWriter, Value, vector_type
from torchmdla.devices.cpu.ir.element_types import ELEMENT_BYTES, typed_constant
from torchmdla.devices.cpu.ir.expressions import HALVES, SHORTS, Expression, operation
from torchmdla.devices.cpu.ir.kernel_spec import AnyNest
from torchmdla.devices.cpu.schedule.dataflow import multiply_adds, varying_loops
from torchmdla.devices.cpu.target import math_library
from torchmdla.devices.cpu.target.machine import Machine

# Floating-point types, with the bits of infinity.
INFINITY = {"f16": 0x7C00, "bf16": 0x7F80, "f32": 0x7F800000, "f64": 0x7FF0000000000000}

# The number of floats in an AVX-512 vector.
_WHOLE_VECTOR = 16

# The lookups in tables, by the number of floats in them.
_LOOKUPS = {8: "llvm.x86.avx2.permps", 16: "llvm.x86.avx512.permvar.sf.512"}

# Instructions that add dot products of words to a vector of 32-bit numbers, by the architecture and the elements of the
# left words. The intrinsics of x86 are named for the bits of vectors. The vectors have 4, 8 or 16 words.
_DOT_INSTRUCTIONS = {
    ("x86_64", "bf16"): "llvm.x86.avx512bf16.dpbf16ps.{bits}",
    ("x86_64", "i8"): "llvm.x86.avx512.vpdpbusd.{bits}",
    ("x86_64", "i16"): "llvm.x86.avx512.vpdpwssd.{bits}",
    ("aarch64", "bf16"): "llvm.aarch64.neon.bfdot.v4f32.v8bf16",
    ("aarch64", "i8"): "llvm.aarch64.neon.usdot.v4i32.v16i8",
}
_LEAST_LANES_OF_DOTS = 4

# Integer powers that eager mode also computes by products.
_SMALL_POWERS = (1, 2, 3)


class InstructionWriter(CodeWriter):
    """Writer of the instructions of one nest, with the external functions that they call.

    ``has_infinities`` is whether some values of the module are known not to be finite.
    """

    def __init__(self, nest: AnyNest, machine: Machine) -> None:
        super().__init__()
        self.nest = nest
        self.machine = machine
        self.varying = varying_loops(nest)
        self.multiply_adds = multiply_adds(nest) if machine.fused else {}
        self.has_infinities = False
        self.externals: dict[str, str] = {}

    def _apply(self, expression: Expression, operands: Sequence[Value]) -> Value:
        """Return the value of an expression for the values of its operands."""
        write = _SPECIAL.get(expression.op, InstructionWriter._emit)
        return write(self, expression, operands)

    def _constant_value(self, expression: Expression, operands: Sequence[Value]) -> Value:
        kind = expression.type
        return Value(self._define(f"arith.constant {typed_constant(expression.payload, kind)}"), kind)

    def _integer_power(self, expression: Expression, operands: Sequence[Value]) -> Value:
        base, exponent = operands
        power = expression.operands[1].payload if expression.operands[1].op == "constant" else None
        if power in _SMALL_POWERS:
            product = base
            for _ in range(power - 1):
                product = self._emit(operation("arith.mulf", (), base.element), [product, base])
            return product
        wanted = vector_type(base.element, exponent.lanes)
        real = self._define(f"arith.sitofp {exponent.name} : {exponent.type} to {wanted}")
        call = operation("math.powf", (), expression.type)
        return self._emit(call, [base, Value(real, base.element, exponent.lanes)])

    def _to_integer(self, expression: Expression, operands: Sequence[Value]) -> Value:
        """Convert a float to an integer. Floats without an integer value become the least integer, as on processors.

        LLVM does not define the result for such floats. If it knows from constants that a value is not finite, it
        chooses the cheapest result, also across kernels.
        """
        if not self.has_infinities:
            return self._emit(expression, operands)
        value = operands[0]
        if value.element not in ("f32", "f64"):
            value = self._resize(value, "f32", "arith.extf")
        wide = "i64" if expression.type == "i64" else "i32"
        least = -(2 ** (int(wide[1:]) - 1))

        def fill(number: float, element: str) -> Value:
            return self._broadcast(Value(self._literal(typed_constant(number, element)), element), value.lanes)

        size = self._emit(operation("math.absf", (), value.element), [value])
        limit = fill(-float(least), value.element)
        flags = self._define(f"arith.cmpf olt, {size.name}, {limit.name} : {size.type}")
        inside = Value(flags, "i1", value.lanes)
        operand = self._emit(operation("arith.select", (), value.element), [inside, value, fill(0.0, value.element)])
        converted = self._emit(operation("arith.fptosi", (), wide), [operand])
        result = self._emit(operation("arith.select", (), wide), [inside, converted, fill(least, wide)])
        return result if expression.type == wide else self._resize(result, expression.type, "arith.trunci")

    def _larger_number(self, expression: Expression, operands: Sequence[Value]) -> Value:
        """Return the larger number. One instruction is enough for an accumulator, which is never NaN."""
        if expression.operands[-1].op != "accumulator":
            return self._emit(expression, operands)
        lanes = max(v.lanes for v in operands)
        first, second = (self._broadcast(v, lanes) for v in operands)
        flags = self._define(f"arith.cmpf ogt, {first.name}, {second.name} : {first.type}")
        return self._emit(operation("arith.select", (), expression.type), [Value(flags, "i1", lanes), first, second])

    def _look_up(self, expression: Expression, operands: Sequence[Value]) -> Value:
        index, lanes = operands[0], expression.attributes.count(",") + 1
        table = Value(self._literal(f"dense<{expression.attributes}> : {vector_type('f32', lanes)}"), "f32", lanes)
        entries = self._intrinsic(_LOOKUPS[lanes], [table, self._pad(index, lanes)])
        return self._first_lanes(entries, index.lanes)

    def _scale(self, expression: Expression, operands: Sequence[Value]) -> Value:
        value, exponent = operands
        wide = self._pad(value)
        every_lane = Value(self._literal("-1 : i16"), "i16")
        # The current rounding mode (_MM_FROUND_CUR_DIRECTION).
        rounding = Value(self._literal("4 : i32"), "i32")
        arguments = [wide, self._pad(exponent), wide, every_lane, rounding]
        scaled = self._intrinsic("llvm.x86.avx512.mask.scalef.ps.512", arguments)
        return self._first_lanes(scaled, value.lanes)

    def _dot(self, expression: Expression, operands: Sequence[Value]) -> Value:
        """Return the sum of the products in words, plus the third operand if there is one."""
        lanes = max(v.lanes for v in operands)
        left, right, *added = (self._broadcast(v, lanes) for v in operands)
        element = expression.type
        total = added[0] if added else Value(self._zero(element, lanes), element, lanes)
        return _DOTS[element, expression.attributes](self, left, right, total)

    def _dot_of_pairs(self, left: Value, right: Value, total: Value) -> Value:
        """Return ``total`` plus two products of bfloat16 in each word."""
        if self.machine.dots_bf16 and (name := self._dot_instruction("bf16", total)):
            return self._add_dot(name, "bf16", left, right, total)
        for half in (self._low_half, self._high_half):
            total = self._emit(operation("math.fma", (), "f32"), [half(left), half(right), total])
        return total

    def _dot_of_halves(self, left: Value, right: Value, total: Value) -> Value:
        """Return ``total`` plus two products of float16 in each word."""
        for number in range(2):
            total = self._emit(
                operation("math.fma", (), "f32"), [self._half(left, number), self._half(right, number), total]
            )
        return total

    def _half(self, word: Value, number: int) -> Value:
        """Return the lower or upper float16 of words as a float32."""
        bits = self._resize(self._shift(word, "arith.shrui", 16) if number else word, "i16", "arith.trunci")
        return self._resize(self._bit_cast(bits, "f16", word.lanes), "f32", "arith.extf")

    def _low_half(self, word: Value) -> Value:
        return self._bit_cast(self._shift(word, "arith.shli", 16), "f32", word.lanes)

    def _high_half(self, word: Value) -> Value:
        mask = self._broadcast(Value(self._literal("-65536 : i32"), "i32"), word.lanes)
        return self._bit_cast(self._emit(operation("arith.andi", (), "i32"), [word, mask]), "f32", word.lanes)

    def _dot_of_bytes(self, left: Value, right: Value, total: Value) -> Value:
        """Return ``total`` plus four products of an unsigned and a signed byte in each word."""
        if self.machine.dots_bytes and (name := self._dot_instruction("i8", total)):
            return self._add_dot(name, "i8", left, right, total)
        for byte in range(4):
            without_sign = self._shift(self._shift(left, "arith.shli", 24 - 8 * byte), "arith.shrui", 24)
            with_sign = self._shift(self._shift(right, "arith.shli", 24 - 8 * byte), "arith.shrsi", 24)
            product = self._emit(operation("arith.muli", (), "i32"), [without_sign, with_sign])
            total = self._emit(operation("arith.addi", (), "i32"), [total, product])
        return total

    def _dot_of_shorts(self, left: Value, right: Value, total: Value) -> Value:
        """Return ``total`` plus two products of signed 16-bit integers in each word, modulo 2**32."""
        if self.machine.dots_bytes and (name := self._dot_instruction("i16", total)):
            return self._add_dot(name, "i16", left, right, total)
        for shift in (16, 0):
            first, second = (
                self._shift(self._shift(word, "arith.shli", shift), "arith.shrsi", 16) for word in (left, right)
            )
            product = self._emit(operation("arith.muli", (), "i32"), [first, second])
            total = self._emit(operation("arith.addi", (), "i32"), [total, product])
        return total

    def _dot_instruction(self, element: str, total: Value) -> str | None:
        """Return the intrinsic that adds dot products of ``element`` to ``total``, if the processor has it."""
        name = _DOT_INSTRUCTIONS.get((self.machine.architecture, element))
        if name is None or not _LEAST_LANES_OF_DOTS <= total.lanes <= self.machine.vector_bytes // 4:
            return None
        return name.format(bits=32 * total.lanes)

    def _add_dot(self, name: str, element: str, left: Value, right: Value, total: Value) -> Value:
        lanes = total.lanes * (4 // ELEMENT_BYTES[element])
        return self._intrinsic(name, [total, *(self._bit_cast(word, element, lanes) for word in (left, right))])

    def _shift(self, word: Value, op: str, bits: int) -> Value:
        count = self._broadcast(Value(self._literal(f"{bits} : i32"), "i32"), word.lanes)
        return self._emit(operation(op, (), "i32"), [word, count])

    def _bit_cast(self, value: Value, element: str, lanes: int) -> Value:
        result = Value("", element, lanes)
        return replace(result, name=self._define(f"llvm.bitcast {value.name} : {value.type} to {result.type}"))

    def _intrinsic(self, name: str, operands: Sequence[Value]) -> Value:
        """Return the result of an intrinsic. Its type is that of the first operand, which may be a table."""
        names, types = ", ".join(v.name for v in operands), ", ".join(v.type for v in operands)
        result = Value("", operands[0].element, operands[0].lanes)
        return replace(result, name=self._define(f'llvm.call_intrinsic "{name}"({names}) : ({types}) -> {result.type}'))

    def _pad(self, value: Value, lanes: int = _WHOLE_VECTOR) -> Value:
        """Return ``value`` extended to ``lanes`` lanes. The additional lanes may hold any values."""
        if value.lanes in (1, lanes):
            return self._broadcast(value, lanes)
        chosen = ", ".join(str(k % value.lanes) for k in range(lanes))
        wide = self._define(f"llvm.shufflevector {value.name}, {value.name} [{chosen}] : {value.type}")
        return Value(wide, value.element, lanes)

    def _first_lanes(self, value: Value, lanes: int) -> Value:
        if lanes == value.lanes:
            return value
        if lanes == 1:
            return Value(self._define(f"vector.extract {value.name}[0] : {value.element} from {value.type}"), "f32")
        chosen = ", ".join(str(k) for k in range(lanes))
        name = self._define(f"llvm.shufflevector {value.name}, {value.name} [{chosen}] : {value.type}")
        return Value(name, value.element, lanes)

    def _emit(self, expression: Expression, operands: Sequence[Value]) -> Value:
        lanes = max((v.lanes for v in operands), default=1)
        wide = [self._broadcast(v, lanes) for v in operands]
        if math_library.is_call(expression.op):
            return self._call(expression, wide, lanes)
        result = vector_type(expression.type, lanes)
        names, types = ", ".join(v.name for v in wide), ", ".join(v.type for v in wide)
        text = f'"{expression.op}"({names}) {expression.attributes} : ({types}) -> {result}'
        return Value(self._define(text), expression.type, lanes)

    def _size_value(self, expression: Expression, operands: Sequence[Value]) -> Value:
        """Return a size as a number of the expression's type, rounded once."""
        name, element = self._number(expression.payload), expression.type
        if element == "i32":
            name = self._define(f"arith.trunci {name} : i64 to i32")
        elif element in INFINITY:
            exact = element if ELEMENT_BYTES[element] > 2 else "f64"
            name = self._define(f"arith.sitofp {name} : i64 to {exact}")
            name = name if exact == element else self._define(f"arith.truncf {name} : {exact} to {element}")
        return Value(name, element)

    def _cast_index(self, expression: Expression, operands: Sequence[Value]) -> Value:
        """Cast an index. It is an ``i64`` here, so the cast is an extension, a truncation or nothing."""
        operand = operands[0]
        source, target = int(operand.element[1:]), int(expression.type[1:])
        if source == target:
            return operand
        widen = "arith.extui" if expression.op.endswith("ui") else "arith.extsi"
        op = widen if source < target else "arith.trunci"
        result = vector_type(expression.type, operand.lanes)
        text = f"{op} {operand.name} : {operand.type} to {result}"
        return Value(self._define(text), expression.type, operand.lanes)

    def _broadcast(self, value: Value, lanes: int) -> Value:
        if value.lanes == lanes:
            return value
        target = vector_type(value.element, lanes)
        key = f"broadcast {value.name} {lanes}"
        if key not in self._constants:
            self._constants[key] = self._define(f"vector.broadcast {value.name} : {value.element} to {target}")
        return Value(self._constants[key], value.element, lanes)

    def _zero(self, element: str, lanes: int) -> str:
        number = "0.0" if element in INFINITY else "0"
        number = number if lanes == 1 else f"dense<{number}>"
        return self._literal(f"{number} : {vector_type(element, lanes)}")

    # Library calls.

    def _call(self, expression: Expression, operands: Sequence[Value], lanes: int) -> Value:
        element = expression.type
        if element not in ("f32", "f64"):
            wide = [self._resize(v, "f32", "arith.extf") for v in operands]
            single = operation(expression.op, (), "f32")
            return self._resize(self._call(single, wide, lanes), element, "arith.truncf")
        if lanes == 1:
            return self._call_symbol(math_library.scalar_function(expression.op, element), operands)
        symbol = math_library.vector_function(expression.op, element, lanes, self.machine.called_vector_bytes)
        if symbol is not None:
            return self._call_symbol(symbol, operands)
        scalar = math_library.scalar_function(expression.op, element)
        return self._apply_by_lane(operands, lambda lane: self._call_symbol(scalar, lane))

    def _call_symbol(self, symbol: str, operands: Sequence[Value]) -> Value:
        result = operands[0]
        types = ", ".join(v.type for v in operands)
        self.externals[symbol] = f"({types}) -> {result.type}"
        names = ", ".join(v.name for v in operands)
        name = self._define(f"llvm.call @{symbol}({names}) : ({types}) -> {result.type}")
        return Value(name, result.element, result.lanes)

    def _resize(self, value: Value, element: str, op: str) -> Value:
        target = vector_type(element, value.lanes)
        return Value(self._define(f"{op} {value.name} : {value.type} to {target}"), element, value.lanes)

    def _apply_by_lane(self, operands: Sequence[Value], function: Callable[[list[Value]], Value]) -> Value:
        lanes, element = operands[0].lanes, operands[0].element
        total = self._zero(element, lanes)
        for lane in range(lanes):
            scalars = [
                Value(self._define(f"vector.extract {v.name}[{lane}] : {v.element} from {v.type}"), v.element)
                for v in operands
            ]
            value = function(scalars)
            total = self._define(
                f"vector.insert {value.name}, {total} [{lane}] : {element} into {vector_type(element, lanes)}"
            )
        return Value(total, element, lanes)


def has_infinities(nest: AnyNest) -> bool:
    """Return whether some value of a nest is known not to be finite."""
    return any(map(_is_infinite, nest.all_computed))


def _is_infinite(expression: Expression) -> bool:
    """Return whether a value is a constant that is not finite, or a quotient with a constant divisor of zero."""
    number = expression.payload if expression.op == "constant" else 0
    if isinstance(number, float) and not math.isfinite(number):
        return True
    divisor = expression.operands[1] if expression.op == "arith.divf" else None
    return divisor is not None and divisor.op == "constant" and divisor.payload == 0


# The writers of dot products, by the type and the attributes.
_DOTS: Mapping[tuple[str, str], Callable[[InstructionWriter, Value, Value, Value], Value]] = {
    ("f32", ""): InstructionWriter._dot_of_pairs,
    ("f32", HALVES): InstructionWriter._dot_of_halves,
    ("i32", ""): InstructionWriter._dot_of_bytes,
    ("i32", SHORTS): InstructionWriter._dot_of_shorts,
}

# Expressions that are not written as the op of their name.
_SPECIAL: Mapping[str, Callable[[InstructionWriter, Expression, Sequence[Value]], Value]] = {
    "arith.index_cast": InstructionWriter._cast_index,
    "arith.index_castui": InstructionWriter._cast_index,
    math_library.INTEGER_POWER: InstructionWriter._integer_power,
    "arith.fptosi": InstructionWriter._to_integer,
    "arith.maxnumf": InstructionWriter._larger_number,
    "constant": InstructionWriter._constant_value,
    "size": InstructionWriter._size_value,
    "lookup": InstructionWriter._look_up,
    "scale": InstructionWriter._scale,
    "dot": InstructionWriter._dot,
}
