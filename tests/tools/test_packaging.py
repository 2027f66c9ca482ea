"""What is shipped, and what an import says where something is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# The endings of files that the build reads.
READ = (".cpp", ".h", ".py", ".pyi", ".board", ".txt", ".html", ".css", ".js")


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
    wanted = {str(p.relative_to(ROOT)) for p in read if p.suffix in READ and "vendor" not in p.parts}
    assert {*wanted, "CMakeLists.txt"} - names == set()
    assert not [name for name in names if name.endswith(".so")]


def test_a_tree_that_is_not_built_says_how(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "torchmdla", tmp_path / "torchmdla", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    # Without site-packages, where an installed copy has an extension.
    done = python(tmp_path, "-S", "-c", "import torchmdla")
    assert "ImportError: this copy of torchmdla" in done.stderr
    assert "make build" in done.stderr


# Writes a file into the folder that its last argument but one names.
OTHER = "for last; do folder=$before; before=$last; done; echo other > $folder/dagre.tgz"


@pytest.mark.parametrize(
    ("npm", "said"),
    [
        ("", "NOTICE: npm did not get @dagrejs/dagre@"),
        ("exit 1", "NOTICE: npm did not get @dagrejs/dagre@"),
        (
            "for last; do folder=$before; before=$last; done; echo other > $folder/dagre.tgz",
            "is not what setup.py expects",
        ),
    ],
)
def test_what_npm_gives(tmp_path: Path, npm: str, said: str) -> None:
    """Without npm, or where it fails, the build goes on; another package than the one that is named ends it."""
    (tmp_path / "setup.py").write_text((ROOT / "setup.py").read_text().partition("\nsetup(")[0])
    programs = tmp_path / "bin"
    programs.mkdir()
    if npm:
        (programs / "npm").write_text(f"#!/bin/sh\n{npm}\n")
        (programs / "npm").chmod(0o755)
    environment = {**os.environ, "PATH": str(programs)}
    script = "import setup; print(setup.vendored())"
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert said in done.stderr
    assert done.stdout.strip() == ("" if "expects" in said else "[]")
    assert done.returncode == ("expects" in said)
