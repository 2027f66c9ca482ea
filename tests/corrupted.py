"""Calls with good arguments, then with arguments of the same types and sizes, some of which eager refuses.

Eager's kernels check indices, targets, probabilities, counts, divisors, starts and ends. Code that is compiled from
good calls must raise eager's errors for the same arguments, and otherwise return eager's values.
:data:`PROGRAMS` names::

    corrupted.opinfo.index_select.float32   the samples of PyTorch's operator database
    corrupted.indexing.take                 a program of torchmdla.testing
    corrupted.numbers.aten::narrow          the samples of an operator that the cpu device supports, with its integers
                                            as arguments at run time

A program changes the elements of all tensors in turn, or the integers of one argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import Any

import torch
from fuzz.text import HEAD, module_of
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from torchmdla.testing import opinfo
from torchmdla.testing import programs as registry
from torchmdla.testing.frontends import NotAvailableError
from torchmdla.testing.op_samples import SAMPLES
from torchmdla.testing.programs import Program
from torchmdla.testing.programs.inputs import copy_tensor, draw_inputs
from torchmdla.testing.programs.operators import operator
from torchmdla.testing.programs.program import factory_of

_PREFIX, _NUMBERS, _OPINFO = "corrupted.", "numbers.", "opinfo."

# The first calls of an operator profile it and compile it; later calls run the code. Other integers are compiled again.
_UNTIL_COMPILED = 4
_UNTIL_COMPILED_AGAIN = 3

# For these arguments, eager itself checks too little. It reads or writes outside of its tensors, divides by zero in C,
# or allocates as many tensors as memory holds. A process may end, or a value may come from another call.
_FAULTS_OF_EAGER: Mapping[str, str] = {
    "opinfo.nn.functional.ctc_loss": "targets beyond the classes",
    "opinfo.nn.functional.embedding_bag": "offsets that decrease",
    "opinfo.repeat_interleave": "repeats below zero whose sum is the size of the result",
    "opinfo._segment_reduce": "offsets that decrease or are beyond the end",
    "opinfo.tensor_split": "a great number of sections",
    "opinfo.linalg.eig": "NaN and infinity",
    "opinfo.linalg.ldl_solve": "pivots that are outside of the matrix",
    "opinfo.linalg.lstsq": "NaN",
    "numbers.aten::_native_multi_head_attention": "no heads",
    "numbers.aten::_transformer_encoder_layer_fwd": "no heads",
}
# Eager has another message, or more than one value is right.
_OTHERS: Mapping[str, str] = {
    "opinfo.nn.functional.linear_cross_entropy": "tracing takes another kernel than eager, with another message",
    "opinfo.quantile": "PyTorch looks at the places of eager tensors of the CPU only",
    "opinfo.nanquantile": "PyTorch looks at the places of eager tensors of the CPU only",
    "opinfo.svd_lowrank": "of equal singular values any basis is right",
    "opinfo.pca_lowrank": "of equal singular values any basis is right",
}

# Among this number of samples, at least one has values that eager refuses, if eager refuses any.
_TRIED = 6

_INTEGERS = frozenset({torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8})
_FLOATS = (float("nan"), float("inf"), float("-inf"), -0.5, 1.5, 0.0, -3.0)

Inputs = tuple[Any, ...]


def programs(name: str, seed: int = 0, limit: int | None = None) -> Iterator[Program]:
    """Return the programs of a name, of ``limit`` samples at most. They are the same for each call."""
    source = name.removeprefix(_PREFIX)
    if source.startswith(_NUMBERS):
        samples: Iterable[Program] = _with_numbers(source)
    elif source.startswith(_OPINFO):
        samples = opinfo.programs(source, seed, limit and limit * _TRIED)
    else:
        samples = registry.programs(source, seed, None)
    changed = filter(None, (list(_corrupted(program, seed)) for program in samples))
    yield from chain.from_iterable(islice(changed, limit))


def _corrupted(program: Program, seed: int) -> Iterator[Program]:
    """Return the changed programs of a program.

    One has other elements of tensors, if eager checks some. There is one more for each argument with integers.
    """
    good = draw_inputs(program.inputs, seed)
    if not _is_taken(program, good):
        return
    make = partial(replace, program, inputs=good, errors=True)
    name = f"{_PREFIX}{program.name}"
    others = [changed for place in range(len(good)) for changed in _changed(good, place, Tensor)]
    # Integers that an operator computes with are not indices.
    tensors = [leaf for leaf in tree_leaves(good) if isinstance(leaf, Tensor)]
    if any(leaf.dtype in _INTEGERS for leaf in tensors) or not all(_is_taken(program, inputs) for inputs in others):
        yield make(name=name, series=(*[good] * _UNTIL_COMPILED, *others, good))
    for place in range(len(good)):
        others = [
            changed
            for inputs in _changed(good, place, int)
            for changed in [inputs] * (_UNTIL_COMPILED_AGAIN if _is_taken(program, inputs) else 1)
        ]
        if others:
            yield make(name=f"{name}:{place}", series=(*[good] * _UNTIL_COMPILED, *others, good))


def _is_taken(program: Program, inputs: Inputs) -> bool:
    """Return whether eager accepts a call."""
    arguments = tree_map(lambda leaf: copy_tensor(leaf) if isinstance(leaf, Tensor) else leaf, inputs)
    try:
        with torch.no_grad():
            program.make()(*arguments)
    except Exception:
        return False
    return True


def _changed(inputs: Inputs, place: int, kind: type) -> Iterator[Inputs]:
    """Return inputs in which one leaf of one argument is changed: the leaves of type ``kind``, each in turn."""
    leaves, spec = tree_flatten(inputs[place])
    for index, leaf in enumerate(leaves):
        if isinstance(leaf, kind) and not isinstance(leaf, bool):
            for other in _others(leaf, _sizes(inputs), is_alone=leaf is inputs[place]):
                argument = tree_unflatten([*leaves[:index], other, *leaves[index + 1 :]], spec)
                yield (*inputs[:place], argument, *inputs[place + 1 :])


def _sizes(inputs: Inputs) -> list[int]:
    """Return some sizes of the tensors, the most frequent first."""
    tensors = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor)]
    all_sizes = [size for tensor in tensors for size in (*tensor.shape, tensor.numel())]
    return sorted(set(all_sizes), key=lambda size: (-all_sizes.count(size), size))[:4]


def _others(leaf: Any, sizes: Sequence[int], is_alone: bool) -> Iterator[Any]:
    if isinstance(leaf, Tensor):
        yield from _other_tensors(leaf, sizes)
        return
    # A list holds sizes, or the strides of a window. With a number that exceeds all memory, eager computes for minutes.
    far = [2**40] if is_alone else []
    yield from (number for number in (*_around(sizes[:2]), 1, *far) if number != leaf)


def _around(sizes: Sequence[int]) -> list[int]:
    """Return indices inside dimensions of these sizes, and just outside."""
    return list(dict.fromkeys([-1, 0, *(place for n in sizes for place in (n - 1, n, n + 1, -n, -n - 1))]))


def _other_tensors(tensor: Tensor, sizes: Sequence[int]) -> Iterator[Tensor]:
    """Return tensors with another last element, with other elements throughout, and in the opposite order."""
    if tensor.layout != torch.strided or not tensor.numel() or tensor.is_complex() or tensor.is_quantized:
        return
    numbers = _numbers(tensor.dtype, sizes)
    for number in numbers:
        yield _with(tensor, slice(-1, None), number)
    if tensor.numel() > 1:
        for number in numbers:
            yield _with(tensor, slice(None), number)
        yield _with(tensor, slice(None), tensor.flatten().flip(0))


def _numbers(dtype: torch.dtype, sizes: Sequence[int]) -> Sequence[Any]:
    if dtype == torch.bool:
        return (True, False)
    if dtype not in _INTEGERS:
        return _FLOATS
    limits = torch.iinfo(dtype)
    # A count of this size exceeds all memory, or is so small that it takes little time.
    far = 2**40 if dtype == torch.int64 else 10**5
    return [number for number in (*_around(sizes), far, -far, limits.min) if limits.min <= number <= limits.max]


def _with(tensor: Tensor, places: slice, values: Any) -> Tensor:
    """Return a copy in the same layout with other values at ``places`` of its elements in order."""
    elements = tensor.flatten().clone()
    elements[places] = values
    return tensor.clone(memory_format=torch.preserve_format).copy_(elements.view(tensor.shape))


# --- operators with their integers as arguments ----------------------------------------------------------------------


def _with_numbers(source: str) -> Iterator[Program]:
    name = source.removeprefix(_NUMBERS)
    without_dimensions = tree_map(_without_dimensions, SAMPLES[name][0])
    for sample, arguments in (("0-d", without_dimensions), *enumerate(SAMPLES[name])):
        function, inputs = _function(name, arguments)
        yield Program(f"{source}:{sample}", factory_of(function), inputs, layers=4)


def _without_dimensions(leaf: Any) -> Any:
    """Return a tensor's first element. Its only dimension is 0, and its only index is 0."""
    if isinstance(leaf, Tensor):
        return leaf.flatten()[0].clone()
    return 0 if _is_integer(leaf) else leaf


