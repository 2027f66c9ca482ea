"""Print compiler options to build C programs: ``python -m torchmdla_runtime``."""

from __future__ import annotations

import argparse
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m torchmdla_runtime", description=__doc__)
    parser.add_argument("--library", action="store_true", help="the folder of libtorchmdla_runtime.so alone")
    parser.add_argument("--cmake", action="store_true", help="the folder for CMAKE_PREFIX_PATH alone")
    options = parser.parse_args()
    if options.library:
        print(PACKAGE)
        return
    if options.cmake:
        print(PACKAGE.parent / "torchmdla")
        return
    include = PACKAGE.parent / "torchmdla" / "include"
    print(f"-I{include} -L{PACKAGE} -Wl,-rpath,{PACKAGE} -ltorchmdla_runtime")


if __name__ == "__main__":
    main()
