"""Output of each stage of a compilation, and the lines of it that belong to each kernel."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchmdla.compile_service import service
from torchmdla.compiler.artifact import KernelCall
from torchmdla.compiler.program import Program
from torchmdla.errors import CompileError

# The first line and the line after the last, counted from 0.
Lines = tuple[int, int]


@dataclass(frozen=True)
class Stage:
    """One stage of a compilation.

    ``lines`` has the ranges of ``text`` for each kernel. They are empty if they cannot be determined.
    """

    name: str
    text: str
    lines: tuple[tuple[Lines, ...], ...]


def stages_of(program: Program, kernels: Sequence[KernelCall]) -> list[Stage]:
    """Compile ``program`` again and return every stage, up to the first that fails."""
    with tempfile.TemporaryDirectory(prefix="torchmdla-") as temporary:
        folder = Path(temporary)
        # After a failure (a memory or time limit, for example), the completed stages are shown.
        with contextlib.suppress(CompileError):
            service.default_service().write_stages(program, folder)
        read = ((name, read(folder), split) for name, read, split in _STAGES)
        return [Stage(name, *split(text, kernels)) for name, text, split in read if text]


# --- files of a dump ----------------------------------------------------------------------------------------------


def _read_last(pattern: str, *others: str) -> Callable[[Path], str]:
    """Return a reader of the last written file that matches ``pattern`` and none of ``others``."""

    def read(folder: Path) -> str:
        skipped = {path for other in others for path in folder.glob(other)}
        paths = sorted(path for path in folder.glob(pattern) if path not in skipped)
        return paths[-1].read_text(encoding="utf-8") if paths else ""

    return read


def _read_parts(pattern: str) -> Callable[[Path], str]:
    """Return a reader that joins all matching files, because a large module is compiled in parts."""
    return lambda folder: "\n".join(path.read_text(encoding="utf-8") for path in sorted(folder.glob(pattern)))


def _read_kernels(folder: Path) -> str:
    """Return the text of every kernel, indented."""
    written = sorted(folder.glob("*-*.mlir"))
    kernels = [path for path in written if not _NOT_A_KERNEL.fullmatch(path.stem.partition("-")[2])]
    return "\n".join("\n".join(_indent(path.read_text(encoding="utf-8"))) for path in kernels)


def _indent(text: str) -> Iterator[str]:
    depth = 0
    for line in text.splitlines():
        if line.startswith("//"):
            yield line
            continue
        depth -= line.startswith("}")
        yield "  " * (depth - line.startswith("^")) + line
        depth += line.endswith("{")


# Names of MLIR files that do not contain a kernel.
_NOT_A_KERNEL = re.compile(r"torch(-sample\d+)?|linalg|fused|generated")

# --- lines of kernels ---------------------------------------------------------------------------------------------

Split = tuple[str, tuple[tuple[Lines, ...], ...]]

# A location; also one that refers to another: loc("aten::relu"("graph":8:0)), loc(#loc3), loc("aten::relu"(#loc3)).
_LOC = re.compile(r" ?loc\((?:[^()\"]|\"[^\"]*\"|\((?:[^()]|\([^()]*\))*\))*\)")
_ALIAS = re.compile(r"^(#loc\d*) = (loc\(.*\))$")
_USED_ALIAS = re.compile(r"#loc\d*")
_NODE = re.compile(r'"graph":(\d+)')


def _split_by_nodes(text: str, kernels: Sequence[KernelCall]) -> Split:
    """Split MLIR with locations: a kernel has the operations of the nodes that it computes.

    The locations are removed from the text.
    """
    aliases = {match[1]: match[2] for line in text.splitlines() if (match := _ALIAS.match(line))}
    known: dict[str, frozenset[int]] = {}

    def nodes_of(place: str) -> frozenset[int]:
        if place not in known:
            known[place] = frozenset()
            inner = [nodes_of(aliases[name]) for name in _USED_ALIAS.findall(place) if name in aliases]
            known[place] = frozenset(map(int, _NODE.findall(place))).union(*inner)
        return known[place]

    lines: list[str] = []
    nodes: list[frozenset[int]] = []
    for line in text.splitlines():
        if _ALIAS.match(line):
            continue
        places = _LOC.findall(line)
        lines.append(_LOC.sub("", line))
        # Locations of a block's arguments do not describe the block.
        nodes.append(nodes_of(places[-1]) if places and not line.lstrip().startswith("^") else frozenset())
    for first, behind in _operations(lines):
        whole = frozenset[int]().union(*nodes[first:behind])
        nodes[first:behind] = [whole] * (behind - first)
    return "\n".join(lines), tuple(_line_ranges(nodes, frozenset(kernel.nodes)) for kernel in kernels)


def _operations(lines: Sequence[str]) -> Iterator[Lines]:
    """Yield the line ranges of multi-line operations in the body of a function."""
    opened = None
    for number, line in enumerate(lines):
        if re.match(r" {4}[%\"a-z]", line) and line.endswith("{"):
            opened = number
        elif opened is not None and line.startswith("    }"):
            yield opened, number + 1
            opened = None


def _line_ranges(nodes: Sequence[frozenset[int]], wanted: frozenset[int]) -> tuple[Lines, ...]:
    """Return the ranges of consecutive lines that belong to a wanted node."""
    runs: list[Lines] = []
    for number, line_nodes in enumerate(nodes):
        if line_nodes & wanted:
            adjacent = runs and runs[-1][1] == number
            runs[-1:] = [(runs[-1][0], number + 1)] if adjacent else [*runs[-1:], (number, number + 1)]
    return tuple(runs)


_STEP = re.compile(r"nest |tiles |([^@]* = )?call @")


def _split_by_steps(text: str, kernels: Sequence[KernelCall]) -> Split:
    """Split a loop program: a kernel has the step of the entry that runs it.

    The steps are in the order of the kernels.
    """
    lines = text.splitlines()
    steps: list[Lines] = []
    depth, opened = "", None
    start = lines.index("entry {") if "entry {" in lines else len(lines)
    for number in range(start + 1, len(lines)):
        line = lines[number]
        if opened is not None:
            if line == f"{depth}}}":
                steps.append((opened, number + 1))
                opened = None
        elif line == "}":
            break
        elif line.strip() == "}":
            depth = depth[:-2]
        else:
            depth = depth or "  "
            content = line.removeprefix(depth)
            if content.startswith("repeat "):
                depth += "  "
            elif _STEP.match(content) and content.endswith("{"):
                opened = number
            elif _STEP.match(content):
                steps.append((number, number + 1))
    exact = len(steps) == len(kernels)
    return text, tuple((step,) for step in steps) if exact else ((),) * len(kernels)


def _split_by_functions(begins: str, ends: str) -> Callable[[str, Sequence[KernelCall]], Split]:
    """Return a split by functions: a kernel has its functions and those that they call.

    ``begins`` matches the first line of a function and has a group ``name``.
    """
    first, last = re.compile(begins), re.compile(ends)

    def split(text: str, kernels: Sequence[KernelCall]) -> Split:
        lines = text.splitlines()
        ranges: dict[str, Lines] = {}
        name, opened = "", -1
        comments = 0
        for number, line in enumerate(lines):
            if opened < 0 and (begun := first.match(line)):
                name, opened = begun["name"], number - comments
            comments = comments + 1 if line.startswith("//") or (comments and not line) else 0
            if opened >= 0 and last.match(line):
                ranges[name], opened = (opened, number + 1), -1
        if opened >= 0:
            ranges[name] = (opened, len(lines))
        called = {name: _referenced_symbols("\n".join(lines[start:behind])) for name, (start, behind) in ranges.items()}
        return text, tuple(_functions(kernel.symbol, ranges, called) for kernel in kernels)

    return split


def _referenced_symbols(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"[@<](\w+)", text))


def _functions(symbol: str, ranges: dict[str, Lines], called: dict[str, frozenset[str]]) -> tuple[Lines, ...]:
    """Return the line ranges of a kernel and of the kernels that it calls."""
    wanted = [symbol, *sorted(called.get(symbol, frozenset()) - {symbol})]
    return tuple(ranges[name] for name in wanted if name in ranges)


# --- all of them --------------------------------------------------------------------------------------------------

_STAGES: Sequence[tuple[str, Callable[[Path], str], Callable[[str, Sequence[KernelCall]], Split]]] = (
    ("Torch dialect", _read_last("*-torch*.mlir"), _split_by_nodes),
    ("linalg", _read_last("*-fused.mlir"), _split_by_nodes),
    ("loop program", _read_last("*.steps", "*-sample*.steps", "*-typical.steps"), _split_by_steps),
    ("kernel", _read_kernels, _split_by_functions(r"(llvm\.func|func\.func).* @(?P<name>\w+)\(", r"}$")),
    ("LLVM IR", _read_parts("*-llvm.ll"), _split_by_functions(r"define .*@(?P<name>\w+)\(", r"}$")),
    ("optimised LLVM IR", _read_parts("*-optimised.ll"), _split_by_functions(r"define .*@(?P<name>\w+)\(", r"}$")),
    ("assembly", _read_parts("*-assembly.s"), _split_by_functions(r"[0-9a-f]+ <(?P<name>\w+)>:$", r"$")),
)
