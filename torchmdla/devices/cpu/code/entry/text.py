"""The lines of a function, and the names of the values in it."""

from __future__ import annotations

from collections.abc import Collection


class FunctionText:
    """Lines of MLIR text. No name is given twice, whatever becomes of the lines.

    Pointers in ``arrays``, which the function knows from its start on, are loaded once, in the :attr:`head`: LLVM would
    load them again behind each call, which may change what an array holds.
    """

    def __init__(self, arrays: Collection[str] = ()) -> None:
        self._lines: list[str] = []
        self._head: dict[str, str] = {}
        self._known_in_head = set(arrays)
        self._counter = 0

    def add(self, line: str) -> None:
        self._lines.append(line)

    def take(self) -> list[str]:
        """The lines so far; what is added from then on are others."""
        lines, self._lines = self._lines, []
        return lines

    def fresh(self, prefix: str = "%e") -> str:
        """A new name."""
        self._counter += 1
        return f"{prefix}{self._counter}"

    def define(self, op: str) -> str:
        """The name of the result of ``op``, which is added."""
        name = self.fresh()
        self.add(f"{name} = {op}")
        return name

    @property
    def head(self) -> list[str]:
        """The lines that define what is in the arrays that are known from the start on."""
        return [f"{name} = {op}" for op, name in self._head.items()]

    def _define_by(self, array: str, op: str) -> str:
        """Return the name of the result of ``op``, which depends on ``array`` alone."""
        if array not in self._known_in_head:
            return self.define(op)
        if op not in self._head:
            self._head[op] = self.fresh()
            self._known_in_head.add(self._head[op])
        return self._head[op]

    def constant(self, number: int, kind: str = "i64") -> str:
        return self.define(f"llvm.mlir.constant({number} : {kind}) : {kind}")

    def place_in(self, array: str, position: int) -> str:
        """The address of a pointer in an array of such."""
        return self._define_by(array, f"llvm.getelementptr {array}[{position}] : (!llvm.ptr) -> !llvm.ptr, !llvm.ptr")

    def pointer_in(self, array: str, position: int) -> str:
        """A pointer in an array of such."""
        place = self.place_in(array, position)
        return self._define_by(place, f"llvm.load {place} : !llvm.ptr -> !llvm.ptr")

    def moved(self, pointer: str, distance: int | str, kind: str = "i8") -> str:
        """``pointer``, moved by a number of elements, or by the value of that name."""
        if isinstance(distance, int):
            return self.define(f"llvm.getelementptr {pointer}[{distance}] : (!llvm.ptr) -> !llvm.ptr, {kind}")
        return self.define(f"llvm.getelementptr {pointer}[{distance}] : (!llvm.ptr, i64) -> !llvm.ptr, {kind}")
