"""Tests of ``python -m torchmdla new-device``: the package is written, built, installed and tested as a user would."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from child_process import run_script

import torchmdla
from torchmdla.__main__ import main
from torchmdla.cli.new_device import package_files
from torchmdla.version import __version__

NAME = "acme_npu"

# The least score of a new device in the conformance run, in per cent.
LEAST_SCORE = 60


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packages") / NAME
    assert main(["new-device", NAME, str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def installed(package: Path) -> Path:
    """Return a folder where the built wheel is installed. It is built without the sources of torchmdla."""
    if not shutil.which("cc"):
        pytest.skip("the package is built by a C compiler: cc")
    folder = package.parent / "installed"
    options = ["--no-build-isolation", "--no-deps", "--no-index", "--quiet", "--target", str(folder)]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"PATH": path}
    command = [sys.executable, "-m", "pip", "install", *options, str(package)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=package.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def run_tests(package: Path, installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ("-m", "pytest", "-q", "--show-capture=no", "-p", "no:cacheprovider", *arguments)
    return run_script(*command, folder=package, PYTHONPATH=str(installed))


def test_its_wheel_is_for_every_python(installed: Path) -> None:
    (metadata,) = installed.glob("*.dist-info")
    assert "Tag: py3-none-" in (metadata / "WHEEL").read_text()
    assert f"acme_npu = {NAME}:AcmeNpu" in (metadata / "entry_points.txt").read_text()
    assert {path.name for path in (installed / NAME).glob("*.[chs]*")} == {f"lib{NAME}.so"}


def test_some_of_its_tests_pass(package: Path, installed: Path) -> None:
    done = run_tests(package, installed, "-k", "convolution or weights")
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.sampled(0)
def test_all_of_its_tests_pass(package: Path, installed: Path) -> None:
    done = run_tests(package, installed)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.sampled(0)
def test_its_score(package: Path, installed: Path, tmp_path: Path) -> None:
    """Check the score of a first run, and that all programs of the package's baseline are right."""
    options = ("--device", NAME, "--quick", "--jobs", "1", "--baseline", "tests/score.json", "--json", tmp_path / "run")
    done = run_script("-m", "torchmdla.testing", *options, folder=package, PYTHONPATH=str(installed))
    assert done.returncode == 0, done.stdout + done.stderr
    *_, summary = map(json.loads, (tmp_path / "run").read_text().splitlines())
    assert summary["summary"]["score"] >= LEAST_SCORE


def test_another_name_is_everywhere() -> None:
    for path, text in package_files(NAME):
        assert "mychip" not in f"{path}{text}".lower()


def test_it_is_for_this_version() -> None:
    (text,) = (text for path, text in package_files(NAME) if path.name == "pyproject.toml")
    requirement = re.search(r"torchmdla>=(\d+)\.(\d+),<", text)
    assert requirement and __version__.startswith(f"{requirement[1]}.{requirement[2]}.")


@pytest.mark.parametrize(
    ("name", "reason"),
    [("cpu", "is taken"), ("My-Chip", "cannot be the name"), ("class", "cannot be the name"), ("1st", "cannot be")],
)
def test_a_name_that_cannot_be(name: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new-device", name, str(tmp_path / "new")]) == 2
    assert reason in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_a_folder_with_files_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes").write_text("mine")
    assert main(["new-device", NAME, str(tmp_path)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


def test_a_package_for_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a device for another version of torchmdla is refused before it is imported."""
    metadata = tmp_path / "other_npu-1.2.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Name: other-npu\nVersion: 1.2\nRequires-Dist: torchmdla<90,>=89\n")
    (metadata / "entry_points.txt").write_text("[torchmdla.devices]\nother_npu = absent_module:Npu\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ValueError, match=r"'other_npu' of other-npu 1\.2 is for torchmdla<90,>=89, and .* --upgrade"):
        torchmdla.enable(device="other_npu")
