"""MLIR modules as callable functions, compiled for a device without a PyTorch program."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch_mlir import ir

from torchmdla import _C, devices
from torchmdla.capture.specialise import packs_of
from torchmdla.compile_service import records, service
from torchmdla.compile_service.versions import producers
from torchmdla.compiler.mlir import located_text
from torchmdla.compiler.program import Argument, Program, Result, Role
from torchmdla.devices import interrupts
from torchmdla.errors import CompileError
from torchmdla.importer.layout import contiguous_strides
from torchmdla.importer.tensor_spec import TensorSpec
from torchmdla.mlir.context import first_error, new_context
from torchmdla.mlir.function import TorchFunction, separate_results, tensor_type_of


class MlirFunction:
    """The one public function of a module in the Torch dialect or in linalg on tensors.

    :func:`torchmdla.get_mlir` writes such modules as ``"torch"`` or ``"linalg"``. Arguments and results are tensors of
    known sizes.

    Args:
        text: text of the module.

    Attributes:
        name: the function's name.
        arguments: types of the arguments.
        results: types of the results.

    Raises:
        CompileError: the text is not such a module.
    """

    def __init__(self, text: str) -> None:
        try:
            with new_context():
                self._module = ir.Module.parse(text)
        except ir.MLIRError as error:
            raise CompileError(f"no valid module of MLIR{first_error(error)}", diagnostic=str(error)) from None
        if others := _dialects_of(self._module) & _NOT_COMPILED:
            raise CompileError(
                f"the module is in {', '.join(sorted(others))}: what runs is a function in the Torch dialect, or in "
                "linalg on tensors"
            )
        function = _public_function(self._module)
        self.name = ir.StringAttr(function.attributes["sym_name"]).value
        self._is_torch = "!torch." in str(function.attributes["function_type"])
        with self._module.context:
            # Programs require this name.
            function.attributes["sym_name"] = ir.StringAttr.get("forward")
        types = TorchFunction(self._module, ()).signature
        self.arguments = tuple(_spec(type_, "an argument") for type_ in types.inputs)
        self.results = tuple(_spec(type_, "a result") for type_ in types.results)

    def compile(self, device: str = "cpu", weights: int = 0) -> CompiledMlir:
        """Compile the function for a device.

        Args:
            device: a registered device. Devices other than the cpu support only the Torch dialect.
            weights: number of last arguments that change rarely; they are packed once for each version.

        Raises:
            CompileError: the device does not support the function.
        """
        if self._is_torch:
            separate_results(TorchFunction(self._module, ()))
        first = len(self.arguments) - weights
        roles: list[Role] = ["input" if index < first else "parameter" for index in range(len(self.arguments))]
        chosen = devices.get(device)
        program = Program(
            located_text(self._module),
            tuple(Argument(role, *_fields(spec)) for role, spec in zip(roles, self.arguments, strict=True)),
            tuple(Result(*_fields(spec)) for spec in self.results),
            chosen.target(),
            records.options_for(chosen),
            versions=producers(chosen),
        )
        artifact = service.compile_program(program).artifact
        return CompiledMlir(self, _executable(self, chosen.load(artifact), artifact, roles))


class CompiledMlir:
    """Compiled MLIR function."""

    def __init__(self, function: MlirFunction, executable: _C.Executable) -> None:
        self.function = function
        self._executable = executable

    def __call__(self, *tensors: Tensor) -> Any:
        """Return the result, or a tuple of several results.

        Raises:
            TypeError, ValueError: the tensors do not have the types of the function's arguments.
            RuntimeError: the compiled code, or the device, reports an error.
        """
        expected = self.function.arguments
        if len(tensors) != len(expected):
            raise TypeError(f"@{self.function.name} takes {len(expected)} tensors, got {len(tensors)}")
        for index, (tensor, spec) in enumerate(zip(tensors, expected, strict=True)):
            if (tensor.dtype, tuple(tensor.shape)) != (spec.dtype, spec.shape):
                actual = f"{tensor.dtype} {list(tensor.shape)}"
                raise ValueError(
                    f"argument {index} of @{self.function.name} is {spec.dtype} {list(spec.shape)}, got {actual}"
                )
        try:
            results = self._executable([tensor.detach().contiguous() for tensor in tensors])
        except RuntimeError:
            interrupts.raise_held()
            raise
        return results[0] if len(results) == 1 else results


# PyTorch's dtype names by element type of the builtin dialect.
_DTYPES = {
    "i1": "bool",
    "bf16": "bfloat16",
    **{f"f{bits}": f"float{bits}" for bits in (16, 32, 64)},
    **{f"i{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
}
_BUILTIN = re.compile(r"tensor<(?P<sizes>(?:[\d?]+x)*)(?P<element>\w+)>")


# Dialects of get_mlir's other outputs and of later stages, which cannot be compiled here.
_NOT_COMPILED = frozenset(("aten", "llvm", "stablehlo", "tosa"))


def _dialects_of(module: ir.Module) -> frozenset[str]:
    dialects: set[str] = set()

    def note(op: Any) -> Any:
        dialects.add(op.name.partition(".")[0])
        return ir.WalkResult.ADVANCE

    module.operation.walk(note)
    return frozenset(dialects)


def _public_function(module: ir.Module) -> Any:
    functions = [op.operation for op in module.body.operations if op.operation.name == "func.func"]
    public = [op for op in functions if "sym_visibility" not in op.attributes and len(op.regions[0].blocks)]
    if len(public) != 1:
        names = ", ".join(f"@{ir.StringAttr(op.attributes['sym_name']).value}" for op in public) or "none"
        raise CompileError(f"a module with one public function is needed; public in this one: {names}")
    return public[0]


def _spec(type_: ir.Type, what: str) -> TensorSpec:
    """Return the dtype and sizes of a tensor type.

    Raises:
        CompileError: the type is not a tensor of known dtype and sizes.
    """
    if match := _BUILTIN.fullmatch(str(type_)):
        sizes: Sequence[int | None] = [None if size == "?" else int(size) for size in match["sizes"].split("x") if size]
        dtype = _DTYPES.get(match["element"], "")
    else:
        dtype, sizes = tensor_type_of(type_)
    if None in sizes or not dtype:
        raise CompileError(f"{what} is {type_}: a tensor of known dtype and sizes is needed")
    return TensorSpec(tuple(sizes), getattr(torch, dtype))


def _fields(spec: TensorSpec) -> tuple[str, tuple[int, ...]]:
    """Return dtype and sizes in the form that programs use."""
    return str(spec.dtype).removeprefix("torch."), tuple(spec.shape)  # type: ignore[arg-type]


def _executable(function: MlirFunction, loaded: devices.LoadedCode, artifact: Any, roles: Sequence[Role]) -> Any:
    manifest = artifact.manifest
    return _C.Executable(
        entry=loaded.entry,
        packs=packs_of(loaded, manifest),
        workspace_bytes=manifest.workspace_bytes,
        owner=loaded,
        inputs=[("dense", index) for index in range(len(roles))],
        outputs=[
            ("tensor", (index, spec.dtype, list(spec.shape), list(contiguous_strides(tuple(spec.shape))), None))  # type: ignore[arg-type]
            for index, spec in enumerate(function.results)
        ],
        fault=loaded.fault,
        context=loaded.context,
        wait=loaded.wait,
        forget=loaded.forget,
    )
