"""Scalar code: loads and stores of single elements, computations of numbers, and checks."""

from __future__ import annotations

from torchmdla.compiler.sizes import Size
from torchmdla.devices.cpu.code.entry.frame import Frame
from torchmdla.devices.cpu.element_types import ELEMENT_BYTES, register_type, storage_type, typed_constant
from torchmdla.devices.cpu.loop_program import AssertStep, ElementStep, LoadStep, ScalarStep, StoreStep


class ScalarCode:
    """Writer of the scalar steps of a function. If ``may_fail``, one of them jumps to the block ``^failed``."""

    def __init__(self, frame: Frame) -> None:
        self.may_fail = False
        self._frame = frame
        self._text = frame.text

    def load(self, step: LoadStep) -> None:
        pointer, kind = self._address(step)
        align = ELEMENT_BYTES[kind]
        value = self._text.define(f"llvm.load {pointer} {{alignment = {align} : i64}} : !llvm.ptr -> {kind}")
        element = register_type(step.buffer.element)
        if element == "i1":
            zero = self._text.define(f"arith.constant 0 : {kind}")
            value = self._text.define(f"arith.cmpi ne, {value}, {zero} : {kind}")
        elif element != kind:
            value = self._text.define(f"llvm.bitcast {value} : {kind} to {element}")
        self._frame.values[step.scalar] = value

    def store(self, step: StoreStep) -> None:
        pointer, kind = self._address(step)
        value = self._frame.to_memory(self._frame.value(step.scalar), register_type(step.buffer.element))
        align = ELEMENT_BYTES[kind]
        self._text.add(f"llvm.store {value}, {pointer} {{alignment = {align} : i64}} : {kind}, !llvm.ptr")

    def _address(self, step: ElementStep) -> tuple[str, str]:
        """Return the address of an element, and its type in memory."""
        pointer, kind = self._frame.pointer(step.buffer, step.offset), storage_type(step.buffer.element)
        for index, stride in zip(step.indices, step.strides, strict=True):
            distance = self._text.define(f"llvm.mul {self._frame.value(index)}, {self._frame.number(stride)} : i64")
            pointer = self._text.offset_pointer(pointer, distance, kind)
        return pointer, kind

    def compute(self, step: ScalarStep) -> None:
        self._frame.values[step.result] = self._emit(step, [self._frame.value(s) for s in step.operands])

    def _emit(self, step: ScalarStep, values: list[str]) -> str:
        kind = step.result.type
        if isinstance(step.value, Size):
            return self._convert(self._frame.number(step.value), kind)
        if step.value is not None:
            return self._text.define(f"arith.constant {typed_constant(step.value, kind)}")
        if step.name in ("arith.index_cast", "arith.index_castui"):
            return self._cast(values[0], step.operands[0].type, kind, step.name)
        types = ", ".join(s.type for s in step.operands)
        return self._text.define(f'"{step.name}"({", ".join(values)}) {{{step.attributes}}} : ({types}) -> {kind}')

    def _convert(self, value: str, kind: str) -> str:
        """Return an ``i64``, converted to another type."""
        if not kind.startswith("i"):
            return self._text.define(f"arith.sitofp {value} : i64 to {kind}")
        return self._cast(value, "i64", kind, "arith.index_cast")

    def _cast(self, value: str, source: str, target: str, op: str) -> str:
        if source == target:
            return value
        widen = "arith.extui" if op.endswith("ui") else "arith.extsi"
        resize = widen if int(source[1:]) < int(target[1:]) else "arith.trunci"
        return self._text.define(f"{resize} {value} : {source} to {target}")

    def check(self, step: AssertStep) -> None:
        """End the call with an error if a check fails. PyTorch can then run the group and raise its own error."""
        self._fail_unless(self._frame.value(step.condition))

    def require(self, number: Size) -> None:
        """End the call with an error if ``number`` is negative."""
        sizes = self._frame.sizes
        self._fail_unless(self._text.define(f"arith.cmpi sge, {sizes.value(number)}, {sizes.value(0)} : i64"))

    def _fail_unless(self, condition: str) -> None:
        self.may_fail = True
        following = self._text.fresh("^next")
        self._text.add(f"llvm.cond_br {condition}, {following}, ^failed")
        self._text.add(f"{following}:")
