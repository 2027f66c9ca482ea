"""Print compiler options to build C programs: ``python -m torchmdla_runtime``."""

from __future__ import annotations

import argparse
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m torchmdla_runtime", description=__doc__)
    parser.add_argument("--library", action="store_true", help="the folder of libtorchmdla_runtime.so alone")
    if parser.parse_args().library:
        print(PACKAGE)
        return
    include = PACKAGE.parent / "torchmdla" / "include"
    print(f"-I{include} -L{PACKAGE} -Wl,-rpath,{PACKAGE} -ltorchmdla_runtime")


if __name__ == "__main__":
    main()
