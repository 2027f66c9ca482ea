"""Build ``libtorchmdla.so`` and ``torchmdla._C`` with CMake and ninja against the installed torch.

The build also makes the mdla device's libraries and the runtime of models in files, which do not need torch.
``release/npm_package.py`` downloads the library that lays out graphs on a report's page. All other settings are in
pyproject.toml.
"""

from __future__ import annotations

import runpy
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
# Loaded by path, because modules of the tree cannot be imported in a build.
VERSIONS = runpy.run_path(str(ROOT / "torchmdla" / "version.py"))
NPM_PACKAGE = runpy.run_path(str(ROOT / "release" / "npm_package.py"))


# The library that the extension binds; the extension loads it from its own folder.
LIBRARY = "libtorchmdla.so"

# The runtime of models in files, without torch.
RUNTIME = "libtorchmdla_runtime.so"

# The operators of the extension's torch, which torchmdla.read needs.
OPERATORS = "operators.txt"


def torch_version() -> str:
    """Return the version of the installed torch, or else the oldest that is supported.

    A source distribution does not need torch.
    """
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return VERSIONS["TORCH_VERSIONS"][0]


class CMakeBuild(build_ext):
    """Build command that configures once and lets ninja rebuild changed files.

    The build folder is ``build/cmake``, or the folder that ``--build-temp`` names.
    """

    def finalize_options(self) -> None:
        self.tree = Path(self.build_temp or ROOT / "build" / "cmake").resolve()
        super().finalize_options()

    def build_extension(self, ext: Extension) -> None:
        self._check_torch()
        tree = self.tree
        tree.mkdir(parents=True, exist_ok=True)
        cmake = self._tool("cmake")
        settings = [f"-DPython_EXECUTABLE={sys.executable}", f"-DCMAKE_MAKE_PROGRAM={self._tool('ninja')}"]
        self._run(cmake, "-S", str(ROOT), "-B", str(tree), "-G", "Ninja", *settings)
        self._run(cmake, "--build", str(tree))
        extension = Path(self.get_ext_fullpath(ext.name))
        self._copy(tree / Path(self.get_ext_filename("_C")).name, extension)
        self._copy(tree / LIBRARY, extension.parent / LIBRARY)
        self._write_operators(extension.parent)
        self._copy_libraries(extension.parents[1])
        self._copy_vendored(extension.parents[1])

    def copy_extensions_to_source(self) -> None:
        self._remove_extensions()
        for extension in self.extensions:
            folder = Path(*extension.name.split(".")[:-1])
            folder.mkdir(exist_ok=True)
            self._copy(self.tree / LIBRARY, folder / LIBRARY)
            self._write_operators(folder)
        super().copy_extensions_to_source()
        self._copy_libraries(ROOT / "torchmdla")
        self._copy_vendored(ROOT / "torchmdla")

    def _write_operators(self, folder: Path) -> None:
        """Write the table of the operators of the installed torch beside its extension."""
        self._run(sys.executable, "-W", "ignore", str(ROOT / "release" / "operator_table.py"), str(folder / OPERATORS))

    @staticmethod
    def _remove_extensions() -> None:
        """Remove the extensions for other versions of torch from the tree, because their sources may differ."""
        for built in (ROOT / "torchmdla").glob("torch_*/*.so"):
            built.unlink()

    @staticmethod
    def _check_torch() -> None:
        installed, supported = torch_version(), VERSIONS["TORCH_VERSIONS"]
        if VERSIONS["minor_of"](installed) not in supported:
            raise SystemExit(
                f"torch {installed} is installed, and torchmdla supports torch {', '.join(supported)}: "
                f"pip install 'torch=={supported[-1]}.*'"
            )

    def _copy_libraries(self, package: Path) -> None:
        for library in sorted(self.tree.glob("libtorchmdla_mdla*.so")):
            self._copy(library, package / "devices" / "mdla" / library.name)
        self._copy(self.tree / RUNTIME, package.parent / "torchmdla_runtime" / RUNTIME)

    def _copy_vendored(self, package: Path) -> None:
        for file in NPM_PACKAGE["vendored"]():
            self._copy(file, package / "report" / "page" / "vendor" / file.name)

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
        except subprocess.CalledProcessError as failed:
            raise SystemExit(f"{command[0]} ended with {failed.returncode}; its messages are above") from None


extension = Extension(f"torchmdla.{VERSIONS['extension_folder'](torch_version())}._C", sources=[])
setup(ext_modules=[extension], cmdclass={"build_ext": CMakeBuild})
