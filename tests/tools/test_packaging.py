"""Tests of the distributions, and of the messages of an import if something is missing."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
import torch

import torchmdla
from torchmdla.version import TORCH_VERSIONS, extension_folder, minor_of

ROOT = Path(__file__).resolve().parents[2]

# Suffixes of the files that the build reads.
READ = (".cpp", ".h", ".py", ".pyi", ".board", ".txt", ".html", ".css", ".js")


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run([sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True)


def test_the_source_distribution_can_be_built(tmp_path: Path) -> None:
    """Check that the source distribution contains all files that the build reads."""
    tree = tmp_path / "tree"
    sources = (
        "src",
        "mdla",
        "torchmdla",
        "torchmdla_runtime",
        "release",
        "CMakeLists.txt",
        "MANIFEST.in",
        "README.md",
        "pyproject.toml",
        "setup.py",
    )
    tree.mkdir()
    for name in sources:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tree / name)
    done = python(tree, "-c", "import sys, setuptools.build_meta as m; m.build_sdist(sys.argv[1])", str(tmp_path))
    assert done.returncode == 0, done.stderr
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    read = [path for folder in ("src", "mdla", "torchmdla", "torchmdla_runtime") for path in (ROOT / folder).rglob("*")]
    wanted = {str(p.relative_to(ROOT)) for p in read if p.suffix in READ and "vendor" not in p.parts}
    assert {*wanted, "CMakeLists.txt", "release/npm_package.py", "release/operator_table.py"} - names == set()
    assert not [name for name in names if name.endswith(".so")]


def test_an_unbuilt_tree_names_the_build_command(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "torchmdla", tmp_path / "torchmdla", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    # -S leaves out site-packages, because an installed copy has an extension there.
    done = python(tmp_path, "-S", "-c", "import torchmdla")
    assert "ImportError: this copy of torchmdla" in done.stderr
    assert "make build" in done.stderr


# This shell script writes a file into the folder that its second to last argument names.
OTHER = "for last; do folder=$before; before=$last; done; echo other > $folder/dagre.tgz"


@pytest.mark.parametrize(
    ("npm", "message"),
    [
        ("", "NOTICE: npm did not get @dagrejs/dagre@"),
        ("exit 1", "NOTICE: npm did not get @dagrejs/dagre@"),
        (OTHER, "is not what release/npm_package.py expects"),
    ],
)
def test_the_build_checks_the_npm_package(tmp_path: Path, npm: str, message: str) -> None:
    """Check that the build continues without npm, or if npm fails. It fails if npm gives another package."""
    (tmp_path / "release").mkdir()
    shutil.copy(ROOT / "release" / "npm_package.py", tmp_path / "release")
    programs = tmp_path / "bin"
    programs.mkdir()
    if npm:
        (programs / "npm").write_text(f"#!/bin/sh\n{npm}\n")
        (programs / "npm").chmod(0o755)
    environment = {**os.environ, "PATH": str(programs)}
    script = "import npm_package; print(npm_package.vendored())"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path / "release", env=environment, capture_output=True, text=True
    )
    assert message in done.stderr
    assert done.stdout.strip() == ("" if "expects" in message else "[]")
    assert done.returncode == ("expects" in message)


@pytest.mark.parametrize(
    ("version", "advice"),
    [
        ("2.12.1", f"Built from source, torchmdla supports torch {TORCH_VERSIONS[0]}"),
        ("2.99.0+cu199", "Built from source, torchmdla supports torch"),
        *((f"{other}.0", "or build torchmdla for this one") for other in TORCH_VERSIONS),
    ],
)
def test_a_torch_without_an_extension_is_named(version: str, advice: str, tmp_path: Path) -> None:
    """Check that the error names the installed torch and gives advice, before the extension is loaded.

    An error about an undefined symbol of the extension would not help the user.
    """
    installed = minor_of(torch.__version__)
    if minor_of(version) == installed:
        pytest.skip("it is the one that is installed")
    (tmp_path / "torch.py").write_text(f"__version__ = {version!r}")
    done = python(tmp_path, "-c", f"import sys; sys.path.insert(1, {str(ROOT)!r}); import torchmdla")
    message = done.stderr.splitlines()[-1]
    assert message.startswith(f"ImportError: torch {version} is installed, and this copy of torchmdla (")
    assert f"is for torch {installed}: pip install 'torch=={installed}.*'" in message
    assert advice in message


def test_no_torch_is_said(tmp_path: Path) -> None:
    done = python(
        tmp_path, "-S", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); import torchmdla; torchmdla.compile"
    )
    reason = "torchmdla needs PyTorch, which is not installed: pip install 'torch=="
    assert f"ImportError: torchmdla.compile needs PyTorch. {reason}" in done.stderr


def test_the_range_of_torch_is_one() -> None:
    *_, last = TORCH_VERSIONS
    after = int(last.partition(".")[2]) + 1
    ranges = re.findall(r'"(torch>=[^"]*)"', (ROOT / "pyproject.toml").read_text())
    assert ranges == [f"torch>={TORCH_VERSIONS[0]},<2.{after}"] * 2
    assert [extension_folder(f"{version}.1+cpu") for version in ("2.13", "2.14")] == ["torch_2_13", "torch_2_14"]


def script(name: str) -> ModuleType:
    """Import a script of the folder ``release`` as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "release" / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.sampled(0)
def test_the_wheel_works_alone(tmp_path: Path) -> None:
    """Check a wheel of the libraries that are built in the tree, in an environment without a compiler.

    ``make wheel`` tries its wheel with dependencies that pip chooses.
    """
    if ROOT not in Path(torchmdla.__file__).parents:
        pytest.skip("tests of an installed copy: there is no tree")
    done = python(ROOT, "release/make_wheel.py", "--built", "--output", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        (metadata,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        requirement = re.search(r"^Requires-Dist: torch([<>=].*)$", archive.read(metadata).decode(), re.MULTILINE)
    packages = (ROOT / "torchmdla", ROOT / "torchmdla_runtime")
    files = [path for package in packages for path in package.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert names == {str(path.relative_to(ROOT)) for path in files}
    minor = int(minor_of(torch.__version__).partition(".")[2])
    assert requirement and set(requirement[1].split(",")) == {f">=2.{minor}", f"<2.{minor + 1}"}
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    installed = environment / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    # Python ignores .pth files, which install a tree in place, in a folder that is added by another .pth file.
    (installed / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    script("try_wheel").check(environment, tmp_path / "elsewhere")
