"""Dispatch capture: an FX graph of all operators that PyTorch dispatches in a block.

Forward, backward and optimiser operators are captured. A dispatch mode below autograd sees every operator with its real
tensors and records it while PyTorch runs it. Tensors are identified by their memory, not by the Python object: autograd
and users make further tensors of the same memory without an operator. The record has the program's in-place writes and
views. :mod:`torchmdla.capture.fx.functional` makes a functional graph of it.
"""

from __future__ import annotations

import operator
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._python_dispatch import TorchDispatchMode

from torchmdla.errors import CaptureError
from torchmdla.importer.schemas import is_metadata, written_arguments
from torchmdla.importer.trace import in_schema_order, leaves, map_structure, qualified_name

aten = torch.ops.aten

# Identity of a tensor: storage, offset, sizes, strides, dtype.
_Key = tuple[int, int, tuple[int, ...], tuple[int, ...], torch.dtype]


@dataclass
class External:
    """Tensor that a recorded block uses but did not create.

    Attributes:
        node: its placeholder in the record.
        tensor: the tensor itself. After the block it is a copy of the data for a constant, and the layout for an
            argument. User arguments are therefore not kept alive.
        storage: address of its storage.
        is_argument: whether the user passed it as an argument.
        is_literal: whether the program has it as numbers (``torch.tensor(2.0)``).
        is_written: whether the block writes to its memory.
        layout: its dtype, sizes and strides, on the meta device.
        offset: its offset in the storage.
    """

    node: fx.Node
    tensor: Tensor
    storage: int
    is_argument: bool = False
    is_literal: bool = False
    is_written: bool = False
    layout: Tensor = field(init=False)
    offset: int = field(init=False)

    def __post_init__(self) -> None:
        # Tensors that are only read are copied later.
        self.offset = int(self.tensor.storage_offset())
        self.layout = torch.empty_strided(
            self.tensor.shape, self.tensor.stride(), dtype=self.tensor.dtype, device="meta"
        )

    @property
    def is_constant(self) -> bool:
        """Return whether the tensor is only read and is not an argument."""
        return not self.is_argument and not self.is_written


@dataclass(frozen=True)
class NumberRead:
    """Operator that converts a tensor's data to a Python number, which the record cannot follow."""

    op: str
    source: str


