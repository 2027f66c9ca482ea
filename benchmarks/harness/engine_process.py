"""Run a model of one input with one engine: ``python -m harness.engine_process ENGINE FILE SIZES THREADS``.

The process imports only NumPy and the engine. After its first result it prints the time, in milliseconds of the
monotonic clock. Then, for each line with a number on its standard input, it prints a line with the milliseconds of that
number of calls. ``engine.c`` does the same.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

Call = Callable[[Any], Any]


def torchmdla(file: str, threads: int) -> Call:
    import torchmdla_runtime

    return torchmdla_runtime.Model(file, threads)


def onnxruntime(file: str, threads: int) -> Call:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda array: session.run(None, {name: array})


def openvino(file: str, threads: int) -> Call:
    import openvino

    settings = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    request = openvino.Core().compile_model(file, "CPU", settings).create_infer_request()
    return lambda array: request.infer([array], share_inputs=True, share_outputs=True)


ENGINES = {"torchmdla": torchmdla, "onnxruntime": onnxruntime, "openvino": openvino}


def main(engine: str, file: str, sizes: str, threads: str) -> None:
    array = np.zeros([int(size) for size in sizes.split("x")], np.float32)
    call = ENGINES[engine](file, int(threads))
    call(array)
    print(time.monotonic() * 1e3, flush=True)
    for line in sys.stdin:
        times = []
        for _ in range(int(line)):
            start = time.perf_counter()
            call(array)
            times.append((time.perf_counter() - start) * 1e3)
        print(*times, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
