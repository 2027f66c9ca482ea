"""Dispatch capture: whatever PyTorch dispatches in a block, forward, backward and optimiser, becomes an FX graph.

A dispatch mode below autograd sees every operator with its real tensors, and writes each down while PyTorch runs it.
Tensors are told apart by the memory they show, not by the Python object: autograd saves, and users make, other tensors
of the same memory without any operator. The record writes in place and takes views where the program does;
:mod:`torchmdla.capture.functional` makes a functional graph of it.
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
from torchmdla.importer.schemas import is_metadata, written
from torchmdla.importer.trace import in_schema_order, leaves, map_structure, qualified_name

aten = torch.ops.aten

# What tells one tensor from another: storage, offset, sizes, strides, dtype.
_Key = tuple[int, int, tuple[int, ...], tuple[int, ...], torch.dtype]


@dataclass
class External:
    """A tensor that a recorded block has not made itself.

    Attributes:
        node: its placeholder in the record.
        tensor: the tensor itself. When the block has ended, for a constant a copy of what was read, and for an
            argument its layout: nothing keeps a user's arguments alive.
        is_argument: the user gave it as an argument.
        is_literal: written in the program as numbers (``torch.tensor(2.0)``).
        is_written: the block writes to its memory.
        layout: its dtype, sizes and strides, on the meta device.
        offset: in its storage.
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
        # What is only read is copied later.
        self.offset = int(self.tensor.storage_offset())
        self.layout = torch.empty_strided(
            self.tensor.shape, self.tensor.stride(), dtype=self.tensor.dtype, device="meta"
        )

    @property
    def is_constant(self) -> bool:
        """Only read, and no argument."""
        return not self.is_argument and not self.is_written


@dataclass(frozen=True)
class NumberRead:
    """An operator that made a Python number of a tensor's data, which the record cannot follow."""

    op: str
    source: str


