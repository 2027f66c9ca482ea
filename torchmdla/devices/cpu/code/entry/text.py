"""Text of a function: its lines, and the names of its values."""

from __future__ import annotations

from collections.abc import Collection, Mapping


class FunctionText:
    """Lines of MLIR text of a function, in sections. All names are unique, even if lines are removed.

    ``arrays`` are available from the start of the function. Each section loads the pointers in them once, before its
    lines. LLVM would load them again after each call, because a call may change an array. :attr:`head` contains the
    loads of the first section.
    """

    def __init__(self, arrays: Collection[str] = ()) -> None:
        self._lines: list[str] = []
        self._arrays = frozenset(arrays)
        # The names of loaded values, by operation: of the first section, and of the current section.
        self._head: dict[str, str] = {}
        self._loaded = self._head
        self._known = set(arrays)
        self._section = 0
        self._constants: dict[str, str] = {}
        self._counter = 0

    def add(self, line: str) -> None:
        self._lines.append(line)

    def take(self) -> list[str]:
        """Return the lines so far, and start again without lines in the first section."""
        self._end_section(self._head)
        lines, self._lines = self._lines, []
        return lines

    def begin_section(self) -> None:
        """Begin a section, which loads pointers again. It must not begin inside a loop."""
        self._end_section({})
        self._section = len(self._lines)

    def _end_section(self, loaded: dict[str, str]) -> None:
        """Insert the loads of the current section before its lines. The next section starts with ``loaded``."""
        if self._loaded is not self._head:
            self._lines[self._section : self._section] = _definitions(self._loaded)
        self._loaded, self._known = loaded, {*self._arrays, *loaded.values()}

    def fresh(self, prefix: str = "%e") -> str:
        """Return a new name."""
        self._counter += 1
        return f"{prefix}{self._counter}"

    def define(self, op: str) -> str:
        """Add ``op`` and return the name of its result."""
        name = self.fresh()
        self.add(f"{name} = {op}")
        return name

    @property
    def head(self) -> list[str]:
        """Return the lines that load the pointers of the first section. All other sections may use them, too."""
        return _definitions(self._head)

    def _define_by(self, array: str, op: str) -> str:
        """Return the name of the result of ``op``, which depends only on ``array``."""
        if array not in self._known:
            return self.define(op)
        if op not in self._loaded:
            self._loaded[op] = self.fresh()
            self._known.add(self._loaded[op])
        return self._loaded[op]

    @property
    def constants(self) -> list[str]:
        """Return the lines that define the constants. They come before all other lines."""
        return _definitions(self._constants)

    def constant(self, number: int, kind: str = "i64") -> str:
        op = f"llvm.mlir.constant({number} : {kind}) : {kind}"
        if op not in self._constants:
            self._constants[op] = self.fresh()
        return self._constants[op]

    def place_in(self, array: str, position: int) -> str:
        """Return the address of the pointer at ``position`` in an array of pointers."""
        return self._define_by(array, f"llvm.getelementptr {array}[{position}] : (!llvm.ptr) -> !llvm.ptr, !llvm.ptr")

    def pointer_in(self, array: str, position: int) -> str:
        """Return the pointer at ``position`` in an array of pointers."""
        place = self.place_in(array, position)
        return self._define_by(place, f"llvm.load {place} : !llvm.ptr -> !llvm.ptr")

    def offset_pointer(self, pointer: str, distance: int | str, kind: str = "i8") -> str:
        """Return ``pointer``, moved by a number of elements or by the value of this name."""
        if isinstance(distance, int):
            return self.define(f"llvm.getelementptr {pointer}[{distance}] : (!llvm.ptr) -> !llvm.ptr, {kind}")
        return self.define(f"llvm.getelementptr {pointer}[{distance}] : (!llvm.ptr, i64) -> !llvm.ptr, {kind}")


def _definitions(names: Mapping[str, str]) -> list[str]:
    """Return lines that define names. ``names`` maps each operation to the name of its result."""
    return [f"{name} = {op}" for op, name in names.items()]
