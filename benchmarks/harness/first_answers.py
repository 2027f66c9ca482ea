"""Seconds from the start of a process to its answers, by the files that an engine starts from.

:func:`write_files` makes the files. :func:`answer` runs in the measured process (:func:`harness.children.run`), and
imports only the modules that its engine needs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.peers import Subject

# Number of calls: PyTorch's profiling executor optimises in its second call.
_CALLS = 5
# The maximum difference from eager's results, relative to the largest of these.
_TOLERANCE = 1e-3

Answer = Callable[[], Any]


def write_files(
    model: str, folder: str, quick: bool, sizes: list[int], ways: list[str], threads: int
) -> dict[str, str]:
    """Write the files of a model that :func:`answer` needs for each variant.

    Return why variants are skipped, by name.
    """
    import numpy as np
    import torch

    from harness import peers, rows

    spec = rows.rows_by_name()[model]
    spec = spec.reduced() if quick else spec
    path = Path(folder)
    subject = peers.subject_of(spec, sizes, threads, path)
    with torch.no_grad():
        expected = subject.module(*subject.inputs)
    expected = list(expected) if isinstance(expected, tuple | list) else [expected]
    np.savez(path / "inputs.npz", *(tensor.numpy() for tensor in subject.inputs))
    np.savez(path / "expected.npz", *(tensor.numpy() for tensor in expected))
    torch.jit.save(torch.jit.freeze(subject.traced()), path / "frozen.pt")
    skipped = {}
    for way in ways:
        if missing := peers.VARIANTS[way.partition("-")[0]].missing():
            skipped[way] = f"not installed: {', '.join(missing)}"
            continue
        try:
            _write_files_of(way, subject)
        except Exception as error:  # a failure of one peer must not hide the others
            skipped[way] = f"{type(error).__name__}: {rows.reason(str(error))}"
    return skipped


def _write_files_of(way: str, subject: Subject) -> None:
    """Write the files of one variant, in addition to the frozen module's."""
    if way == "onnxruntime":
        _ = subject.onnx
    elif way.startswith("openvino") and not (subject.folder / "model.xml").exists():
        import openvino

        # Avoid convert_model, which reports its use over the network, from forks of this process.
        read = openvino.Core().read_model(str(subject.onnx))
        openvino.save_model(read, subject.folder / "model.xml", compress_to_fp16=False)
    elif way == "torchmdla-package":
        import torchmdla

        torchmdla.enable()
        torchmdla.save(subject.module, subject.folder / "package.pt", list(subject.all_inputs), pack_weights=True)


def answer(way: str, folder: str, threads: int) -> dict[str, Any]:
    """Return the times of a process's first answers, by the monotonic clock.

    ``compiled`` is the number of compiled programs; ``fault`` describes an error.
    """
    import numpy as np

    path, engine = Path(folder), way.partition("-")[0]
    inputs, expected = (list(np.load(path / name).values()) for name in ("inputs.npz", "expected.npz"))
    run = _ENGINES[engine](path, inputs, threads, way)
    answered = []
    for _ in range(_CALLS):
        results = run()
        answered.append(time.monotonic())
    pairs = zip(map(np.asarray, results), expected, strict=True)
    error = max(float(abs(got - wanted).max() / abs(wanted).max()) for got, wanted in pairs)
    fault = None if error < _TOLERANCE else f"results differ from eager's by {error:.1e} of the largest"
    return {"answered": answered, "compiled": _compiled() if engine == "torchmdla" else 0, "fault": fault}


def _compiled() -> int:
    import torchmdla

    return torchmdla.stats().compiled


def _onnxruntime(path: Path, inputs: list[Any], threads: int, way: str) -> Answer:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    file = str(path / "onnx" / "model.onnx")
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    feed = dict(zip((entry.name for entry in session.get_inputs()), inputs, strict=True))
    return lambda: session.run(None, feed)


def _openvino(path: Path, inputs: list[Any], threads: int, way: str) -> Answer:
    import openvino

    properties = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    if way == "openvino-warm":
        properties["CACHE_DIR"] = str(path / "openvino-cache")
    compiled = openvino.Core().compile_model(str(path / "model.xml"), "CPU", properties)
    return lambda: list(compiled(inputs).values())


def _frozen(path: Path, inputs: list[Any], threads: int, way: str) -> Answer:
    import torch

    torch.set_num_threads(threads)
    return _torch_answer(torch.jit.load(path / "frozen.pt"), inputs)


def _torchmdla(path: Path, inputs: list[Any], threads: int, way: str) -> Answer:
    import torch

    import torchmdla

    torch.set_num_threads(threads)
    is_package = way == "torchmdla-package"
    return _torch_answer(
        torchmdla.load(path / "package.pt") if is_package else torch.jit.load(path / "frozen.pt"), inputs
    )


def _torch_answer(program: Any, inputs: list[Any]) -> Answer:
    import torch

    tensors = [torch.from_numpy(array) for array in inputs]

    def run() -> list[Any]:
        with torch.no_grad():
            results = program(*tensors)
        return list(results) if isinstance(results, tuple | list) else [results]

    return run


_ENGINES = {"frozen": _frozen, "onnxruntime": _onnxruntime, "openvino": _openvino, "torchmdla": _torchmdla}
# A variant is an engine with a kind of start: with a cache, filled or not, or with a package.
VARIANTS = (
    "frozen",
    "onnxruntime",
    "openvino",
    "openvino-warm",
    "torchmdla-cold",
    "torchmdla-warm",
    "torchmdla-package",
)
