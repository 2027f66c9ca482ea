"""Process that calls silero-vad on consecutive chunks: ``stream_process.py ENGINE FILE SAMPLES RATE``.

It prints the milliseconds of loading and of the first call. For each number on its input it makes as many calls, and
prints the file with their nanoseconds.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

Call = Callable[[np.ndarray[Any, Any]], object]


def torchscript(path: str, rate: int) -> Call:
    import torch

    torch.set_num_threads(1)
    model = torch.jit.load(path).eval()

    def call(samples: np.ndarray[Any, Any]) -> object:
        with torch.inference_mode():
            return model(torch.from_numpy(samples), rate).item()

    return call


def torchmdla(path: str, rate: int) -> Call:
    import torchmdla  # noqa: F401 (compiles the groups of programs)

    return torchscript(path, rate)


def native(path: str, rate: int) -> Call:
    import torchmdla_runtime

    session = torchmdla_runtime.Model(path, threads=1, any_owner=True).session()
    return lambda samples: session(samples, rate)


def onnxruntime(path: str, rate: int) -> Call:
    """Return a call as silero-vad's own wrapper of the ONNX file makes it."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    context = np.zeros((1, 64 if rate == 16000 else 32), np.float32)
    state, rates = np.zeros((2, 1, 128), np.float32), np.array(rate, np.int64)

    def call(samples: np.ndarray[Any, Any]) -> object:
        nonlocal context, state
        whole = np.concatenate([context, samples], axis=1)
        result, state = session.run(None, {"input": whole, "state": state, "sr": rates})
        context = whole[:, -context.shape[1] :]
        return result

    return call


def main() -> None:
    engine, path, size, rate = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    begin = time.perf_counter()
    call = globals()[engine](path, rate)
    loaded = time.perf_counter()
    chunks = 0.1 * np.sin(np.arange(64 * size, dtype=np.float32).reshape(64, 1, size) * 0.02)
    call(chunks[0])
    print((loaded - begin) * 1e3, (time.perf_counter() - loaded) * 1e3, flush=True)
    for k in range(50):  # PyTorch's executor optimises in the first calls
        call(chunks[k % 64])
    for line in sys.stdin:
        times = np.empty(int(line), np.int64)
        for k in range(len(times)):
            start = time.perf_counter_ns()
            call(chunks[k % 64])
            times[k] = time.perf_counter_ns() - start
        with tempfile.NamedTemporaryFile(suffix=".bin", delete=False) as file:
            times.tofile(file)
        print(file.name, flush=True)


if __name__ == "__main__":
    main()
