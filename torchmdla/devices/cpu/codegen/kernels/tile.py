"""Register tile: the values of a nest's body at each of its points, and the stores of results."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torchmdla.compiler.sizes import Size
from torchmdla.devices.cpu.codegen.kernels.code import Count, Point, Value
from torchmdla.devices.cpu.codegen.kernels.memory import TransposingWriter
from torchmdla.devices.cpu.ir.element_types import ELEMENT_BYTES, storage_type
from torchmdla.devices.cpu.ir.expressions import Expression, operation
from torchmdla.devices.cpu.ir.kernel_spec import AnyTable

# LLVM's hint for a prefetch to the first-level cache.
FIRST_CACHE = 3


class TileWriter(TransposingWriter):
    """Writer of the values of a register tile. Values are computed at their first use.

    A value that does not vary with a loop is computed outside the loop, once for all points of the register tile that
    share it.
    """

    def _points(self, loops: frozenset[int] | None = None) -> list[Point]:
        """Return the offsets of the register tile's points. Only ``loops`` vary unless ``loops`` is omitted."""
        axes = []
        for loop in range(len(self.nest.sizes)):
            step = self.schedule.lanes if loop == self.schedule.vector else 1
            varying = loops is None or loop in loops
            extent = self._tile_extent(loop) if varying else 1
            assert isinstance(extent, int), "the extents of a register tile are known when its code is written"
            axes.append(range(0, extent, step) if varying else range(1))
        return list(itertools.product(*axes))

    def _store_results(self, points: Sequence[Point]) -> None:
        """Store the results at ``points``, after all of them are computed.

        Each instruction is written for all points before the next one. Chains of dependent instructions then overlap
        without the processor's help.
        """
        self._prefetch_tile(points)
        last = self.nest.epilogue or self.nest
        for expression in (e for e in last.body if e.op != "assert"):
            for point in points:
                self._value(expression, point)
        first = len(self.nest.operands) - len(last.outputs)
        stored_values = list(enumerate(last.values, first))
        results = [(operand, point, self._value(e, point)) for point in points for operand, e in stored_values]
        self._store_all(results)

    def _store_all(self, results: Sequence[tuple[int, Point, Value]]) -> None:
        """Store values to operands at points, in the order of points."""
        blocks: dict[tuple[int, Point, int], list[Value]] = {}
        for operand, point, value in results:
            loop = self._find_transposed_loop(operand)
            if loop < 0:
                self._store(operand, point, value)
            else:
                blocks.setdefault((operand, _with_offset(point, loop, 0), loop), []).append(value)
        for (operand, point, loop), values in blocks.items():
            self._store_transposed(operand, point, loop, values)

    def _prefetch_tile(self, points: Sequence[Point]) -> None:
        """Prefetch the cache lines that the schedule specifies for the accesses at ``points``, each line once."""
        for fetch in self.schedule.ahead:
            operand, distance = self._operand(fetch.operand), self._prefetch_distances.get(fetch, fetch.distance)
            size, is_written = ELEMENT_BYTES[storage_type(operand.element)], fetch.operand >= len(self.nest.inputs)
            for point in points:
                pointer, stride = self._address(fetch.operand, point)
                if stride == 1 and not point[self.schedule.vector] * size % self.machine.line:
                    place = self._offset(pointer, distance, "i8")
                    self._prefetch(place, FIRST_CACHE, is_written or fetch.beside is not None)

    def _restrict(self, point: Point, loops: frozenset[int]) -> Point:
        return tuple(offset if loop in loops else 0 for loop, offset in enumerate(point))

    def _value(self, expression: Expression, point: Point) -> Value:
        """Return the value of an expression at a point of the register tile."""
        if expression.op == "scalar":
            return self._values[expression, ()]
        key = expression, self._restrict(point, self.varying[expression])
        if key not in self._values:
            self._values[key] = self._compute(expression, key[1])
        return self._values[key]

    def _compute(self, expression: Expression, point: Point) -> Value:
        if expression.op == "operand":
            return self._load_value(expression, expression.payload, point)
        if expression.op == "accumulator":  # The nest does not have a reduction.
            return self._load_value(expression, len(self.nest.inputs) + expression.payload, point)
        if expression.op == "index":
            return self._index(expression.payload, point)
        if expression in self.multiply_adds:
            return self._multiply_add(expression, point)
        operands = [self._value(operand, point) for operand in expression.operands]
        if expression.op == "gather":
            return self._load_table(expression, operands, self._active_lanes(point))
        if expression.op == "assert":
            self._report_failure(operands[0], self._active_lanes(point))
            return operands[0]
        return self._apply(expression, operands)

    def _address(self, number: int, point: Point) -> tuple[str, int | Size]:
        """Return the pointer of an operand at a point, and its stride. Outputs of a scatter are at their place."""
        pointer, stride = super()._address(number, point)
        if self.nest.place is None or number < len(self.nest.inputs):
            return pointer, stride
        place = self._value(self.nest.place, point)
        return self._offset(pointer, place.name, self._operand(number).element), stride

    def _load_value(self, expression: Expression, operand: int, point: Point) -> Value:
        """Return the value of an operand. If its blocks are transposed, load all values of the block."""
        loop = self._find_transposed_loop(operand)
        if loop < 0:
            return self._load_at(operand, point)
        for offset, value in enumerate(self._load_transposed(operand, _with_offset(point, loop, 0), loop)):
            self._values[expression, _with_offset(point, loop, offset)] = value
        return self._values[expression, point]

    def _multiply_add(self, addition: Expression, point: Point) -> Value:
        product = self.multiply_adds[addition]
        parts = [*product.operands, *(operand for operand in addition.operands if operand is not product)]
        operands = [self._value(part, point) for part in parts]
        if product.op == "arith.mulf":
            return self._apply(operation("math.fma", (), addition.type), operands)
        return self._apply(product, operands)

    # Indices, tables, checks.

    def _index(self, loop: int, point: Point) -> Value:
        base = self._induction[loop]
        if point[loop]:
            base = self._define(f"arith.addi {base}, {self._constant(point[loop])} : i64")
        scalar = Value(base, "i64")
        if loop != self.schedule.vector or self.schedule.lanes == 1:
            return scalar
        wide = self._broadcast(scalar, self.schedule.lanes)
        return Value(self._define(f"arith.addi {wide.name}, {self._lane_offsets(1)} : {wide.type}"), "i64", wide.lanes)

    def _load_table(self, expression: Expression, indices: Sequence[Value], active: Count) -> Value:
        """Read a table at computed indices. An index out of bounds is replaced by 0 and reported in the status."""
        table = self.nest.tables[expression.payload]
        pointer = self._tables[expression.payload]
        of = expression.operands
        ramp = indices[-1].lanes > 1 and of[-1].op == "index" and table.strides[-1] == 1
        if ramp and all(v.lanes == 1 for v in indices[:-1]) and self._is_safe(of[-1], table.sizes[-1]):
            first = Value(self._define(f"vector.extract {indices[-1].name}[0] : i64 from {indices[-1].type}"), "i64")
            address = self._table_address(table, of, [*indices[:-1], first], 1)
            return self._load(self._offset(pointer, address, table.element), table.element, indices[-1].lanes, active)
        lanes = max((v.lanes for v in indices), default=1)
        address = self._table_address(table, of, indices, active)
        if lanes == 1:
            return self._load(self._offset(pointer, address, table.element), table.element)
        return self._gather(pointer, address, table.element, active)

    def _table_address(self, table: AnyTable, of: Sequence[Expression], indices: Sequence[Value], active: Count) -> str:
        """Return element offsets into a table. ``of`` are the expressions of the indices."""
        lanes = max((v.lanes for v in indices), default=1)
        address = self._broadcast(Value(self._constant(0), "i64"), lanes)
        for expression, index, size, stride in zip(of, indices, table.sizes, table.strides, strict=True):
            index = self._broadcast(index, lanes)
            if not self._is_safe(expression, size):
                index = self._in_bounds(index, size, active)
            step = self._broadcast(Value(self._number(stride), "i64"), lanes)
            scaled = self._define(f"arith.muli {index.name}, {step.name} : {index.type}")
            address = Value(self._define(f"arith.addi {address.name}, {scaled} : {index.type}"), "i64", lanes)
        return address.name

    def _is_safe(self, expression: Expression, size: int | Size) -> bool:
        """Return whether a value is a loop index that is below ``size`` for all values of the symbols."""
        room = size - self.nest.sizes[expression.payload] if expression.op == "index" else -1
        return isinstance(room, int) and room >= 0

    def _in_bounds(self, index: Value, size: int | Size, active: Count) -> Value:
        limit = self._broadcast(Value(self._number(size), "i64"), index.lanes)
        zero = self._broadcast(Value(self._constant(0), "i64"), index.lanes)
        inside = self._define(f"arith.cmpi ult, {index.name}, {limit.name} : {index.type}")
        self._report_failure(Value(inside, "i1", index.lanes), active)
        kinds = index.type if index.lanes == 1 else f"vector<{index.lanes}xi1>, {index.type}"
        chosen = self._define(f"arith.select {inside}, {index.name}, {zero.name} : {kinds}")
        return Value(chosen, "i64", index.lanes)

    def _report_failure(self, condition: Value, active: Count) -> None:
        """Set the status if the condition fails in an active lane."""
        holds = condition.name
        if condition.lanes > 1:
            if isinstance(active, str) or active < condition.lanes:
                flags = [self._mask(count, condition.lanes) for count in (active, condition.lanes)]
                idle = self._define(f"arith.xori {flags[0]}, {flags[1]} : {condition.type}")
                holds = self._define(f"arith.ori {holds}, {idle} : {condition.type}")
            holds = self._define(f"vector.reduction <and>, {holds} : {condition.type} into i1")
        fails = self._define(f"arith.xori {holds}, {self._literal('true')} : i1")
        with self._scope(), self._block(f"scf.if {fails} {{"):
            self._line(f"llvm.store {self._literal('1 : i32')}, {self._status} : i32, !llvm.ptr")

    def _check(self, points: Sequence[Point]) -> None:
        """Evaluate the assertions. They do not have other uses."""
        for expression in self.nest.asserts:
            for point in points:
                self._value(expression, point)


def _with_offset(point: Point, loop: int, offset: int) -> Point:
    return (*point[:loop], offset, *point[loop + 1 :])
