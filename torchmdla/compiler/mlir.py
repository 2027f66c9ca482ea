"""MLIR by upstream's bindings: contexts in which programs parse, pipelines, and errors that name the user's op."""

from __future__ import annotations

import re
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from torch_mlir import ir
from torch_mlir._mlir_libs import _torchMlir
from torch_mlir.passmanager import PassManager

from torchmdla.errors import CompileError

_TORCH_OP = re.compile(r"torch\.(aten|prim|prims|torchvision|operator)\.([\w.]+)")
_PLACE = re.compile(r'"([^"]+)":(\d+)')
# The importer's place of an op: the number of the group's node that it comes from.
_NODE = re.compile(r'\("graph":(\d+)')


def new_context() -> ir.Context:
    """A context in which programs parse."""
    context = ir.Context()
    _torchMlir.register_dialect(context)
    context.enable_multithreading(False)
    return context


class _Shared(threading.local):
    """A thread's context for programs, how many it has had, and the pass managers that ran in it by passes and whether
    they verify after each."""

    def __init__(self) -> None:
        # Ahead of the context that they are of: a thread that ends lets go of them in this order.
        self.managers: dict[tuple[tuple[str, ...], bool], PassManager] = {}
        self.context: ir.Context | None = None
        self.programs = 0


_shared = _Shared()

# A context keeps each attribute and type that was made in it: constants of programs, places in their sources.
_PROGRAMS_OF_A_CONTEXT = 100


@contextmanager
def shared_context() -> Iterator[ir.Context]:
    """Enter the thread's context for programs: to make one takes longer than most of the passes that run in it."""
    if _shared.context is None or _shared.programs >= _PROGRAMS_OF_A_CONTEXT:
        _shared.managers = {}
        _shared.context, _shared.programs = new_context(), 0
    _shared.programs += 1
    with _shared.context as context:
        yield context


def forward_of(module: ir.Module) -> Any:
    """The program's function."""
    return ir.SymbolTable(module.operation)["forward"]


def located_text(module: ir.Module) -> str:
    """The text of a module with the place of every op, which names the nodes of the group that it comes from."""
    text: str = module.operation.get_asm(enable_debug_info=True)
    return text


def ops_named(root: Any, names: Collection[str]) -> list[Any]:
    """The ops of these names in ``root`` and in what it contains, in their order."""
    found: list[Any] = []

    def visit(op: Any) -> Any:
        if op.name in names:
            found.append(op)
        return ir.WalkResult.ADVANCE

    root.walk(visit)
    return found


def nodes_of(op: Any) -> frozenset[int]:
    """The numbers of the group's nodes that an op computes, by the places of it and of what it contains."""
    found = set(_NODE.findall(str(op.location)))

    def visit(inner: Any) -> Any:
        found.update(_NODE.findall(str(inner.location)))
        return ir.WalkResult.ADVANCE

    op.walk(visit)
    return frozenset(map(int, found))


def run(module: ir.Module, *passes: str, verify_each: bool = True) -> None:
    """Runs a pipeline over the module, which is verified after each pass, or else once behind the last."""
    _manager(module.context, passes, verify_each).run(module.operation)
    if not verify_each:
        module.operation.verify()


def _manager(context: ir.Context, passes: tuple[str, ...], verify_each: bool) -> PassManager:
    """Return a pass manager of the context; of the thread's context for programs the one that it has. A new one
    collects the rewrites of all dialects first, which takes longer than to rewrite a program of one operator."""
    managers = _shared.managers if context == _shared.context else {}
    if (passes, verify_each) not in managers:
        manager = PassManager.parse(f"builtin.module({','.join(passes)})", context)
        manager.enable_verifier(verify_each)
        managers[passes, verify_each] = manager
    return managers[passes, verify_each]


@contextmanager
def explained(reason: str) -> Iterator[None]:
    """Turns MLIR's errors into ``CompileError`` with the op at fault and its place in the user's program."""
    try:
        yield
    except ir.MLIRError as error:
        diagnostics = list(_flattened(error.error_diagnostics))
        text = "\n".join(message for message, _ in diagnostics)
        places = " ".join(place for _, place in diagnostics)
        raise CompileError(reason, op=_op_in(text), source=_place_in(places), diagnostic=text) from None


def _flattened(diagnostics: list[ir.DiagnosticInfo]) -> Iterator[tuple[str, str]]:
    for diagnostic in diagnostics:
        yield diagnostic.message, str(diagnostic.location)
        yield from _flattened(diagnostic.notes)


def _op_in(text: str) -> str:
    """``aten::add.Tensor`` for the first ``torch.aten.add.Tensor`` in a message."""
    found = _TORCH_OP.search(text)
    return f"{found[1]}::{found[2]}".rstrip(".") if found else ""


def _place_in(text: str) -> str:
    found = _PLACE.search(text)
    return f"{found[1]}:{found[2]}" if found else ""
