"""Programs of one operator for a device: the sample calls of each operator that it declares, in the dtypes it declares.

The calls are those of :mod:`torchmdla.testing.op_samples`. A call counts if the device declares it: its tensors and
results have dtypes of :attr:`Device.dtypes`, and its arguments are those of :attr:`OpSupport.where`. Eager PyTorch
decides which dtypes an operator supports. A program is named ``samples.add.Tensor.float32:0``.
"""

from __future__ import annotations

import linecache
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
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
from torchmdla.testing.programs.operators import accept_by_position, operator

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


@dataclass(frozen=True)
class Use:
    """Use of the results of a sample by another operator of the device.

    Attributes:
        op: schema name of the operator; empty if the program returns the results themselves.
        count: number of the operator's arguments, all of them the same result.
        is_of_list: whether there are several results.
    """

    op: str = ""
    count: int = 1
    is_of_list: bool = False

    def __call__(self, results: Any) -> Any:
        """Return the results of the operator, for each result of the sample."""
        if not self.op:
            return results
        called = operator(self.op)
        return tree_map(lambda tensor: called(*[tensor] * self.count), results)


@dataclass(frozen=True)
class SampleCall:
    """Call of an operator that a device declares.

    Attributes:
        dtype: torch's name of the dtype.
        index: the number of the sample in the table.
        arguments: the arguments, by position.
        use: the use of the results, if they are views.
    """

    dtype: str
    index: int
    arguments: tuple[Any, ...]
    use: Use


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
        title = f"{name}.{call.dtype}:{call.index}"
        is_scripted = _is_composite(op) and not call.use.is_of_list
        make, inputs = _module_of(title, operator(op), call, repetitions, is_scripted)
        yield Program(title, make, inputs, tags=frozenset({"scripted" if is_scripted else "python"}))


def _is_composite(op: str) -> bool:
    """Return whether PyTorch implements an operator by others, which all captures but scripts record in its place.

    An operator that is not in the dispatcher is TorchScript's own.
    """
    kernels = torch._C
    return not kernels._dispatch_has_kernel(op) or bool(
        kernels._dispatch_has_kernel_for_dispatch_key(op, "CompositeImplicitAutograd")
    )


def _module_of(
    title: str, called: Any, call: SampleCall, repetitions: int, is_scripted: bool
) -> tuple[Callable[[], nn.Module], tuple[Tensor, ...]]:
    """Return a factory of a module that calls an operator several times, and its inputs.

    Arguments that are weights become buffers, because a device may need them to be constant. The module's class is
    written as text, which every frontend can capture. TorchScript selects overloads itself, so a scripted module does
    not name them.
    """
    schema = called._schema.arguments
    named = zip((argument.name for argument in schema), call.arguments, strict=False)
    weights = {name: value for name, value in named if name in _WEIGHTS and isinstance(value, Tensor)}
    inputs: list[Tensor] = []

    def render_name(called: Any) -> str:
        name = f"torch.ops.{called._schema.name.replace('::', '.')}"
        return name if is_scripted else f"{name}.{called._overloadname}"

    def render(value: Any) -> str:
        if isinstance(value, Tensor):
            inputs.append(copy_tensor(value))
            return f"x{len(inputs) - 1}"
        if isinstance(value, list | tuple):
            return f"[{', '.join(map(render, value))}]"
        if isinstance(value, float) and not math.isfinite(value):
            return f'float("{value}")'
        return repr(value)

    def render_argument(argument: Any, value: Any) -> str:
        text = f"self.{argument.name}" if argument.name in weights else render(value)
        return f"{argument.name}={text}" if argument.kwarg_only else text

    def render_use(result: str) -> str:
        return f"{render_name(operator(call.use.op))}({', '.join([result] * call.use.count)})"

    lines = []
    for number in range(repetitions):
        arguments = map(render_argument, schema, call.arguments)
        lines.append(f"y{number} = {render_name(called)}({', '.join(arguments)})")
        if call.use.is_of_list:
            lines.append(f"y{number} = [{render_use('y')} for y in y{number}]")
        elif call.use.op:
            lines.append(f"y{number} = {render_use(f'y{number}')}")
    lines.append(f"return ({' '.join(f'y{number},' for number in range(repetitions))})")
    parameters = "".join(f", x{number}: Tensor" for number in range(len(inputs)))
    sample_class = _class_of(title, f"def forward(self{parameters}):", lines)

    def make() -> nn.Module:
        module = sample_class()
        for name, value in weights.items():
            module.register_buffer(name, copy_tensor(value))
        return module

    return make, tuple(inputs)


def _class_of(title: str, head: str, body: Sequence[str]) -> type[nn.Module]:
    """Return a module class with one method. Its source is where :mod:`inspect` looks for it."""
    text = "\n".join(["class Sample(nn.Module):", f"    {head}", *(f"        {line}" for line in body), ""])
    file = f"<{title}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    names: dict[str, Any] = {"torch": torch, "nn": nn, "Tensor": Tensor, "__name__": __name__}
    exec(compile(text, file, "exec"), names)
    result: type[nn.Module] = names["Sample"]
    return result


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


def _use_of(called: Any, arguments: tuple[Any, ...], device: Device, is_view: bool) -> Use | None:
    """Return the function that the program applies to the results of a call; None if the device does not declare it."""
    if not _has_declared_dtypes(arguments, device):
        return None
    for use in _users(device) if is_view else (Use(),):
        try:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                results = accept_by_position(called)(*arguments)
                used = use(results)
        except Exception:  # eager does not support the dtype, or the user does not
            continue
        if _has_declared_dtypes((results, used), device):
            return replace(use, is_of_list=is_view and not isinstance(results, Tensor))
    return None


def _users(device: Device) -> Iterator[Use]:
    """Yield the uses that the device computes, of one or two equal tensors."""
    for op in dict.fromkeys((*_USERS, *declared_operators(device))):
        support, samples = device.ops.get(op), SAMPLES.get(op)
        if support is None or support.kind == "view" or operator(op) is None or not samples:
            continue
        sample = samples[0]
        if len(sample) <= 2 and all(isinstance(argument, Tensor) for argument in sample):
            yield Use(op, len(sample))


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