class Recorder(TorchDispatchMode):
    """Dispatch mode that records operators while it is entered.

    Args:
        arguments: tensors of the first placeholders, in order. Other tensors that the block reads come after them.

    Attributes:
        graph: the record: a flat graph of ``OpOverload`` calls, with writes and views.
        externals: arguments and other tensors that were read, in the order of the placeholders.
    """

    def __init__(self, arguments: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = fx.Graph()
        self.externals: list[External] = []
        self._nodes: dict[_Key, fx.Node] = {}
        # For each storage that the block creates, the node that created it. Storages are held so that their addresses
        # are not reused.
        self._owners: dict[int, fx.Node] = {}
        self._held: dict[int, Any] = {}
        self._written: set[int] = set()
        # For each storage, the storages of externals that its values depend on.
        self._roots: dict[int, frozenset[int]] = {}
        self._reads: list[tuple[NumberRead, frozenset[int]]] = []
        self._last_placeholder = self.graph._root
        for argument in arguments:
            _check_plain(argument, "an argument")
            self._external(argument, is_argument=True)

    # While the block runs

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        _check_call(func, args, kwargs)
        if func in _LIFT_OPS:
            return self._literal(func, args, kwargs)
        if torch.Tag.inplace_view in func.tags:
            return self._in_place_view(func, args, kwargs)
        if func in _HIDDEN_WRITES:
            return self._record(func, *_HIDDEN_WRITES[func](args, kwargs), args, kwargs)
        return self._record(func, func, args, kwargs, args, kwargs)

    def _record(
        self,
        func: Any,
        target: Any,
        recorded_args: Sequence[Any],
        recorded_kwargs: Mapping[str, Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Run ``func`` and record it as a call of ``target``."""
        nodes: Any = map_structure(self._operand, list(recorded_args))
        named: Any = {name: map_structure(self._operand, value) for name, value in recorded_kwargs.items()}
        roots = self._note_effects(target, recorded_args, recorded_kwargs)
        result = func(*args, **kwargs)
        tensors = [leaf for leaf in leaves(result) if isinstance(leaf, Tensor)]
        if not tensors and not target._schema.is_mutable:
            name = qualified_name(func._schema)
            if roots and not is_metadata(name):
                self._reads.append((NumberRead(name, _source_location()), roots))
            return result
        self._define(self._call(target, tuple(nodes), named), result)
        for tensor in tensors:
            self._roots[_storage(tensor)] = self._roots.get(_storage(tensor), frozenset()) | roots
        return result

    def _note_effects(self, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> frozenset[int]:
        """Note the storages that a call writes, and return the roots that its results depend on."""
        operands = in_schema_order(target._schema, args, kwargs)
        roots = frozenset(
            root
            for leaf in leaves(operands)
            if isinstance(leaf, Tensor)
            for root in self._roots.get(_storage(leaf), frozenset())
        )
        if torch.Tag.nondeterministic_seeded in target.tags:
            roots |= {_RANDOM}
        for leaf in leaves([operands[index] for index in written_arguments(target._schema)]):
            if isinstance(leaf, Tensor):
                self._written.add(_storage(leaf))
                self._roots[_storage(leaf)] = self._roots.get(_storage(leaf), frozenset()) | roots
        return roots

    def _define(self, node: fx.Node, result: Any) -> None:
        if isinstance(result, Tensor):
            self._bind(result, lambda: node)
        elif isinstance(result, list | tuple):
            for index, item in enumerate(result):
                if isinstance(item, Tensor):
                    self._bind(item, lambda index=index: self._element(node, index))  # type: ignore[misc]

    def _element(self, node: fx.Node, index: int) -> fx.Node:
        element = self.graph.call_function(operator.getitem, (node, index))
        element.meta["stack_trace"] = node.meta["stack_trace"]
        return element

    def _bind(self, tensor: Tensor, node: Callable[[], fx.Node]) -> None:
        """Map ``tensor`` to ``node``, unless it is known: an operator that writes returns its written operand."""
        _check_plain(tensor, "a tensor that was computed")
        key = _key(tensor)
        if key not in self._nodes:
            self._nodes[key] = node()
            self._hold(tensor)
            if not any(external.storage == key[0] for external in self.externals):
                self._owners.setdefault(key[0], self._nodes[key])

    def _operand(self, value: Any) -> Any:
        return self._node(value) if isinstance(value, Tensor) else value

    def _node(self, tensor: Tensor) -> fx.Node:
        """Return the node of a tensor that is read."""
        _check_plain(tensor, "a tensor")
        key = _key(tensor)
        if key in self._nodes:
            return self._nodes[key]
        if key[0] not in self._owners:
            return self._external(tensor).node
        # A view that no operator created.
        owner = self._owners[key[0]]
        self._nodes[key] = self._call(aten.as_strided.default, (owner, key[2], key[3], key[1]))
        return self._nodes[key]

    def _call(self, target: Any, operands: tuple[Any, ...], keywords: Mapping[str, Any] | None = None) -> fx.Node:
        node = self.graph.call_function(target, operands, dict(keywords or {}))
        node.meta["stack_trace"] = _stack_trace()
        return node

    def _external(self, tensor: Tensor, *, is_argument: bool = False, is_literal: bool = False) -> External:
        with self.graph.inserting_after(self._last_placeholder):
            self._last_placeholder = self.graph.placeholder(f"arg{len(self.externals)}")
        external = External(self._last_placeholder, tensor, _storage(tensor), is_argument, is_literal)
        self.externals.append(external)
        self._nodes.setdefault(_key(tensor), external.node)
        self._hold(tensor)
        self._roots[external.storage] = frozenset({external.storage})
        return external

    def _hold(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        self._held[storage._cdata] = storage

    def _literal(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Record a literal such as ``torch.tensor([1, 2])``, which PyTorch creates before it dispatches an operator."""
        result = func(*args, **kwargs)
        if _key(result) in self._nodes:
            return result
        external = self._external(result.detach().clone(), is_literal=True)
        self._roots[external.storage] = frozenset()
        node = self._call(aten.clone.default, (external.node,))
        self._bind(result, lambda: node)
        return result

    def _in_place_view(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Record a call such as ``x.t_()``, which gives the tensor object another view of its memory, as that view."""
        name, overload = func._schema.name.partition("::")[2], func._schema.overload_name or "default"
        view = getattr(getattr(aten, name.removesuffix("_"), None), overload, None)
        before = _key(args[0])
        if view is not None and name not in _RESIZE_OPS:
            if any(external.storage == before[0] for external in self.externals):
                raise CaptureError(
                    f"{name} changes a tensor from outside, which cannot be captured (at {_source_location()})"
                )
            operands: Any = map_structure(self._operand, list(args))
            node = self._call(view, tuple(operands), kwargs)
            result = func(*args, **kwargs)
            self._bind(result, lambda: node)
            return result
        result = func(*args, **kwargs)
        if _key(result) != before:
            raise CaptureError(
                f"{name} gives a tensor other memory, which cannot be captured (at {_source_location()})"
            )
        return result

    # After the block

    def finish(self, results: Sequence[Tensor | None]) -> None:
        """End the record with ``results`` as its outputs.

        Afterwards ``externals`` has no unused tensors, and those that are only read are copies.

        Raises:
            CaptureError: a result was not computed here, or tensors that share memory are written to.
        """
        for external in self.externals:
            external.is_written = external.storage in self._written
        self._check_shared()
        outputs = [None if result is None else self._result(index, result) for index, result in enumerate(results)]
        self._drop_clones_of_literals({node for node in outputs if node is not None})
        self.graph.output(tuple(outputs))
        self._drop_unread()
        for external in self.externals:
            if external.is_argument:
                external.tensor = external.layout
            elif external.is_constant and not external.is_literal:
                external.tensor = external.tensor.detach().clone()

    def release(self) -> None:
        """Release the block's memory."""
        self._held.clear()

    def fixed_numbers(self) -> list[NumberRead]:
        """Return the reads of numbers from tensors that differ between calls; the record has these numbers fixed."""
        varying = {external.storage for external in self.externals if not external.is_constant} | {_RANDOM}
        return [read for read, roots in self._reads if roots & varying]

    def _result(self, index: int, result: Tensor) -> fx.Node:
        _check_plain(result, f"result {index}")
        key = _key(result)
        known = key in self._nodes or key[0] in self._owners
        outside = [external for external in self.externals if external.storage == key[0]]
        if not known or (outside and all(external.is_constant for external in outside)):
            raise CaptureError(f"result {index}, {describe_tensor(result)}, was not computed inside of the block")
        return self._node(result)

    def _check_shared(self) -> None:
        for external in self.externals:
            sharing = [other for other in self.externals if other.storage == external.storage]
            if len(sharing) > 1 and external.is_written:
                shapes = " and ".join(describe_tensor(other.tensor) for other in sharing)
                raise CaptureError(f"{shapes} share memory that is written to: give only one of them")

    def _drop_clones_of_literals(self, results: set[fx.Node]) -> None:
        """Remove the clones of literals that are neither written to nor results."""
        literals = {external.node for external in self.externals if external.is_literal}
        written = {self._owners[storage] for storage in self._written if storage in self._owners}
        for literal in literals:
            for clone in list(literal.users):
                if clone not in results and clone not in written:
                    clone.replace_all_uses_with(literal)
                    self.graph.erase_node(clone)

    def _drop_unread(self) -> None:
        for external in list(self.externals):
            if not external.node.users and not external.is_argument:
                self.graph.erase_node(external.node)
                self.externals.remove(external)


def describe_tensor(tensor: Tensor) -> str:
    """Return the dtype and shape of a tensor for a message, as ``float32[2, 3]``."""
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


_TORCH_FOLDER = os.path.dirname(torch.__file__) + os.sep

# Root of random numbers, in place of a storage.
_RANDOM = -1

_LIFT_OPS = frozenset([aten.lift_fresh.default, aten.lift.default])

# Their result sizes depend on data only if an index is a mask.
_INDEX_OPS = frozenset([aten.index.Tensor, aten._unsafe_index.Tensor])

_RESIZE_OPS = frozenset(["resize_", "resize_as_", "set_"])

RewrittenCall = tuple[Any, Sequence[Any], Mapping[str, Any]]


def _batch_norm(args: Sequence[Any], kwargs: Mapping[str, Any]) -> RewrittenCall:
    """Return the operator of batch norm whose schema declares its writes to the running statistics."""
    value, weight, bias, mean, variance, training, momentum, eps = in_schema_order(
        aten.native_batch_norm.default._schema, args, kwargs
    )
    if not training:
        return (
            aten._native_batch_norm_legit_no_training.default,
            (value, weight, bias, mean, variance, momentum, eps),
            {},
        )
    if mean is None:
        return aten._native_batch_norm_legit.no_stats, (value, weight, bias, True, momentum, eps), {}
    return aten._native_batch_norm_legit.default, (value, weight, bias, mean, variance, True, momentum, eps), {}


_HIDDEN_WRITES: Mapping[Any, Callable[[Sequence[Any], Mapping[str, Any]], RewrittenCall]] = {
    aten.native_batch_norm.default: _batch_norm
}


def _check_call(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise an error, before the call runs, if a record cannot hold it."""
    if torch.Tag.dynamic_output_shape in func.tags and not (func in _INDEX_OPS and not _has_mask(args[1])):
        raise CaptureError(
            f"the sizes of what {func} makes depend on data, which cannot be captured (at {_source_location()})"
        )
    if any(isinstance(leaf, torch.Generator) for leaf in leaves([*args, *kwargs.values()])):
        raise CaptureError(
            f"{func} draws from a generator of its own, which cannot be captured (at {_source_location()})"
        )


def _has_mask(indices: Sequence[Tensor | None]) -> bool:
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)


def _check_plain(tensor: Tensor, what: str) -> None:
    if tensor.device.type != "cpu":
        raise CaptureError(
            f"{what}, {describe_tensor(tensor)}, is on device {tensor.device}; only the cpu's can be captured"
        )
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise CaptureError(
            f"{what}, {describe_tensor(tensor)}, has layout {tensor.layout}; only plain tensors can be captured"
        )
    if tensor.is_conj() or tensor.is_neg():
        raise CaptureError(
            f"{what}, {describe_tensor(tensor)}, is a lazy conjugate or negative: call resolve_conj() or _neg()"
        )


def _key(tensor: Tensor) -> _Key:
    return _storage(tensor), int(tensor.storage_offset()), tuple(tensor.shape), tensor.stride(), tensor.dtype


def _storage(tensor: Tensor) -> int:
    storage: int = tensor.untyped_storage()._cdata
    return storage


def _user_frames() -> Iterator[Any]:
    """Yield the Python frames of the user's program, the innermost first."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file != __file__ and not file.startswith(_TORCH_FOLDER):
            yield frame
        frame = frame.f_back  # type: ignore[assignment]


def _stack_trace() -> str:
    """Return the user's line that made a node, in the form of FX's ``meta["stack_trace"]``."""
    frame = next(_user_frames(), None)
    if frame is None:
        return ""
    return f'  File "{frame.f_code.co_filename}", line {frame.f_lineno}, in {frame.f_code.co_name}\n'


def _source_location() -> str:
    frame = next(_user_frames(), None)
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
