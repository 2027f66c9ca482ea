"""Debian's Python for AArch64 in an emulator, with packages that were installed for AArch64.

It consists of unpacked packages in a folder, so that nothing is installed on this machine. The emulator prefers files
of the folder to those of the machine with the same paths.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

TRIPLE = "aarch64-linux-gnu"

# Commands, and Debian's packages that have them.
TOOLS = {f"{TRIPLE}-g++": f"g++-{TRIPLE}", "qemu-aarch64": "qemu-user", "apt-get": "apt", "dpkg-deb": "dpkg"}

# The processor of the emulator, and what PyTorch reads about it.
CPU = "neoverse-n1"
_CPU_INFO = """\
processor\t: {number}
BogoMIPS\t: 50.00
Features\t: fp asimd aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x3
CPU part\t: 0xd0c
CPU revision\t: 1

"""

# Packages of the interpreter, with that of its version, and of the libraries that it and PyTorch need.
_PACKAGES = """
{python}-minimal lib{python}-minimal lib{python}-stdlib libc6 libgcc-s1 libstdc++6 zlib1g libexpat1 libffi8 libbz2-1.0
liblzma5 libssl3 libsqlite3-0 libuuid1 libcrypt1 libtinfo6 libncursesw6 libreadline8 libdb5.3
"""

# A function of PyTorch's CUDA libraries, which are not installed. The result is the error of machines without a GPU.
_NO_DEVICE = 100


def missing_tools() -> list[str]:
    """Return Debian's packages of the commands that are not installed."""
    return sorted(package for tool, package in TOOLS.items() if shutil.which(tool) is None)


class EmulatedPython:
    """Interpreter in ``folder``; modules are found in ``paths``."""

    def __init__(self, folder: Path, paths: Iterable[Path]) -> None:
        self._root = folder / "root"
        self._libraries = folder / "libraries"
        self._version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        self.command = folder / "python"
        if not (folder / "installed").exists():
            self._unpack_packages(folder / "apt")
            self._describe_processor()
            (folder / "installed").touch()
        self._write_command(folder / "start", paths)

    def _unpack_packages(self, apt: Path) -> None:
        """Download packages with lists of their own, and unpack them."""
        for name in ("lists/partial", "cache/archives/partial", "packages"):
            (apt / name).mkdir(parents=True, exist_ok=True)
        (apt / "status").touch()
        settings = {
            "APT::Architecture": "arm64",
            "APT::Architectures::": "arm64",
            "Dir::State::lists": apt / "lists",
            "Dir::State::status": apt / "status",
            "Dir::Cache": apt / "cache",
        }
        (apt / "apt.conf").write_text("".join(f'{name} "{value}";\n' for name, value in settings.items()))
        environment = {"APT_CONFIG": str(apt / "apt.conf")}
        _run("apt-get", "-qq", "update", cwd=apt, **environment)
        names = _PACKAGES.format(python=self._version).split()
        _run("apt-get", "-qq", "download", *names, cwd=apt / "packages", **environment)
        for package in (apt / "packages").glob("*.deb"):
            _run("dpkg-deb", "-x", str(package), str(self._root))

    def _describe_processor(self) -> None:
        """Write the files of the system that describe the processor: those of this machine are about another one."""
        (self._root / "proc").mkdir()
        (self._root / "proc" / "cpuinfo").write_text("".join(_CPU_INFO.format(number=k) for k in range(2)))
        identification = self._root / "sys/devices/system/cpu/cpu0/regs/identification"
        identification.mkdir(parents=True)
        (identification / "midr_el1").write_text("0x00000000413fd0c1\n")

    def _write_command(self, start: Path, paths: Iterable[Path]) -> None:
        """Write a script that runs the interpreter, which the interpreter starts for its own processes, too."""
        start.mkdir(exist_ok=True)
        (start / "sitecustomize.py").write_text(f"import sys\n\nsys.executable = {str(self.command)!r}\n")
        modules = os.pathsep.join(map(str, (start, *paths)))
        emulator = f"qemu-aarch64 -cpu {CPU} -L {self._root} -E LD_LIBRARY_PATH={self._libraries}"
        self.command.write_text(
            f'#!/bin/sh\nPYTHONPATH="{modules}:$PYTHONPATH" exec {emulator} {self._root}/usr/bin/{self._version} "$@"\n'
        )
        self.command.chmod(0o755)

    def provide_cuda(self, torch: Path) -> None:
        """Build libraries in place of CUDA's, which PyTorch needs. Each of their functions reports a missing GPU."""
        self._libraries.mkdir(exist_ok=True)
        objects = sorted(torch.glob("*.so*"))
        system = [*self._root.glob(f"lib/{TRIPLE}/*"), *self._root.glob(f"usr/lib/{TRIPLE}/*")]
        present = {path.name for path in (*objects, *system)} | {"ld-linux-aarch64.so.1"}
        versions: dict[str, set[str]] = defaultdict(set)
        functions: dict[str, set[str]] = defaultdict(set)
        for path in objects:
            for library in re.findall(r"\(NEEDED\).*\[(.*)\]", _output("readelf", "-dW", str(path))):
                versions.setdefault(library, set())
            for library, names in _needed_versions(path):
                versions[library] |= names
            for symbol in _symbols(path, "undefined"):
                name, _, version = symbol.partition("@")
                functions[version.lstrip("@")].add(name)
        defined = {symbol.partition("@")[0] for path in (*objects, *system) for symbol in _symbols(path, "defined")}
        # Symbols without a version may come from any library.
        others = {name for name in functions[""] - defined if re.match("cu|nv|nccl", name)}
        for library in versions.keys() - present:
            named = {version: functions[version] for version in sorted(versions[library])}
            self._build_library(library, named, others if library.startswith("libcudart.") else set())

    def _build_library(self, name: str, versions: Mapping[str, set[str]], others: set[str]) -> None:
        functions = sorted(others.union(*versions.values()))
        source, script = self._libraries / f"{name}.c", self._libraries / f"{name}.map"
        source.write_text("".join(f"int {function}(void) {{ return {_NO_DEVICE}; }}\n" for function in functions))
        script.write_text("".join(f"{v} {{ global: {'; '.join(sorted(names))}; }};\n" for v, names in versions.items()))
        options = ["-shared", "-nostdlib", "-fno-builtin", f"-Wl,-soname,{name}"]
        options += [f"-Wl,--version-script={script}"] if versions else []
        _run(f"{TRIPLE}-gcc", *options, "-o", str(self._libraries / name), str(source))


def _needed_versions(path: Path) -> Iterable[tuple[str, set[str]]]:
    """Yield libraries that a library needs, with the versions of their symbols."""
    listed = _output("readelf", "-VW", str(path)).partition(".gnu.version_r")[2]
    for part in listed.split("File: ")[1:]:
        yield part.split()[0], set(re.findall(r"Name: (\S+)", part))


def _symbols(path: Path, kind: str) -> set[str]:
    lines = _output(f"{TRIPLE}-nm", "-D", f"--{kind}-only", str(path)).splitlines()
    return {line.split()[-1] for line in lines if line.split()}


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True).stdout


def _run(*command: str, cwd: Path | None = None, **environment: str) -> None:
    done = subprocess.run(command, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[:3])} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
