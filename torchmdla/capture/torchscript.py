"""TorchScript groups: what the C++ run function asks for when a group is called with new inputs."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import torch

from torchmdla import _C, devices
from torchmdla.compiler import service
from torchmdla.compiler.program import Program
from torchmdla.compiler.versions import producers
from torchmdla.errors import CompileError
from torchmdla.importer import (
    Binding,
    ImportedGraph,
    OutputBinding,
    Record,
    TensorMeta,
    dtype_name,
    import_graph,
    locate,
)

_warned: set[str] = set()


def install() -> None:
    """Makes this module the compiler of groups. The pass itself comes with importing ``torchmdla._C``."""
    _C.set_compiler(compile_group, TensorMeta, CompileError)
    _C.set_submit(_submit)


@lru_cache(maxsize=1)
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=2, thread_name_prefix="torchmdla-compile")


def _submit(task: Callable[[], None]) -> None:
    _threads().submit(task)


if hasattr(os, "register_at_fork"):
    # Threads do not survive a fork.
    os.register_at_fork(after_in_child=_threads.cache_clear)


def use_device(device: devices.Device) -> None:
    """Forms groups by the op table of ``device`` from the next optimisation of a graph on."""
    ops = []
    for name, support in device.ops.items():
        base, _, overload = name.partition(".")
        ops.append((base, overload, support.kind, dict(support.where)))
    _C.set_device(device.name, ops, [getattr(torch, dtype) for dtype in sorted(device.dtypes)])


def compile_group(graph: torch._C.Graph, record: Record, parameters: Sequence[int], device_name: str) -> _C.Executable:
    """Compiles one specialisation of a group.

    Args:
        graph: the group's subgraph.
        record: what the recorded run saw of every value, by debug name.
        parameters: the group inputs that are weights.
        device_name: the device that the group was made for.

    Raises:
        CompileError: it cannot be compiled. A warning says so, once per op and reason, unless in strict mode.
    """
    try:
        return _compile(graph, record, parameters, devices.get(device_name))
    except CompileError as error:
        _warn(error)
        raise
    except Exception as error:  # A fault of ours must not become the user's: the group falls back.
        # Shortened: a message may hold whole tensors.
        fault = CompileError(f"internal error: {type(error).__name__}: {str(error)[:300]}")
        _warn(fault)
        raise fault from error


def _compile(graph: torch._C.Graph, record: Record, parameters: Sequence[int], device: devices.Device) -> _C.Executable:
    _check_dtypes(record, device)
    imported = import_graph(graph, record, parameters)
    program = Program(imported.mlir, imported.arguments, imported.results, device.target(), versions=producers())
    try:
        artifact = service.compile_program(program).artifact
    except CompileError as error:
        raise _located(error, imported) from error
    loaded = device.load(artifact)
    nodes = list(graph.nodes())
    manifest = artifact.manifest
    return _C.Executable(
        entry=loaded.entry,
        packs=[
            (address, pack.recipe, pack.arguments, pack.size)
            for address, pack in zip(loaded.packs, manifest.packs, strict=True)
        ],
        workspace_bytes=manifest.workspace_bytes,
        owner=loaded,
        inputs=[
            _source(binding, argument.kind == "scalar", nodes)
            for binding, argument in zip(imported.bindings, imported.arguments, strict=True)
        ],
        outputs=[_output(output, imported) for output in imported.outputs],
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


def _source(binding: Binding, is_scalar: bool, nodes: Sequence[torch._C.Node]) -> tuple[str, object]:
    """An argument as ``_C.Executable`` wants it: kind of source, and the tensor, input, or (input, element)."""
    if binding.source == "input":
        kind = "scalar" if is_scalar else "contiguous" if binding.copy else "dense"
        return kind, binding.index if binding.element is None else (binding.index, binding.element)
    constant: Any = nodes[binding.index].output().toIValue()
    tensor = constant if binding.element is None else constant[binding.element]
    assert isinstance(tensor, torch.Tensor)
    # As the argument lies in memory: shares the tensor's memory unless a copy is due.
    return "constant", tensor.detach().permute(binding.permutation).contiguous()


def _output(output: OutputBinding, imported: ImportedGraph) -> object:
    """An output as ``_C.Executable`` wants it: (result, dtype, sizes, strides), or the constant."""
    if output.source == "constant":
        return output.value
    if output.source == "input":
        raise CompileError("an output that is an input of the group is not supported")
    result = imported.results[output.index]
    dtype = getattr(torch, result.dtype)
    layout = torch.empty(result.shape, dtype=dtype, device="meta").permute(output.permutation)
    return output.index, dtype, list(layout.shape), list(layout.stride())


def _warn(error: CompileError) -> None:
    text = f"{error.op}: {error.reason}" if error.op else error.reason
    if _C.is_strict() or text in _warned:
        return
    _warned.add(text)
    at = f" (at {error.source})" if error.source else ""
    warnings.warn(f"torchmdla: a group runs in PyTorch's interpreter: {text}{at}", RuntimeWarning, stacklevel=3)
