"""Command ``read``: the graphs of a file of TorchScript, read without libtorch's importer."""

from __future__ import annotations

import argparse

from torchmdla.cli import Command, argument
from torchmdla.script.__main__ import show


def _run(options: argparse.Namespace) -> int:
    return show(options.file, options.method, options.summary)


COMMAND = Command(
    "read",
    "print the graphs of a file of torch.jit.save",
    _run,
    [
        argument("file", help="the file"),
        argument("--method", default="", metavar="NAME", help="only this method of the program's module"),
        argument("--summary", action="store_true", help="the number of nodes of each method, without the graphs"),
    ],
    epilog="python -m torchmdla.script does the same where PyTorch is not installed.",
)
