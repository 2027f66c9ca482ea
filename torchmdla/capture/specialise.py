"""From a group's subgraph and its record to an executable, whatever kind of graph the group is in."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeVar

import torch

from torchmdla import _C, devices
from torchmdla.capture.agreement import Agreement, Values, polynomial_record
from torchmdla.capture.script_subgraph import ScriptSubgraph
from torchmdla.capture.subgraph import Subgraph
from torchmdla.compiler import service
from torchmdla.compiler.program import Argument, Program, Result, Sample
from torchmdla.compiler.sizes import NoPolynomial, Size, at, fit
from torchmdla.compiler.versions import producers
from torchmdla.devices import interrupts
from torchmdla.errors import CompileError, DeviceError
from torchmdla.importer import (
    Binding,
    ImportedGraph,
    OutputBinding,
    Record,
    TensorMeta,
    dtype_name,
    locate,
)

_warned: set[str] = set()

_Typed = TypeVar("_Typed", Argument, Result)


def install() -> None:
    """Makes this module the compiler of groups."""
    _C.set_compiler(
        _of_any_graph(compile_group),
        _of_any_graph(compile_dynamic_group),
        _warn,
        TensorMeta,
        CompileError,
        _tell_fault,
    )
    _C.set_submit(_submit)


def _of_any_graph(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` of a subgraph, made to take what C++ has of one: a TorchScript group's graph, or a subgraph."""

    def call(graph: Any, *arguments: Any) -> Any:
        return function(ScriptSubgraph(graph) if isinstance(graph, torch._C.Graph) else graph, *arguments)

    return call


@lru_cache(maxsize=1)
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=2, thread_name_prefix="torchmdla-compile")


def _submit(task: Callable[[], None]) -> None:
    _threads().submit(task)


if hasattr(os, "register_at_fork"):
    # Threads do not survive a fork.
    os.register_at_fork(after_in_child=_threads.cache_clear)


def compile_group(subgraph: Subgraph, record: Record, parameters: Sequence[int], device_name: str) -> _C.Executable:
    """Compiles one specialisation of a group.

    Args:
        subgraph: what the group computes.
        record: what the recorded run saw of every value, by name.
        parameters: the group inputs that are weights.
        device_name: the device that the group was made for.

    Raises:
        CompileError: it cannot be compiled.
    """
    try:
        return _compile(subgraph, record, parameters, devices.get(device_name))
    except CompileError:
        raise
    except Exception as error:  # A fault of ours must not become the user's: the group falls back.
        # Shortened: a message may hold whole tensors.
        raise CompileError(f"internal error: {type(error).__name__}: {str(error)[:300]}") from error


def compile_dynamic_group(
    subgraph: Subgraph,
    record: Record,
    parameters: Sequence[int],
    device_name: str,
    values: Values,
    samples: Sequence[tuple[Values, Record]],
) -> tuple[_C.Executable, Agreement]:
    """Compiles a group for any sizes.

    Args:
        subgraph, record, parameters, device_name: as for :func:`compile_group`; the record is of a typical call.
        values: the symbols' values in that call.
        samples: values of the symbols, and the record of a run there.

    Returns:
        The executable, and what tells of a record and the symbols' values whether the executable would do the same.

    Raises:
        CompileError: it is not dynamic: something but numbers depends on the sizes, or the device does not take it.
            Nobody is warned, since the group is compiled for each size then.
    """
    try:
        device = devices.get(device_name)
        for seen in (record, *(seen for _, seen in samples)):
            _check_dtypes(seen, device)
        return _compile_dynamic(subgraph, record, parameters, device, values, samples)
    except (CompileError, NoPolynomial) as error:
        raise CompileError(f"it differs between sizes: {error}") from error
    except Exception as error:
        raise CompileError(f"internal error: {type(error).__name__}: {str(error)[:300]}") from error


