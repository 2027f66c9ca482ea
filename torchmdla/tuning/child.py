"""Measure the kernels of one program in a separate process, which may crash.

``torchmdla.tuning.process`` starts this file as a script, with a request in JSON on standard input::

    {"path": sys.path of the parent, "package": its torchmdla.__path__, "device": the device's origin (null: registered
     by torchmdla), "program": …, "places": [seconds], "seconds": …, "known": [records], "skip": [kernels],
     "threads": …}

The parent reads lines of JSON. While a kernel is measured they are ``{"step": {kernel}, "tried": …, "gain": …}``, and
``{"kernel": {…}}`` at its end. Others are ``{"error": {the fields of a CompileError}}`` and ``{"end": true}``.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and not getattr(sys.flags, "safe_path", False):
    # Python put this file's folder first. Its modules must not shadow others.
    del sys.path[0]

import json
import os
from typing import IO, Any


def main() -> None:
    request = json.load(sys.stdin)
    # Output of native code must not get between the lines.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.path = request["path"]
    os.environ["TORCHMDLA_ENABLE"] = "0"
    _answer(request, replies)


def _answer(request: dict[str, Any], replies: IO[str]) -> None:
    import torch

    from torchmdla import devices
    from torchmdla.compile_service.lower import Origin, as_compile_error
    from torchmdla.compiler.program import Program
    from torchmdla.compiler.records import Record, TunedKernel

    def send(**message: Any) -> None:
        print(json.dumps(message), file=replies, flush=True)

    def progress(kernel: TunedKernel, tried: int, gain: float) -> None:
        send(step=kernel.to_raw(), tried=tried, gain=gain)

    try:
        torch.set_num_threads(request["threads"])
        for origin in request["devices"]:
            Origin(*origin).register()
        program = Program.from_json(request["program"])
        known = {record.kernel: record for record in map(Record.from_raw, request["known"])}
        device = devices.get(program.target.device)
        for kernel in devices.require(device, devices.Tuning).tune(
            program, request["places"], request["seconds"], known, skip=request["skip"], progress=progress
        ):
            send(kernel=kernel.to_raw())
        send(end=True)
    except Exception as error:
        send(error=as_compile_error(error).fields())


if __name__ == "__main__":
    main()
    # No teardown: MLIR's and LLVM's global destructors take time and have nothing to save.
    os._exit(0)
