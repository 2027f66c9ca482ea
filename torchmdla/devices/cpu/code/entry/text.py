"""The lines of a function, and the names of the values in it."""

from __future__ import annotations

from collections.abc import Collection, Mapping


class FunctionText:
    """Lines of MLIR text. No name is given twice, whatever becomes of the lines.

    Pointers in ``arrays``, which the function knows from its start on, are loaded once in each section, ahead of its
    lines: LLVM would load them again behind each call, which may change an array. The :attr:`head` has those of the
    first section.
    """

    def __init__(self, arrays: Collection[str] = ()) -> None:
        self._lines: list[str] = []
        self._arrays = frozenset(arrays)
        # The names of what the sections load, by operation: of the first section, and of the current one.
        self._head: dict[str, str] = {}
        self._loaded = self._head
        self._known = set(arrays)
        self._section = 0
        self._constants: dict[str, str] = {}
        self._counter = 0

    def add(self, line: str) -> None:
        self._lines.append(line)

    def take(self) -> list[str]:
        """Return the lines so far and begin anew, in the first section."""
        self._end_section(self._head)
        lines, self._lines = self._lines, []
        return lines

    def begin_section(self) -> None:
        """Load pointers again from here on. No loop may be open."""
        self._end_section({})
        self._section = len(self._lines)

    def _end_section(self, loaded: dict[str, str]) -> None:
        """Put what the current section loads ahead of its lines. The next one finds ``loaded``."""
        if self._loaded is not self._head:
            self._lines[self._section : self._section] = _definitions(self._loaded)
        self._loaded, self._known = loaded, {*self._arrays, *loaded.values()}

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
        """The lines that load what the first section uses, which all others may use, too."""
        return _definitions(self._head)

    def _define_by(self, array: str, op: str) -> str:
        """Return the name of the result of ``op``, which depends on ``array`` alone."""
        if array not in self._known:
            return self.define(op)
        if op not in self._loaded:
            self._loaded[op] = self.fresh()
            self._known.add(self._loaded[op])
        return self._loaded[op]

    @property
    def constants(self) -> list[str]:
        """The lines that define the constants, ahead of all others."""
        return _definitions(self._constants)

    def constant(self, number: int, kind: str = "i64") -> str:
        op = f"llvm.mlir.constant({number} : {kind}) : {kind}"
        if op not in self._constants:
            self._constants[op] = self.fresh()
        return self._constants[op]

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


def _definitions(names: Mapping[str, str]) -> list[str]:
    """Return lines that define names by the operations that these are of."""
    return [f"{name} = {op}" for op, name in names.items()]
