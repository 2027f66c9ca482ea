"""Tests that run the Python blocks of each document in order, as a reader would type them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from child_process import run_script

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DOCUMENTS = [
    path for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if BLOCK.search(path.read_text())
]
# Optional packages, by document.
NEEDS = {"ray.md": ("ray.data", "ray.serve"), "device_guide.md": ("torchao",)}


def script_of(text: str) -> str:
    """Return the blocks alone. Each keeps its line numbers, so that a traceback shows the document's lines."""
    script, end = "", 0
    for block in BLOCK.finditer(text):
        script += "\n" * text.count("\n", end, block.start(1)) + block[1]
        end = block.end(1)
    return script


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
@pytest.mark.sampled(0)
def test_blocks_run(document: Path, tmp_path: Path) -> None:
    for package in NEEDS.get(document.name, ()):
        pytest.importorskip(package)
    script = tmp_path / f"{document.stem}_document.py"  # must not be the name of a package that it imports
    script.write_text(script_of(document.read_text()))
    done = run_script(script.name, folder=tmp_path, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr


def test_lines_stay() -> None:
    text = "words\n\n```python\na = 1\n```\n\n```python\n1 / 0\n```\n"
    assert script_of(text).splitlines().index("1 / 0") == text.splitlines().index("1 / 0")
