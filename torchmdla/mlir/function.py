"""Program in the Torch dialect with the signature that users see.

Capture creates it, and the outputs of ``get_mlir`` are made from it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch_mlir import ir

from torchmdla.compiler.mlir import convert_errors, forward_of, ops_named
from torchmdla.compiler.program import Role
from torchmdla.errors import CompileError
from torchmdla.importer import Binding, ImportedGraph, TensorMeta, dtype_name
from torchmdla.importer.emitter import quote
from torchmdla.importer.layout import contiguous_strides
from torchmdla.importer.types import dtype_of_element, element_type, tensor_type
from torchmdla.mlir.context import new_context


@dataclass(frozen=True)
class FunctionArgument:
    """One argument of the function: its name in the user's program, its role, and a weight's tensor."""

    name: str
    role: Role
    weight: torch.Tensor | None = None


@dataclass(frozen=True)
class TorchFunction:
    """Module with one public function ``@forward`` in the Torch dialect.

    ``arguments`` has the inputs in the order of the call, then the weights. ``is_typed`` is false if the compiler must
    infer the size or dtype of some value.
    """

    module: ir.Module
    arguments: tuple[FunctionArgument, ...]
    is_typed: bool = True

    @property
    def operation(self) -> Any:
        """Return the function's operation."""
        return forward_of(self.module)

    @property
    def signature(self) -> ir.FunctionType:
        """Return the function's type."""
        return ir.FunctionType(ir.TypeAttr(self.operation.attributes["function_type"]).value)


def from_imported(
    imported: ImportedGraph,
    inputs: Sequence[tuple[FunctionArgument, TensorMeta]],
    constants: Mapping[tuple[int, int | None], FunctionArgument],
    weights: Sequence[str] = (),
) -> TorchFunction:
    """Return the function of an imported graph; inputs become arguments, and tensor outputs become results.

    Args:
        imported: imported graph; inputs and outputs in its record are contiguous (:func:`contiguous`).
        inputs: inputs of the graph, in its order; all are tensors.
        constants: tensors that the graph holds, by node and element.
        weights: names of weights in the required order; other weights follow.
    """
    module = parse(_with_source_locations(imported))
    function = module.body.operations[0]
    block = function.regions[0].blocks[0]
    old = {_key(binding): block.arguments[index] for index, binding in enumerate(imported.bindings)}
    wanted: list[tuple[tuple[str, int, int | None], FunctionArgument, ir.Type | None]] = []
    with module.context:
        for index, (argument, meta) in enumerate(inputs):
            wanted.append((("input", index, None), argument, ir.Type.parse(tensor_type(meta))))
    wanted += [
        (_key(binding), constants[binding.index, binding.element], None)
        for binding in imported.bindings
        if binding.source == "constant"
    ]
    rank = {name: index for index, name in enumerate(weights)}
    wanted.sort(key=lambda item: rank.get(item[1].name, len(rank)) if item[1].role == "parameter" else -1)
    new_arguments = {}
    for key, argument, type_ in wanted:
        location = ir.Location.name(argument.name, context=module.context)
        new_arguments[key] = block.add_argument(type_ or old[key].type, location)
        if key in old:
            old[key].replace_all_uses_with(new_arguments[key])
    for _ in old:
        block.erase_argument(0)
    _return(
        function, [_output(output, block, new_arguments) for output in imported.outputs if output.source != "constant"]
    )
    return TorchFunction(module, tuple(argument for _, argument, _ in wanted))


def contiguous(meta: object) -> object:
    """Return ``meta`` with contiguous strides, because users see logical shapes."""
    return replace(meta, strides=contiguous_strides(meta.shape)) if isinstance(meta, TensorMeta) else meta


def with_literals(function: TorchFunction) -> TorchFunction:
    """Write the function's weights as literals into the text, in place, and return the function."""
    operation = function.operation
    block = operation.regions[0].blocks[0]
    for index in reversed(range(len(function.arguments))):
        argument = function.arguments[index]
        if argument.weight is not None:
            with block.arguments[index].location:
                start = ir.InsertionPoint.at_block_begin(block)
                literal = _literal(argument.weight, block.arguments[index].type, start)
            block.arguments[index].replace_all_uses_with(literal)
            block.erase_argument(index)
            if "arg_attrs" in operation.attributes:
                remaining = [attributes for i, attributes in enumerate(operation.attributes["arg_attrs"]) if i != index]
                operation.attributes["arg_attrs"] = ir.ArrayAttr.get(remaining, operation.context)
    _return(operation, list(block.operations[len(block.operations) - 1].operands))
    return replace(function, arguments=tuple(argument for argument in function.arguments if argument.weight is None))


