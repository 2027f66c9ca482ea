"""TorchScript programs: the fusion pass forms groups from the op table of the device in use."""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch

from torchmdla import _C, devices


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
    """Forms groups by the op table of ``device`` from the next optimisation of a graph on."""
    add_device(device)
    _C.use_device(device.name)


def add_device(device: devices.Device) -> None:
    """Makes the op table of ``device`` known, for graphs that are for it and no other."""
    ops = []
    for name, support in device.ops.items():
        base, _, overload = name.partition(".")
        ops.append((base, overload, support.kind, dict(support.where)))
    _C.add_device(device.name, ops, [getattr(torch, dtype) for dtype in sorted(device.dtypes)])


def optimise_anew(program: Any, whatever: bool = False) -> None:
    """Has PyTorch forget how it optimised a program, if that is without any group: it may have run before torchmdla was
    switched on. Or ``whatever`` there is, so that its groups are new ones."""
    try:
        plans = program.get_debug_state().execution_plans.values()
    except RuntimeError:  # It was not optimised yet.
        return
    if whatever or not any(_has_groups(plan.graph) for plan in plans):
        getattr(program, "forward", program)._debug_flush_compilation_cache()


def _has_groups(graph: Any) -> bool:
    differentiable = graph.findAllNodes("prim::DifferentiableGraph")
    graphs = [graph, *(node.g("Subgraph") for node in differentiable)]
    return any(one.findAllNodes("mdla::CompilationGroup") for one in graphs)