def _compile(subgraph: Subgraph, record: Record, parameters: Sequence[int], device: devices.Device) -> _C.Executable:
    _check_dtypes(record, device)
    imported = subgraph.import_program(record, parameters, device.whole)
    program = Program(imported.mlir, imported.arguments, imported.results, device.target(), versions=producers())
    return _executable(subgraph, imported, program, device, [_output(output, imported) for output in imported.outputs])


def _compile_dynamic(
    subgraph: Subgraph,
    record: Record,
    parameters: Sequence[int],
    device: devices.Device,
    values: Values,
    samples: Sequence[tuple[Values, Record]],
) -> tuple[_C.Executable, Agreement]:
    points = [point for point, _ in samples]
    agrees = polynomial_record(subgraph, points, [seen for _, seen in samples])
    if not agrees(record, values):
        raise CompileError("the record at the typical sizes is not what the samples' tell")
    # Not at the typical sizes, which may be too large to be written out.
    at_samples = [subgraph.import_program(seen, parameters, device.whole) for _, seen in samples]
    imported = at_samples[0]
    if any(_form(sample) != _form(imported) for sample in at_samples):
        raise CompileError("bindings, roles, dtypes or layouts")
    program = Program(
        "",
        _at_typical([sample.arguments for sample in at_samples], points, values),
        _at_typical([sample.results for sample in at_samples], points, values),
        device.target(),
        versions=producers(),
        symbols=values,
        samples=tuple(
            Sample(point, sample.mlir, sample.arguments, sample.results)
            for point, sample in zip(points, at_samples, strict=True)
        ),
    )
    everywhere = [[_output(output, sample) for output in sample.outputs] for sample in at_samples]
    outputs = [_fitted(points, list(seen)) for seen in zip(*everywhere, strict=True)]
    return _executable(subgraph, imported, program, device, outputs), agrees


def _executable(
    subgraph: Subgraph,
    imported: ImportedGraph,
    program: Program,
    device: devices.Device,
    outputs: Sequence[tuple[str, object]],
) -> _C.Executable:
    """Compiles and loads ``program``, and binds it to the group's inputs and ``outputs``."""
    try:
        artifact = service.compile_program(program).artifact
    except CompileError as error:
        raise _located(error, imported) from error
    manifest = artifact.manifest
    if manifest.symbols != len(program.symbols):
        raise CompileError(f"device {device.name!r} takes no sizes that vary")
    loaded = device.load(artifact)
    return _C.Executable(
        entry=loaded.entry,
        packs=[
            (address, pack.recipe, pack.arguments, pack.size, release)
            for address, pack, release in zip(
                loaded.packs, manifest.packs, loaded.releases or [0] * len(loaded.packs), strict=True
            )
        ],
        workspace_bytes=manifest.workspace_bytes,
        owner=loaded,
        inputs=[
            _source(binding, argument.kind == "scalar", subgraph)
            for binding, argument in zip(imported.bindings, imported.arguments, strict=True)
        ],
        outputs=outputs,
        unversioned=[place for place, binding in enumerate(imported.bindings) if binding.unversioned],
        workspace=loaded.workspace,
        fault=loaded.fault,
    )


def _check_dtypes(record: Record, device: devices.Device) -> None:
    for seen in record.values():
        for meta in seen if isinstance(seen, list) else [seen]:
            if isinstance(meta, TensorMeta) and dtype_name(meta.dtype) not in device.dtypes:
                raise CompileError(f"dtype {meta.dtype} is not taken by device {device.name!r}")


def _located(error: CompileError, imported: ImportedGraph) -> CompileError:
    """Says which op of the user's program the compiler speaks of."""
    op, source = locate(imported, error.diagnostic)
    return CompileError(error.reason, op=op or error.op, source=source or error.source, diagnostic=error.diagnostic)


