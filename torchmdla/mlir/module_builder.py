"""Builder of one Torch dialect module from captured blocks of PyTorch code and imported TorchScript."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch_mlir import ir

from torchmdla.capture.block import Block, Capture, CapturedFunction
from torchmdla.capture.fx.functional import decompose_graph, final_values, remove_writes
from torchmdla.capture.options import Options
from torchmdla.capture.script.tensors import Tensors
from torchmdla.errors import CaptureError, CompileError
from torchmdla.importer.function import FunctionWriter, dialect_name
from torchmdla.importer.fx import read_fx
from torchmdla.importer.script_program import program_of, program_of_function
from torchmdla.importer.torchscript.module import (
    Annotations,
    ImportedScript,
    import_script_function,
    import_script_module,
)
from torchmdla.importer.trace import qualified_name
from torchmdla.importer.types import record_value
from torchmdla.mlir import TensorSpec
from torchmdla.mlir.context import new_context
from torchmdla.mlir.function import fill_resources
from torchmdla.script.ir import Graph, Program


@dataclass(frozen=True)
class Slot:
    """An argument or a result of a captured function in the module.

    Attributes:
        role: ``"argument"``; ``"captured"``, a tensor that the block writes to and that is not an argument;
            ``"result"``; or ``"written"``, the new value of an argument or captured tensor.
        name: name of the tensor, or of the tensor that gets the value, such as ``"model.0.weight"``; empty if unknown.
        dtype, shape: type of the tensor.
    """

    role: Literal["argument", "captured", "result", "written"]
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Signature:
    """Arguments and results of a captured function in the module, in order."""

    arguments: tuple[Slot, ...]
    results: tuple[Slot, ...]


class ModuleBuilder:
    """Builder of one MLIR module in the Torch dialect from code that runs and from TorchScript.

    Attributes:
        module: a ``torch_mlir.ir.Module``. Each capture and import adds to it. A capture or import that fails does not
            change it.
    """

    def __init__(self) -> None:
        self._context = new_context()
        self.module: ir.Module = ir.Module.create(ir.Location.unknown(self._context))
        self._blocks: dict[str, Block] = {}
        self._signatures: dict[str, Signature] = {}
        # Names of TorchScript's functions in the module.
        self._scripted: set[str] = set()
        self._has_module = False

    @property
    def signatures(self) -> Mapping[str, Signature]:
        """Return the signatures of the captured functions in the module, by name."""
        return dict(self._signatures)

    def capture_function(self, name: str, arguments: Sequence[Tensor]) -> Capture:
        """Return a context that captures the operators that PyTorch dispatches in it, as the function ``name``.

        The code runs as usual and has its own results. The function's arguments in the module are ``arguments``, then
        the *captured* tensors. These are the tensors that the block writes to and that are not arguments, such as a
        model's weights in a training step. The function returns the values given to :meth:`Capture.returns`, then the
        new values of written arguments and captured tensors. A tensor that the block only reads is a constant with its
        current value. One warning names captured tensors, constants, and numbers that were read from tensors and stay
        fixed.

        Args:
            name: name of the function.
            arguments: plain CPU tensors.

        Raises:
            ValueError: the module already has a function of this name.
            TypeError: an argument is not a tensor.
            CaptureError: an argument cannot be captured. In the block or at its end: an operator cannot be captured;
                tensors from outside share memory that is written to; a result was not computed inside; ``returns`` was
                called twice or never.
        """
        self._check_name(name)
        for index, argument in enumerate(arguments):
            if not isinstance(argument, Tensor):
                raise TypeError(f"argument {index} of {name!r} must be a tensor, got {type(argument).__name__}")
        return Capture(name, arguments, self._add)

    def compile(self, *, device: str | None = None, strict: bool | None = None) -> Mapping[str, CapturedFunction]:
        """Return the captured functions by name, to be called with other arguments of the same types.

        They write to the captured tensors themselves, as the blocks did.

        Args:
            device: as for :func:`torchmdla.enable`, whose setting applies if the value is omitted.
            strict: as ``device``.

        Raises:
            ValueError: the device does not exist.
        """
        options = Options.of({"device": device, "strict": strict})
        return {name: CapturedFunction(block, options) for name, block in self._blocks.items()}

    def import_function(
        self, function: torch.jit.ScriptFunction[Any, Any], arguments: Mapping[str, TensorSpec] | None = None
    ) -> str:
        """Import a scripted or traced function and the functions that it calls, without changes.

        Args:
            function: the function; its control flow, containers and optional values are kept.
            arguments: sizes and dtypes of tensor arguments, by name; these arguments have value semantics.

        Returns:
            its name in the module: TorchScript's qualified name.

        Raises:
            TypeError: ``function`` is not a scripted function.
            ValueError: the module already has a function of this name, or the function does not have such an argument.
            CaptureError: the Torch dialect cannot express part of the function; the message names it and its location.
        """
        if not isinstance(function, torch.jit.ScriptFunction):
            raise TypeError(f"import_function takes a scripted function, got {type(function).__name__}")
        name: str = function.qualified_name
        program, graph = program_of_function(function, inlined=False)
        self.import_graph(graph, program.functions, arguments or {})
        return name

    def import_graph(self, graph: Graph, functions: Mapping[str, Graph], arguments: Mapping[str, TensorSpec]) -> None:
        """Import a graph and those of ``functions`` that it calls, as :meth:`import_function`."""
        self._check_name(graph.name)
        with _as_capture_error(graph.name):
            imported = import_script_function(graph, functions, arguments, self._has_op, self._scripted)
        self._append_script(imported, graph.name)

    def import_module(self, module: torch.jit.ScriptModule | Program, annotations: Annotations | None = None) -> None:
        """Import a scripted or traced module: its classes, methods, and objects with their attributes.

        A builder accepts one module, because upstream's passes do.

        Args:
            module: the module; its parameters and attributes get their current values. Or a program of
                :func:`torchmdla.read`.
            annotations: the methods that can be called from outside, and known facts about their arguments. Without
                annotations, all methods and attributes are public, and no facts are known.

        Raises:
            TypeError: ``module`` is not a scripted module.
            ValueError: a module was imported before, or ``annotations`` refer to something that does not exist.
            CaptureError: the Torch dialect cannot express part of the module; the message names it and its location.
        """
        if not isinstance(module, torch.jit.ScriptModule | Program):
            raise TypeError(f"import_module takes a scripted module, got {type(module).__name__}")
        if self._has_module:
            raise ValueError("a module was imported before")
        program = module if isinstance(module, Program) else program_of(module, inlined=False)
        name = program.root.class_name
        with _as_capture_error(name):
            imported = import_script_module(
                program, annotations or Annotations(), self._has_op, self._scripted, Tensors(program.path).tensor
            )
        self._append_script(imported, name)
        self._has_module = True

    def _append_script(self, imported: ImportedScript, name: str) -> None:
        for symbol in imported.symbols:
            self._check_name(symbol)
        with self._transaction():
            self._append(imported.text, imported.resources, name)
        self._scripted |= imported.symbols

    def _check_name(self, name: str) -> None:
        if name in ir.SymbolTable(self.module.operation):
            raise ValueError(f"the module has a function {name!r} already")

    def _add(self, block: Block) -> None:
        self._check_name(block.name)
        layouts = [external.layout for external in block.externals]
        graph = remove_writes(decompose_graph(block.module.graph, layouts, self._is_registered))
        placeholders = graph.find_nodes(op="placeholder")
        pairs = zip(placeholders, block.externals, strict=True)
        constants = {node.name: external.tensor for node, external in pairs if external.is_constant}
        record = {node.name: record_value(node.meta.get("val")) for node in graph.nodes}
        with _as_capture_error(block.name):
            text, resources = read_fx(graph, FunctionWriter(block.name, record, self._has_op, constants))
        with self._transaction():
            self._append(text, resources, block.name)
        self._blocks[block.name] = block
        self._signatures[block.name] = _signature(block)

    def _has_op(self, name: str) -> bool:
        return bool(self._context.is_registered_operation(name))

    def _is_registered(self, overload: Any) -> bool:
        return self._has_op(dialect_name(qualified_name(overload._schema)))

    def _append(self, text: str, resources: Mapping[str, Tensor], name: str) -> None:
        with self._context:
            parsed = ir.Module.parse(text)
        fill_resources(parsed, resources, name)
        for operation in list(parsed.body.operations):
            # A function without a body declares one that the module has.
            if operation.operation.name != "func.func" or len(operation.regions[0].blocks):
                self.module.body.append(operation)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Undo additions to the module if the block fails or the module is not valid afterwards."""
        before = len(self.module.body.operations)
        try:
            yield
            self.module.operation.verify()
        except BaseException as error:
            # Operations use earlier ones, so the last is erased first.
            for operation in reversed(list(self.module.body.operations)[before:]):
                operation.operation.erase()
            if isinstance(error, ir.MLIRError):
                raise CaptureError(f"the Torch dialect refuses it: {error}") from error
            raise


@contextmanager
def _as_capture_error(name: str) -> Iterator[None]:
    """Convert the importer's errors into capture errors."""
    try:
        yield
    except CompileError as error:
        raise CaptureError(f"{name!r} has no form in the Torch dialect: {error}") from error


def _signature(block: Block) -> Signature:
    finals = final_values(block.module.graph)
    placeholders = block.module.graph.find_nodes(op="placeholder")
    arguments, written = [], []
    for node, value, name in zip(placeholders, block.externals, block.names, strict=True):
        type_ = (value.layout.dtype, tuple(value.layout.shape))
        if not value.is_constant:
            arguments.append(Slot("argument" if value.is_argument else "captured", name, *type_))
        if node in finals:
            written.append(Slot("written", name, *type_))
    values: Any = [result for result in block.module.graph.output_node().args[0] if result is not None]  # type: ignore[union-attr]
    results = [Slot("result", "", value.meta["val"].dtype, tuple(value.meta["val"].shape)) for value in values]
    return Signature(tuple(arguments), (*results, *written))
