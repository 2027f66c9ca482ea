"""Writes and shared memory that compilers have lost silently: views, aliases, buffers, lists, ``out=``.

Gradients are included, since a write changes the gradients. ``test_silent_values.py`` names the source of these kinds
of errors.
"""

from __future__ import annotations

import pytest
import torch
from silent import Exceptions, assert_as_eager
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from torchmdla.testing.programs.inputs import Draw, booleans, integers, normal, offset, overlapping, strided, transposed
from torchmdla.testing.programs.program import functions, modules, with_gradients

X, Y = normal(4, 6), normal(4, 6)


def both(first: Draw, view) -> Draw:
    """Return inputs that share memory: a tensor and a view of it."""

    def make(generator: torch.Generator):
        tensor = first.make(generator)
        return tensor, view(tensor)

    return Draw(make)


# --- writes to intermediate tensors -----------------------------------------------------------------------------------


def write_through_chain(x: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.tanh(x)
    part = y.view(2, 12).t()[1:7].unsqueeze(0)
    part.mul_(3)
    return y + 1, part


def write_base_under_view(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    part = y[0:1].squeeze(0)
    y[0, 0] = 5
    y[:, 1] = 7
    return part, part * 2


def write_diagonal(x: Tensor) -> Tensor:
    y = torch.relu(x) * 2
    y.diagonal(1).add_(y[:, 5])
    y.fill_diagonal_(0.5)
    return y - 1


def write_parts(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x + 1
    a, b, c = y.chunk(3, 1)
    a.mul_(2)
    b.copy_(a)
    c.sub_(b)
    return y * 2, c


def write_unbound(x: Tensor) -> Tensor:
    y = x * 2
    rows = y.unbind(0)
    rows[0].zero_()
    rows[3].add_(rows[1])
    return y + rows[2]


def scan_of_rows(x: Tensor) -> Tensor:
    y = torch.sigmoid(x)
    for i in range(1, y.size(0)):
        y[i] = y[i - 1] * 0.5 + y[i]
    return y * 2


def swap_without_copy(x: Tensor) -> Tensor:
    y = x * 2
    row = y[0]
    y[0] = y[1]
    y[1] = row
    return y + 1


def twice_to_column(x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    y[:, 0] += x[:, 2].abs()
    y[:, 0] += x[:, 2].abs()
    return y * 3


def double_at_mask(x: Tensor) -> Tensor:
    y = x * 1.5
    y[y > 0] *= 2
    y[(y < 0).any(1)] -= 1
    return y


def put_between_slices(x: Tensor, at: Tensor) -> Tensor:
    y = x.view(2, 2, 6) * 2
    y[at % 2, :, at] = x[:2, 0]
    y[:, 1, at] += 1
    return y + 1


def reshape_or_copy(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    y.reshape(-1)[0] = 9
    y.t().reshape(-1)[1] = 11
    y.contiguous()[1, 1] = 13
    y.t().contiguous()[2, 2] = 15
    return y, y + 1


def clamp_slices(x: Tensor) -> Tensor:
    y = x * 3
    y[1:].clamp_(-0.5, 0.5)
    y[:, ::2].masked_fill_(y[:, ::2] > 1, -1.0)
    y[:0].fill_(7)
    return y * y


def read_then_write(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.abs() + 1
    z = torch.log(y)
    y.log_()
    w = y * 2
    y.zero_()
    return z, w


def write_with_other_dtype(x: Tensor) -> tuple[Tensor, Tensor]:
    y = (x * 10).int()
    y.mul_(3).add_(1)
    z = x.half() * 1
    z.add_(x)
    z.mul_(0.3)
    return y, z


def write_out(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    z = torch.zeros(6, 4)
    torch.mul(x, 2, out=z.t())
    w = torch.empty(0)
    torch.add(x, y, out=w)
    torch.sub(z, 1, out=z)
    return z, w * 2


def write_repeated(x: Tensor) -> Tensor:
    y = x.sum() * 2
    z = y.expand(3)
    y.add_(1)
    return z + 1


def as_other_strides(x: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.tanh(x) * 2
    z = y.as_strided((3, 3), (6, 2), 1)
    z.add_(1)
    return y, z * 2


def write_sorted(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    values, places = y.sort(1)
    y.fill_(1)
    values[0] = places[0].float()
    return values * 2, y + values


MADE = {
    "write_base_under_view": (write_base_under_view, X),
    "write_diagonal": (write_diagonal, X),
    "swap_without_copy": (swap_without_copy, X),
    "twice_to_column": (twice_to_column, X),
    "double_at_mask": (double_at_mask, X),
    "reshape_or_copy": (reshape_or_copy, X),
    "clamp_slices": (clamp_slices, X),
    "write_repeated": (write_repeated, X),
}

MADE_WITHOUT_GRADIENTS = {
    "read_then_write": (read_then_write, X),
    "scan_of_rows": (scan_of_rows, X),
    "write_unbound": (write_unbound, X),
    "write_parts": (write_parts, X),
    "write_through_chain": (write_through_chain, X),
    "put_between_slices": (put_between_slices, X, integers(2, high=2)),
    "write_with_other_dtype": (write_with_other_dtype, X),
    "write_out": (write_out, X, Y),
    "as_other_strides": (as_other_strides, X),
    "write_sorted": (write_sorted, X),
}


# --- writes to inputs -------------------------------------------------------------------------------------------


def input_read_between(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    x.sub_(1)
    z = x * y
    x[:, 2:5] = 2
    return y, z


def input_seen_as_bits(x: Tensor) -> tuple[Tensor, Tensor]:
    bits = x.view(torch.int32)
    y = bits & 255
    x.mul_(2)
    return y + 1, bits + 0


def input_and_its_view(pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    x, part = pair
    y = x * 2
    part.add_(1)
    z = x + 1
    x.mul_(3)
    return y + z, part * 1


def inputs_exchanged(x: Tensor, y: Tensor) -> Tensor:
    x.add_(y)
    y.copy_(x - y)
    x.sub_(y)
    return x * y


def inputs_returned(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    z = (x + y) * 2
    return x, z, z, x.t()


def input_returned_written(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.relu_()
    z = y + 1
    y.mul_(2)
    return y, z


def written_where_it_shares(x: Tensor) -> tuple[Tensor, Tensor]:
    a = x.contiguous()
    b = x.to(torch.float32).reshape(4, 6)
    c = F.dropout(x, 0.5, False).view_as(x)
    a[0] = 1
    b[1] = 2
    c[2] = 3
    return x * 2, a + b + c


def accumulated(total: Tensor, x: Tensor, at: Tensor) -> Tensor:
    total.index_add_(0, at, x * 2)
    total[at] *= 0.5
    total.scatter_(1, at[:, None], 1.5)
    return total.sum(0)


def shifted_over_itself(x: Tensor) -> Tensor:
    x[1:] = x[:-1].clone()
    x[:, :-1] += x[:, 1:] * 2
    return x * 1


def dropped_in_place(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    F.relu(y, inplace=True)
    F.hardtanh(x, -0.2, 0.2, inplace=True)
    F.threshold(y, 0.1, 20.0, inplace=True)
    return y, x + y


def filled_by_mask(x: Tensor, mask: Tensor) -> Tensor:
    x.masked_scatter_(mask, x.flip(0) * 2)
    x.t().masked_fill_(mask[0, :4], 0.0)
    return x.sum(1)


INPUTS = {
    "input_read_between": (input_read_between, X),
    "input_read_between_offset": (input_read_between, offset(normal(5, 6))),
    "input_read_between_strided": (input_read_between, strided(X)),
    "input_seen_as_bits": (input_seen_as_bits, X),
    "input_and_its_row": (input_and_its_view, both(X, lambda x: x[1])),
    "input_and_itself": (input_and_its_view, both(X, lambda x: x)),
    "input_and_its_transpose": (input_and_its_view, both(normal(5, 5), lambda x: x.t())),
    "inputs_exchanged": (inputs_exchanged, X, transposed(Y)),
    "inputs_returned": (inputs_returned, X, Y),
    "inputs_returned_overlapping": (inputs_returned, overlapping(X), Y),
    "input_returned_written": (input_returned_written, X),
    "written_where_it_shares": (written_where_it_shares, X),
    "accumulated": (accumulated, normal(5, 6), X, integers(4, high=5)),
    "shifted_over_itself": (shifted_over_itself, X),
    "dropped_in_place": (dropped_in_place, X),
    "filled_by_mask": (filled_by_mask, X, booleans(4, 6)),
}


# --- writes and gradients ---------------------------------------------------------------------------------------------


def written_unrecorded(x: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.exp(x)
    z = x * 3
    with torch.no_grad():
        z.mul_(2)
        z[0] += 1
    return y * 2, z + 1


def viewed_unrecorded(x: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.tanh(x) * 2
    with torch.no_grad():
        part = y.view(-1)[3:]
        row = y[0] * 2
    return part * y.view(-1)[3:], row + y


def recorded_again(x: Tensor) -> Tensor:
    y = x * 2
    with torch.no_grad():
        z = torch.sigmoid(y) + 1
        with torch.enable_grad():
            w = torch.tanh(y) * z
        u = w * 3
    return y * u + w


def unrecorded_in_branch(x: Tensor) -> Tensor:
    y = torch.sigmoid(x) * 2
    if x.size(0) > 3:
        with torch.no_grad():
            z = y * y + 1
    else:
        z = y
    return y * z


def detached_in_place(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    z = y.detach()
    z.add_(1)
    w = (x * 3).detach_()
    return y * 2, w * x


def overwritten_in_part(x: Tensor, y: Tensor) -> Tensor:
    z = x * 2
    z[1:3] = y[1:3] * 3
    z[:, 1] = z[:, 0] * 2 + y[:, 2]
    z.t()[5].mul_(2)
    return torch.tanh(z)


def written_under_many(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    a, b = y[:2], y.view(-1)
    a.mul_(3)
    b[::5] = 0
    return a * 2, b + y.reshape(-1)


WRITES_AND_GRADIENTS = {
    "written_unrecorded": (written_unrecorded, X),
    "viewed_unrecorded": (viewed_unrecorded, X),
    "recorded_again": (recorded_again, X),
    "unrecorded_in_branch": (unrecorded_in_branch, X),
    "detached_in_place": (detached_in_place, X),
    "overwritten_in_part": (overwritten_in_part, X, Y),
    "written_under_many": (written_under_many, X),
}


# --- complex tensors, and flag bits for pending operations ------------------------------------------------------------

C = normal(4, 6, dtype=torch.complex64)


def conjugate_is_a_view(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y = x.conj()
    imaginary = y.imag
    a = imaginary * 2 + x.real
    x.mul_(2j)
    return y * 1, imaginary + 0.5, a


def parts_written(x: Tensor) -> tuple[Tensor, Tensor]:
    pairs = torch.view_as_real(x)
    pairs[..., 0].mul_(2)
    y = torch.tanh(x.real) + x.imag * 3
    x.imag.copy_(y)
    return x.abs() * 2, y


COMPLEX = {"conjugate_is_a_view": (conjugate_is_a_view, C), "parts_written": (parts_written, C)}


# --- state of modules -------------------------------------------------------------------------------------------


class Replaced(nn.Module):
    """A buffer that each call replaces by another tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        self.total = self.total * 0.5 + x.sum(0)
        return torch.tanh(x) * self.total


class Counted(nn.Module):
    """A counter of calls, and a buffer row whose index depends on it."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.register_buffer("memory", torch.zeros(3, 6))

    def forward(self, x: Tensor) -> Tensor:
        self.memory[self.count % 3] = torch.tanh(x[0]) * 2
        self.count += 1
        return self.memory.sum(0) * self.count


class Clipped(nn.Module):
    """A weight to which each call writes without recording it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 36).view(6, 6))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.weight.mul_(0.9).clamp_(-0.5, 0.5)
        return torch.tanh(x @ self.weight) + self.weight.sum()


class Tied(nn.Module):
    """A weight with two names, and a view of it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6, bias=False)
        self.outer = nn.Linear(6, 6, bias=False)
        self.outer.weight = self.inner.weight

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.inner(x)) @ self.outer.weight + self.inner.weight[0]


class Averaged(nn.Module):
    """Running statistics as a plain mean of all calls."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6, momentum=None)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.norm(x) * 2
        return y, self.norm.running_mean + self.norm(y).mean()


STATES = {"replaced": (Replaced, X), "counted": (Counted, X), "clipped": (Clipped, X), "averaged": (Averaged, X)}


# --- lists and dicts --------------------------------------------------------------------------------------------


def list_of_views(x: Tensor) -> tuple[list[Tensor], Tensor]:
    y = x * 2
    rows = [y[i] for i in range(4)]
    rows.append(y[0] + 1)
    rows[1].add_(5)
    rows.reverse()
    return rows, torch.cat(rows)


def dict_of_states(x: Tensor) -> dict[str, Tensor]:
    states = {"first": x * 2, "second": torch.tanh(x)}
    states["first"].add_(1)
    states["third"] = states["first"] + states["second"]
    states["second"] = states.pop("first") * 2
    return states


def loop_over_growing(x: Tensor, count: int) -> Tensor:
    values = [x * 2]
    for i in range(count):
        values.append(torch.sigmoid(values[i]) + values[-1])
        if i > 1:
            values[0].mul_(0.5)
    return torch.stack(values).sum(0)


CONTAINERS = {
    "list_of_views": (list_of_views, X),
    "dict_of_states": (dict_of_states, X),
    "loop_over_growing": (loop_over_growing, X, 4),
}

# Differences between PyTorch's own frontends and eager.
_BITS = "TorchScript has no views as another dtype"
_COPIES = "AOT Autograd takes what dropout returns in evaluation for a copy"
_TRACED = "a trace holds no modes of gradients"
_VIEWED = "TorchScript records gradients of views that were taken where none are recorded"
_AGAIN = "TorchScript has no enable_grad"
_STATE = "a trace sets no attributes"
_UNTIED = "PyTorch moves each name of a weight to the lazy device as a weight of its own"
_UNRECORDED = ("written_unrecorded", "viewed_unrecorded", "recorded_again", "unrecorded_in_branch")
EXCEPTIONS: Exceptions = {
    ("torchscript:trace", "inputs.input_seen_as_bits"): ("not captured", _BITS),
    ("torchscript:script", "inputs.input_seen_as_bits"): ("not captured", _BITS),
    ("dynamo:compile", "inputs.written_where_it_shares"): ("pytorch", _COPIES),
    **{("torchscript:trace", f"unrecorded.{name}:gradients"): ("pytorch", _TRACED) for name in _UNRECORDED},
    ("torchscript:script", "unrecorded.viewed_unrecorded:gradients"): ("pytorch", _VIEWED),
    **{
        ("torchscript:script", f"unrecorded.recorded_again{form}"): ("not captured", _AGAIN)
        for form in ("", ":gradients")
    },
    **{("torchscript:trace", f"states.{name}"): ("pytorch", _STATE) for name in ("replaced", "counted", "averaged")},
    **{("lazy:step", f"states.tied{form}"): ("wrong", _UNTIED) for form in ("", ":gradients")},
}

PROGRAMS = [
    *with_gradients(functions("made", MADE)),
    *functions("made", MADE_WITHOUT_GRADIENTS),
    *functions("inputs", INPUTS),
    *with_gradients(functions("unrecorded", WRITES_AND_GRADIENTS)),
    *functions("complex", COMPLEX),
    *modules("states", STATES),
    *with_gradients(modules("states", {"tied": (Tied, X)})),
    *functions("containers", CONTAINERS),
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
@pytest.mark.usefixtures("lazy_device")
@pytest.mark.sampled(6)
def test_as_eager(program):
    assert_as_eager(program, EXCEPTIONS)