def separate_results(function: TorchFunction) -> None:
    """Make every result a separate value that is neither an argument nor another result, in place."""
    operation = function.operation
    block = operation.regions[0].blocks[0]
    end = block.operations[len(block.operations) - 1]
    results: list[Any] = []
    for value in end.operands:
        if isinstance(value, ir.BlockArgument) or value in results:
            with end.operation.location, ir.InsertionPoint(end):
                nothing = ir.Operation.create("torch.constant.none", results=[ir.Type.parse("!torch.none")]).result
                value = ir.Operation.create("torch.aten.clone", results=[value.type], operands=[value, nothing]).result
        results.append(value)
    _return(operation, results)


def tensor_type_of(type_: ir.Type) -> tuple[str, tuple[int | None, ...]]:
    """Return the dtype (``"float32"``) and the sizes of a tensor type of the Torch dialect.

    A size that varies has the value None.

    Raises:
        CompileError: the type is not a tensor type with known rank and dtype.
    """
    match = _TENSOR.fullmatch(str(type_))
    if match is None:
        raise CompileError(f"{type_} is not a tensor of known rank and dtype")
    sizes = tuple(None if size == "?" else int(size) for size in match["sizes"].split(",") if size)
    return dtype_name(dtype_of_element(match["element"])), sizes


def parse(text: str) -> ir.Module:
    """Parse the text of a module that the compiler wrote, in a new context.

    Raises:
        CompileError: the text is not valid: the dialect does not have an op, or not for these types. The message names
            the op and its location.
    """
    with new_context(), convert_errors("the dialect does not have this op, or not for these types"):
        return ir.Module.parse(text)


def fill_resources(module: ir.Module, resources: Mapping[str, torch.Tensor], prefix: str) -> None:
    """Set the contents of the module's resources, under names that no other function of the module uses."""
    with module.context:
        for operation in ops_named(module.operation, _LITERALS) if resources else ():
            if match := _RESOURCE.match(str(operation.attributes["value"])):
                data = resources[match["name"]].contiguous().view(torch.uint8).numpy()
                operation.attributes["value"] = ir.DenseResourceElementsAttr.get_from_buffer(
                    data, f"{prefix}.{match['name']}", ir.Type.parse(match["type"])
                )


_LITERALS = ("torch.vtensor.literal", "torch.tensor.literal")
_RESOURCE = re.compile(r"dense_resource<(?P<name>\w+)> : (?P<type>.*)")
_TENSOR = re.compile(r"!torch\.vtensor<\[(?P<sizes>[\d?,]*)\],(?P<element>.+)>")

# Formats of an op's location in the importer's text, and of a location in the user's program.
_NUMBERED = re.compile(r'\("graph":(\d+):0\)')
_SOURCE = re.compile(r"(?P<file>.+):(?P<line>\d+)")


def _with_source_locations(imported: ImportedGraph) -> str:
    """Return the imported text with node numbers replaced by locations in the user's program."""

    def place(match: re.Match[str]) -> str:
        source = _SOURCE.fullmatch(imported.sources[int(match[1])])
        return f"({quote(source['file'])}:{source['line']}:0)" if source else ""

    return _NUMBERED.sub(place, imported.mlir)


def _key(binding: Binding) -> tuple[str, int, int | None]:
    return binding.source, binding.index, binding.element


def _output(output: Any, block: ir.Block, arguments: Mapping[tuple[str, int, int | None], Any]) -> Any:
    if output.source == "input":
        return arguments["input", output.index, None]
    return block.operations[len(block.operations) - 1].operands[output.index]


def _return(function: Any, values: Sequence[Any]) -> None:
    """Make ``function`` return ``values``, and update its type from its block."""
    block = function.regions[0].blocks[0]
    old = block.operations[len(block.operations) - 1]
    with old.operation.location, ir.InsertionPoint(old):
        ir.Operation.create("func.return", operands=list(values))
    old.operation.erase()
    with function.operation.context:
        signature = ir.FunctionType.get([value.type for value in block.arguments], [value.type for value in values])
        function.attributes["function_type"] = ir.TypeAttr.get(signature)


def _literal(tensor: torch.Tensor, type_: ir.Type, at: ir.InsertionPoint) -> Any:
    """Create a ``torch.vtensor.literal`` with the bits of a tensor."""
    bits = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes().hex()
    tensor_of = "".join(f"{size}x" for size in tensor.shape) + element_type(tensor.dtype)
    literal_type = tensor_type(TensorMeta.of(tensor))
    # The op is parsed, because the bindings do not have attributes of complex numbers.
    text = f'"torch.vtensor.literal"() {{value = dense<"0x{bits}"> : tensor<{tensor_of}>}} : () -> {literal_type}'
    literal = ir.Operation.parse(text)
    at.insert(literal)
    if literal.results[0].type == type_:
        return literal.results[0]
    with at:
        return ir.Operation.create("torch.copy.to_tensor", results=[type_], operands=[literal.results[0]]).result
