"""Tests of the examples for beginners: the classified image and its notebook. Other tests cover the other examples."""

from __future__ import annotations

import ast
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from child_process import run_script

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
NOTEBOOK = EXAMPLES / "resnet_inference.ipynb"


@pytest.fixture
def examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.chdir(EXAMPLES)


def test_every_example_is_run() -> None:
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    missing = [path.name for path in EXAMPLES.iterdir() if path.is_file() and path.stem not in tests]
    assert missing == []


def classify(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return run_script(EXAMPLES / "classify_image.py", *arguments, folder=folder, PYTHONPATH=str(ROOT))


@pytest.mark.sampled(0)
def test_classify_image_draws_and_classifies(tmp_path: Path) -> None:
    done = classify(folder=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("no weights: a random network")
    assert lines[-3].endswith("checkers") and float(lines[-3].split("%")[0]) > 90


@pytest.mark.sampled(0)
def test_classify_image_takes_files(examples: None, tmp_path: Path) -> None:
    from classify_image import ResNet18

    torch.manual_seed(1)
    torch.save(ResNet18(7).state_dict(), tmp_path / "weights.pth")
    (tmp_path / "names.txt").write_text("\n".join(f"kind {k}" for k in range(7)))
    pixels = torch.randint(0, 256, (30, 40, 3), dtype=torch.uint8)
    (tmp_path / "image.ppm").write_bytes(b"P6\n40 30\n255\n" + bytes(pixels.flatten().tolist()))
    done = classify("image.ppm", "--weights", "weights.pth", "--labels", "names.txt", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    shown = [line.partition("%")[2].strip() for line in done.stdout.splitlines()[-5:]]
    assert len(set(shown)) == 5 and all(name.startswith("kind ") for name in shown)
    (tmp_path / "image.gif").write_bytes(b"GIF89a")
    done = classify("image.gif", "--weights", "weights.pth", folder=tmp_path)
    assert done.returncode != 0 and "Traceback" not in done.stderr and "Pillow" in done.stderr


def test_an_image_file_is_read_as_it_is(examples: None, tmp_path: Path) -> None:
    from classify_image import read_image

    pixels = torch.randint(0, 256, (3, 5, 3), dtype=torch.uint8)
    (tmp_path / "image.ppm").write_bytes(b"P6 5 3 255\n" + bytes(pixels.flatten().tolist()))
    assert torch.equal(read_image(tmp_path / "image.ppm"), pixels.permute(2, 0, 1).float() / 255)


def executed(source: str, names: dict[str, Any]) -> Any:
    """Run a cell and return the value of its last expression, as Jupyter does."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names) if isinstance(last, ast.Expr) else None


@pytest.mark.sampled(0)
def test_the_notebook_runs(examples: None, capsys: pytest.CaptureFixture[str]) -> None:
    """Run the cells in order and check that each produces the same kinds of output as in the file."""
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    names: dict[str, Any] = {}
    before = torch.is_grad_enabled()
    try:
        for cell in cells:
            value = executed("".join(cell["source"]), names)
            kinds = {kind for output in cell["outputs"] for kind in output.get("data", {})}
            assert ("text/html" in kinds) == hasattr(value, "_repr_html_")
            assert "text/html" not in kinds or "<pre" in value._repr_html_()
            assert ("stream" in {output["output_type"] for output in cell["outputs"]}) == bool(capsys.readouterr().out)
    finally:
        torch.set_grad_enabled(before)
    assert max(names["compiled"](names["x"])[0].tolist()) > 0.9