def _source(binding: Binding, is_scalar: bool, subgraph: Subgraph) -> tuple[str, object]:
    """An argument as ``_C.Executable`` wants it: kind of source, and the tensor, input, or (input, element)."""
    if binding.source == "input":
        kind = "scalar" if is_scalar else "contiguous" if binding.copy else "dense"
        return kind, binding.index if binding.element is None else (binding.index, binding.element)
    constant: Any = subgraph.constant(binding.index)
    tensor = constant if binding.element is None else constant[binding.element]
    assert isinstance(tensor, torch.Tensor)
    # As the argument lies in memory: shares the tensor's memory unless a copy is due.
    return "constant", tensor.detach().permute(binding.permutation).contiguous()


def _output(output: OutputBinding, imported: ImportedGraph) -> tuple[str, Any]:
    """An output as ``_C.Executable`` wants it: ``"tensor"``, (result, dtype, sizes, strides), or ``"constant"``."""
    if output.source == "constant":
        return "constant", output.value
    if output.source == "input":
        raise CompileError("an output that is an input of the group is not supported")
    result = imported.results[output.index]
    dtype = getattr(torch, result.dtype)
    layout = torch.empty(result.shape, dtype=dtype, device="meta").permute(output.permutation)
    return "tensor", (output.index, dtype, list(layout.shape), list(layout.stride()))


def _form(imported: ImportedGraph) -> object:
    """All of an imported graph that sizes must not change."""
    return (
        imported.bindings,
        [(argument.role, argument.dtype, len(argument.shape), argument.kind) for argument in imported.arguments],
        [(result.dtype, len(result.shape)) for result in imported.results],
        [(output.source, output.index, output.permutation) for output in imported.outputs],
    )


def _at_typical(samples: Sequence[Sequence[_Typed]], points: Sequence[Values], values: Values) -> tuple[_Typed, ...]:
    """Arguments or results with their shapes where the symbols have ``values``."""

    def one(same: Sequence[_Typed]) -> _Typed:
        shapes = zip(*(thing.shape for thing in same), strict=True)
        return replace(same[0], shape=tuple(at(fit(points, numbers), values) for numbers in shapes))

    return tuple(one(same) for same in zip(*samples, strict=True))


def _fitted(points: Sequence[Values], samples: Sequence[tuple[str, Any]]) -> tuple[str, Any]:
    """An output of a dynamic executable, from what :func:`_output` says of it at the samples: numbers that vary are
    terms, and a constant that does is a ``"number"``."""
    kind, first = samples[0]
    if kind == "tensor":
        sizes = [_terms(points, numbers) for numbers in zip(*(output[2] for _, output in samples), strict=True)]
        strides = [_terms(points, numbers) for numbers in zip(*(output[3] for _, output in samples), strict=True)]
        return kind, (*first[:2], sizes, strides)
    constants = [constant for _, constant in samples]
    if all(type(constant) is int for constant in constants):
        terms = _terms(points, constants)
        return (kind, terms) if isinstance(terms, int) else ("number", terms)
    if any(constant != first for constant in constants):
        raise CompileError(f"an output that is {first!r} at some sizes only")
    return kind, first


def _terms(points: Sequence[Values], numbers: Sequence[int]) -> int | tuple[tuple[tuple[int, ...], int], ...]:
    found = fit(points, numbers)
    return found.terms if isinstance(found, Size) else found


def _warn(error: CompileError) -> None:
    """Says that a group is not compiled, once per op and reason."""
    text = f"{error.op}: {error.reason}" if error.op else error.reason
    if text in _warned:
        return
    _warned.add(text)
    at = f" (at {error.source})" if error.source else ""
    warnings.warn(f"torchmdla: a group runs in PyTorch's interpreter: {text}{at}", RuntimeWarning, stacklevel=2)


def _tell_fault(group: str, fault: str, strict: bool) -> None:
    """Says that a device failed in ``group``, or raises that in strict mode, or what interrupted the device.

    Raises:
        DeviceError: ``strict``.
    """
    interrupts.raise_held()
    error = DeviceError(fault, group=group)
    if strict:
        raise error
    warnings.warn(f"torchmdla: a group runs in PyTorch's interpreter: {error}", RuntimeWarning, stacklevel=2)
