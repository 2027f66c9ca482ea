"""Operators in place, inside and beside groups: values, dtypes, strides and errors are those of eager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from graphs import groups, kinds, warmed_up
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import torchmdla
from torchmdla.testing.compare import assert_matches
from torchmdla.testing.op_samples import SAMPLES

pytestmark = pytest.mark.usefixtures("without_gradients")


def in_place_of(name: str) -> Any | None:
    """Return the in-place overload of the operator with this name, or None."""
    base, _, overload = name.removeprefix("aten::").partition(".")
    packet = getattr(torch.ops.aten, base + "_", None)
    return getattr(packet, overload or "default", None)


def error_of(function: Callable[..., object], *inputs: Any) -> str | None:
    """Return the first line of the ``RuntimeError`` that PyTorch's op raises, or None."""
    try:
        function(*inputs)
    except RuntimeError as error:
        return [line for line in str(error).splitlines() if line][-1].removeprefix("RuntimeError: ")
    return None


# --- every op ------------------------------------------------------------------------------------------


_OPS = [
    name
    for name, (arguments, *_) in SAMPLES.items()
    if name != "aten::addmm"  # its result is larger than the tensor to which it adds
    and isinstance(arguments[0], Tensor)
    and (op := in_place_of(name))
    and torch.Tag.inplace_view not in op.tags
]


@pytest.mark.parametrize("name", _OPS)
@pytest.mark.sampled(15)
def test_every_op_in_place(name):
    in_place, arguments = in_place_of(name), SAMPLES[name][0]
    names = [argument.name for argument in in_place._schema.arguments]
    positional = sum(not argument.kwarg_only for argument in in_place._schema.arguments)
    keywords = dict(zip(names[positional:], arguments[positional:], strict=False))

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        z = torch.logical_not(x) if x.dtype == torch.bool else torch.neg(x)
        in_place(z, *arguments[1:positional], **keywords)
        return z, torch.stack([z, z])

    x = arguments[0].mT.contiguous().mT if arguments[0].dim() > 1 else arguments[0]
    scripted = warmed_up(function, x)
    assert_matches(scripted(x), function(x))
    assert torchmdla.stats().fallbacks == {}
    assert torchmdla.stats().specialisations == 1


# --- promotion, broadcasting, strides ------------------------------------------------------------------


def arithmetic(x: Tensor, y: Tensor) -> Tensor:
    z = x * 1
    z += y
    z *= 2
    return torch.abs(z)


def compared(x: Tensor, y: Tensor) -> Tensor:
    z = x * 1
    z.gt_(y)
    return z + z


def divided(x: Tensor, y: Tensor) -> Tensor:
    z = x * 2
    z.div_(2)
    return z + y


