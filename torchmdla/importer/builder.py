"""Parts of the import that all graphs share: inputs, constants, calls and outputs.

A reader (``graph.py`` for TorchScript, ``fx.py`` for FX) walks its kind of graph. It passes the nodes to a
:class:`ProgramBuilder` under the names that the record uses.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import torch

from torchmdla.compiler.program import Argument, Result, Role
from torchmdla.errors import CompileError, internal_error
from torchmdla.importer.emitter import Emitter, Value, quote
from torchmdla.importer.layout import exact_memory_order, invert, memory_order
from torchmdla.importer.operands import NumberTensor, Operand, as_tensor
from torchmdla.importer.operators import operator
from torchmdla.importer.packed_weights import PackedWeights, unpack_weights
from torchmdla.importer.reader import Values
from torchmdla.importer.runtime_scalars import as_float, runtime_scalar_as_tensor, select_tensor_overload
from torchmdla.importer.schemas import call_in_order, is_metadata, overload_of
from torchmdla.importer.size_int import value_symbol
from torchmdla.importer.trace import leaves, qualified_name
from torchmdla.importer.translate import translate
from torchmdla.importer.types import (
    DEFAULT_OPTIONS,
    Binding,
    ImportedGraph,
    ImportOptions,
    OutputBinding,
    Record,
    TensorMeta,
    dtype_name,
)

# Arguments of batch and instance norms that PyTorch's kernels update without another version of the tensor.
_UNVERSIONED = frozenset({"running_mean", "running_var"})

# The arguments that are numbers, in operators that accept sizes among integers.
_NUMBERS = frozenset(("self", "other", "min", "max", "s"))

# Each call compares unversioned parameters with a copy. Above this total size in bytes they become ordinary inputs.
_MAX_UNVERSIONED_BYTES = 1 << 20


class ProgramBuilder(Values):
    """:class:`~torchmdla.importer.reader.GraphBuilder` of programs. It holds the operand of each value of the graph.

    Args:
        record: type or value of every value of the graph, by name.
        parameters: the group inputs that are weights. Their arguments get the role ``"parameter"`` if they are dense
            in memory.
        options: import options of the device.
    """

    def __init__(self, record: Record, parameters: Collection[int], options: ImportOptions = DEFAULT_OPTIONS) -> None:
        super().__init__(record)
        self.emitter = Emitter(options, is_program=True)
        self._parameters = frozenset(parameters)
        self._inputs: list[str] = []
        self._nodes: list[tuple[str, str]] = []  # op and source
        self._producers: dict[str, int] = {}  # number of the node that produces each value
        # An argument is created on first use. An input of which only the size is read does not become an argument.
        self._pending: dict[str, Binding] = {}
        self._arguments: list[tuple[Argument, Binding, Value]] = []
        self._unversioned: set[str] = set()

    # Position of the walk in the graph

    def enter(self, op: str, source: str) -> int:
        """Begin the next node, ``op`` at ``source`` (``file:line``) in the user's program. Return its number."""
        self._nodes.append((op, source))
        index = len(self._nodes) - 1
        self.emitter.location = f'loc({quote(op)}("graph":{index}:0))'
        return index

    # Inputs and constants

    def input(self, name: str) -> None:
        """Add the group's next input."""
        index = len(self._inputs)
        self._inputs.append(name)
        seen = self.recorded(name)
        if isinstance(seen, TensorMeta | float):
            self._pending[name] = Binding("input", index, name)
        elif isinstance(seen, list) and seen and all(isinstance(item, TensorMeta) for item in seen):
            self._values[name] = self._elements(Binding("input", index, name), seen)
        else:
            self._values[name] = seen

    def constant(self, index: int, name: str, value: object) -> None:
        """Add a constant of the graph, which node ``index`` holds."""
        if isinstance(value, torch.Tensor) and value.dim() == 0 and not value.is_complex():
            self._values[name] = NumberTensor(value.item(), TensorMeta.of(value))
        elif isinstance(value, torch.Tensor):
            self._pending[name] = Binding("constant", index, name)
        elif isinstance(value, list) and any(isinstance(item, torch.Tensor) for item in value):
            metas = [None if item is None else TensorMeta.of(item) for item in value]
            self._values[name] = self._elements(Binding("constant", index, name), metas)
        elif (packed := unpack_weights(value)) is not None:
            metas = list(map(TensorMeta.of, packed.tensors))
            self._values[name] = PackedWeights.of(packed, self._elements(Binding("constant", index, name), metas))
        else:
            self._values[name] = str(value) if isinstance(value, torch.device) else value

    def _elements(self, binding: Binding, metas: Sequence[TensorMeta | None]) -> list[Any]:
        """Return the arguments for the tensors of a list; an element may be None."""
        return [
            None if meta is None else self._argument(replace(binding, element=element), meta)
            for element, meta in enumerate(metas)
        ]

    def _argument(self, binding: Binding, seen: object) -> Value:
        name = f"%{binding.source}{binding.index}"
        if binding.element is not None:
            name += f"_{binding.element}"
        if isinstance(seen, float):
            value = Value(name, "!torch.float")
            self._arguments.append((Argument("input", "float64", (), "scalar"), binding, value))
            return value
        assert isinstance(seen, TensorMeta)
        order = memory_order(seen.shape, seen.strides)
        binding = replace(binding, permutation=order or tuple(range(len(seen.shape))), copy=order is None)
        shape = tuple(seen.shape[dim] for dim in binding.permutation)
        physical = replace(seen, shape=shape, bits=0)
        is_parameter = binding.source == "constant" or (binding.index in self._parameters and not binding.copy)
        role: Role = "parameter" if is_parameter else "input"
        argument = Argument(role, dtype_name(seen.dtype), shape, bits=seen.bits if is_parameter else 0)
        value = Value(name, self.emitter.tensor_type(physical), physical)
        self._arguments.append((argument, binding, value))
        return replace(self._permute(value, invert(binding.permutation)), meta=seen)

    def _permute(self, value: Value, permutation: Sequence[int]) -> Value:
        assert value.meta is not None
        if tuple(permutation) == tuple(range(len(permutation))):
            return value
        meta = replace(value.meta, shape=tuple(value.meta.shape[dim] for dim in permutation))
        return self.emitter.tensor_op("torch.aten.permute", [value, self.emitter.int_list(permutation)], meta)

    # Values

    def operand(self, name: str) -> Operand:
        """Return the operand of the value ``name``."""
        if name in self._pending:
            self._values[name] = self._argument(self._pending.pop(name), self._record[name])
        return self._values[name]

    def define(self, name: str, value: Operand) -> None:
        """Define the value ``name`` as ``value``."""
        super().define(name, value)
        self._producers[name] = len(self._nodes) - 1

    def is_recorded(self, op: str) -> bool:
        """Return whether the results of ``op`` come from the record."""
        return is_metadata(op)

    def node(
        self, op: str, schema: torch._C.FunctionSchema | None, operands: Sequence[Operand], metas: Sequence[object]
    ) -> Sequence[Operand]:
        """Return the results of a node. Numbers that follow from sizes are known, and the rest is computed."""
        has_tensors = any(isinstance(leaf, TensorMeta) for leaf in leaves(metas))
        if not has_tensors and is_known(operands):
            return metas
        if not has_tensors and not _has_float_results(schema, metas):
            raise CompileError("it makes a number from data that is known only at run time", scope="place")
        if schema is None:
            raise CompileError("only operators of PyTorch's registry are supported in a group")
        return self.call(schema, operands, metas)

    def call(
        self, schema: torch._C.FunctionSchema, operands: Sequence[Operand], metas: Sequence[object]
    ) -> list[Operand]:
        """Return the results of an op that computes tensors. ``metas`` holds the recorded type of each result."""
        for argument, operand in zip(schema.arguments, operands, strict=False):
            if argument.name in _UNVERSIONED and isinstance(operand, Value):
                self._unversioned.add(operand.name)
        results = translate(self.emitter, *self._replace_sizes(schema, operands), metas)
        return [_set_strides(result, meta) for result, meta in zip(results, metas, strict=True)]

    def _replace_sizes(
        self, schema: torch._C.FunctionSchema, operands: Sequence[Operand]
    ) -> tuple[torch._C.FunctionSchema, list[Operand]]:
        """Return a schema and operands in which arguments of the program replace sizes that are used as values.

        Sizes become floats, or 0-d tensors among integers.
        """
        dtypes = [leaf.meta.dtype for leaf in leaves(operands) if isinstance(leaf, Value) and leaf.meta]
        symbols = [
            value_symbol(getattr(operand, "value", operand)) if takes_size_value(schema, argument, dtypes) else None
            for argument, operand in zip(schema.arguments, operands, strict=True)
        ]
        if symbols.count(None) == len(symbols):
            return schema, list(operands)
        with_sizes = [
            operand if symbol is None else self._size_argument(symbol)
            for operand, symbol in zip(operands, symbols, strict=True)
        ]
        name = qualified_name(schema)
        if operator(name).positions:
            return schema, [runtime_scalar_as_tensor(self.emitter, operand, (), torch.int64) for operand in with_sizes]
        are_floats = bool(dtypes) and dtypes[0].is_floating_point
        if are_floats and not operator(name).with_tensors:
            return schema, [as_float(self.emitter, operand) for operand in with_sizes]
        return select_tensor_overload(self.emitter, name, with_sizes)

    def _size_argument(self, symbol: int) -> Value:
        name = f"%size{symbol}"
        known = next((value for _, _, value in self._arguments if value.name == name), None)
        if known is None:
            known = Value(name, "!torch.int")
            self._arguments.append((Argument("input", "int64", (), "scalar"), Binding("size", symbol, name), known))
        return known

    # Outputs

    def finish(self, outputs: Sequence[str]) -> ImportedGraph:
        """Return the program that returns the values ``outputs``."""
        self.emitter.location = "loc(unknown)"
        results, bindings = self._outputs(outputs)
        order = sorted(self._mark_unversioned(), key=lambda item: _signature_key(item[1]))
        return ImportedGraph(
            mlir=self.emitter.text([value for _, _, value in order], [value for _, value in results]),
            arguments=tuple(argument for argument, _, _ in order),
            results=tuple(result for result, _ in results),
            bindings=tuple(binding for _, binding, _ in order),
            outputs=bindings,
            sources=tuple(source for _, source in self._nodes),
            ops=tuple(op for op, _ in self._nodes),
        )

    def _mark_unversioned(self) -> list[tuple[Argument, Binding, Value]]:
        """Return the arguments, with the unversioned parameters marked.

        Unversioned parameters that are too large to compare become inputs instead.
        """
        unversioned = {
            value.name: math.prod(argument.shape) * getattr(torch, argument.dtype).itemsize
            for argument, _, value in self._arguments
            if argument.role == "parameter" and value.name in self._unversioned
        }
        if sum(unversioned.values()) <= _MAX_UNVERSIONED_BYTES:
            return [(a, replace(b, unversioned=v.name in unversioned), v) for a, b, v in self._arguments]
        return [(replace(a, role="input") if v.name in unversioned else a, b, v) for a, b, v in self._arguments]

    def _outputs(self, names: Sequence[str]) -> tuple[list[tuple[Result, Value]], tuple[OutputBinding, ...]]:
        results: list[tuple[Result, Value]] = []
        outputs: dict[str, OutputBinding] = {}
        places = {name: place for place, name in enumerate(self._inputs)}
        for name in names:
            if name in places:
                outputs[name] = OutputBinding("input", places[name])
            elif name not in outputs:
                try:
                    outputs[name] = self._output(name, results)
                except CompileError as error:
                    index = self._producers.get(name)
                    raise error if index is None else blame(error, *self._nodes[index], index) from error
        return results, tuple(outputs[name] for name in names)

    def _output(self, name: str, results: list[tuple[Result, Value]]) -> OutputBinding:
        operand = as_tensor(self.emitter, self.operand(name))
        if not isinstance(operand, Value):
            if not is_known([operand]):
                raise CompileError("an output that is a list of tensors is not supported", scope="place")
            return OutputBinding("constant", value=operand)
        if operand.meta is None:
            raise CompileError("an output that is a float known only at run time is not supported", scope="place")
        meta = self.recorded(name)
        if not isinstance(meta, TensorMeta):
            raise CompileError(f"the record of value %{name} is not a tensor's")
        order = exact_memory_order(meta.shape, meta.strides)
        if order is None:
            raise CompileError(f"an output with strides {list(meta.strides)} is not supported", scope="place")
        physical = self._permute(replace(operand, meta=meta), order)
        assert physical.meta is not None
        results.append((Result(dtype_name(meta.dtype), physical.meta.shape), physical))
        return OutputBinding("result", len(results) - 1, invert(order), meta.strides, quantisation=meta.quantisation)


