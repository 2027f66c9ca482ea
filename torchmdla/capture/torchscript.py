"""TorchScript programs, in which the fusion pass forms groups from the op table of the device in use."""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch

from torchmdla import _C, devices
from torchmdla.compile_service.service import default_service


def watch_loads() -> None:
    """Read the package of each file that ``torch.jit.load`` loads, and keep its code as long as the program lives.

    PyTorch's function is replaced in ``torch._C``, where ``torch.jit.load`` looks it up for each call.
    """
    import_module = torch._C.import_ir_module

    @wraps(import_module)
    def import_with_package(unit: Any, file: str, *arguments: Any) -> Any:
        module = import_module(unit, file, *arguments)
        _C.take_loaded_package(file, module)
        return module

    torch._C.import_ir_module = import_with_package  # type: ignore[assignment]


def use_device(device: devices.Device) -> None:
    """Form groups by the op table of ``device`` from the next optimisation of a graph on."""
    add_device(device)
    _C.use_device(device.name)


def add_device(device: devices.Device) -> None:
    """Register the op table of ``device``, for graphs that are only for this device."""
    ops = []
    for name, support in device.ops.items():
        base, _, overload = name.partition(".")
        ops.append((base, overload, support.kind, dict(support.where)))
    dtypes = [getattr(torch, dtype) for dtype in sorted(device.dtypes)]
    is_asynchronous = isinstance(device, devices.Asynchronous) and device.leaves_results_pending
    _C.add_device(device.name, ops, dtypes, is_asynchronous)


def map_constants(program: torch.jit.ScriptModule) -> _C.MappedWeights:
    """Move the constants of a program that was not optimised yet to a file, which is mapped.

    Raises:
        OSError: the file cannot be made.
        RuntimeError: it cannot be written, or mapped.
    """
    with default_service().cache.unnamed_file() as file:
        return _C.map_constants(program._c, file.fileno())


def reoptimise(program: Any, whatever: bool = False) -> None:
    """Make PyTorch optimise a program again if its plans have no group.

    It may have run before torchmdla was turned on. With ``whatever`` it is always optimised again, so that its groups
    are new.
    """
    try:
        plans = program.get_debug_state().execution_plans.values()
    except RuntimeError:  # The program is not optimised yet.
        return
    if whatever or not any(_has_groups(plan.graph) for plan in plans):
        getattr(program, "forward", program)._debug_flush_compilation_cache()


def _has_groups(graph: Any) -> bool:
    differentiable = graph.findAllNodes("prim::DifferentiableGraph")
    graphs = [graph, *(node.g("Subgraph") for node in differentiable)]
    return any(subgraph.findAllNodes("mdla::CompilationGroup") for subgraph in graphs)
