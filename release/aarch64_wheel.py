"""Make a wheel for AArch64 in ``dist`` with a cross-compiler, and try it in an emulator: ``make wheel-aarch64``.

PyTorch for AArch64 is installed into ``build/aarch64/site``, and the extension is built with its headers and libraries.
The Python that tries the wheel is Debian's, of the same version as this one (``emulated_python.py``).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from importlib import metadata
from pathlib import Path

import make_wheel
from emulated_python import TRIPLE, EmulatedPython, missing_tools
from environments import ROOT, run

WORK = ROOT / "build" / "aarch64"
SITE = WORK / "site"

# What the wheel's programs import, in the versions that are installed here. CUDA's libraries are not among them.
PACKAGES = """
torch torch-mlir llvmlite numpy platformdirs rich tqdm typing-extensions sympy mpmath networkx jinja2 markupsafe fsspec
filelock markdown-it-py mdurl pygments
"""
# The C libraries that PyTorch's and LLVM's wheels for AArch64 are tagged for.
GLIBC = ("2_17", "2_27", "2_28", "2_31", "2_34", "2_35")


def main() -> int:
    if missing := missing_tools():
        print(f"skipped: not installed: {', '.join(missing)} (Debian packages)")
        return 0
    install_site()
    wheel = pack(build())
    make_wheel.show(wheel)
    return try_wheel(wheel)


def install_site() -> None:
    """Install PyTorch and the compiler for AArch64, unless these versions are installed."""
    versions = [f"{name}=={metadata.version(name).partition('+')[0]}" for name in PACKAGES.split()]
    stamp, text = SITE / "versions.txt", "\n".join(versions)
    if stamp.exists() and stamp.read_text() == text:
        return
    shutil.rmtree(SITE, ignore_errors=True)
    platforms = [f"--platform=manylinux_{version}_aarch64" for version in GLIBC]
    options = ["--quiet", "--no-deps", "--no-compile", "--only-binary=:all:", f"--target={SITE}", *platforms]
    run(sys.executable, "-m", "pip", "install", *options, *versions)
    stamp.write_text(text)


def build() -> Path:
    """Build the libraries, and return their folder."""
    tree = WORK / "cmake"
    tools = Path(sys.executable).parent
    settings = {
        "CMAKE_TOOLCHAIN_FILE": ROOT / "release" / f"{TRIPLE}.cmake",
        "CMAKE_MAKE_PROGRAM": tools / "ninja",
        "Python_EXECUTABLE": sys.executable,
        "Python_INCLUDE_DIR": sysconfig.get_path("include"),
        "TORCH": SITE / "torch",
    }
    defined = [f"-D{name}={value}" for name, value in settings.items()]
    run(str(tools / "cmake"), "-S", str(ROOT), "-B", str(tree), "-G", "Ninja", *defined)
    run(str(tools / "cmake"), "--build", str(tree))
    return tree


def pack(tree: Path) -> Path:
    """Return the wheel with the libraries in ``tree``."""
    stage = WORK / "stage"
    shutil.rmtree(stage, ignore_errors=True)
    make_wheel.copy_sources(stage)
    # CMake names the extension for the interpreter that runs it.
    extension = f"_C.{sysconfig.get_config_var('SOABI')}.so"
    folder = next((ROOT / "torchmdla").glob("torch_[0-9]*")).name
    places = {
        tree / extension: f"torchmdla/{folder}/_C.cpython-{sys.version_info.major}{sys.version_info.minor}-{TRIPLE}.so",
        tree / "libtorchmdla.so": f"torchmdla/{folder}/libtorchmdla.so",
        tree / "libtorchmdla_runtime.so": "torchmdla_runtime/libtorchmdla_runtime.so",
        **{path: f"torchmdla/devices/mdla/{path.name}" for path in tree.glob("libtorchmdla_mdla*.so")},
    }
    for library, place in places.items():
        (stage / place).parent.mkdir(parents=True, exist_ok=True)
        run(f"{TRIPLE}-strip", "--strip-unneeded", "-o", str(stage / place), str(library))
    make_wheel.narrow_range(stage)
    packed = WORK / "wheel"
    shutil.rmtree(packed, ignore_errors=True)
    wheel = make_wheel.pack(Path(sys.executable), stage, packed)
    run(sys.executable, "-m", "wheel", "tags", "--remove", "--platform-tag=linux_aarch64", str(wheel))
    (wheel,) = packed.glob("*.whl")
    (ROOT / "dist").mkdir(exist_ok=True)
    return Path(shutil.copy(wheel, ROOT / "dist"))


def try_wheel(wheel: Path) -> int:
    """Run programs with the wheel in the emulator, and return the exit status."""
    installed = WORK / "installed"
    shutil.rmtree(installed, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    python = EmulatedPython(WORK / "python", (installed, SITE))
    python.provide_cuda(SITE / "torch" / "lib")
    programs = ROOT / "tests" / "aarch64" / "wheel_programs.py"
    environment = {**os.environ, "TORCHMDLA_CACHE_DIR": str(WORK / "cache"), "TORCHMDLA_CHECK_SPEED": "0"}
    return subprocess.run([str(python.command), "-W", "ignore", str(programs)], cwd=WORK, env=environment).returncode


if __name__ == "__main__":
    raise SystemExit(main())
