"""Partition of a module into parts that are compiled in parallel: LLVM uses one thread for each module.

Functions that call each other directly stay together, so that LLVM generates the same code for them. Kernels that the
ABI's functions call are not inlined there (``entry/function.py``), so they may be in other parts. The partition depends
only on the module's text, so that a program's code is the same on every machine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from torchmdla.devices.cpu.codegen.entry import ENTRY, KERNEL_TYPE, Code, declaration

# The number of characters of text for which a part pays off, and the largest number of parts.
_PART = 125_000
_MOST_PARTS = 8

_NAME = re.compile(r"@(\w+)")
_CALLED = re.compile(r"\bcall @(\w+)\(")


@dataclass(frozen=True)
class Part:
    """Part of a module.

    Attributes:
        text: the part as a module of its own.
        symbol: one of its public functions.
        externals: the functions outside the part that it calls.
    """

    text: str
    symbol: str
    externals: tuple[str, ...]


def partition(code: Code) -> list[Part]:
    """Divide a module into parts of about equal size."""
    most = min(_MOST_PARTS, len(code.text) // _PART)
    if most < 2 or code.fault:  # The instrumentation of checks needs the whole module.
        return [Part(code.text, ENTRY, code.externals)]
    parts: list[list[str]] = [[] for _ in range(most)]
    sizes = [0] * most
    groups = _groups(code.functions, code.kernel_symbols)
    pairs = ((sum(len(code.functions[symbol]) for symbol in group), group) for group in groups)
    for size, group in sorted(pairs, key=lambda item: -item[0]):
        smallest = sizes.index(min(sizes))
        parts[smallest] += group
        sizes[smallest] += size
    callers = "\n".join(text for symbol, text in code.functions.items() if symbol not in code.kernel_symbols)
    return [_part(code, callers, frozenset(part)) for part in parts if part]


def _groups(functions: Mapping[str, str], kernels: frozenset[str]) -> list[list[str]]:
    """Return the groups of functions that must be in one part, in the order of the module."""
    leader = {symbol: symbol for symbol in functions}

    def find(symbol: str) -> str:
        while leader[symbol] != symbol:
            symbol = leader[symbol]
        return symbol

    for symbol, text in functions.items():
        for other in _find_names(text, functions):
            if symbol in kernels or other not in kernels:
                leader[find(other)] = find(symbol)
    groups: dict[str, list[str]] = {}
    for symbol in functions:
        groups.setdefault(find(symbol), []).append(symbol)
    return list(groups.values())


def _find_names(text: str, known: Mapping[str, str]) -> list[str]:
    """Return the ``known`` names that occur in a text, in order."""
    return [name for name in dict.fromkeys(_NAME.findall(text)) if name in known]


def _part(code: Code, callers: str, members: frozenset[str]) -> Part:
    inside = {symbol: text for symbol, text in code.functions.items() if symbol in members}
    called = frozenset(name for text in inside.values() for name in _CALLED.findall(text))
    for symbol in code.kernel_symbols.intersection(_find_names(callers, inside)):
        inside[symbol] = _make_public(inside[symbol], symbol, symbol in called)
    text = "\n".join(inside.values())
    names = dict.fromkeys(_NAME.findall(text))
    elsewhere = [name for name in names if name in code.functions and name not in members]
    externals = [name for name in names if name in code.declarations]
    head = [code.declarations[name] for name in externals]
    head += [declaration(symbol, KERNEL_TYPE) for symbol in elsewhere]
    head += [code.globals[name] for name in names if name in code.globals]
    public = re.search(r"^(?:llvm|func)\.func @(\w+)\(.*\{$", text, re.MULTILINE)
    assert public, "parts are not compiled while stages are dumped"
    return Part("\n".join([*head, text]), public[1], (*externals, *elsewhere))


def _make_public(text: str, symbol: str, is_called: bool) -> str:
    """Return the text of a kernel ``symbol`` as a public function.

    The engine adds a function that calls the kernel, as for the ABI's functions (``entry/module.py``).
    """
    text = text.replace(f"llvm.func internal @{symbol}(", f"llvm.func @{symbol}(", 1)
    if is_called:  # Its caller is a kernel and may inline it.
        return text
    return text.replace(" attributes {", " attributes {no_inline, ", 1)
