"""Print the program in a file of TorchScript, without PyTorch: ``python -m torchmdla.script model.pt``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from torchmdla.errors import ReadError
from torchmdla.script.ir import Graph, Program
from torchmdla.script.reading import read


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m torchmdla.script", description=(__doc__ or "").partition(":")[0])
    parser.add_argument("file", help="a file of torch.jit.save")
    parser.add_argument("--method", default="", metavar="NAME", help="only this method of the program's module")
    parser.add_argument("--summary", action="store_true", help="the number of nodes of each method, without the graphs")
    options = parser.parse_args(arguments)
    return show(options.file, options.method, options.summary)


def show(file: str, method: str = "", is_summary: bool = False) -> int:
    """Print a program's graphs, or the number of their nodes, and return the exit status."""
    try:
        program = read(file)
        graphs = [program.method(method)] if method else _graphs_of(program)
    except (ReadError, OSError, KeyError) as error:
        print(f"error: {error.args[0] if isinstance(error, KeyError) else error}", file=sys.stderr)
        return 2
    if is_summary:
        print(f"{file}: version {program.version}, {len(program.classes)} classes, {len(graphs)} functions and methods")
    for graph in graphs:
        print(f"{sum(1 for _ in graph.walk()):7} {graph.name}" if is_summary else graph)
    return 0


def _graphs_of(program: Program) -> list[Graph]:
    methods = [graph for class_ in program.classes.values() for graph in class_.methods.values()]
    return [*methods, *program.functions.values()]


if __name__ == "__main__":
    raise SystemExit(main())
