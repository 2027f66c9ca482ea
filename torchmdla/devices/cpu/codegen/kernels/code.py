"""Lines of code, with scopes, constants, and numbers that depend on symbols."""

from __future__ import annotations

import itertools
from collections import ChainMap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from torchmdla.compiler.sizes import Size
from torchmdla.devices.cpu.ir.expressions import Expression

# A point of a register tile: the offset of each loop.
Point = tuple[int, ...]

# A number that is known when the code is written, or the name of an ``i64``.
Count = int | str


@dataclass(frozen=True)
class Value:
    """SSA value of element type ``element``. It is a vector if ``lanes`` is more than one."""

    name: str
    element: str
    lanes: int = 1

    @property
    def type(self) -> str:
        return vector_type(self.element, self.lanes)


def vector_type(element: str, lanes: int) -> str:
    return element if lanes == 1 else f"vector<{lanes}x{element}>"


class CodeWriter:
    """Lines of one function. Values are reused within their scope.

    The keys are: expression and point for values of the nest's body, numbers for the operands' pointers and the loops'
    indices, and text for constants.
    """

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._counter = itertools.count()
        self._values: ChainMap[tuple[Expression, Point], Value] = ChainMap()
        self._pointers: ChainMap[int, str] = ChainMap()
        self._induction: ChainMap[int, str] = ChainMap()
        self._constants: ChainMap[str, str] = ChainMap()
        # Values that depend only on symbols, by text, in the order of the code; the pointer to the symbols' values.
        self._preamble: dict[str, str] = {}
        self._symbols = ""

    def _line(self, text: str) -> None:
        self._lines.append(text)

    def _fresh(self) -> str:
        return f"%v{next(self._counter)}"

    def _define(self, text: str) -> str:
        name = self._fresh()
        self._line(f"{name} = {text}")
        return name

    def _constant(self, number: int) -> str:
        return self._literal(f"{number} : i64")

    def _literal(self, text: str) -> str:
        if text not in self._constants:
            self._constants[text] = self._define(f"arith.constant {text}")
        return self._constants[text]

    @contextmanager
    def _scope(self) -> Iterator[None]:
        """Open a scope: values that are written inside it do not dominate the code after it."""
        saved = self._values, self._pointers, self._induction, self._constants
        self._values, self._pointers = self._values.new_child(), self._pointers.new_child()
        self._induction, self._constants = self._induction.new_child(), self._constants.new_child()
        yield
        self._values, self._pointers, self._induction, self._constants = saved

    @contextmanager
    def _block(self, head: str) -> Iterator[None]:
        self._line(head)
        yield
        self._line("}")

    @contextmanager
    def _loop(self, lower: str, upper: str, step: str) -> Iterator[str]:
        index = self._fresh()
        with self._scope(), self._block(f"scf.for {index} = {lower} to {upper} step {step} : i64 {{"):
            yield index

    # Numbers that may depend on symbols.

    def _number(self, number: Count | Size) -> str:
        """Return the name of a number. A number that depends on symbols is computed before all loops."""
        if isinstance(number, int):
            return self._constant(number)
        return self._evaluate_size(number) if isinstance(number, Size) else number

    def _count(self, number: int | Size) -> Count:
        return self._evaluate_size(number) if isinstance(number, Size) else number

    def _evaluate_size(self, size: Size) -> str:
        total = ""
        for exponents, factor in size.terms:
            term = self._product(factor, [self._symbol(k) for k, power in enumerate(exponents) for _ in range(power)])
            total = self._define_in_preamble(f"arith.addi {total}, {term} overflow<nsw> : i64") if total else term
        return total

    def _product(self, factor: int, names: Sequence[str]) -> str:
        """Return the name of a product of numbers that are computed before all loops."""
        term, *others = names if names and factor == 1 else [self._preamble_constant(factor), *names]
        for name in others:
            term = self._define_in_preamble(f"arith.muli {term}, {name} overflow<nsw> : i64")
        return term

    def _symbol(self, number: int) -> str:
        slot = self._define_in_preamble(f"llvm.getelementptr {self._symbols}[{number}] : (!llvm.ptr) -> !llvm.ptr, i64")
        return self._define_in_preamble(f"llvm.load {slot} : !llvm.ptr -> i64")

    def _define_in_preamble(self, text: str) -> str:
        """Define a value before all loops, from values that are also defined there."""
        if text not in self._preamble:
            self._preamble[text] = self._fresh()
        return self._preamble[text]

    def _preamble_constant(self, number: int) -> str:
        return self._define_in_preamble(f"arith.constant {number} : i64")

    def _subtract(self, a: Count | Size, b: Count | Size) -> str:
        if not isinstance(a, str) and not isinstance(b, str):
            return self._number(a - b)
        return self._define(f"arith.subi {self._number(a)}, {self._number(b)} overflow<nsw> : i64")

    def _minimum(self, limit: int, number: str) -> str:
        return self._define(f"arith.minsi {self._constant(limit)}, {number} : i64")

    def _round_down(self, number: str, step: int) -> str:
        if step == 1:
            return number
        rest = self._define(f"arith.remui {number}, {self._constant(step)} : i64")
        return self._define(f"arith.subi {number}, {rest} overflow<nsw> : i64")

    def _blocks(self, size: int | Size, step: int) -> Count:
        """Return the number of blocks of ``step`` that cover ``size``."""
        if isinstance(size, int):
            return -(-size // step)
        return self._define_in_preamble(
            f"arith.divui {self._number(size + (step - 1))}, {self._preamble_constant(step)} : i64"
        )
