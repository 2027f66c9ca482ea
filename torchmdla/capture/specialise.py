"""Specialisation of a group: from its subgraph and record to an executable, for any kind of graph."""

from __future__ import annotations

import contextlib
import gc
import logging
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import cache, partial, wraps
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import grad_mode

from torchmdla import _C, devices
from torchmdla.capture import background, refusals
from torchmdla.capture.outputs import output_of
from torchmdla.capture.script_subgraph import ScriptSubgraph
from torchmdla.capture.subgraph import Subgraph, calls_of
from torchmdla.compile_service import records, service, worker
from torchmdla.compile_service.versions import producers
from torchmdla.compiler.artifact import KernelCall, Manifest
from torchmdla.compiler.program import Argument, Program
from torchmdla.devices import interrupts
from torchmdla.devices.roofline import loss
from torchmdla.errors import CompileError, DeviceError, internal_error
from torchmdla.importer import Binding, ImportedGraph, ImportOptions, Record, TensorMeta, with_location
from torchmdla.importer.script_graph import convert_graph
from torchmdla.importer.trace import without_modes
from torchmdla.importer.types import ProductKind
from torchmdla.support import forks, logs, trace

if TYPE_CHECKING:
    from torchmdla.capture.symbolic.size_program import Places, SizeNodes, Values

_warned: set[str] = set()


@dataclass(frozen=True)
class Compiled:
    """Data that is kept beside an executable: the loaded code and, for debugging, its source.

    Attributes:
        code: the loaded code, which stays mapped.
        arguments, bindings, ops, sources: parts of the program and the group, as in
            :class:`torchmdla.importer.ImportedGraph`.
        outputs: outputs in the form of ``_C.Executable``.
        sizes: nodes that a call evaluates, for a program for any sizes.
        program: the compiled program (:meth:`torchmdla.compiler.program.Program.to_bytes`).
        manifest: manifest of the artifact.
        origin: origin of the artifact: ``"compiled"``, ``"disk"`` or ``"memory"``.
        seconds: time to compile or find the artifact.
        times: times of its kernels, while they are observed.
    """

    code: devices.LoadedCode
    arguments: tuple[Argument, ...]
    bindings: tuple[Binding, ...]
    ops: tuple[str, ...]
    sources: tuple[str, ...]
    outputs: Sequence[tuple[str, object]]
    sizes: SizeNodes | None
    program: bytes
    manifest: Manifest
    origin: str
    seconds: float
    times: _C.KernelTimes

    def kernel_names(self, manifest: Manifest) -> list[str]:
        """Return the names of the kernels of an artifact of the program, for debugging."""
        return _kernel_names(manifest, self.ops)


def install() -> None:
    """Make this module the compiler of groups."""
    _C.set_compiler(
        _accept_any_graph(compile_group),
        _accept_any_graph(compile_dynamic_group),
        _compile_training,
        _warn,
        TensorMeta,
        CompileError,
        _report_fault,
        find_speed,
        store_speed,
    )
    _C.set_submit(background.submit)
    worker.set_cpus(_cpus)
    gc.callbacks.append(_after_collection)
    _refresh_after_hidden_writes()


def _cpus(is_awaited: bool) -> int:
    """Return how many CPUs compiles may use: all of the process while the program waits, else as many as it uses."""
    available = _C.available_cpus()
    return available if is_awaited else min(available, torch.get_num_threads())


def _after_collection(phase: str, info: Mapping[str, int]) -> None:
    """Drop packed weights and packages of dead modules, which are often parts of reference cycles."""
    if phase == "stop" and info["generation"] == 2:
        _C.drop_dead()


def _refresh_after_hidden_writes() -> None:
    """Drop the packed copies of a tensor at the end of each section that preserves its version.

    Packed copies are identified by version, which does not show these writes. FSDP gathers parameters into memory that
    autograd has saved, and DDP overwrites buffers with those of rank 0.
    """
    section_class = grad_mode._unsafe_preserve_version_counter
    leave = section_class.__exit__

    # Replaced on the class: Dynamo recognises the class by its identity.
    @wraps(leave)
    def leave_and_refresh(section: Any, *raised: object) -> None:
        leave(section, *raised)
        _C.refresh(section.tensors)

    section_class.__exit__ = leave_and_refresh  # type: ignore[method-assign]


