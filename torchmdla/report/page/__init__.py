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
_SCRIPTS = ("dom", "data", "kernel", "kernels", "layout", "graph", "roofline", "timeline", "tables", "main")

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
    parts = _parts()
    with Path(path).open("w", encoding="utf-8") as file:
        data = json.dumps(_data(explanation), separators=(",", ":")).replace("<", "\\u003c")
        title = html.escape(f"{explanation.model or 'model'} - torchmdla")
        template = (_FOLDER / "page.html").read_text(encoding="utf-8")
        file.write(_fill(template, {**parts, "data": data, "title": title}))


def _parts() -> dict[str, str]:
    """Return the parts that all pages share.

    The policy permits only the page's own scripts, and no fetches.
    """
    try:
        library = (_VENDOR / "dagre.min.js").read_text(encoding="utf-8")
        licence = (_VENDOR / "LICENSE").read_text(encoding="utf-8")
    except FileNotFoundError:
        raise RuntimeError(
            "this copy of torchmdla was built without the library that lays graphs out (@dagrejs/dagre, from npm): "
            "install npm and build it again, in a checkout by `rm -f .venv/.built && make build`"
        ) from None
    scripts = "\n".join((_FOLDER / f"{name}.js").read_text(encoding="utf-8") for name in _SCRIPTS)
    style = (_FOLDER / "page.css").read_text(encoding="utf-8")
    script = f'(() => {{\n"use strict";\n{scripts}\n}})();'
    layout = f"/*\n{licence.replace('*/', '* /')}\n*/\n{library}"
    allowed = [
        "default-src 'none'",
        f"script-src {_hash(layout)} {_hash(script)}",
        f"style-src {_hash(style)}",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    return {
        "policy": "; ".join(allowed),
        "style": style,
        "layout": layout,
        "script": script,
        "licence": html.escape(licence),
    }


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
