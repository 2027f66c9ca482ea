"""MLIR through upstream's bindings: contexts to parse programs, pipelines, and errors that name the user's op."""

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
# Location that the importer gives an op: the number of the group's node that the op comes from.
_NODE = re.compile(r'\("graph":(\d+)')


def new_context() -> ir.Context:
    """Return a context that can parse programs."""
    context = ir.Context()
    _torchMlir.register_dialect(context)
    context.enable_multithreading(False)
    return context


class _Shared(threading.local):
    """Context of a thread for programs, number of programs it has had, and the pass managers that ran in it.

    The pass managers are stored by passes and by whether they verify after each pass.
    """

    def __init__(self) -> None:
        # Declared before the context that they belong to: a thread that ends releases them in this order.
        self.managers: dict[tuple[tuple[str, ...], bool], PassManager] = {}
        self.context: ir.Context | None = None
        self.programs = 0


_shared = _Shared()

# Most programs of a context. A context keeps each attribute and type that was made in it: constants, source locations.
_PROGRAMS_OF_A_CONTEXT = 100


@contextmanager
def shared_context() -> Iterator[ir.Context]:
    """Enter the thread's context for programs, because creating one takes longer than most passes that run in it."""
    if _shared.context is None or _shared.programs >= _PROGRAMS_OF_A_CONTEXT:
        _shared.managers = {}
        _shared.context, _shared.programs = new_context(), 0
    _shared.programs += 1
    with _shared.context as context:
        yield context


def forward_of(module: ir.Module) -> Any:
    """Return the program's function."""
    return ir.SymbolTable(module.operation)["forward"]


def located_text(module: ir.Module) -> str:
    """Return the text of a module with the location of every op, which has the numbers of its nodes in the group."""
    text: str = module.operation.get_asm(enable_debug_info=True)
    return text


def ops_named(root: Any, names: Collection[str]) -> list[Any]:
    """Return the ops with these names in ``root`` and its regions, in order."""
    ops: list[Any] = []

    def visit(op: Any) -> Any:
        if op.name in names:
            ops.append(op)
        return ir.WalkResult.ADVANCE

    root.walk(visit)
    return ops


def nodes_in(text: str) -> frozenset[int]:
    """Return the numbers of the group's nodes in the locations that ``text`` contains, such as a diagnostic."""
    return frozenset(map(int, _NODE.findall(text)))


def nodes_of(op: Any) -> frozenset[int]:
    """Return the numbers of the group's nodes that an op computes, from its locations and those of inner ops."""
    numbers = set(nodes_in(str(op.location)))

    def visit(inner: Any) -> Any:
        numbers.update(nodes_in(str(inner.location)))
        return ir.WalkResult.ADVANCE

    op.walk(visit)
    return frozenset(numbers)


def run(module: ir.Module, *passes: str, verify_each: bool = True) -> None:
    """Run a pipeline over the module, which is verified after each pass or only once at the end."""
    _manager(module.context, passes, verify_each).run(module.operation)
    if not verify_each:
        module.operation.verify()


def _manager(context: ir.Context, passes: tuple[str, ...], verify_each: bool) -> PassManager:
    """Return a pass manager of the context; for the thread's context it is cached.

    A new one first collects the rewrites of all dialects. That takes longer than to rewrite a program of one operator.
    """
    managers = _shared.managers if context == _shared.context else {}
    if (passes, verify_each) not in managers:
        manager = PassManager.parse(f"builtin.module({','.join(passes)})", context)
        manager.enable_verifier(verify_each)
        managers[passes, verify_each] = manager
    return managers[passes, verify_each]


@contextmanager
def convert_errors(reason: str) -> Iterator[None]:
    """Convert MLIR's errors to ``CompileError`` with the op at fault and its location in the user's program."""
    try:
        yield
    except ir.MLIRError as error:
        diagnostics = list(_flatten(error.error_diagnostics))
        text = "\n".join(message for message, _ in diagnostics)
        places = " ".join(place for _, place in diagnostics)
        raise CompileError(reason, op=_find_op(text), source=_find_location(places), diagnostic=text) from None


def _flatten(diagnostics: list[ir.DiagnosticInfo]) -> Iterator[tuple[str, str]]:
    for diagnostic in diagnostics:
        yield diagnostic.message, str(diagnostic.location)
        yield from _flatten(diagnostic.notes)


def _find_op(text: str) -> str:
    """Return ``aten::add.Tensor`` for the first ``torch.aten.add.Tensor`` in a message."""
    match = _TORCH_OP.search(text)
    return f"{match[1]}::{match[2]}".rstrip(".") if match else ""


def _find_location(text: str) -> str:
    match = _PLACE.search(text)
    return f"{match[1]}:{match[2]}" if match else ""
