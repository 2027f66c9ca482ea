"""What the writers of functions say of pointers: that memory of so many bytes begins there, and its name."""

from __future__ import annotations

from collections.abc import Callable

MARK = "mdla_mark"
OUTCOME = "mdla_outcome"

# Declared where the code is written, replaced or defined where it is instrumented.
_DECLARED = (
    f"llvm.func @{MARK}(!llvm.ptr, i64, !llvm.ptr) -> !llvm.ptr",
    f"llvm.func @{OUTCOME}(i32) -> i32",
)


class Marks:
    """Writes marks into functions, and the names that they use into the module."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def marked(self, define: Callable[[str], str], pointer: str, size: str, name: str) -> str:
        """``pointer``, as that of ``size`` bytes; ``define`` adds an op to the function and gives its result's name."""
        symbol = self._names.setdefault(name, f'@"{name}"')
        label = define(f"llvm.mlir.addressof {symbol} : !llvm.ptr")
        return define(f"llvm.call @{MARK}({pointer}, {size}, {label}) : (!llvm.ptr, i64, !llvm.ptr) -> !llvm.ptr")

    def outcome(self, define: Callable[[str], str], status: str) -> str:
        """``status``, or an error if something was touched outside of its buffer."""
        return define(f"llvm.call @{OUTCOME}({status}) : (i32) -> i32")

    @property
    def declarations(self) -> list[str]:
        """What the module has to hold beside the functions."""
        return [*_DECLARED, *(global_text(symbol, name) for name, symbol in self._names.items())]


def global_text(symbol: str, text: str) -> str:
    """A C string of the module."""
    return f'llvm.mlir.global internal constant {symbol}("{text}\\00")'