def _accept_any_graph(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``function`` of a subgraph as a function of the C++ argument: a TorchScript graph, or a subgraph."""

    def call(graph: Any, *arguments: Any) -> Any:
        with trace.span("specialise", "specialise"):
            is_script = isinstance(graph, torch._C.Graph)
            return function(ScriptSubgraph(convert_graph(graph)) if is_script else graph, *arguments)

    return call


class _NativeSections:
    """Lock of the extension's sections that a fork must not interrupt (``src/base/forks.h``)."""

    def acquire(self, blocking: bool = True) -> bool:
        while not (entered := _C.enter_alone()) and blocking:
            pass
        return entered

    def release(self) -> None:
        _C.leave_alone()


_native_sections = forks.hold_over_fork(_NativeSections())

# Guards the imports of devices: in the child of a concurrent fork such an import would never end.
_imports = forks.hold_over_fork(threading.RLock())


def compile_group(
    subgraph: Subgraph,
    record: Record,
    parameters: Sequence[int],
    device_name: str,
    bf16_products: Sequence[ProductKind],
) -> _C.Executable:
    """Compile one specialisation of a group.

    Args:
        subgraph: computation of the group.
        record: type or value of every value in the recorded run, by name.
        parameters: indices of the group inputs that are weights.
        device_name: device of the group.
        bf16_products: kinds of float32 products that may be computed in bfloat16 in the call.

    Raises:
        CompileError: the group cannot be compiled.
    """
    try:
        device = _device(device_name)
        options = _import_options(device, bf16_products)
        try:
            return _compile(subgraph, record, parameters, device, options)
        except CompileError as error:
            raise _attribute_error(error, subgraph, record, device, options) from error.__cause__
    except CompileError:
        raise
    except Exception as error:  # An internal fault must not reach the user: the group falls back.
        raise internal_error(error) from error


def compile_ahead(group: _C.Group, device_name: str) -> None:
    """Begin to compile a group of an FX graph as its first call will, which then waits for the rest of the time only.

    The compile service keeps the artifact. If it fails, or the call has other types, the call compiles the group.
    """
    # The calling thread imports. Another one would wait for Python's lock, and the compiler processes for it.
    with contextlib.suppress(Exception), without_modes():
        device = _device(device_name)
        record, imported = group.subgraph.import_ahead(group.parameters, _import_options(device, ()))
        refusals.check(group.subgraph, record, device)
        program = _program(imported, device, group.subgraph, record)
        if not service.default_service().compiles_in_process(program):
            background.submit_ahead(partial(service.compile_program, program))


def compile_dynamic_group(
    subgraph: Subgraph,
    record: Record,
    parameters: Sequence[int],
    device_name: str,
    bf16_products: Sequence[ProductKind],
    places: Places,
    values: Values,
    written_out: bool,
) -> tuple[_C.Executable, SizeNodes]:
    """Compile a group for any sizes.

    Args:
        subgraph: as for :func:`compile_group`.
        record: as for :func:`compile_group`.
        parameters: as for :func:`compile_group`.
        device_name: as for :func:`compile_group`.
        bf16_products: as for :func:`compile_group`.
        places: as for :func:`torchmdla.capture.symbolic.dynamic.dynamic_program`.
        values: as for :func:`torchmdla.capture.symbolic.dynamic.dynamic_program`.
        written_out: as for :func:`torchmdla.capture.symbolic.dynamic.dynamic_program`.

    Returns:
        The executable, and the nodes that a call evaluates for it: conditions, and symbols that are computed from
            others.

    Raises:
        CompileError: the group is not dynamic: something other than numbers depends on the sizes, or the device does
            not support it. A warning is omitted, since the group is then compiled for each size.
    """
    # Not at the top: PyTorch's symbolic shapes take a second to import.
    with _imports:
        from torchmdla.capture.symbolic.dynamic import dynamic_program

    try:
        device = _device(device_name)
        refusals.check(subgraph, record, device)
        with trace.span("import for any sizes", "import"):
            options = _import_options(device, bf16_products)
            dynamic = dynamic_program(subgraph, record, parameters, device, places, values, written_out, options)
        return _executable(
            subgraph, dynamic.imported, dynamic.program, device, dynamic.outputs, dynamic.sizes
        ), dynamic.sizes
    except CompileError as error:
        raise CompileError(
            f"it differs between sizes: {error}", elsewhere=error.elsewhere, retry_after=error.retry_after
        ) from error
    except Exception as error:
        raise internal_error(error) from error


def _compile_training(*arguments: Any) -> Any:
    """Return the programs of a training step; see :func:`torchmdla.capture.training.compile_training`."""
    # Not at the top: AOT Autograd takes a second to import.
    with _imports:
        from torchmdla.capture.training import compile_training

    with trace.span("training step", "specialise"):
        return compile_training(*arguments)


def _device(name: str) -> devices.Device:
    device = devices.get(name)
    records.load_hosts(device)
    return device


def _import_options(device: devices.Device, bf16_products: Collection[ProductKind]) -> ImportOptions:
    """Return the import options of ``device``. PyTorch's settings allow ``bf16_products`` in bfloat16."""
    composite_ops = device.composite_ops if isinstance(device, devices.Legalisation) else frozenset()
    multiplies_bf16 = isinstance(device, devices.Arithmetic) and device.multiplies_bf16
    return ImportOptions(composite_ops, frozenset(bf16_products if multiplies_bf16 else ()))


def _compile(
    subgraph: Subgraph, record: Record, parameters: Sequence[int], device: devices.Device, options: ImportOptions
) -> _C.Executable:
    refusals.check(subgraph, record, device)
    with trace.span("import", "import"):
        imported = subgraph.import_program(record, parameters, options)
    if reason := _loss(subgraph, record, imported, device):
        raise CompileError(reason, scope="group")
    return _executable(
        subgraph,
        imported,
        _program(imported, device, subgraph, record),
        device,
        [output_of(output, imported) for output in imported.outputs],
    )


def _loss(subgraph: Subgraph, record: Record, imported: ImportedGraph, device: devices.Device) -> str:
    """Return why a group is not worth its device by the device's cost model; empty if it is."""
    if not isinstance(device, devices.CostModel) or isinstance(device, devices.HostProcessor):
        return ""
    moved = [argument for argument in imported.arguments if argument.role == "input" and argument.kind == "tensor"]
    tensors = [devices.TensorType(tensor.dtype, tensor.shape) for tensor in moved]
    tensors += [devices.TensorType(tensor.dtype, tensor.shape) for tensor in imported.results]
    calls = [(node, types) for _, node, types in calls_of(subgraph, record)]
    return loss(device.name, device, calls, tensors, _C.kernel_threads())


def _attribute_error(
    error: CompileError, subgraph: Subgraph, record: Record, device: devices.Device, options: ImportOptions
) -> CompileError:
    """Return ``error`` as an error of the calls that are at fault, if they can be determined."""

    def compile_alone(subgraph: Subgraph, record: Record) -> None:
        imported = subgraph.import_program(record, (), options)
        service.compile_program(_program(imported, device, subgraph, record))

    if error.retry_after is not None or error.scope == "group":
        return error
    blamed = refusals.remember_failure(error, subgraph, record, device)
    if not blamed.parts and (culprit := refusals.find_failing_call(error, subgraph, record, compile_alone)):
        blamed = refusals.remember_failure(culprit, subgraph, record, device)
    return blamed


def _program(imported: ImportedGraph, device: devices.Device, subgraph: Subgraph, record: Record) -> Program:
    with _imports:
        target, versions = device.target(), producers(device)
    options = records.options_for(device, calls_of(subgraph, record))
    return Program(imported.mlir, imported.arguments, imported.results, target, options, versions)


def _executable(
    subgraph: Subgraph,
    imported: ImportedGraph,
    program: Program,
    device: devices.Device,
    outputs: Sequence[tuple[str, object]],
    sizes: SizeNodes | None = None,
) -> _C.Executable:
    """Compile and load ``program``, and bind it to the group's inputs and ``outputs``.

    ``sizes`` are the nodes that a call evaluates, for a program for any sizes.
    """
    start = time.perf_counter()
    try:
        outcome, loaded = _compile_and_load(program, device)
    except CompileError as error:
        raise with_location(error, imported) from error
    manifest = outcome.artifact.manifest
    times = _C.KernelTimes(_kernel_names(manifest, imported.ops))
    seconds = time.perf_counter() - start
    _log(imported, program, outcome, seconds)
    serialised = program.to_bytes()
    constant = cache(subgraph.constant)  # Packed weights are unpacked once for all of their tensors.
    return _C.Executable(
        entry=loaded.entry,
        packs=packs_of(loaded, manifest),
        workspace_bytes=manifest.workspace_bytes,
        owner=Compiled(
            code=loaded,
            arguments=imported.arguments,
            bindings=imported.bindings,
            ops=imported.ops,
            sources=imported.sources,
            outputs=outputs,
            sizes=sizes,
            program=serialised,
            manifest=manifest,
            origin=outcome.source,
            seconds=seconds,
            times=times,
        ),
        inputs=[
            _source(binding, argument.kind == "scalar", constant)
            for binding, argument in zip(imported.bindings, imported.arguments, strict=True)
        ],
        outputs=outputs,
        unversioned=[place for place, binding in enumerate(imported.bindings) if binding.unversioned],
        workspace=loaded.workspace,
        fault=loaded.fault,
        times=times,
        program_bytes=len(serialised),
        kernel_nodes=[kernel.nodes for kernel in manifest.kernels],
        competes_with_eager=_competes_with_eager(device, manifest),
        in_place=_in_place(subgraph, imported, manifest),
        releases=manifest.releases,
        context=loaded.context,
        wait=loaded.wait,
        forget=loaded.forget,
    )


def _competes_with_eager(device: devices.Device, manifest: Manifest) -> bool:
    """Return whether all devices that run the code compute on the processor of PyTorch's operators."""
    names = {part.device for part in manifest.parts} or {device.name}
    running = [part for part in devices.parts_of(device) if part.name in names]
    return all(isinstance(part, devices.HostProcessor) and part.competes_with_eager for part in running)


def _in_place(subgraph: Subgraph, imported: ImportedGraph, manifest: Manifest) -> list[tuple[int, int]]:
    """Return the results that are written to arguments: the group asks for it, and the code allows it.

    A result that is two outputs is a tensor of its own.
    """
    uses = Counter(output.index for output in imported.outputs if output.source == "result")
    arguments = {b.index: k for k, b in enumerate(imported.bindings) if b.source == "input" and not b.copy}
    wanted = [(imported.outputs[k].index, arguments[read]) for k, read in subgraph.written.items() if read in arguments]
    return [pair for pair in wanted if uses[pair[0]] == 1 and pair in manifest.in_place]


def find_speed(executable: _C.Executable, device_name: str, threads: int, magnitude: int) -> _C.SpeedFields | None:
    """Return the stored result of a comparison with PyTorch's operators, or None.

    Code of a package has no stored results, because it has no program.
    """
    compiled: Compiled | None = executable.owner
    if compiled is None:
        return None
    stored = records.StoredComparison(devices.get(device_name), compiled.manifest.program, threads, magnitude)
    comparison = stored.load(nodes=len(compiled.ops))
    return None if comparison is None else astuple(comparison)  # type: ignore[return-value]


def store_speed(
    executable: _C.Executable, device_name: str, threads: int, magnitude: int, group: str, fields: _C.SpeedFields
) -> None:
    """Store and log the result of a comparison with PyTorch's operators."""
    choice, compiled_seconds, eager_seconds, left_out = fields
    logs.logger("groups" if choice == "compiled" else "fallback").info(
        "%s takes %.3g ms compiled and %.3g ms by PyTorch's operators, with %d threads: %s",
        group,
        compiled_seconds * 1e3,
        eager_seconds * 1e3,
        threads,
        {"compiled": "it stays", "divided": "it is divided", "eager": "the operators replace it"}[choice],
    )
    compiled: Compiled | None = executable.owner
    if compiled is not None:
        stored = records.StoredComparison(devices.get(device_name), compiled.manifest.program, threads, magnitude)
        stored.store(records.SpeedFinding(choice, compiled_seconds, eager_seconds, tuple(left_out)))


def packs_of(loaded: devices.LoadedCode, manifest: Manifest) -> list[tuple[int, str, Sequence[int], int, int, int]]:
    """Return the packs of loaded code in the form of ``_C.Executable``."""
    releases = loaded.releases or [0] * len(loaded.packs)
    contexts = loaded.pack_contexts or [loaded.context] * len(loaded.packs)
    return [
        (address, pack.recipe, pack.arguments, pack.size, release, context)
        for address, pack, release, context in zip(loaded.packs, manifest.packs, releases, contexts, strict=True)
    ]


def _kernel_names(manifest: Manifest, ops: Sequence[str]) -> list[str]:
    return [" ".join([kernel.symbol, "+".join(ops_of(kernel, ops))]).rstrip() for kernel in manifest.kernels]


def ops_of(kernel: KernelCall, ops: Sequence[str]) -> tuple[str, ...]:
    """Return the ops of a group that ``kernel`` computes, without namespaces and overloads."""
    return tuple(dict.fromkeys(ops[node].partition("::")[2].partition(".")[0] for node in kernel.nodes))


def _log(imported: ImportedGraph, program: Program, outcome: service.CompileOutcome, seconds: float) -> None:
    manifest = outcome.artifact.manifest
    if logs.logger("groups").isEnabledFor(logging.INFO):
        ops = Counter(op for op in imported.ops if not op.startswith("prim::"))
        places = zip(imported.ops, imported.sources, strict=True)
        sources = [source for op, source in places if source and not op.startswith("prim::")]
        types = [
            f"{argument.dtype}{list(argument.shape)}" for argument in imported.arguments if argument.role == "input"
        ]
        logs.logger("groups").info(
            "%s: a group for %s of %d operators (%s)%s, %d kernels",
            program.key[:16],
            f"{', '.join(types) or 'no inputs'}{' and other sizes' if program.symbols else ''}",
            ops.total(),
            ", ".join(f"{op} × {count}" if count > 1 else op for op, count in ops.most_common()),
            f" from {sources[0]}" if sources else "",
            len(manifest.kernels),
        )
    stages = [
        f"{name.removeprefix('seconds_')} {value:.3f}"
        for name, value in manifest.statistics.items()
        if name.startswith("seconds_")
    ]
    logs.logger("timing").info(
        "%s: %.3f s until it was loaded, %.3f s of them for the artifact (%s)%s",
        program.key[:16],
        seconds,
        outcome.seconds,
        outcome.source,
        f"; when it was compiled: {', '.join(stages)}" if stages else "",
    )


def _compile_and_load(program: Program, device: devices.Device) -> tuple[service.CompileOutcome, devices.LoadedCode]:
    """Compile and load ``program``; compile it again if a cached artifact does not load."""
    outcome = service.compile_program(program)
    manifest = outcome.artifact.manifest
    if manifest.symbols != len(program.symbols):
        raise CompileError(f"device {device.name!r} takes no sizes that vary")
    try:
        with _imports, trace.span("load", "load"):
            return outcome, device.load(outcome.artifact)
    except CompileError:
        service.default_service().forget(program.key)
        if outcome.source == "compiled":
            raise
    return _compile_and_load(program, device)


def _source(binding: Binding, is_scalar: bool, constant: Callable[[int], object]) -> tuple[str, object]:
    """Return an argument as ``_C.Executable`` has it: kind of source, and the tensor, input, or (input, element)."""
    if binding.source == "input":
        kind = "scalar" if is_scalar else "contiguous" if binding.copy else "dense"
        return kind, binding.index if binding.element is None else (binding.index, binding.element)
    if binding.source == "size":
        return "size", binding.index
    return "constant", constant_of(binding, constant)


def constant_of(binding: Binding, constant: Callable[[int], object]) -> torch.Tensor:
    """Return a constant argument in its memory layout; it shares the tensor's memory unless a copy is needed."""
    value: Any = constant(binding.index)
    tensor = value if binding.element is None else value[binding.element]
    assert isinstance(tensor, torch.Tensor)
    return tensor.detach().permute(binding.permutation).contiguous()


def _warn(error: CompileError, divided: bool) -> None:
    """Warn once per op and reason that a group, or some ops of a ``divided`` group, are not compiled.

    A compile that is retried at once, or that ends with the interpreter, does not cause a warning.
    """
    if error.retry_after == 0 or background.is_leaving():
        return
    refusals.count(error, divided)
    what = "an op, with compiled groups around it," if divided else "a group"
    for failure in error.parts or [error]:
        logs.logger("fallback").info("%s runs in PyTorch's interpreter: %s", what, refusals.as_ungrouped(failure))
    new = {f"{failure.op}: {failure.reason}": failure for failure in error.parts or [error]}
    new_failures = [refusals.as_ungrouped(failure) for text, failure in new.items() if text not in _warned]
    _warned.update(new)
    if new_failures:
        more = f"; and {len(new_failures) - 1} more" if len(new_failures) > 1 else ""
        warnings.warn(
            f"torchmdla: {what} runs in PyTorch's interpreter (torchmdla.explain(model, *inputs) has details): "
            f"{new_failures[0]}{more}",
            RuntimeWarning,
            stacklevel=2,
        )


def _report_fault(group: str, fault: str, strict: bool) -> None:
    """Warn that a device failed in ``group``; in strict mode raise the error.

    An exception that interrupted the device is raised first.

    Raises:
        DeviceError: ``strict`` is set.
    """
    interrupts.raise_held()
    error = DeviceError(fault, group=group)
    logs.logger("fallback").info("a group runs in PyTorch's interpreter: %s", error)
    if strict:
        raise error
    warnings.warn(f"torchmdla: a group runs in PyTorch's interpreter: {error}", RuntimeWarning, stacklevel=2)
