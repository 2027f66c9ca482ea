"""TorchScript's functions without their warnings of deprecation.

PyTorch's functions of ``torch.jit`` warn in each call. The caller is torchmdla, and its user cannot change that.
Therefore torchmdla calls the functions below them. A filter of warnings would be global, and would also hide the
warnings of the user's own calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from inspect import ismethod
from typing import IO, Any

import torch
from torch import nn
from torch._jit_internal import get_callable_argument_names
from torch.jit import _script, _trace
from torch.jit._freeze import run_frozen_optimizations
from torch.jit._recursive import wrap_cpp_module
from torch.jit._serialization import validate_map_location


def trace(program: Any, inputs: tuple[Any, ...]) -> Any:
    """Trace a module or function as ``torch.jit.trace`` does with ``check_trace=False``."""
    if ismethod(program) and program.__name__ == "forward" and isinstance(program.__self__, nn.Module):
        program = program.__self__
    if not isinstance(program, nn.Module):
        return _trace._trace_impl(program, inputs, check_trace=False)
    traced: Any = _trace.make_module(program, None, torch.jit._state._python_cu)  # type: ignore[attr-defined]
    previous = _trace._trace_module_map
    _trace._trace_module_map = {"__module": program, **dict(_names("__module", program))}
    try:
        traced._c._create_method_from_trace(
            "forward",
            program,
            inputs,
            _trace._create_interpreter_name_lookup_fn(0),
            True,  # strict
            False,  # not out of place
            get_callable_argument_names(program.forward),
            True,  # sizes of the inputs are stored
        )
    finally:
        _trace._trace_module_map = previous
    return traced


def _names(prefix: str, module: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """Return each module below ``module`` and its name, after which scopes of nodes are named. The last name counts."""
    for name, child in module.named_children():
        yield child, f"{prefix}.{name}"
        yield from _names(f"{prefix}.{name}", child)


def freeze(program: torch.jit.ScriptModule, preserved: Sequence[str] = ()) -> torch.jit.ScriptModule:
    """Turn the weights of a program in eval mode into constants, as ``torch.jit.freeze`` does.

    The result also has the methods ``preserved``.
    """
    frozen = _script.RecursiveScriptModule(torch._C._freeze_module(program._c, list(preserved)))
    _script.RecursiveScriptModule._finalize_scriptmodule(frozen)
    run_frozen_optimizations(frozen, preserved_methods=list(preserved))
    return frozen


def save(program: Any, file: IO[bytes], extra: Mapping[str, bytes] | None = None) -> None:
    """Write a program and extra files as ``torch.jit.save`` does."""
    file.write(program.save_to_buffer(_extra_files=dict(extra or {})))


def load(file: str | IO[bytes], map_location: Any = None) -> Any:
    """Read a program from a path or an open file as ``torch.jit.load`` does."""
    functions: Any = torch._C
    unit, device = functions.CompilationUnit(), validate_map_location(map_location)
    if isinstance(file, str):
        return wrap_cpp_module(functions.import_ir_module(unit, file, device, {}, False))
    return wrap_cpp_module(functions.import_ir_module_from_buffer(unit, file.read(), device, {}, False))