def _function(name: str, arguments: Sequence[Any]) -> tuple[Any, Inputs]:
    """Return a function of the tensors and integers of a call, and these arguments.

    The source of the function contains the other arguments.
    """
    schema = operator(name)._schema
    declared: dict[str, tuple[str, Any]] = {}
    operands = []
    for value, argument in zip(arguments, schema.arguments, strict=False):
        if argument.N and _is_integer(value):
            value = [value] * argument.N
        kind = _type_of(value)
        if kind:
            declared[f"a_{argument.name}"] = (kind, list(value) if isinstance(value, tuple) else value)
        text = f"a_{argument.name}" if kind else f"float('{value}')" if isinstance(value, float) else repr(value)
        operands.append(f"{argument.name}={text}" if argument.kwarg_only else text)
    packet = name.replace("::", ".").split(".")[:2]
    results = [f"r{number}" for number in range(len(schema.returns))]
    # Elementwise operators follow, so that even a cheap operator becomes a group.
    is_list = schema.returns[0].type.kind() == "ListType"
    more = ["-(-r0[0])"] if is_list else [f"torch.where({result} == 0, {result}, {result})" for result in results]
    lines = [
        f"def program({', '.join(f'{key}: {kind}' for key, (kind, _) in declared.items())}):",
        f"    {', '.join(results)} = torch.ops.{'.'.join(packet)}({', '.join(operands)})",
        f"    return {', '.join([*results, *more])}",
    ]
    module = module_of(f"{HEAD}\n\n" + "\n".join(lines) + "\n", "corrupted")
    return module.program, tuple(value for _, value in declared.values())


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _type_of(value: object) -> str:
    """Return the type of an argument in TorchScript, or an empty string if it is to be a constant."""
    for kind, is_one in (("Tensor", lambda item: isinstance(item, Tensor)), ("int", _is_integer)):
        if is_one(value):
            return kind
        if isinstance(value, list | tuple) and value and all(map(is_one, value)):
            return f"List[{kind}]"
    return ""


def _names() -> Iterator[str]:
    with suppress(NotAvailableError):
        yield from opinfo.names(("float32", "int64"))
    for name, program in registry.PROGRAMS.items():
        if program.mode == "inference" and program.methods == ("forward",):
            yield name
    for name, samples in SAMPLES.items():
        has_integers = any(_is_integer(leaf) for sample in samples for leaf in tree_leaves(sample))
        if operator(name) is not None and has_integers:
            yield f"{_NUMBERS}{name}"


PROGRAMS: Mapping[str, str] = {
    f"{_PREFIX}{name}": name for name in _names() if not name.startswith((*_FAULTS_OF_EAGER, *_OTHERS))
}
