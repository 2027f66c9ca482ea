"""What each stage of a compile made, and which lines of that are a kernel's."""

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

# The first line and the one behind the last, counted from 0.
Lines = tuple[int, int]


@dataclass(frozen=True)
class Stage:
    """``lines``: for each kernel the parts of ``text`` that are its; none where that cannot be told."""

    name: str
    text: str
    lines: tuple[tuple[Lines, ...], ...]


def stages_of(program: Program, kernels: Sequence[KernelCall]) -> list[Stage]:
    """Every stage of compiling ``program`` anew, to the one that fails if one does."""
    with tempfile.TemporaryDirectory(prefix="torchmdla-") as temporary:
        folder = Path(temporary)
        with contextlib.suppress(CompileError):  # Its memory or time was over, say: what there is is shown.
            service.write_stages(program, folder)
        read = ((name, read(folder), split) for name, read, split in _STAGES)
        return [Stage(name, *split(text, kernels)) for name, text, split in read if text]


# --- files of a dump ----------------------------------------------------------------------------------------------


def _last(pattern: str, *others: str) -> Callable[[Path], str]:
    """The file that was written last of those that fit, but for those that fit ``others``."""

    def read(folder: Path) -> str:
        skipped = {path for other in others for path in folder.glob(other)}
        paths = sorted(path for path in folder.glob(pattern) if path not in skipped)
        return paths[-1].read_text(encoding="utf-8") if paths else ""

    return read


def _parts(pattern: str) -> Callable[[Path], str]:
    """The files that fit, one behind the other: a large module is compiled in parts."""
    return lambda folder: "\n".join(path.read_text(encoding="utf-8") for path in sorted(folder.glob(pattern)))


def _kernels(folder: Path) -> str:
    """Every kernel, indented."""
    written = sorted(folder.glob("*-*.mlir"))
    kernels = [path for path in written if not _WHOLE.fullmatch(path.stem.partition("-")[2])]
    return "\n".join("\n".join(_indented(path.read_text(encoding="utf-8"))) for path in kernels)


def _indented(text: str) -> Iterator[str]:
    depth = 0
    for line in text.splitlines():
        if line.startswith("//"):
            yield line
            continue
        depth -= line.startswith("}")
        yield "  " * (depth - line.startswith("^")) + line
        depth += line.endswith("{")


# What files of MLIR that hold no kernel are called.
_WHOLE = re.compile(r"torch(-sample\d+)?|linalg|fused|generated")

# --- lines of kernels ---------------------------------------------------------------------------------------------

Split = tuple[str, tuple[tuple[Lines, ...], ...]]

# A place; its end, where it is another's: loc("aten::relu"("graph":8:0)), loc(#loc3), loc("aten::relu"(#loc3)).
_LOC = re.compile(r" ?loc\((?:[^()\"]|\"[^\"]*\"|\((?:[^()]|\([^()]*\))*\))*\)")
_ALIAS = re.compile(r"^(#loc\d*) = (loc\(.*\))$")
_USED_ALIAS = re.compile(r"#loc\d*")
_NODE = re.compile(r'"graph":(\d+)')


def _by_nodes(text: str, kernels: Sequence[KernelCall]) -> Split:
    """Of MLIR with places: the operations of the nodes that a kernel computes. The places go."""
    aliases = {found[1]: found[2] for line in text.splitlines() if (found := _ALIAS.match(line))}
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
        # Those of a block's arguments say nothing of the block.
        nodes.append(nodes_of(places[-1]) if places and not line.lstrip().startswith("^") else frozenset())
    for first, behind in _operations(lines):
        whole = frozenset[int]().union(*nodes[first:behind])
        nodes[first:behind] = [whole] * (behind - first)
    return "\n".join(lines), tuple(_runs(nodes, frozenset(kernel.nodes)) for kernel in kernels)


def _operations(lines: Sequence[str]) -> Iterator[Lines]:
    """Operations of several lines in the body of a function."""
    opened = None
    for number, line in enumerate(lines):
        if re.match(r" {4}[%\"a-z]", line) and line.endswith("{"):
            opened = number
        elif opened is not None and line.startswith("    }"):
            yield opened, number + 1
            opened = None


