"""Report as one HTML file: the model's graph, the stages of each kernel, a roofline, a timeline, and tables.

The files in this folder are the unchanged parts of the page: its text, its style, and its scripts in the order of
``_SCRIPTS``. ``vendor/`` has the library that lays graphs out; ``setup.py`` puts it there.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import linecache
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tqdm import tqdm

from torchmdla.compiler.program import Program
from torchmdla.report.environment import environment
from torchmdla.report.explanation import Explanation
from torchmdla.report.page.stages import Stage, stages_of

_FOLDER = Path(__file__).parent
_VENDOR = _FOLDER / "vendor"
_SCRIPTS = ("dom", "data", "kernel", "kernels", "layout", "graph", "roofline", "timeline", "tables", "theme", "main")

# Scripts that other pages use, too.
SHARED_SCRIPTS = tuple(_FOLDER / f"{name}.js" for name in ("dom", "theme"))

# Number of lines of a source file that are shown before and after a line.
_BEFORE, _AFTER = 8, 8

# Number of concurrent compilations, equal to the number of compiler processes.
_COMPILES = 2


def save(explanation: Explanation, path: str | Path) -> None:
    """Write the page.

    Raises:
        OSError: ``path`` cannot be written; this is raised before any compilation.
        RuntimeError: the library that lays graphs out is missing.
    """
    library, licence = _read_library()
    with Path(path).open("w", encoding="utf-8") as file:
        file.write(
            fill_page(
                _FOLDER / "page.html",
                f"{explanation.model or 'model'} - torchmdla",
                _data(explanation),
                [_FOLDER / f"{name}.js" for name in _SCRIPTS],
                library=f"/*\n{licence.replace('*/', '* /')}\n*/\n{library}",
                licence=html.escape(licence),
            )
        )


def fill_page(
    template: Path, title: str, data: object, scripts: Iterable[Path], library: str = "", **others: str
) -> str:
    """Return a page with its style, its scripts and its data.

    The page's policy permits only its own scripts, and no fetches.

    Args:
        template: file with the places ``{{title}}``, ``{{policy}}``, ``{{style}}``, ``{{data}}``, ``{{script}}``,
            ``{{library}}`` if there is one, and those of ``others``.
        title: plain text.
        data: the content of the element ``data``, as JSON.
        scripts: files that form one script, in this order.
        library: another script.
        others: HTML by the name of its place.
    """
    texts = "\n".join(path.read_text(encoding="utf-8") for path in scripts)
    script = f'(() => {{\n"use strict";\n{texts}\n}})();'
    style = (_FOLDER / "page.css").read_text(encoding="utf-8")
    allowed = [
        "default-src 'none'",
        f"script-src {' '.join(map(_hash, filter(None, (library, script))))}",
        f"style-src {_hash(style)}",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    parts = {
        "policy": "; ".join(allowed),
        "title": html.escape(title),
        "style": style,
        "library": library,
        "data": json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
        "script": script,
        **others,
    }
    return _fill(template.read_text(encoding="utf-8"), parts)


def _read_library() -> tuple[str, str]:
    """Return the library that lays graphs out, and its licence.

    Raises:
        RuntimeError: it is missing.
    """
    try:
        return (_VENDOR / "dagre.min.js").read_text(encoding="utf-8"), (_VENDOR / "LICENSE").read_text(encoding="utf-8")
    except FileNotFoundError:
        raise RuntimeError(
            "this copy of torchmdla was built without the library that lays graphs out (@dagrejs/dagre, from npm): "
            "install npm and build it again, in a checkout by `rm -f .venv/.built && make build`"
        ) from None


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _fill(template: str, parts: Mapping[str, str]) -> str:
    """Fill the template in one pass, so that filled-in text is not replaced again."""
    pieces = template.split("{{")
    filled = (f"{parts[name]}{rest}" for name, _, rest in (piece.partition("}}") for piece in pieces[1:]))
    return "".join([pieces[0], *filled])


def _data(explanation: Explanation) -> dict[str, Any]:
    texts: dict[str, int] = {}
    called = [
        specialisation.key
        for group in explanation.groups
        for specialisation in group.specialisations
        if any(kernel.seconds for kernel in specialisation.kernels)
    ]
    code = {
        key: [
            {"name": stage.name, "text": texts.setdefault(stage.text, len(texts)), "lines": stage.lines}
            for stage in stages
        ]
        for key, stages in _stages(explanation, dict.fromkeys(called))
    }
    return {
        "report": explanation.to_dict(),
        "environment": environment(),
        "sources": lines_around(_places(explanation)),
        "code": code,
        "texts": [_compress(text) for text in texts],
    }


def _stages(explanation: Explanation, keys: Iterable[str]) -> Iterator[tuple[str, list[Stage]]]:
    known = [key for key in keys if key in explanation.programs]

    def stages(key: str) -> list[Stage]:
        program, kernels = explanation.programs[key]
        return stages_of(Program.from_bytes(program), kernels)

    with ThreadPoolExecutor(_COMPILES) as threads:
        results = tqdm(
            threads.map(stages, known), desc="torchmdla: stages", total=len(known), leave=False, disable=None
        )
        yield from zip(known, results, strict=True)


def _places(explanation: Explanation) -> Iterator[str]:
    """Yield every line of the program that the page names."""
    graphs = [explanation.graph, *(group.graph for group in explanation.groups)]
    yield from (item.source for graph in graphs for item in graph.operators)
    for group in explanation.groups:
        yield group.source
        yield from (kernel.source for item in group.specialisations for kernel in item.kernels)
    yield from (source for reason in explanation.reasons for source in reason.sources)


def lines_around(places: Iterable[str]) -> dict[str, tuple[int, list[str]]]:
    """Return the shown lines for each ``file:line`` whose file can be read.

    A value is the number of the first line, and the lines.
    """
    excerpts: dict[str, tuple[int, list[str]]] = {}
    for place in dict.fromkeys(filter(None, places)):
        file, _, number = place.rpartition(":")
        lines = linecache.getlines(file) if number.isdecimal() else []
        if lines and 1 <= int(number) <= len(lines):
            first = max(int(number) - _BEFORE, 1)
            excerpts[place] = first, [line.rstrip("\n") for line in lines[first - 1 : int(number) + _AFTER]]
    return excerpts


def _compress(text: str) -> str:
    """Return the compressed text, which the browser decompresses.

    Some megabytes become some ten kilobytes.
    """
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()