def _has_float_results(schema: torch._C.FunctionSchema | None, metas: Sequence[object]) -> bool:
    """Return whether all results are floats, which may be known only at run time."""
    returned = [] if schema is None else [result.type.kind() for result in schema.returns]
    return bool(returned) and all(
        isinstance(meta, float) and kind in ("FloatType", "NumberType")
        for meta, kind in zip(metas, returned, strict=True)
    )


def _set_strides(result: Any, meta: Any) -> Operand:
    """Return a result with its recorded strides: eager's kernels choose their algorithm by them."""
    if isinstance(meta, list | tuple):
        return [_set_strides(*pair) for pair in zip(result, meta, strict=True)]
    if not isinstance(meta, TensorMeta) or not isinstance(result, Value) or result.meta is None:
        return result
    return replace(result, meta=replace(result.meta, strides=meta.strides))


def takes_size_value(
    schema: torch._C.FunctionSchema, argument: torch._C.Argument, dtypes: Sequence[torch.dtype]
) -> bool:
    """Return whether an op on tensors of ``dtypes`` may get a varying integer as ``argument``.

    This holds for positions among elements. It holds for floats if the op is elementwise. It holds for int64 if the
    operator computes with sizes.
    """
    name = qualified_name(schema)
    if argument.name in operator(name).positions:
        return True
    if dtypes and all(dtype.is_floating_point for dtype in dtypes):
        return torch.Tag.pointwise in overload_of(name).tags
    return operator(name).takes_sizes and argument.name in _NUMBERS and set(dtypes) <= {torch.int64}


