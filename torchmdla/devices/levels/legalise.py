"""Conversion of a program to a level, by upstream's passes and by the converters of torchmdla's devices."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch_mlir import ir

from torchmdla.compiler import constants, dump
from torchmdla.compiler.mlir import convert_errors, forward_of, located_text, ops_named, run
from torchmdla.compiler.program import Program
from torchmdla.devices.levels.kinds import LEVELS, Layouts, LegalProgram, Level
from torchmdla.devices.levels.linalg import TORCH_PIPELINE, check_elements, to_linalg
from torchmdla.devices.levels.packs import parameters_read, separate_packs
from torchmdla.errors import CompileError, unknown_name

# Upstream's pipelines from the Torch dialect.
PIPELINES: Mapping[str, str] = {
    "linalg": "torch-backend-to-linalg-on-tensors-backend-pipeline",
    "tosa": "torch-backend-to-tosa-backend-pipeline",
    "stablehlo": "torch-backend-to-stablehlo-backend-pipeline",
}

# TOSA has channels last, and its pipeline folds transpositions into neighbours.
_TOSA_TO_LINALG = (
    "func.func(tosa-make-broadcastable,tosa-to-linalg-named,tosa-to-linalg,tosa-to-arith,tosa-to-tensor)",
    "canonicalize",
    "cse",
)


def legalise(program: Program, level: Level, layouts: Layouts | None = None) -> LegalProgram:
    """Return a program at ``level``, in MLIR's current context (:func:`torchmdla.compiler.mlir.new_context`).

    Args:
        program: a program for known sizes; for one with symbols, convert its samples (:meth:`Program.sample`).
        level: the level.
        layouts: the layouts that the device prefers.

    Raises:
        CompileError: the program has an op that the level does not have. The error identifies the op and its call, so
            that the group is compiled around it.
        ValueError: the level does not exist, or does not have the layouts.
    """
    layouts = layouts or Layouts()
    if level not in LEVELS:
        raise ValueError(unknown_name("level", level, LEVELS))
    _check_layouts(level, layouts)
    if program.symbols:
        raise CompileError(f"level {level!r} does not support sizes that vary")
    module = _CONVERSIONS[level](program, layouts)
    if level in ("onnx", "loops"):
        return LegalProgram(level, module)
    if level != "torch":
        _check_signature(module, program, level)
    packs = separate_packs(module, program) if layouts.packs_weights else ()
    dump.write(f"{level}.mlir", lambda: located_text(module))
    return LegalProgram(level, module, packs, parameters_read(module, program))


def _check_layouts(level: Level, layouts: Layouts) -> None:
    conditions = {
        "channels_last": layouts.channels_last and level not in ("linalg", "tosa"),
        "blocks": layouts.blocks is not None and level != "linalg",
        "packs_weights": layouts.packs_weights and level not in PIPELINES,
    }
    for name, is_wrong in conditions.items():
        if is_wrong:
            raise ValueError(f"level {level!r} does not have the layout {name!r}")


def _parse(program: Program) -> ir.Module:
    with convert_errors("the program is not valid"):
        return ir.Module.parse(program.mlir)


def _to_linalg(program: Program, layouts: Layouts) -> ir.Module:
    if layouts.channels_last:
        module = _to_tosa(program, layouts)
        lower_tosa(module)
    else:
        module = to_linalg(program)
    if layouts.blocks is not None:
        sizes = ",".join(map(str, layouts.blocks))
        with convert_errors("no blocks for this product"):
            run(module, f"func.func(linalg-block-pack-matmul{{block-factors={sizes}}})", "canonicalize", "cse")
    return module


def lower_tosa(module: ir.Module) -> None:
    """Lower a module in TOSA to linalg on tensors, in place.

    Raises:
        CompileError: upstream does not lower an op.
    """
    with convert_errors("no lowering from tosa to linalg for this op and these types"):
        run(module, *_TOSA_TO_LINALG)
    _open_pools(module)


def _to_tosa(program: Program, layouts: Layouts) -> ir.Module:
    module = _lower(program, "tosa", "tosa.const", "values")
    _open_clamps(module)
    return module


def _to_stablehlo(program: Program, layouts: Layouts) -> ir.Module:
    return _lower(program, "stablehlo", "stablehlo.constant", "value")


def _lower(program: Program, level: Level, constant: str, attribute: str) -> ir.Module:
    """Lower a program by upstream's passes; ``constant`` is the level's op of a constant tensor ``attribute``."""
    check_elements(program, level)
    module = _parse(program)
    hidden = constants.hide(module)
    with convert_errors(f"no lowering to {level} for this op and these types"):
        run(module, TORCH_PIPELINE)
        run(module, PIPELINES[level])
    constants.restore(
        module, hidden, lambda value: ir.Operation.create(constant, [value.type], attributes={attribute: value}).result
    )
    return module


def _to_onnx(program: Program, layouts: Layouts) -> Any:
    try:
        from torchmdla.devices.levels.onnx.model import onnx_program
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "onnx":
            raise
        raise CompileError("level 'onnx' needs the package onnx: pip install onnx") from None
    return onnx_program(program)


def _to_loops(program: Program, layouts: Layouts) -> Any:
    from torchmdla.devices.cpu.lowering import read_loop_program

    return read_loop_program(program)


_CONVERSIONS: Mapping[Level, Callable[[Program, Layouts], Any]] = {
    "torch": lambda program, layouts: _parse(program),
    "linalg": _to_linalg,
    "tosa": _to_tosa,
    "stablehlo": _to_stablehlo,
    "onnx": _to_onnx,
    "loops": _to_loops,
}


# Bounds that are absent in PyTorch. Upstream writes the greatest and the least finite number, which changes infinities.


def _open_clamps(module: ir.Module) -> None:
    for clamp in ops_named(module.operation, {"tosa.clamp"}):
        for name, sign in (("min_val", -1), ("max_val", 1)):
            bound = clamp.attributes[name]
            if isinstance(bound, ir.FloatAttr) and bound.value == sign * _greatest(bound.type):
                clamp.attributes[name] = ir.FloatAttr.get(bound.type, sign * float("inf"))


def _open_pools(module: ir.Module) -> None:
    """Let maxima of windows begin with minus infinity."""
    for fill in ops_named(module.operation, {"linalg.fill"}):
        constant = fill.operands[0].owner
        value = constant.attributes["value"] if _is_constant(constant) else None
        if isinstance(value, ir.FloatAttr) and value.value == -_greatest(value.type):
            with ir.InsertionPoint(fill), fill.location:
                infinity = ir.FloatAttr.get(value.type, -float("inf"))
                fill.operands[0] = ir.Operation.create(
                    "arith.constant", [value.type], attributes={"value": infinity}
                ).result


def _is_constant(owner: Any) -> bool:
    return isinstance(owner, ir.OpView | ir.Operation) and owner.operation.name == "arith.constant"


_GREATEST = {
    "f16": 65504.0,
    "bf16": (2 - 2**-7) * 2.0**127,
    "f32": (2 - 2**-23) * 2.0**127,
    "f64": (2 - 2**-52) * 2.0**1023,
}


def _greatest(kind: ir.Type) -> float:
    """Return the greatest finite number of a floating-point type."""
    return _GREATEST[str(kind)]


# The signature that the device relies on


_ELEMENTS: Mapping[str, str] = {
    "bool": "i1",
    "uint8": "i8",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
    "float64": "f64",
}


def _check_signature(module: ir.Module, program: Program, level: Level) -> None:
    """Check that ``@forward`` has the arguments and results of the program.

    Raises:
        CompileError: upstream changed the signature, so that the buffers of a call would be read wrongly.
    """
    types = forward_of(module).type
    actual = [str(kind) for kind in (*types.inputs, *types.results)]
    expected = list(_expected_types(program))
    if actual != expected:
        raise CompileError(
            f"the lowering to {level} changed the types of arguments or results",
            diagnostic=f"expected {', '.join(expected)}\ngot {', '.join(actual)}",
        )


def _expected_types(program: Program) -> Iterator[str]:
    for argument in program.arguments:
        element = _ELEMENTS[argument.dtype]
        yield element if argument.kind == "scalar" else _tensor_type(argument.shape, element)
    for result in program.results:
        yield _tensor_type(result.shape, _ELEMENTS[result.dtype])


def _tensor_type(shape: tuple[int, ...], element: str) -> str:
    return re.sub(r"\s", "", f"tensor<{'x'.join([*map(str, shape), element])}>")


# Constants and the function's own ops, which every level has.
_GENERAL = re.compile(r"func\.|builtin\.|torch\.(constant|prim\.ListConstruct|vtensor\.literal)|arith\.constant")


def names_of_operations(legal: LegalProgram) -> frozenset[str]:
    """Return the names of a program's operations at its level, without constants and lists.

    Loop programs do not have named operations.
    """
    if legal.level == "onnx":
        return frozenset(node.op_type for node in legal.module.model.graph.node)
    if legal.level == "loops":
        return frozenset()
    names: set[str] = set()

    def visit(op: Any) -> Any:
        if not _GENERAL.match(op.name):
            names.add(op.name)
        return ir.WalkResult.ADVANCE

    legal.module.operation.walk(visit)
    return frozenset(names)
