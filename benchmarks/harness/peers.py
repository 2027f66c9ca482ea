"""Variants of a model: the peers that torchmdla is measured against, and torchmdla's own.

:data:`VARIANTS` is the main table. A variant prepares a model once. The result binds inputs, so that conversions are
not timed. All variants run on the given number of threads and compute in float32, or in bfloat16. With bfloat16,
PyTorch's own variants use a model of bfloat16. The others, torchmdla included, use the float32 model with products in
bfloat16, if they support that.

Plans of optimised TorchScript keep their groups. So the variants of peers are prepared while torchmdla takes no op: in
a process that imported it with ``TORCHMDLA_ENABLE=0``, before it is enabled.
"""

from __future__ import annotations

import copy
import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor, nn

import torchmdla
from harness import ncnn_files
from torchmdla.testing.coverage import groups
from torchmdla.testing.models import ModelSpec

Inputs = tuple[Tensor, ...]
# The profiling executor records types in its first call and optimises in its second. Further calls let it settle.
_WARM_UP_CALLS = 4


@dataclass
class Subject:
    """Model to prepare, with example inputs.

    Attributes:
        module: the model.
        inputs: example inputs.
        threads: threads of each op.
        folder: the folder of files, which further variants of the same model share.
        dtype: the dtype to compute in.
        others: inputs of other sizes for further calls.
    """

    module: nn.Module
    inputs: Inputs
    threads: int
    folder: Path
    dtype: torch.dtype = torch.float32
    others: tuple[Inputs, ...] = ()

    @property
    def all_inputs(self) -> tuple[Inputs, ...]:
        return (self.inputs, *self.others)

    def traced(self) -> torch.jit.ScriptModule:
        """Return a new trace for each caller. It is not checked by a run, because that would optimise it."""
        trace: torch.jit.ScriptModule = torch.jit.trace(self.module, self.inputs, check_trace=False)
        return trace

    def converted(self) -> Subject:
        """Return the subject with model and inputs in its dtype."""
        if self.dtype == torch.float32:
            return self
        return replace(self, module=copy.deepcopy(self.module).to(self.dtype), inputs=self.cast(self.inputs))

    def cast(self, tensors: Inputs) -> Inputs:
        """Return the tensors with floats in the subject's dtype."""
        return tuple(tensor.to(self.dtype) if tensor.is_floating_point() else tensor for tensor in tensors)

    @cached_property
    def onnx(self) -> Path:
        """Return the model as an ONNX file."""

        def export(folder: Path) -> None:
            shapes = self._varying_sizes() if self.others else None
            torch.onnx.export(
                self.module, self.inputs, str(folder / name), dynamo=True, verbose=False, dynamic_shapes=shapes
            )

        name = "model.onnx"
        return make_once(self.folder / "onnx", export) / name

    def _varying_sizes(self) -> tuple[dict[int, Any], ...]:
        """Return the dimensions of each input whose sizes vary, for the exporter."""
        shapes = [[tensor.shape for tensor in inputs] for inputs in self.all_inputs]
        return tuple(
            {dim: torch.export.Dim.AUTO for dim, sizes in enumerate(zip(*alike, strict=True)) if len(set(sizes)) > 1}
            for alike in zip(*shapes, strict=True)
        )

    @cached_property
    def ncnn(self) -> ncnn_files.Files:
        """Return the model as files of ncnn."""
        make = partial(ncnn_files.convert, self.traced(), self.inputs)
        return ncnn_files.Files(make_once(self.folder / "ncnn", make))


def subject_of(spec: ModelSpec, sizes: Sequence[int], threads: int, folder: Path) -> Subject:
    """Return a model with inputs of ``sizes``, or of the size that it is measured with."""
    first, *others = [spec.inputs(size=size) for size in sizes] or [spec.inputs()]
    return Subject(spec.build(), first, threads, folder, others=tuple(others))


def make_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """Return ``folder``. If it does not exist, create it and let ``make`` fill it.

    An earlier process of the run may have made it. A process that ends early does not leave an incomplete folder.
    """
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
            (content := Path(temporary, "content")).mkdir()
            make(content)
            content.rename(folder)
    return folder


@dataclass(frozen=True)
class Prepared:
    """Prepared variant.

    Attributes:
        bind: ``bind(inputs)`` returns a function of no arguments that runs the model.
        tensors: reads the results of that function.
        slots: the number of threads that may call at a time.
    """

    bind: Callable[[Inputs], Callable[[], Any]]
    tensors: Callable[[Any], list[Tensor]]
    slots: int = 1

    def results(self, inputs: Inputs) -> list[Tensor]:
        return self.tensors(self.bind(inputs)())


@dataclass(frozen=True)
class Variant:
    """Variant of running a model.

    Attributes:
        label: its name in texts.
        prepare: prepares a subject.
        packages: modules that must be importable.
        ours: whether it is one of torchmdla's.
    """

    label: str
    prepare: Callable[[Subject], Prepared]
    packages: tuple[str, ...] = ()
    ours: bool = False

    def missing(self) -> list[str]:
        """Return the packages that are not installed."""
        return [name for name in self.packages if not _installed(name)]


