"""Operators outside of groups: they are counted with reasons, and a program without any group causes a warning."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import pytest
import torch
from graphs import anew
from torch import Tensor

import torchmdla
from torchmdla import CompileError
from torchmdla.testing.compare import assert_matches

X = torch.randn(6, 5)


def called(function: Any, *inputs: Any) -> Any:
    scripted = anew(function)
    with torch.no_grad():
        for _ in range(4):
            scripted(*inputs)
    return scripted


def rows(text: str) -> list[tuple[str, int]]:
    return [(row, count) for row, count in torchmdla.stats().ungrouped.items() if text in row]


def with_nonzero(x: Tensor) -> Tensor:
    places = torch.nonzero(torch.relu(x) + 1)
    return torch.exp(places.float()) * 2


def test_counted_with_reason_and_line() -> None:
    called(with_nonzero, X)
    ((row, count),) = rows("nonzero")
    line = with_nonzero.__code__.co_firstlineno + 1
    assert row == f"aten::nonzero: device 'cpu' has no such operator (at {__file__}:{line})"
    assert count == 1
    torchmdla.reset_stats()
    assert torchmdla.stats().ungrouped == {}


def alone(x: Tensor) -> Tensor:
    return torch.relu(x)


def written_through(x: Tensor, y: Tensor) -> Tensor:
    z = x[1:]
    z.add_(1)
    return torch.relu(y) * 2


def drawn(x: Tensor) -> Tensor:
    return torch.dropout(torch.relu(x) + 1, 0.5, True)


@pytest.mark.parametrize(
    ("function", "inputs", "op", "reason"),
    [
        (alone, 1, "aten::relu", "it is alone"),
        (written_through, 2, "aten::slice.Tensor", "it is a view that the program writes through"),
        (written_through, 2, "aten::add_.Scalar", "it has effects"),
        (drawn, 1, "aten::dropout", "device 'cpu' does not take it with these arguments"),
    ],
)
def test_reasons(function: Any, inputs: int, op: str, reason: str) -> None:
    called(function, *(X.clone() for _ in range(inputs)))
    ((row, _),) = rows(f"{op}: ")
    assert f"{op}: {reason}" in row


def test_through_torch_compile() -> None:
    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(drawn, backend="torchmdla")(X)
    ((row, count),) = rows("it has effects")
    assert f"(at {__file__}:{drawn.__code__.co_firstlineno + 1})" in row
    assert count == 1


def test_a_program_without_a_group_warns_once() -> None:
    def only_nonzero(x: Tensor) -> Tensor:
        return torch.nonzero(x)

    with pytest.warns(UserWarning, match=r"no group to compile: aten::nonzero: device 'cpu' has no such") as seen:
        called(only_nonzero, X)
    assert len([warning for warning in seen if "no group" in str(warning.message)]) == 1


def test_a_program_with_groups_does_not() -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="torchmdla")
        called(with_nonzero, X)
        called(alone, X)  # the program is small, but the device lacks none of its operators


def layer(x: Tensor, weight: Tensor) -> Tensor:
    return torch.relu(torch.nn.functional.linear(x, weight)) * 2 + 1


def product(x: Tensor, weight: Tensor) -> Tensor:
    return torch.nn.functional.linear(x, weight) * 2 + 1


COMPLEX = torch.randn(6, 5, dtype=torch.complex64), torch.randn(4, 5, dtype=torch.complex64)


def test_inputs_of_other_dtypes_are_reported() -> None:
    refused = "dtype torch.complex64 is not taken by device 'cpu'"
    torchmdla.capture.specialise._warned.clear()
    with pytest.warns(RuntimeWarning, match=refused) as seen:
        scripted = called(product, *COMPLEX)
    (told,) = [str(warning.message) for warning in seen if refused in str(warning.message)]
    assert "torchmdla.explain(model, *inputs) has details" in told
    assert_matches(scripted(*COMPLEX), product(*COMPLEX))
    (reason,) = torchmdla.stats().fallbacks
    assert refused in reason
    torchmdla.enable(strict=True)
    with pytest.raises(CompileError, match=refused), torch.no_grad():
        scripted(*COMPLEX)


def through_complex(x: Tensor) -> Tensor:
    x = torch.relu(x) * 2
    x = (x.to(torch.complex64) * 3).abs()
    return torch.exp(x) + 1


def test_another_dtype_within_a_program_is_left_out() -> None:
    scripted = called(through_complex, X)
    assert_matches(scripted(X), through_complex(X))
    assert any("torch.complex64 is not taken" in row for row in torchmdla.stats().left_out)
    assert torchmdla.stats().fallbacks == {}


def masked(x: Tensor) -> Tensor:
    y = torch.relu(x) + 1
    return torch.exp(y[y > 1.5]) * 2


def test_groups_are_asked_while_threads_make_and_divide_them() -> None:
    """The lock of a group and the lock of the list of groups are acquired in turn, never one inside the other."""
    results: list[Tensor] = []
    torchmdla._C.keep_inputs(True)
    threads = [threading.Thread(target=lambda: results.append(called(masked, X)(X))) for _ in range(4)]
    for thread in threads:
        thread.start()
    seen = 0
    while any(thread.is_alive() for thread in threads):
        seen = max(seen, len(torchmdla._C.groups()))
        torchmdla._C.keep_inputs(seen % 2 == 0)
    torchmdla._C.keep_inputs(False)
    assert seen > 0
    for result in results:
        assert_matches(result, masked(X))
    assert len(results) == 4


def test_calls_that_wait_for_backward_are_counted() -> None:
    scripted = anew(layer)
    weight = torch.randn(4, 5, requires_grad=True)
    for _ in range(3):
        scripted(X, weight).sum().backward()
    assert torchmdla.stats().training_calls == 1, "later steps run compiled"
    assert torchmdla.stats().fallbacks == {}
    torchmdla.reset_stats()
    with torch.no_grad():
        for _ in range(3):
            scripted(X, weight)
    assert torchmdla.stats().training_calls == 0


def inverse(x: Tensor) -> Tensor:
    return torch.linalg.inv(torch.relu(x.t() @ x) + torch.eye(5)) * 2


def test_strict_mode_names_ungrouped_operators() -> None:
    torchmdla.enable(strict=True)
    with pytest.raises(CompileError, match="aten::nonzero: device 'cpu' has no such operator") as raised:
        torchmdla.compile(anew(with_nonzero), X)
    assert raised.value.op == "aten::nonzero"
    assert raised.value.source == f"{__file__}:{with_nonzero.__code__.co_firstlineno + 1}"
    torch._dynamo.reset()
    with pytest.raises(Exception, match=r"aten::linalg_inv_ex.*: device 'cpu' has no such operator"), torch.no_grad():
        torch.compile(inverse, backend="torchmdla", options={"strict": True})(X)
    # An operator that torchmdla leaves to eager PyTorch on purpose does not count as a failure.
    torchmdla.compile(anew(alone), X)
