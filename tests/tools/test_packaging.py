"""What is shipped, and what an import says where something is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run([sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True)


def test_the_source_distribution_can_be_built(tmp_path: Path) -> None:
    """It holds whatever the build reads."""
    tree = tmp_path / "tree"
    kept = ("src", "mdla", "torchmdla", "CMakeLists.txt", "MANIFEST.in", "README.md", "pyproject.toml", "setup.py")
    tree.mkdir()
    for name in kept:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tree / name)
    done = python(tree, "-c", "import sys, setuptools.build_meta as m; m.build_sdist(sys.argv[1])", str(tmp_path))
    assert done.returncode == 0, done.stderr
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    read = [path for folder in ("src", "mdla", "torchmdla") for path in (ROOT / folder).rglob("*")]
    wanted = {str(p.relative_to(ROOT)) for p in read if p.suffix in (".cpp", ".h", ".py", ".pyi", ".board", ".txt")}
    assert {*wanted, "CMakeLists.txt"} - names == set()
    assert not [name for name in names if name.endswith(".so")]


def test_a_tree_that_is_not_built_says_how(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "torchmdla", tmp_path / "torchmdla", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    # Without site-packages, where an installed copy has an extension.
    done = python(tmp_path, "-S", "-c", "import torchmdla")
    assert "ImportError: this copy of torchmdla" in done.stderr
    assert "make build" in done.stderr