def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # the parent package is missing
        return False


# --- PyTorch's own -----------------------------------------------------------------------------------------------


def _torch(run: Callable[..., Any], subject: Subject) -> Prepared:
    """Return a prepared callable on a subject's tensors, after the calls that optimise it."""
    for _ in range(_WARM_UP_CALLS):
        for inputs in subject.all_inputs:
            run(*subject.cast(inputs))

    def bind(inputs: Inputs) -> Callable[[], Any]:
        arguments = subject.cast(inputs)
        return lambda: run(*arguments)

    return Prepared(bind, _as_list)


def _as_list(results: Any) -> list[Tensor]:
    tensors = [results] if isinstance(results, Tensor) else list(results)
    return [tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor for tensor in tensors]


def _eager(subject: Subject) -> Prepared:
    converted = subject.converted()
    return _torch(converted.module, converted)


def _frozen(subject: Subject) -> Prepared:
    converted = subject.converted()
    return _without_groups(torch.jit.freeze(converted.traced()), converted)


def _for_inference(subject: Subject) -> Prepared:
    converted = subject.converted()
    return _without_groups(torch.jit.optimize_for_inference(torch.jit.freeze(converted.traced())), converted)


def _without_groups(scripted: Any, subject: Subject) -> Prepared:
    prepared = _torch(scripted, subject)
    if groups(scripted.graph_for(*subject.inputs)):
        raise RuntimeError("torchmdla took part: start the process with TORCHMDLA_ENABLE=0")
    return prepared


def _inductor(subject: Subject) -> Prepared:
    return _dynamo("inductor", subject)


def _zentorch(subject: Subject) -> Prepared:
    importlib.import_module("zentorch")  # registers its backend
    # It may reorder weights in place.
    return _dynamo("zentorch", replace(subject, module=copy.deepcopy(subject.module)))


def _dynamo(backend: str, subject: Subject) -> Prepared:
    from torch._inductor import config

    config.freezing = True
    converted = subject.converted()
    return _torch(torch.compile(converted.module, backend=backend), converted)


# --- others ------------------------------------------------------------------------------------------------------


def _onnx_runtime(subject: Subject) -> Prepared:
    return prepare_onnx(subject.onnx, subject.threads)


def prepare_onnx(file: Path, threads: int) -> Prepared:
    """Return an ONNX file prepared in ONNX Runtime."""
    session = onnx_session(file, threads)
    names = [entry.name for entry in session.get_inputs()]

    def bind(inputs: Inputs) -> Callable[[], Any]:
        feed = {name: tensor.numpy() for name, tensor in zip(names, inputs, strict=True)}
        return lambda: session.run(None, feed)

    return Prepared(bind, _from_arrays)