def _runs(nodes: Sequence[frozenset[int]], wanted: frozenset[int]) -> tuple[Lines, ...]:
    """Lines that follow each other and are of a wanted node."""
    runs: list[Lines] = []
    for number, own in enumerate(nodes):
        if own & wanted:
            adjacent = runs and runs[-1][1] == number
            runs[-1:] = [(runs[-1][0], number + 1)] if adjacent else [*runs[-1:], (number, number + 1)]
    return tuple(runs)


_STEP = re.compile(r"nest |tiles |([^@]* = )?call @")


def _by_steps(text: str, kernels: Sequence[KernelCall]) -> Split:
    """Of a loop program: the steps of the entry that run kernels, which are in the order of the kernels."""
    lines = text.splitlines()
    found: list[Lines] = []
    depth, opened = "", None
    start = lines.index("entry {") if "entry {" in lines else len(lines)
    for number in range(start + 1, len(lines)):
        line = lines[number]
        if opened is not None:
            if line == f"{depth}}}":
                found.append((opened, number + 1))
                opened = None
        elif line == "}":
            break
        elif line.strip() == "}":
            depth = depth[:-2]
        else:
            depth = depth or "  "
            own = line.removeprefix(depth)
            if own.startswith("repeat "):
                depth += "  "
            elif _STEP.match(own) and own.endswith("{"):
                opened = number
            elif _STEP.match(own):
                found.append((number, number + 1))
    exact = len(found) == len(kernels)
    return text, tuple((one,) for one in found) if exact else ((),) * len(kernels)


def _by_functions(begins: str, ends: str) -> Callable[[str, Sequence[KernelCall]], Split]:
    """The functions of kernels, and those that they call. ``begins``: a line that begins one, with its ``name``."""
    first, last = re.compile(begins), re.compile(ends)

    def split(text: str, kernels: Sequence[KernelCall]) -> Split:
        lines = text.splitlines()
        found: dict[str, Lines] = {}
        name, opened = "", -1
        comments = 0
        for number, line in enumerate(lines):
            if opened < 0 and (begun := first.match(line)):
                name, opened = begun["name"], number - comments
            comments = comments + 1 if line.startswith("//") or (comments and not line) else 0
            if opened >= 0 and last.match(line):
                found[name], opened = (opened, number + 1), -1
        if opened >= 0:
            found[name] = (opened, len(lines))
        called = {name: _called("\n".join(lines[one:behind])) for name, (one, behind) in found.items()}
        return text, tuple(_functions(kernel.symbol, found, called) for kernel in kernels)

    return split


def _called(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"[@<](\w+)", text))


def _functions(symbol: str, found: dict[str, Lines], called: dict[str, frozenset[str]]) -> tuple[Lines, ...]:
    """Of a kernel, and of the kernels that it calls."""
    wanted = [symbol, *sorted(called.get(symbol, frozenset()) - {symbol})]
    return tuple(found[name] for name in wanted if name in found)


# --- all of them --------------------------------------------------------------------------------------------------

_STAGES: Sequence[tuple[str, Callable[[Path], str], Callable[[str, Sequence[KernelCall]], Split]]] = (
    ("Torch dialect", _last("*-torch*.mlir"), _by_nodes),
    ("linalg", _last("*-fused.mlir"), _by_nodes),
    ("loop program", _last("*.steps", "*-sample*.steps", "*-typical.steps"), _by_steps),
    ("kernel", _kernels, _by_functions(r"(llvm\.func|func\.func).* @(?P<name>\w+)\(", r"}$")),
    ("LLVM IR", _parts("*-llvm.ll"), _by_functions(r"define .*@(?P<name>\w+)\(", r"}$")),
    ("optimised LLVM IR", _parts("*-optimised.ll"), _by_functions(r"define .*@(?P<name>\w+)\(", r"}$")),
    ("assembly", _parts("*-assembly.s"), _by_functions(r"[0-9a-f]+ <(?P<name>\w+)>:$", r"$")),
)
