"""Script that compiles an ONNX file for the device in a separate process, because the library may crash.

``torchmdla.devices.mdla.compiling`` starts this file as a script, with one argument in JSON: the path of
``runtime_library.py``, and the arguments of ``mdla_compile``. Calibration samples are in an ``.npz`` file as ``0``,
``1``, …. The result goes to standard output, as JSON. All other output is the library's.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any


def main(job: dict[str, Any]) -> dict[str, Any]:
    """Return the fault, or ``""``, and the cost of an inference (``mdla_cost``)."""
    binding = _binding(job["binding"])
    cost = binding.Cost()
    samples, elements, count = _samples(job["samples"])
    status = binding.runtime().mdla_compile(
        job["library"].encode(),
        binding.flag_array(job["flags"]),
        job["model"].encode(),
        job["binary"].encode(),
        job["shapes"].encode(),
        samples,
        elements,
        count,
        ctypes.byref(cost),
    )
    return {"fault": "" if status == 0 else str(binding.fault()), "cost": [cost.input, cost.compute, cost.output]}


def _binding(path: str) -> Any:
    """Import ``runtime_library.py`` alone, because its package would import torch."""
    spec = importlib.util.spec_from_file_location("runtime_library", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _samples(path: str) -> tuple[Any, Any, int]:
    if not path:
        return None, None, 0
    import numpy as np

    with np.load(Path(path)) as stored:
        arrays = [np.ascontiguousarray(stored[str(number)], dtype=np.float32) for number in range(len(stored.files))]
    pointers = (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
    pointers.arrays = arrays  # type: ignore[attr-defined]  # keeps the arrays alive as long as the pointers
    return pointers, (ctypes.c_uint64 * len(arrays))(*(array.size for array in arrays)), len(arrays)


if __name__ == "__main__":
    replies = os.dup(1)
    os.dup2(2, 1)  # The library's output is not part of the reply.
    os.write(replies, json.dumps(main(json.loads(sys.argv[1]))).encode())
    sys.stdout.flush()
    # No teardown: the library's teardown has nothing to save and may crash.
    os._exit(0)
