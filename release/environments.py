"""Interpreters of this machine, and virtual environments in which one of them has a version of PyTorch.

``make_wheel.py`` builds in them, and ``matrix.py`` also tests in them.
"""

from __future__ import annotations

import os
import runpy
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "versions"

# Loaded by path, because the package cannot be imported before it is built.
TORCH_VERSIONS: tuple[str, ...] = runpy.run_path(str(ROOT / "torchmdla" / "version.py"))["TORCH_VERSIONS"]
PYTHON_VERSIONS = ("3.10", "3.11", "3.12", "3.13")

# numpy: the tables of the cpu device are written by its Python code.
BUILD_TOOLS = ("cmake", "ninja", "numpy", "setuptools", "wheel")


class CommandError(Exception):
    """Error: a command failed. The message has the last lines of its output."""


@dataclass(frozen=True)
class Environment:
    """Virtual environment of an interpreter with a minor version of PyTorch, or with a full one."""

    interpreter: Path
    python_version: str
    torch: str

    @property
    def folder(self) -> Path:
        return WORK / f"python{self.python_version}-torch{self.torch}"

    @property
    def python(self) -> Path:
        return self.folder / "environment" / "bin" / "python"

    @property
    def objects(self) -> Path:
        return self.folder / "cmake"

    @property
    def log(self) -> Path:
        return self.folder / "log.txt"

    def create(self) -> None:
        """Install PyTorch with the packages that it needs, and the tools that build the extension.

        A build imports PyTorch for the table of its operators. Where there is a build for CPUs, pip prefers it, because
        its version has a suffix.

        Raises:
            CommandError: pip does not find a package for this interpreter.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.python.exists():
            self.run(str(self.interpreter), "-m", "venv", str(self.folder / "environment"))
        version = self.torch if self.torch.count(".") > 1 else f"{self.torch}.*"
        self.install(f"torch=={version}")
        self.install(*BUILD_TOOLS)

    def install(self, *packages: str) -> None:
        """Install packages in the versions that are tried.

        Raises:
            CommandError: pip does not find a package for this interpreter.
        """
        pinned = self.folder / "constraints.txt"
        lines = [line for name in ("requirements.txt", "requirements-dev.txt") for line in _pins(ROOT / name)]
        pinned.write_text("\n".join(lines) + "\n")
        options = ["--quiet", "--no-compile", "--disable-pip-version-check", "--constraint", str(pinned)]
        self.run(str(self.python), "-m", "pip", "install", *options, *packages)

    def torch_version(self) -> str:
        """Return the full version of PyTorch that is installed."""
        return self.run(
            str(self.python), "-c", "from importlib import metadata; print(metadata.version('torch'))"
        ).strip()

    def run(self, *command: str, folder: Path = ROOT) -> str:
        """Run a command, append its output to the log, and return its standard output.

        Raises:
            CommandError: it failed.
        """
        return run(*command, folder=folder, log=self.log)

    def remove(self) -> None:
        """Remove what takes disk space; the log and the objects of the build stay."""
        shutil.rmtree(self.folder / "environment", ignore_errors=True)


def interpreters() -> dict[str, Path]:
    """Return the interpreters of this machine by minor version: those of pyenv, or else those of ``PATH``."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    paths: dict[str, Path] = {}
    for version in PYTHON_VERSIONS:
        of_pyenv = sorted(root.glob(f"{version}.*/bin/python"), key=lambda path: int(path.parts[-3].split(".")[2]))
        on_path = shutil.which(f"python{version}")
        if of_pyenv or on_path:
            paths[version] = of_pyenv[-1] if of_pyenv else Path(str(on_path))
    return paths


def run(*command: str, folder: Path = ROOT, log: Path | None = None, **variables: str) -> str:
    """Run a command. With a log, append its output to it, and return its standard output.

    Raises:
        CommandError: it failed.
    """
    environment = {**os.environ, **variables}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=log is not None, text=True)
    if log:
        with log.open("a") as file:
            file.write(f"$ {shlex.join(command)}\n{done.stdout}{done.stderr}")
    if done.returncode:
        reason = _reason(done.stdout + done.stderr) if log else ""
        raise CommandError(reason or f"ended with {done.returncode}: {shlex.join(command)}")
    return done.stdout or ""


def _pins(file: Path) -> list[str]:
    """Return the lines of a file of requirements that pip takes as constraints."""
    lines = (line for line in file.read_text().splitlines() if "==" in line)
    return [line for line in lines if "[" not in line.partition("==")[0] and not line.startswith("torch==")]


def _reason(output: str) -> str:
    """Return the last line of an output that is an error, without a list of versions."""
    errors = [line for line in output.splitlines() if "error" in line.lower()]
    return errors[-1].removeprefix("ERROR: ").partition(" (from versions")[0][:200] if errors else ""
