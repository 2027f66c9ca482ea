"""The lines of a function, and the names of the values in it."""

from __future__ import annotations


class FunctionText:
    """Lines of MLIR text. No name is given twice, whatever becomes of the lines."""

    def __init__(self) -> None:
        self._lines: list[str] = []
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

    def constant(self, number: int, kind: str = "i64") -> str:
        return self.define(f"llvm.mlir.constant({number} : {kind}) : {kind}")

    def place_in(self, array: str, position: int) -> str:
        """The address of a pointer in an array of such."""
        return self.define(f"llvm.getelementptr {array}[{position}] : (!llvm.ptr) -> !llvm.ptr, !llvm.ptr")

    def pointer_in(self, array: str, position: int) -> str:
        """A pointer in an array of such."""
        return self.define(f"llvm.load {self.place_in(array, position)} : !llvm.ptr -> !llvm.ptr")

    def moved(self, pointer: str, distance: int | str, kind: str = "i8") -> str:
        """``pointer``, moved by a number of elements, or by the value of that name."""
        if isinstance(distance, int):
            return self.define(f"llvm.getelementptr {pointer}[{distance}] : (!llvm.ptr) -> !llvm.ptr, {kind}")
        return self.define(f"llvm.getelementptr {pointer}[{distance}] : (!llvm.ptr, i64) -> !llvm.ptr, {kind}")
