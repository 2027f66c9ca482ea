"""Builds ``torchmdla._C`` with CMake and ninja against the installed torch, and the mdla device's libraries, which need
no torch. Everything else is in pyproject.toml."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent


class CMakeBuild(build_ext):
    """Configures once into ``build/cmake`` and lets ninja rebuild what changed."""

    def build_extension(self, ext: Extension) -> None:
        tree = ROOT / "build" / "cmake"
        tree.mkdir(parents=True, exist_ok=True)
        cmake = self._tool("cmake")
        settings = [f"-DPython_EXECUTABLE={sys.executable}", f"-DCMAKE_MAKE_PROGRAM={self._tool('ninja')}"]
        self._run(cmake, "-S", str(ROOT), "-B", str(tree), "-G", "Ninja", *settings)
        self._run(cmake, "--build", str(tree))
        extension = Path(self.get_ext_fullpath(ext.name))
        self._copy(tree / Path(self.get_ext_filename("_C")).name, extension)
        self._copy_libraries(extension.parent)

    def copy_extensions_to_source(self) -> None:
        super().copy_extensions_to_source()
        self._copy_libraries(ROOT / "torchmdla")

    def _copy_libraries(self, package: Path) -> None:
        for library in sorted((ROOT / "build" / "cmake").glob("libtorchmdla_mdla*.so")):
            self._copy(library, package / "devices" / "mdla" / library.name)

    def _copy(self, built: Path, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        self.copy_file(str(built), str(target))

    @staticmethod
    def _tool(name: str) -> str:
        beside_python = Path(sys.executable).parent / name
        return str(beside_python) if beside_python.exists() else name

    @staticmethod
    def _run(*command: str) -> None:
        try:
            subprocess.run(command, check=True)
        except FileNotFoundError:
            raise SystemExit(f"building torchmdla needs {command[0]}: pip install cmake ninja") from None


setup(ext_modules=[Extension("torchmdla._C", sources=[])], cmdclass={"build_ext": CMakeBuild})