def _signature_key(binding: Binding) -> tuple[bool, int, int]:
    return binding.source != "input", binding.index, binding.element or 0


def is_known(operands: Sequence[Operand]) -> bool:
    """Return whether all operands are known, so that none is a value of the program."""
    return not any(isinstance(leaf, Value) for leaf in leaves(operands))


def evaluate(schema: torch._C.FunctionSchema, operands: Sequence[Operand]) -> int | float | bool:
    """Run an op on known 0-d tensors and return the number."""

    def tensor(operand: Operand) -> object:
        if isinstance(operand, NumberTensor):
            return torch.tensor(operand.value, dtype=operand.meta.dtype)
        return operand

    result = call_in_order(overload_of(qualified_name(schema)), schema, list(map(tensor, operands)))
    number: int | float | bool = result.item()
    return number


def blame(error: Exception, op: str, source: str, index: int | None = None) -> CompileError:
    """Return ``error`` as an error of the node ``op`` at ``source``.

    The error may come from the op's decomposition. ``index`` is the node's number in a group.
    """
    nodes = () if index is None else (index,)
    known = error if isinstance(error, CompileError) else internal_error(error)
    reason = known.reason if known.op in ("", op) else f"{known.op}: {known.reason}"
    return CompileError(**{**known.fields(), "reason": reason, "op": op, "source": source, "nodes": nodes})
