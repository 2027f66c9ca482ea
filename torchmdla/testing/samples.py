"""Programs of one operator for a device: the sample calls of each operator that it declares, in the dtypes it declares.

The calls are those of :mod:`torchmdla.testing.op_samples`. A call counts if the device declares it: its tensors and
results have dtypes of :attr:`Device.dtypes`, and its arguments are those of :attr:`OpSupport.where`. Eager PyTorch
decides which dtypes an operator supports. A program is named ``samples.add.Tensor.float32:0``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from torchmdla import devices
from torchmdla.devices import Device
from torchmdla.testing.device_use import declared_operators
from torchmdla.testing.op_samples import SAMPLES
from torchmdla.testing.programs import Program
from torchmdla.testing.programs.inputs import copy_tensor
from torchmdla.testing.programs.operators import accept_by_position, on_tensors, operator

_PREFIX = "samples."

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
# The dtype of tensors in the table, and the dtypes in which the sample is called, in this order.
_DTYPES = {
    torch.float32: (torch.float32, torch.float16, torch.bfloat16, torch.float64, *_INTEGERS),
    torch.int64: _INTEGERS,
}

# The operators that use the result of a view, because a view alone is never computed by a group. Others come later.
_USERS = ("aten::neg", "aten::relu", "aten::abs", "aten::add.Tensor", "aten::mul.Tensor", "aten::logical_not")

# The arguments of operators that are weights.
_WEIGHTS = frozenset({"weight", "bias", "running_mean", "running_var"})

# A function of the results of a sample.
_Use = Callable[[Any], Any]


@dataclass(frozen=True)
class SampleCall:
    """Call of an operator that a device declares.

    Attributes:
        dtype: torch's name of the dtype.
        index: the number of the sample in the table.
        arguments: the arguments, by position.
        use: function of the results that the program computes; it returns them unchanged unless they are views.
    """

    dtype: str
    index: int
    arguments: tuple[Any, ...]
    use: _Use


def names(device: Device) -> list[str]:
    """Return ``samples.OPERATOR`` for each operator that a device declares."""
    return [f"{_PREFIX}{op.removeprefix('aten::')}" for op in declared_operators(device)]


def operator_of(name: str) -> str:
    """Return the schema name of the operator of a job or of a program; empty for names of other programs."""
    if not name.startswith(_PREFIX):
        return ""
    space, _, op = name.removeprefix(_PREFIX).rpartition("::")
    called, colon, _ = op.partition(":")
    return f"{space or 'aten'}::{called.rpartition('.')[0] if colon else called}"


def programs(name: str, seed: int = 0, limit: int | None = None) -> Iterator[Program]:
    """Yield the programs of an operator for the device in use, at most ``limit``.

    Every sample is called in the first dtype that the device and eager support, and one sample in each other dtype. The
    seed has no effect, because the table has tensors.
    """
    device, op = devices.get(devices.in_use()), operator_of(name)
    # Two calls of a cheap operator are worth a group.
    repetitions = 1 if device.ops[op].kind == "compute" else 2
    for call in islice(declared_calls(op, device), limit):
        make, inputs = _module_of(operator(op), call, repetitions)
        yield Program(f"{name}.{call.dtype}:{call.index}", make, inputs, tags=frozenset({"python"}))


def _module_of(called: Any, call: SampleCall, repetitions: int) -> tuple[Callable[[], nn.Module], tuple[Tensor, ...]]:
    """Return a factory of a module that calls an operator several times, and its inputs.

    Arguments with the names of weights are buffers of the module, because a device may need them to be constant.
    """
    names = [argument.name for argument in called._schema.arguments]
    named = dict(zip(names, call.arguments, strict=False))
    weights = {name: value for name, value in named.items() if name in _WEIGHTS and isinstance(value, Tensor)}
    others = [None if name in weights else value for name, value in named.items()]
    calls = [tree_map_only(Tensor, copy_tensor, others) for _ in range(repetitions)]
    function, inputs = on_tensors(lambda *calls: calls, calls)

    def make() -> nn.Module:
        module = _Sample(called, call.use, function, names)
        for name, value in weights.items():
            module.register_buffer(name, copy_tensor(value))
        return module

    return make, inputs


class _Sample(nn.Module):
    """Module that calls an operator.

    Args:
        called: the operator.
        use: function of its results.
        arguments: function from the inputs of the module to the arguments of each call.
        names: the names of the operator's arguments. Buffers have the names of those that they replace.
    """

    def __init__(
        self, called: Any, use: _Use, arguments: Callable[..., Sequence[Sequence[Any]]], names: Sequence[str]
    ) -> None:
        super().__init__()
        self._called, self._use, self._arguments, self._names = called, use, arguments, names

    def forward(self, *inputs: Tensor) -> Any:
        call = accept_by_position(self._called)
        weights = dict(self.named_buffers())
        return tuple(
            self._use(call(*(weights.get(name, value) for name, value in zip(self._names, arguments, strict=False))))
            for arguments in self._arguments(*inputs)
        )


def declared_calls(op: str, device: Device) -> Iterator[SampleCall]:
    """Yield the sample calls of an operator that a device declares."""
    called = operator(op)
    if called is None or not SAMPLES.get(op):
        return
    seen: set[str] = set()
    for index, sample in enumerate(SAMPLES[op]):
        if not _conditions_hold(called, sample, device.ops[op].where):
            continue
        is_first = True
        for dtype, arguments in _forms(sample):
            name = _dtype_name(dtype)
            if not (is_first or name not in seen):
                continue
            use = _use_of(called, arguments, device, is_view=device.ops[op].kind == "view")
            if use is not None:
                yield SampleCall(name, index, arguments, use)
                seen.add(name)
                is_first = False


def _forms(sample: tuple[Any, ...]) -> Iterator[tuple[torch.dtype, tuple[Any, ...]]]:
    """Yield the sample in each dtype. The tensors of the main dtype of the table are converted, the others are not."""
    dtypes = [leaf.dtype for leaf in tree_leaves(sample) if isinstance(leaf, Tensor)]
    source = next((dtype for dtype in _DTYPES if dtype in dtypes), None)
    if source is None:
        if dtypes:
            yield dtypes[0], sample
        return

    def convert(tensor: Tensor, dtype: torch.dtype) -> Tensor:
        if tensor.dtype != source or dtype == source:
            return tensor
        # Integers are three times as large, so that not all are 0.
        return (tensor * 3).to(torch.int64).to(dtype) if dtype in _INTEGERS else tensor.to(dtype)

    for dtype in _DTYPES[source]:
        yield dtype, tree_map_only(Tensor, partial(convert, dtype=dtype), sample)


def _use_of(called: Any, arguments: tuple[Any, ...], device: Device, is_view: bool) -> _Use | None:
    """Return the function that the program applies to the results of a call; None if the device does not declare it."""
    if not _has_declared_dtypes(arguments, device):
        return None
    for use in _users(device) if is_view else (_identity,):
        try:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                results = accept_by_position(called)(*arguments)
                used = use(results)
        except Exception:  # eager does not support the dtype, or the user does not
            continue
        if _has_declared_dtypes((results, used), device):
            return use
    return None


def _identity(results: Any) -> Any:
    return results


def _users(device: Device) -> Iterator[_Use]:
    """Yield functions of one or two equal tensors that the device computes."""
    for op in dict.fromkeys((*_USERS, *declared_operators(device))):
        support, called, samples = device.ops.get(op), operator(op), SAMPLES.get(op)
        if support is None or support.kind == "view" or called is None or not samples:
            continue
        sample = samples[0]
        if len(sample) <= 2 and all(isinstance(argument, Tensor) for argument in sample):
            yield _on_each_tensor(called, len(sample))


def _on_each_tensor(called: Any, count: int) -> _Use:
    return lambda results: tree_map(lambda tensor: called(*[tensor] * count), results)


def _has_declared_dtypes(values: Any, device: Device) -> bool:
    tensors = [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]
    return all(_dtype_name(tensor.dtype) in device.dtypes for tensor in tensors)


def _conditions_hold(called: Any, sample: Sequence[object], where: Any) -> bool:
    """Return whether the arguments of a call are the constants that the device requires."""
    schema = called._schema.arguments
    values = {argument.name: argument.default_value for argument in schema}
    values.update(zip((argument.name for argument in schema), sample, strict=False))
    return all((type(values.get(name)), values.get(name)) == (type(wanted), wanted) for name, wanted in where.items())


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