def onnx_session(file: Path, threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Otherwise its threads would spin while the next variant runs.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


def _openvino_compiled(subject: Subject, hint: str) -> Any:
    import openvino

    properties = {
        "INFERENCE_NUM_THREADS": subject.threads,
        # The default is bfloat16 if the processor supports it.
        "INFERENCE_PRECISION_HINT": "bf16" if subject.dtype == torch.bfloat16 else "f32",
        "PERFORMANCE_HINT": hint,
    }
    return openvino.Core().compile_model(str(subject.onnx), "CPU", properties)


def _openvino(subject: Subject) -> Prepared:
    compiled = _openvino_compiled(subject, "LATENCY")

    def bind(inputs: Inputs) -> Callable[[], Any]:
        feed = [tensor.numpy() for tensor in inputs]
        return lambda: compiled(feed, share_inputs=True, share_outputs=True)

    return Prepared(bind, lambda results: _from_arrays([results[output] for output in compiled.outputs]))


def _openvino_throughput(subject: Subject) -> Prepared:
    """Return the model prepared with the number of concurrent requests that OpenVINO recommends."""
    compiled = _openvino_compiled(subject, "THROUGHPUT")
    slots = int(compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS"))
    idle: SimpleQueue[Any] = SimpleQueue()
    for _ in range(slots):
        idle.put(compiled.create_infer_request())

    def bind(inputs: Inputs) -> Callable[[], Any]:
        feed = [tensor.numpy() for tensor in inputs]

        def run() -> Any:
            request = idle.get()
            try:
                return request.infer(feed, share_inputs=True, share_outputs=True)
            finally:
                idle.put(request)

        return run

    return Prepared(bind, lambda results: _from_arrays([results[output] for output in compiled.outputs]), slots)


def _ncnn(subject: Subject) -> Prepared:
    import ncnn

    files = subject.ncnn
    net = ncnn_files.load(files, subject.threads, subject.dtype == torch.bfloat16)
    names, outputs = net.input_names(), net.output_names()

    def bind(inputs: Inputs) -> Callable[[], Any]:
        feed = {
            # ncnn's indices have 32 bits. The copy is memory whose references ncnn counts.
            name: ncnn.Mat(_narrow(tensor).numpy(), batch_index=files.batch_of(name)).clone()
            for name, tensor in zip(names, inputs, strict=True)
        }

        def run() -> list[tuple[int, Any]]:
            with net.create_extractor() as extractor:
                for name, matrix in feed.items():
                    extractor.input(name, matrix)
                return [extractor.extract(name) for name in outputs]

        return run

    def tensors(results: list[tuple[int, Any]]) -> list[Tensor]:
        if failed := [name for name, (status, _) in zip(outputs, results, strict=True) if status]:
            raise RuntimeError(f"error: ncnn computes no {', '.join(failed)}")
        pairs = zip(outputs, results, strict=True)
        return _from_arrays([result.numpy(batch_index=files.batch_of(name)) for name, (_, result) in pairs])

    return Prepared(bind, tensors)


def _narrow(tensor: Tensor) -> Tensor:
    return tensor.to(torch.int32) if tensor.dtype == torch.int64 else tensor


def _iree(subject: Subject) -> Prepared:
    from iree import runtime
    from iree.compiler import tools

    imported, code = subject.folder / "model.mlir", subject.folder / "model.vmfb"
    command = [sys.executable, "-m", "iree.compiler.tools.import_onnx", str(subject.onnx), "-o", str(imported)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the ONNX importer failed: {done.stderr.strip().splitlines()[-1:]}")
    # The default stack is too small for BERT's wide layer norms.
    flags = ["--iree-opt-level=O3", "--iree-llvmcpu-target-cpu=host", "--iree-llvmcpu-stack-allocation-limit=1048576"]
    tools.compile_file(
        str(imported), target_backends=["llvm-cpu"], input_type="onnx", extra_args=flags, output_file=str(code)
    )
    # The calling thread is not a worker, so use one worker for each thread.
    runtime.flags.parse_flags(f"--task_topology_group_count={subject.threads}")
    config = runtime.Config("local-task")
    module = runtime.load_vm_module(runtime.VmModule.mmap(config.vm_instance, str(code)), config)
    name = next(name for name in module.vm_module.function_names if not name.endswith("$async") and name[0] != "_")
    function = module[name]

    def bind(inputs: Inputs) -> Callable[[], Any]:
        arrays = [runtime.asdevicearray(config.device, tensor.numpy()) for tensor in inputs]
        return lambda: function(*arrays)

    def tensors(results: Any) -> list[Tensor]:
        return _from_arrays([each.to_host() for each in (results if isinstance(results, tuple | list) else [results])])

    return Prepared(bind, tensors)


def _from_arrays(arrays: Sequence[Any]) -> list[Tensor]:
    return [torch.from_numpy(array.copy()) for array in arrays]


# --- torchmdla ---------------------------------------------------------------------------------------------------


def _torchmdla(subject: Subject) -> Prepared:
    torchmdla.enable()
    plain = replace(subject, dtype=torch.float32)
    if subject.dtype == torch.bfloat16:  # After the others are prepared, because torch.export raises if this is set.
        torch.backends.mkldnn.fp32_precision = "bf16"
    return _torch(torchmdla.compile(plain.traced(), *plain.inputs), plain)


def _torchmdla_converted(subject: Subject) -> Prepared:
    torchmdla.enable()
    converted = subject.converted()
    return _torch(torchmdla.compile(converted.traced(), *converted.inputs), converted)


def _torchmdla_unfrozen(subject: Subject) -> Prepared:
    torchmdla.enable()
    plain = replace(subject, dtype=torch.float32)
    return _torch(plain.traced(), plain)


# The order of preparation: torchmdla's variants are last.
VARIANTS: dict[str, Variant] = {
    "eager": Variant("eager", _eager),
    "frozen": Variant("TorchScript, frozen", _frozen),
    "ofi": Variant("optimize_for_inference", _for_inference),
    "inductor": Variant("Inductor, freezing", _inductor),
    "zentorch": Variant("zentorch, freezing", _zentorch, ("zentorch",)),
    "onnxruntime": Variant("ONNX Runtime", _onnx_runtime, ("onnx", "onnxscript", "onnxruntime")),
    "openvino": Variant("OpenVINO", _openvino, ("onnx", "onnxscript", "openvino")),
    "openvino-throughput": Variant(
        "OpenVINO, for throughput", _openvino_throughput, ("onnx", "onnxscript", "openvino")
    ),
    "ncnn": Variant("ncnn", _ncnn, ("ncnn", "pnnx")),
    "iree": Variant("IREE", _iree, ("onnx", "onnxscript", "iree.compiler", "iree.runtime")),
    "torchmdla-unfrozen": Variant("torchmdla, not frozen", _torchmdla_unfrozen, ours=True),
    "torchmdla-converted": Variant("torchmdla, a model of bfloat16", _torchmdla_converted, ours=True),
    "torchmdla": Variant("torchmdla", _torchmdla, ours=True),
}
PEERS = tuple(name for name, way in VARIANTS.items() if not way.ours)
