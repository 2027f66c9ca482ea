"""Captures blocks of PyTorch code, and imports TorchScript, into one module of the Torch dialect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch_mlir import ir

from torchmdla.capture.block import Block, Capture
from torchmdla.capture.captured_function import CapturedFunction
from torchmdla.capture.functional import decomposed, final_values, without_writes
from torchmdla.capture.options import Options
from torchmdla.errors import CaptureError, CompileError
from torchmdla.importer.function import FunctionWriter, dialect_name
from torchmdla.importer.fx import read_fx
from torchmdla.importer.torchscript.annotations import Annotations, bound_of
from torchmdla.importer.torchscript.module import ImportedScript, import_script_function, import_script_module
from torchmdla.importer.trace import qualified_name
from torchmdla.importer.types import recorded
from torchmdla.mlir import TensorSpec
from torchmdla.mlir.context import new_context
from torchmdla.mlir.resources import fill_resources


@dataclass(frozen=True)
class Slot:
    """An argument or a result of a captured function in the module.

    Attributes:
        role: ``"argument"``; ``"captured"``, a tensor that the block writes to and that is no argument; ``"result"``;
            or ``"written"``, the value that an argument or captured tensor gets.
        name: of the tensor, or of the tensor that gets the value, as ``"model.0.weight"``; empty where none was found.
        dtype, shape: its type.
    """

    role: Literal["argument", "captured", "result", "written"]
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Signature:
    """What a captured function takes and returns in the module, in order."""

    arguments: tuple[Slot, ...]
    results: tuple[Slot, ...]


class ModuleBuilder:
    """Builds one MLIR module in the Torch dialect from code that runs and from TorchScript.

    Attributes:
        module: a ``torch_mlir.ir.Module``. Each capture and import adds to it; one that fails leaves it as it was.
    """

    def __init__(self) -> None:
        self._context = new_context()
        self.module: ir.Module = ir.Module.create(ir.Location.unknown(self._context))
        self._blocks: dict[str, Block] = {}
        self._signatures: dict[str, Signature] = {}
        # Names that TorchScript's functions have in the module.
        self._scripted: set[str] = set()
        self._has_module = False

    @property
    def signatures(self) -> Mapping[str, Signature]:
        """What the captured functions take and return in the module, by name."""
        return dict(self._signatures)

    def capture_function(self, name: str, arguments: Sequence[Tensor]) -> Capture:
        """A context that captures what PyTorch dispatches in it as the function ``name``.

        The code runs as ever and has its own results. In the module the function takes ``arguments``, then *captured*
        tensors: those that the block writes to and that are no arguments, as a model's weights in a step of training.
        It returns what :meth:`Capture.returns` was given, then the values that written arguments and captured tensors
        get. A tensor that the block only reads is a constant with its value of now. One warning names captured
        tensors, constants, and numbers that were read from tensors, which stay as they were.

        Args:
            name: of the function.
            arguments: plain CPU tensors.

        Raises:
            ValueError: the module has a function of this name.
            TypeError: an argument is no tensor.
            CaptureError: an argument cannot be captured. In the block or at its end: an operator cannot be; tensors
                from outside share memory that is written to; a result was not computed inside; ``returns`` was called
                twice or never.
        """
        self._check_name(name)
        for index, argument in enumerate(arguments):
            if not isinstance(argument, Tensor):
                raise TypeError(f"argument {index} of {name!r} must be a tensor, got {type(argument).__name__}")
        return Capture(name, arguments, self._add)

    def compile(self, *, device: str | None = None, strict: bool | None = None) -> Mapping[str, CapturedFunction]:
        """The captured functions by name, to be called with other arguments of the same types.

        They write to the captured tensors themselves, as the blocks did.

        Args:
            device, strict: as for :func:`torchmdla.enable`, which decides where they are None.

        Raises:
            ValueError: no such device.
        """
        options = Options.of({"device": device, "strict": strict})
        return {name: CapturedFunction(block, options) for name, block in self._blocks.items()}

    def import_function(
        self, function: torch.jit.ScriptFunction[Any, Any], arguments: Mapping[str, TensorSpec] | None = None
    ) -> str:
        """Imports a scripted or traced function as it stands, and the functions that it calls.

        Args:
            function: its control flow, containers and optional values stay.
            arguments: sizes and dtypes of tensor arguments, by name; they have value semantics then.

        Returns:
            its name in the module: TorchScript's qualified name.

        Raises:
            TypeError: it is no scripted function.
            ValueError: the module has a function of this name, or the function has no such argument.
            CaptureError: something in it has no form in the Torch dialect; names it and its place.
        """
        if not isinstance(function, torch.jit.ScriptFunction):
            raise TypeError(f"import_function takes a scripted function, got {type(function).__name__}")
        name: str = function.qualified_name
        self._check_name(name)
        with _refused(name):
            bounds = {one: bound_of(spec, is_mutable=False) for one, spec in (arguments or {}).items()}
            imported = import_script_function(function, bounds, self._has_op, self._scripted)
        self._append_script(imported, name)
        return name

    def import_module(self, module: torch.jit.ScriptModule, annotations: Annotations | None = None) -> None:
        """Imports a scripted or traced module as it stands: its classes, methods, and objects with their attributes.

        A builder takes one module, because upstream's passes do.

        Args:
            module: its parameters and attributes become what they are now.
            annotations: which methods can be called from outside, and what is known of their arguments; without, all
                methods and attributes are open to the outside, and nothing is known.

        Raises:
            TypeError: it is no scripted module.
            ValueError: a module was imported before, or ``annotations`` speak of what is not there.
            CaptureError: something in it has no form in the Torch dialect; names it and its place.
        """
        if not isinstance(module, torch.jit.ScriptModule):
            raise TypeError(f"import_module takes a scripted module, got {type(module).__name__}")
        if self._has_module:
            raise ValueError("a module was imported before")
        name = module._c._type().qualified_name()
        with _refused(name):
            imported = import_script_module(module, annotations or Annotations(), self._has_op, self._scripted)
        self._append_script(imported, name)
        self._has_module = True

    def _append_script(self, imported: ImportedScript, name: str) -> None:
        for one in imported.symbols:
            self._check_name(one)
        with self._adding():
            self._append(imported.text, imported.resources, name)
        self._scripted |= imported.symbols

    def _check_name(self, name: str) -> None:
        if name in ir.SymbolTable(self.module.operation):
            raise ValueError(f"the module has a function {name!r} already")

    def _add(self, block: Block) -> None:
        self._check_name(block.name)
        layouts = [one.layout for one in block.externals]
        graph = without_writes(decomposed(block.module.graph, layouts, self._is_registered))
        placeholders = graph.find_nodes(op="placeholder")
        pairs = zip(placeholders, block.externals, strict=True)
        constants = {node.name: one.tensor for node, one in pairs if one.is_constant}
        record = {node.name: recorded(node.meta.get("val")) for node in graph.nodes}
        with _refused(block.name):
            text, resources = read_fx(graph, FunctionWriter(block.name, record, self._has_op, constants))
        with self._adding():
            self._append(text, resources, block.name)
        self._blocks[block.name] = block
        self._signatures[block.name] = _signature(block)

    def _has_op(self, name: str) -> bool:
        return bool(self._context.is_registered_operation(name))

    def _is_registered(self, overload: Any) -> bool:
        return self._has_op(dialect_name(qualified_name(overload._schema)))

    def _append(self, text: str, resources: Mapping[str, Tensor], name: str) -> None:
        with self._context:
            made = ir.Module.parse(text)
        fill_resources(made, resources, name)
        for operation in list(made.body.operations):
            if not _is_declaration(operation):
                self.module.body.append(operation)

    @contextmanager
    def _adding(self) -> Iterator[None]:
        """Takes back what was added to the module where that fails, or the module is not valid then."""
        before = len(self.module.body.operations)
        try:
            yield
            self.module.operation.verify()
        except BaseException as error:
            # The last first: operations use earlier ones.
            for operation in reversed(list(self.module.body.operations)[before:]):
                operation.operation.erase()
            if isinstance(error, ir.MLIRError):
                raise CaptureError(f"the Torch dialect refuses it: {error}") from error
            raise


@contextmanager
def _refused(name: str) -> Iterator[None]:
    """Turns the importer's errors into those of a capture."""
    try:
        yield
    except CompileError as error:
        raise CaptureError(f"{name!r} has no form in the Torch dialect: {error}") from error


def _signature(block: Block) -> Signature:
    finals = final_values(block.module.graph)
    placeholders = block.module.graph.find_nodes(op="placeholder")
    arguments, written = [], []
    for node, one, name in zip(placeholders, block.externals, block.names, strict=True):
        type_ = (one.layout.dtype, tuple(one.layout.shape))
        if not one.is_constant:
            arguments.append(Slot("argument" if one.is_argument else "captured", name, *type_))
        if node in finals:
            written.append(Slot("written", name, *type_))
    values: Any = [result for result in block.module.graph.output_node().args[0] if result is not None]  # type: ignore[union-attr]
    results = [Slot("result", "", one.meta["val"].dtype, tuple(one.meta["val"].shape)) for one in values]
    return Signature(tuple(arguments), (*results, *written))


def _is_declaration(operation: Any) -> bool:
    """Whether it only says that the module has a function."""
    return operation.operation.name == "func.func" and not len(operation.regions[0].blocks)