def read_before(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    z = x * 2
    before = torch.tanh(z)
    z.add_(y)
    return before + 1, z * 3


def replaced(x: Tensor, y: Tensor) -> Tensor:
    z = x * 2
    z.copy_(y)
    w = torch.tanh(z)
    w.fill_(0.7)
    return z + w


def indexed(x: Tensor, y: Tensor) -> Tensor:
    z = x * 2
    z.index_add_(0, torch.tensor([0, 1, 0]), y[:3])
    return z * 2


def masked(x: Tensor, y: Tensor) -> Tensor:
    z = x * 2
    z.masked_fill_(x > 0, 0.5)
    z.clamp_(min=0.25)
    return z + y


def conditional(x: Tensor, y: Tensor) -> Tensor:
    if bool((x > 0).all()):
        z = x * 2
    else:
        z = x - 1
    z.add_(y)
    return z * 2


def check(function: Callable[..., Any], inputs: Sequence[Tensor]) -> None:
    """Compare the recorded run, a compiled run and a run by the interpreter, after calls with other tensors."""
    scripted = warmed_up(torch.jit.script(function), _F, _F)
    expected = error_of(function, *inputs)
    for enabled in (True, True, False):
        with torchmdla.enabled(enabled):
            if expected is None:
                assert_matches(scripted(*inputs), function(*inputs))
            else:
                assert expected in (error_of(scripted, *inputs) or "")


def window(x: Tensor, y: Tensor) -> Tensor:
    z = x * 2
    z[1:3, 2:] = y[:2, :4]
    z[:, 0] = 0.5
    z[-1:, ::2] *= 3
    return z + 1


def rows(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    z = x * 2
    before = z.sum(0)
    z[1].add_(y[0]).mul_(2)
    z[0] = z[1] + before
    return z * 2, before


def seen_by_another_view(x: Tensor, y: Tensor) -> Tensor:
    z = x * 2
    row = z[1]
    z[:, 2:] = y[:, 2:]
    row.mul_(2)
    return z + row


def moved_within(x: Tensor, y: Tensor) -> Tensor:
    z = x * 2
    z[1:] = z[:-1] * 2
    z[:, 1:] = z[:, :1]
    return z + y


_F, _I = torch.linspace(-2, 2, 24).view(4, 6), torch.arange(24).view(4, 6) + 1

_INPUTS = {
    "floats": (_F, _F + 1),
    "double added to float": (_F, _F.double()),
    "float added to double": (_F.double(), _F),
    "int added to float": (_F, _I),
    "float added to int": (_I, _F),
    "int64 added to int32": (_I.int(), _I),
    "ints": (_I, _I),
    "bools": (_F > 0, _F > 1),
    "bfloat16": (_F.bfloat16(), _F),
    "row added": (_F, _F[0].expand(4, 6)),
    "added to a row": (_F[:1], _F),
    "added to a number": (torch.tensor(1.5), _F),
    "transposed": (_F.view(6, 4).t(), _F),
    "strided": (torch.cat([_F, _F], 1)[:, ::2], _F),
    "expanded": (_F[:1].expand(4, 6), _F),
}


@pytest.mark.parametrize("inputs", [pytest.param(inputs, id=name) for name, inputs in _INPUTS.items()])
@pytest.mark.parametrize(
    "function", [arithmetic, compared, divided, read_before, replaced, indexed, masked, conditional]
)
@pytest.mark.sampled(10)
def test_dtypes_strides_and_errors_are_those_in_place(function, inputs):
    check(function, inputs)


@pytest.mark.parametrize(
    "inputs",
    [pytest.param(pair, id=name) for name, pair in _INPUTS.items() if pair[0].shape == pair[1].shape == _F.shape],
)
@pytest.mark.parametrize("function", [window, rows, seen_by_another_view, moved_within])
def test_writes_through_slices(function, inputs):
    check(function, inputs)


def numbered_windows(x: Tensor) -> Tensor:
    """Return a result that depends on Swin's attention mask of shifted windows."""
    mask = x.new_zeros(x.shape)
    number = 0
    for rows in (slice(0, -2), slice(-2, -1), slice(-1, None)):
        for columns in (slice(0, -2), slice(-2, -1), slice(-1, None)):
            mask[rows, columns] = number
            number += 1
    return torch.relu(x) * 2 + (mask.unsqueeze(0) - mask.unsqueeze(1)).sum(0)


def test_a_mask_that_is_written_by_slices_takes_no_group_apart() -> None:
    traced = torch.jit.trace(numbered_windows, (_F,), check_trace=False)
    for _ in range(3):
        assert_matches(traced(_F), numbered_windows(_F))
    assert len(groups(traced.graph_for(_F))) == 1
    assert torchmdla.stats().fallbacks == {}
    assert torchmdla.stats().specialisations == 1


# --- lists and tuples ----------------------------------------------------------------------------------


def in_tuple(x: Tensor, y: Tensor) -> Tensor:
    t = (x * 2, x * 3)
    t[0].add_(1)
    return torch.cat([t[0], t[1]]) * 2


def each(x: Tensor, y: Tensor) -> Tensor:
    values = [x * 2, x * 3]
    for value in values:
        value.mul_(2)
    return torch.stack(values) * 2


def zipped(x: Tensor, y: Tensor) -> Tensor:
    values = [x * 2, x * 3]
    others = [y * 2, y * 3]
    for a, b in zip(values, others):  # noqa: B905  (TorchScript has no `strict`)
        a.add_(b)
    return torch.stack(values) * 2


def by_no_op_of_the_device(x: Tensor, y: Tensor) -> Tensor:
    a, b = x * 2, x * 3
    a.lgamma_()
    return torch.cat([a, b]) * 2


def of_a_view(x: Tensor, y: Tensor) -> Tensor:
    a, b = x * 2, x * 3
    values = [a, b]
    a[0].add_(1)
    return torch.cat(values) * 2 + values[0].sum()


def returned(x: Tensor, y: Tensor) -> tuple[list[Tensor], Tensor]:
    a, b = x * 2, x * 3
    values = [a, b]
    a.add_(1)
    a.mul_(y)
    return values, a * 2


def appended_to(x: Tensor, y: Tensor) -> list[Tensor]:
    values = [x * 2]
    for i in range(3):
        values.append(values[i] + 1)
        values[i].mul_(y)
    return values


def in_a_branch(x: Tensor, y: Tensor) -> Tensor:
    a, b = x * 2, x * 3
    values = [a, b]
    if bool((x > -100).all()):
        a.mul_(3)
        values[y.size(0) - 1].add_(a)
    return torch.cat(values) * 2 + values[y.size(0) - 2].sum()


def in_a_loop(x: Tensor, y: Tensor) -> Tensor:
    values = [x * 2, x * 3]
    for i in range(y.size(0) * 5):
        values[i % 2].add_(values[1])
        values[1].mul_(0.5)
    return torch.stack(values) + values[y.size(0) - 2].sum()


@pytest.mark.parametrize(
    "function",
    [in_tuple, each, zipped, by_no_op_of_the_device, of_a_view, returned, appended_to, in_a_branch, in_a_loop],
)
def test_elements_of_containers(function):
    scripted = torch.jit.script(function)
    x, y = torch.rand(2, 3) + 0.5, torch.rand(2, 3)
    for _ in range(4):
        assert_matches(scripted(x, y), function(x, y), layers=4)


# --- effects on groups ------------------------------------------------------------------------------------------------


def test_a_write_between_reads_does_not_divide_a_group():
    scripted = warmed_up(torch.jit.script(read_before), _F, _F)
    (group,) = groups(torchmdla.graph_for(scripted, _F, _F))
    assert "aten::add_" in kinds(group)
    assert kinds(group).count("aten::clone") == 1  # the interpreter must not overwrite a tensor that another op reads


def test_a_write_without_readers_copies_nothing():
    scripted = warmed_up(torch.jit.script(arithmetic), _F, _F)
    (group,) = groups(torchmdla.graph_for(scripted, _F, _F))
    assert kinds(group) == ["aten::mul", "aten::add_", "aten::mul_", "aten::abs"]


def test_gradients_of_a_group_that_was_formed_without():
    scripted = torch.jit.script(read_before)
    for _ in range(4):
        scripted(_F, _F)
    with torch.enable_grad():
        for _ in range(3):
            ours, theirs = (_F.clone().requires_grad_() for _ in range(2))
            results = [function(x, _F) for function, x in ((scripted, ours), (read_before, theirs))]
            for first, second in results:
                (first.sum() + (second * second).sum()).backward()
            assert_matches(results[0], results[1])
            assert_matches(ours.grad, theirs.grad)


# --- any program ---------------------------------------------------------------------------------------

_MAKE: Sequence[Callable[[Tensor], Tensor]] = [torch.tanh, lambda x: x * 2, torch.special.i0e]
_VIEW: Sequence[Callable[[Tensor], Tensor]] = [
    lambda x: x.view(-1),
    lambda x: x.t(),
    lambda x: x[:1],
    lambda x: x[..., 1:],
    lambda x: x.chunk(2, -1)[0],
]
_WRITE: Sequence[Callable[[Tensor, Tensor], object]] = [
    lambda x, y: x.add_(1),
    lambda x, y: x.mul_(y.sum()),
    lambda x, y: x.relu_(),
    lambda x, y: x.zero_(),
    lambda x, y: x.copy_(y.reshape(-1)[0]),
    lambda x, y: x.fill_(3),
    lambda x, y: x.i0_().clamp_(-9, 9),
]
_READ: Sequence[Callable[[Tensor, Tensor], Tensor]] = [
    lambda x, y: torch.cat([x.reshape(-1), y.reshape(-1)]),
    lambda x, y: torch.stack([x, x]).sum(0),
    lambda x, y: x * y.mean(),
]
_STEPS = {"make": (_MAKE, 1), "view": (_VIEW, 1), "write": (_WRITE, 2), "read": (_READ, 2)}


def _program(steps: Sequence[tuple[str, int, int, int]]) -> Callable[[Tensor, Tensor], tuple[Tensor, ...]]:
    """Return a program that computes a value from earlier ones in each step, and returns all values."""

    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        values = [x * 1, y]
        for kind, choice, first, second in steps:
            table, arity = _STEPS[kind]
            operands = [values[place % len(values)] for place in (first, second)][:arity]
            result = table[choice % len(table)](*operands)
            if kind != "write":
                values.append(result)
        return tuple(value * 1 for value in values)

    return function


@settings(max_examples=40)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["make", "view", "write", "write", "read"]),
            st.integers(0, 6),
            st.integers(0, 9),
            st.integers(0, 9),
        ),
        min_size=2,
        max_size=9,
    )
)
def test_any_program_with_views_and_writes(steps):
    function = _program(steps)
    x, y = torch.rand(2, 4) + 0.5, torch.rand(2, 4)
    try:
        expected = function(x.clone(), y.clone())
    except (RuntimeError, IndexError):
        return  # a view that this tensor does not have
    scripted = torch.jit.trace(function, (x.clone(), y.clone()), check_trace=False)
    for enabled in (True, True, True, False):
        ours, theirs = (x.clone(), y.clone()), (x.clone(), y.clone())
        expected = function(*theirs)
        with torchmdla.enabled(enabled):
            assert_matches(scripted(*ours), expected, layers=len(steps))
        assert_matches(ours, theirs, layers=len(steps))