class Recorder(TorchDispatchMode):
    """Records what is dispatched while it is entered.

    Args:
        arguments: the placeholders of the record, in order. Other tensors that the block reads come after them.

    Attributes:
        graph: the record; flat, of ``OpOverload`` calls, with writes and views.
        externals: arguments and what else was read, in the order of the placeholders.
    """

    def __init__(self, arguments: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = fx.Graph()
        self.externals: list[External] = []
        self._nodes: dict[_Key, fx.Node] = {}
        # Of what the block makes: the node that made the storage. Storages are held, so that none is used again.
        self._owners: dict[int, fx.Node] = {}
        self._held: dict[int, Any] = {}
        self._written: set[int] = set()
        # Which externals' storages the values in a storage depend on.
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
        if func in _FRESH:
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
        """Runs ``func`` and writes it down as a call of ``target``."""
        nodes: Any = map_structure(self._operand, list(recorded_args))
        named: Any = {name: map_structure(self._operand, value) for name, value in recorded_kwargs.items()}
        roots = self._note_effects(target, recorded_args, recorded_kwargs)
        result = func(*args, **kwargs)
        tensors = [leaf for leaf in leaves(result) if isinstance(leaf, Tensor)]
        if not tensors and not target._schema.is_mutable:
            name = qualified_name(func._schema)
            if roots and not is_metadata(name):
                self._reads.append((NumberRead(name, _place()), roots))
            return result
        node = self.graph.call_function(target, tuple(nodes), named)
        node.meta["stack_trace"] = _trace()
        self._define(node, result)
        for tensor in tensors:
            self._roots[_storage(tensor)] = self._roots.get(_storage(tensor), frozenset()) | roots
        return result

    def _note_effects(self, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> frozenset[int]:
        """Notes what a call writes, and returns what its results depend on."""
        given = in_schema_order(target._schema, args, kwargs)
        roots = frozenset(
            root
            for leaf in leaves(given)
            if isinstance(leaf, Tensor)
            for root in self._roots.get(_storage(leaf), frozenset())
        )
        if torch.Tag.nondeterministic_seeded in target.tags:
            roots |= {_RANDOM}
        for leaf in leaves([given[index] for index in written(target._schema)]):
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
        """``tensor`` is what ``node`` makes, unless it is known: an operator that writes returns what it wrote to."""
        _check_plain(tensor, "a tensor that was computed")
        key = _key(tensor)
        if key not in self._nodes:
            self._nodes[key] = node()
            self._hold(tensor)
            if not any(one.storage == key[0] for one in self.externals):
                self._owners.setdefault(key[0], self._nodes[key])

    def _operand(self, value: Any) -> Any:
        return self._node(value) if isinstance(value, Tensor) else value

    def _node(self, tensor: Tensor) -> fx.Node:
        """The node of a tensor that is read."""
        _check_plain(tensor, "a tensor")
        key = _key(tensor)
        if key in self._nodes:
            return self._nodes[key]
        if key[0] not in self._owners:
            return self._external(tensor).node
        # A view that no operator has made.
        owner = self._owners[key[0]]
        node = self.graph.call_function(aten.as_strided.default, (owner, key[2], key[3], key[1]))
        node.meta["stack_trace"] = _trace()
        self._nodes[key] = node
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
        """``torch.tensor([1, 2])`` makes a tensor where nobody sees it and shows it to PyTorch then."""
        result = func(*args, **kwargs)
        if _key(result) in self._nodes:
            return result
        external = self._external(result.detach().clone(), is_literal=True)
        self._roots[external.storage] = frozenset()
        node = self.graph.call_function(aten.clone.default, (external.node,))
        node.meta["stack_trace"] = _trace()
        self._bind(result, lambda: node)
        return result

    def _in_place_view(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """``x.t_()`` gives the tensor object another view of its memory: the record has the view."""
        name, overload = func._schema.name.partition("::")[2], func._schema.overload_name or "default"
        view = getattr(getattr(aten, name.removesuffix("_"), None), overload, None)
        before = _key(args[0])
        if view is not None and name not in _RESIZING:
            if any(one.storage == before[0] for one in self.externals):
                raise CaptureError(f"{name} changes a tensor from outside, which cannot be captured (at {_place()})")
            operands: Any = map_structure(self._operand, list(args))
            node = self.graph.call_function(view, tuple(operands), dict(kwargs))
            node.meta["stack_trace"] = _trace()
            result = func(*args, **kwargs)
            self._bind(result, lambda: node)
            return result
        result = func(*args, **kwargs)
        if _key(result) != before:
            raise CaptureError(f"{name} gives a tensor other memory, which cannot be captured (at {_place()})")
        return result

    # After the block

    def finish(self, results: Sequence[Tensor | None]) -> None:
        """Ends the record: it returns ``results``. Of ``externals`` those that nobody needs are gone then, and what is
        only read is a copy.

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
        """Lets go of the block's memory."""
        self._held.clear()

    def fixed_numbers(self) -> list[NumberRead]:
        """The numbers that were read from tensors which differ from call to call, and are fixed in the record."""
        varying = {one.storage for one in self.externals if not one.is_constant} | {_RANDOM}
        return [read for read, roots in self._reads if roots & varying]

    def _result(self, index: int, result: Tensor) -> fx.Node:
        _check_plain(result, f"result {index}")
        key = _key(result)
        known = key in self._nodes or key[0] in self._owners
        outside = [one for one in self.externals if one.storage == key[0]]
        if not known or (outside and all(one.is_constant for one in outside)):
            raise CaptureError(f"result {index}, {described(result)}, was not computed inside of the block")
        return self._node(result)

    def _check_shared(self) -> None:
        for external in self.externals:
            sharing = [one for one in self.externals if one.storage == external.storage]
            if len(sharing) > 1 and external.is_written:
                shapes = " and ".join(described(one.tensor) for one in sharing)
                raise CaptureError(f"{shapes} share memory that is written to: give only one of them")

    def _drop_clones_of_literals(self, kept: set[fx.Node]) -> None:
        """Only who writes to a literal, or returns it, needs one of its own."""
        literals = {one.node for one in self.externals if one.is_literal}
        written = {self._owners[storage] for storage in self._written if storage in self._owners}
        for literal in literals:
            for clone in list(literal.users):
                if clone not in kept and clone not in written:
                    clone.replace_all_uses_with(literal)
                    self.graph.erase_node(clone)

    def _drop_unread(self) -> None:
        for external in list(self.externals):
            if not external.node.users and not external.is_argument:
                self.graph.erase_node(external.node)
                self.externals.remove(external)


def described(tensor: Tensor) -> str:
    """A tensor in a message, ``float32[2, 3]``."""
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


_TORCH_FOLDER = os.path.dirname(torch.__file__) + os.sep

# In place of a storage: what random numbers depend on.
_RANDOM = -1

_FRESH = frozenset([aten.lift_fresh.default, aten.lift.default])

# Their sizes depend on data for masks alone.
_INDEXED = frozenset([aten.index.Tensor, aten._unsafe_index.Tensor])

_RESIZING = frozenset(["resize_", "resize_as_", "set_"])

Rewritten = tuple[Any, Sequence[Any], Mapping[str, Any]]


def _batch_norm(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Rewritten:
    """Its schema does not say so, but in training it writes to the running statistics."""
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


_HIDDEN_WRITES: Mapping[Any, Callable[[Sequence[Any], Mapping[str, Any]], Rewritten]] = {
    aten.native_batch_norm.default: _batch_norm
}


def _check_call(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuses what a record cannot hold, before it runs."""
    if torch.Tag.dynamic_output_shape in func.tags and not (func in _INDEXED and not _has_mask(args[1])):
        raise CaptureError(f"the sizes of what {func} makes depend on data, which cannot be captured (at {_place()})")
    if any(isinstance(leaf, torch.Generator) for leaf in leaves([*args, *kwargs.values()])):
        raise CaptureError(f"{func} draws from a generator of its own, which cannot be captured (at {_place()})")


def _has_mask(indices: Sequence[Tensor | None]) -> bool:
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)


def _check_plain(tensor: Tensor, what: str) -> None:
    if tensor.device.type != "cpu":
        raise CaptureError(f"{what}, {described(tensor)}, is on device {tensor.device}; only the cpu's can be captured")
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise CaptureError(
            f"{what}, {described(tensor)}, has layout {tensor.layout}; only plain tensors can be captured"
        )
    if tensor.is_conj() or tensor.is_neg():
        raise CaptureError(
            f"{what}, {described(tensor)}, is a lazy conjugate or negative: call resolve_conj() or _neg()"
        )


def _key(tensor: Tensor) -> _Key:
    return _storage(tensor), int(tensor.storage_offset()), tuple(tensor.shape), tensor.stride(), tensor.dtype


def _storage(tensor: Tensor) -> int:
    storage: int = tensor.untyped_storage()._cdata
    return storage


def _frames() -> Iterator[Any]:
    """The Python frames of the user's program, the innermost first."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file != __file__ and not file.startswith(_TORCH_FOLDER):
            yield frame
        frame = frame.f_back  # type: ignore[assignment]


def _trace() -> str:
    """As FX keeps it in ``meta["stack_trace"]``: the user's line that made a node."""
    frame = next(_frames(), None)
    if frame is None:
        return ""
    return f'  File "{frame.f_code.co_filename}", line {frame.f_lineno}, in {frame.f_code.co_name}\n'


def _place() -> str:
    frame = next(_frames(), None)
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
