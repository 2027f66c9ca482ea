"""The aten dialect, registered through IRDL and verified by Python traits.

IRDL fixes the number of operands and results of every op. The trait runs before IRDL's verifier and names the wrong
argument. IRDL cannot express a list with any number of elements of different types. Such a list is a ``tuple<…>``.
MLIR's ``builtin.unrealized_conversion_cast`` packs and unpacks it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from torch_mlir import ir
from torch_mlir.dialects import irdl

from torchmdla.aten import constants, types
from torchmdla.aten.schemas import by_op

CONSTANT = "aten.constant"
# This op packs and unpacks lists.
CAST = "builtin.unrealized_conversion_cast"
# Attribute of the arguments that are weights or buffers.
PARAMETER = "aten.parameter"


class AtenError(ValueError):
    """Error about a module that does not parse or verify, or that the dialect cannot express."""


def register(context: ir.Context) -> None:
    """Register the dialect with ``context``; registering it again has no effect.

    The context stops using threads. The verifier is Python code and needs the interpreter's lock. The thread that runs
    the passes holds that lock, so a verifier in another thread would wait forever.
    """
    context.enable_multithreading(False)
    if context.is_registered_operation(CONSTANT):
        return
    with context, ir.Location.unknown():
        module = ir.Module.parse(_definition())
        # IRDL's verifier rejects upper case and double underscores; MLIR itself accepts mT and __and__.
        definitions = module.body.operations[0].regions[0].blocks[0].operations
        for definition, name in zip(definitions, by_op(), strict=False):
            definition.attributes["sym_name"] = ir.StringAttr.get(name.removeprefix("aten."))
        irdl.load_dialects(module)
        for name in by_op():
            ir.DynamicOpTrait.attach(name, _SchemaTrait)
        ir.DynamicOpTrait.attach(CONSTANT, _ConstantTrait)


def new_context() -> ir.Context:
    """Return a new context with the dialect."""
    context = ir.Context()
    register(context)
    return context


def functions_with_body(module: ir.Module) -> list[Any]:
    """Return the functions of a module without its declarations."""
    operations = [op.operation for op in module.body.operations]
    return [op for op in operations if op.name == "func.func" and len(op.regions[0].blocks)]


def body_of(function: Any) -> Any:
    """Return the only block of a function.

    Raises:
        AtenError: the function has several blocks.
    """
    blocks = function.regions[0].blocks
    if len(blocks) != 1:
        raise AtenError(f"function {function.attributes['sym_name']} has control flow")
    return blocks[0]


def parse(text: str, context: ir.Context | None = None) -> ir.Module:
    """Parse and verify a module.

    Raises:
        AtenError: the module does not parse, or an op has operands that do not match its schema. The message names the
            op, the argument and the expected type.
    """
    context = context or new_context()
    register(context)
    with diagnostics_as_error("the module is not valid"), context:
        return ir.Module.parse(text)


def verify(module: ir.Module) -> None:
    """Verify a module that was built or changed.

    Raises:
        AtenError: as :func:`parse`.
    """
    with diagnostics_as_error("the module is not valid"):
        module.operation.verify()


@contextmanager
def diagnostics_as_error(reason: str) -> Iterator[None]:
    """Convert MLIR's errors into :class:`AtenError`, with their notes."""
    try:
        yield
    except ir.MLIRError as error:
        lines = "\n".join(_flatten(error.error_diagnostics))
        raise AtenError(f"{reason}:\n{lines}") from None


def _flatten(diagnostics: list[ir.DiagnosticInfo]) -> Iterator[str]:
    for diagnostic in diagnostics:
        yield f"{diagnostic.location}: {diagnostic.message}"
        yield from _flatten(diagnostic.notes)


@lru_cache(maxsize=1)
def _definition() -> str:
    operations = [_operation(f"op{index}", len(op.types), len(op.returns)) for index, op in enumerate(by_op().values())]
    constant = _operation("constant", 0, 1)
    return "irdl.dialect @aten {\n" + "\n".join([*operations, constant, "irdl.type @str {}"]) + "\n}"


def _operation(symbol: str, operands: int, results: int) -> str:
    # Each value has its own constraint: values that share a constraint must have the same type.
    lines = [f"irdl.operation @{symbol} {{"]
    lines += [f"  %{index} = irdl.any" for index in range(operands + results)]
    if operands:
        lines.append(f"  irdl.operands({', '.join(f'a{index}: %{index}' for index in range(operands))})")
    if results:
        lines.append(f"  irdl.results({', '.join(f'r{index}: %{operands + index}' for index in range(results))})")
    return "\n".join([*lines, "}"])


class _SchemaTrait(ir.DynamicOpTrait):  # type: ignore[misc]
    """Trait that checks an op's operands and results against its schema."""

    @staticmethod
    def verify_invariants(op: Any) -> bool:
        return _report(op, _fault(op))


class _ConstantTrait(ir.DynamicOpTrait):  # type: ignore[misc]
    """Trait that checks that the attribute ``value`` is a literal of the result's type."""

    @staticmethod
    def verify_invariants(op: Any) -> bool:
        return _report(op, constants.fault(op))


def _report(op: Any, fault: str | None) -> bool:
    if fault is not None:
        op.location.emit_error(f"'{op.name}' op {fault}")
    return fault is None


def _fault(op: Any) -> str | None:
    """Return the error in an op, or None if it is valid."""
    schema = by_op()[op.name]
    operands, results = [value.type for value in op.operands], [value.type for value in op.results]
    if len(operands) != len(schema.types):
        names = ", ".join(schema.arguments)
        return f"expects {len(schema.types)} operands ({names}) by {schema.qualified}, got {len(operands)}"
    if len(results) != len(schema.returns):
        return f"expects {len(schema.returns)} results by {schema.qualified}, got {len(results)}"
    for name, expected, repeated, type_ in zip(schema.arguments, schema.types, schema.repeated, operands, strict=True):
        if not types.fits(type_, expected, repeated):
            wanted = types.describe(expected, repeated)
            return f"expects argument '{name}' of {schema.qualified} to be {wanted}, got {type_}"
    for index, (expected, type_) in enumerate(zip(schema.returns, results, strict=True)):
        # An undefined tensor has the type none.
        if not types.fits(type_, expected) and not (types.is_none(type_) and expected.kind() == "TensorType"):
            return f"expects result {index} of {schema.qualified} to be {types.describe(expected)}, got {type_}"
    return None
