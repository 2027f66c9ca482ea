"""Marks of pointers in generated functions: the size and the name of the memory that begins at the pointer."""

from __future__ import annotations

from collections.abc import Callable

MARK = "mdla_mark"
OUTCOME = "mdla_outcome"

# Declared by the written code. The instrumentation removes the first and defines the second.
_DECLARED = (
    f"llvm.func @{MARK}(!llvm.ptr, i64, !llvm.ptr) -> !llvm.ptr",
    f"llvm.func @{OUTCOME}(i32) -> i32",
)


class Marks:
    """Writer of marks into functions, and of the names that they use into the module."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def mark(self, define: Callable[[str], str], pointer: str, size: str, name: str) -> str:
        """Return ``pointer``, marked as the start of ``size`` bytes.

        ``define`` adds an op to the function and returns the name of its result.
        """
        symbol = self._names.setdefault(name, f'@"{name}"')
        label = define(f"llvm.mlir.addressof {symbol} : !llvm.ptr")
        return define(f"llvm.call @{MARK}({pointer}, {size}, {label}) : (!llvm.ptr, i64, !llvm.ptr) -> !llvm.ptr")

    def outcome(self, define: Callable[[str], str], status: str) -> str:
        """Return ``status``, or an error status if an access was outside its buffer."""
        return define(f"llvm.call @{OUTCOME}({status}) : (i32) -> i32")

    @property
    def declarations(self) -> list[str]:
        """Return the declarations and globals that the module needs for its marks."""
        return [*_DECLARED, *(global_text(symbol, name) for name, symbol in self._names.items())]


def global_text(symbol: str, text: str) -> str:
    """Return a global of the module that holds a C string."""
    return f'llvm.mlir.global internal constant {symbol}("{text}\\00")'
