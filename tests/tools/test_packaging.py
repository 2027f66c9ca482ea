"""Tests of the distributions, and of the messages of an import if something is missing."""

from __future__ import annotations

import argparse
import importlib
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
from child_process import run_python

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
        ("2.12.1", "or see whether another torchmdla supports torch 2.12."),
        ("2.99.0+cu199", "or see whether another torchmdla supports torch 2.99."),
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
    assert message.startswith(f"ImportError: torchmdla cannot be imported: torch {version} is installed, and this copy")
    assert f"is for torch {installed}. Run pip install 'torch=={installed}.*'" in message
    assert advice in message


@pytest.mark.parametrize(
    "use",
    ["import torchmdla", "import torchmdla.lazy", "torch.compile(torch.relu, backend='torchmdla')(torch.ones(2))"],
)
def test_an_unknown_torch_stays_as_it_is(use: str) -> None:
    """Check that a PyTorch of another version works after the error: nothing is registered, and nothing replaced."""
    done = run_python(f"""
import inspect, sys
import torch, torch._dynamo
torch.__version__ = "2.99.0"

def functions():
    owners = (torch, torch._C, torch.Tensor, torch.nn.Module, torch.jit, torch.autograd, torch.overrides, torch.utils)
    values = {{(str(owner), name): value for owner in owners for name, value in vars(owner).items()}}
    return {{place: id(value) for place, value in values.items() if callable(value)}}

def registered():
    dumps = [torch._C._dispatch_dump(name) for name in ("aten::relu", "aten::add.Tensor")]
    schemas = len(torch._C._jit_get_all_schemas())
    return dumps, schemas, torch._C._get_privateuse1_backend_name(), torch._C._dispatch_get_all_op_names()

torch.compile(torch.relu, backend="eager")(torch.ones(2))
before = functions(), registered()
for _ in range(2):
    try:
        {use}
    except ImportError as error:
        assert "torchmdla cannot be imported: torch 2.99.0 is installed" in str(error), error
    else:
        raise AssertionError("it was imported")
assert (functions(), registered()) == before
assert "torchmdla" not in sys.modules and "torchmdla._C" not in sys.modules
assert "libtorchmdla" not in open("/proc/self/maps").read()
torch.compile(torch.sigmoid, backend="eager")(torch.ones(2))
""")
    assert done.returncode == 0, done.stderr


def test_an_extension_that_does_not_load_is_named(tmp_path: Path) -> None:
    """Check the error with an extension for another build of the same version of PyTorch."""
    shutil.copytree(ROOT / "torchmdla", tmp_path / "torchmdla", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    folder = tmp_path / "torchmdla" / extension_folder(torch.__version__)
    folder.mkdir(exist_ok=True)
    (folder / f"_C{sysconfig.get_config_var('EXT_SUFFIX')}").write_text("not an extension")
    done = python(tmp_path, "-c", "import torchmdla")
    message = done.stderr.splitlines()[-1]
    assert f"does not load with torch {torch.__version__} (" in message
    assert "invalid ELF header" in message or "file too short" in message
    assert "build torchmdla for this one" in message


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
    assert extension_folder("2.13.1+cpu") == "torch_2_13"


def script(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import a script of the folder ``release``, and those that it imports."""
    monkeypatch.syspath_prepend(ROOT / "release")
    return importlib.import_module(name)


def test_the_table_of_versions_has_each_combination(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Check that the table in the documentation has one row for each, and that a result replaces its row only."""
    matrix = script("matrix", monkeypatch)
    before = matrix.TABLE.read_text().splitlines()
    rows = [tuple(line.split(" | ")[:2]) for line in before if re.match(r"\| \d", line)]
    versions = [(f"| {torch}", python) for torch in reversed(TORCH_VERSIONS) for python in matrix.PYTHON_VERSIONS]
    assert rows == versions
    copy = tmp_path / "versions.md"
    copy.write_text("\n".join(before))
    monkeypatch.setattr(matrix, "TABLE", copy)
    matrix.replace_row(matrix.Row(TORCH_VERSIONS[0], "3.12", "1.2.3", "ok", "failed: 2 failed, 7 passed"))
    changed = [line for line, old in zip(copy.read_text().splitlines(), before, strict=True) if line != old]
    assert changed == [f"| {TORCH_VERSIONS[0]} | 3.12 | 1.2.3 | ok | failed: 2 failed, 7 passed |"]


def test_the_matrix_goes_on_after_a_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Check each stage that may fail, with an interpreter whose pip or build fails."""
    matrix, environments = script("matrix", monkeypatch), script("environments", monkeypatch)
    monkeypatch.setattr(environments, "WORK", tmp_path)
    monkeypatch.setattr(matrix, "report", lambda *_: None)
    environment = environments.Environment(Path(sys.executable), "3.11", "2.15")
    environment.folder.mkdir()
    options = argparse.Namespace(keep=False, jobs="1", tests=["tests"])
    fail = "import sys; print('ERROR: No matching distribution found for torch==9 (from versions: 1, 2)'); sys.exit(1)"

    def create(self: object, **_: object) -> None:
        environment.run(sys.executable, "-c", fail)

    monkeypatch.setattr(environments.Environment, "create", create)
    row = matrix.try_combination(environment, options)
    assert row == matrix.Row("2.15", "3.11", "skipped: No matching distribution found for torch==9")
    monkeypatch.setattr(environments.Environment, "create", lambda *_, **__: None)
    monkeypatch.setattr(environments.Environment, "torch_version", lambda _: "2.15.0")
    monkeypatch.setattr(matrix, "build_wheel", create)
    row = matrix.try_combination(environment, options)
    assert (row.installed, row.build.partition(":")[0], row.tests) == ("2.15.0", "failed", "–")


def test_the_summary_of_tests_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = script("matrix", monkeypatch)
    output = "x\n2 failed, 1609 passed, 3 skipped, 5 deselected, 12 warnings in 181.02s (0:03:01)\n"
    (summary,) = matrix.SUMMARY.findall(output)
    assert matrix.counts(summary) == "2 failed, 1609 passed, 3 skipped"


@pytest.mark.sampled(0)
def test_the_wheel_works_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    script("try_wheel", monkeypatch).check(environment, tmp_path / "elsewhere")
