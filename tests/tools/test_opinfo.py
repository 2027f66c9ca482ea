"""Tests of PyTorch's operator database over TorchScript: no wrong value and no crash.

They check a fixed slice. ``python -m torchmdla.testing --opinfo`` runs the whole database.
"""

from __future__ import annotations

import builtins
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
import torch

import torchmdla
from torchmdla.testing import opinfo
from torchmdla.testing.checking import check
from torchmdla.testing.frontends import NotAvailableError, Variant, variant_of
from torchmdla.testing.runner import check_outcome

pytest.importorskip("expecttest")

WAY = "torchscript:trace"

# Every _EVERY-th operator with its first sample. Each dtype starts at another operator.
_EVERY = 24
_DTYPES = ("float32", "int64", "bool", "float64", "bfloat16", "float16", "int8", "uint8")
SLICE = [name for offset, dtype in enumerate(_DTYPES) for name in opinfo.names([dtype])[3 * offset :: _EVERY]]

# Operator with dtype, and sample. Each once gave a wrong result or made the compiler fail.
MENDED = [
    ("opinfo.argmax.float32", 0),
    ("opinfo.argmin.int64", 0),
    ("opinfo.roll.float32", 3),
    ("opinfo.roll.int64", 3),
    ("opinfo.scatter.float32", 21),
    ("opinfo.scatter.float32", 24),
    ("opinfo.softmax.float32", 0),
    ("opinfo.masked_fill.bool", 0),
    ("opinfo.__getitem__.float32", 6),
    ("opinfo.masked.normalize.float32", 0),
    ("opinfo.nn.functional.grid_sample.float32", 0),
]


def checked(name: str, index: int) -> Any:
    (program,) = [p for p in opinfo.programs(name) if p.name == f"{name}:{index}"]
    return check(program, WAY, variant_of(WAY))


@pytest.mark.parametrize("name", SLICE)
@pytest.mark.sampled(15)
def test_slice(name: str) -> None:
    for program in opinfo.programs(name, limit=1):
        outcome = check(program, WAY, variant_of(WAY))
        assert outcome is None or check_outcome(outcome).expected, outcome


@pytest.mark.parametrize(("name", "index"), MENDED)
def test_mended(name: str, index: int) -> None:
    outcome = checked(name, index)
    assert outcome is not None and (outcome.status, outcome.specialisations) == ("ok", 1)


@pytest.mark.parametrize(
    ("name", "index", "status"),
    [
        ("opinfo.masked.amin.int64", 37, "ok"),
        ("opinfo.index_put.bool", 2, "fallback"),
        ("opinfo.hash_tensor.int64", 0, "ok"),
        ("opinfo.multinomial.float32", 0, "ok"),
        ("opinfo.nn.functional.dropout.float32", 0, "ok"),
    ],
)
def test_no_wrong_value(name: str, index: int, status: str) -> None:
    """Check programs that once had wrong values or no reference. Their random numbers came from uncaptured seeds."""
    outcome = checked(name, index)
    assert outcome is not None and outcome.status == status


def test_every_dtype_has_names() -> None:
    names = opinfo.names(opinfo.DTYPES)
    assert len(names) == len(set(names)) > 2000
    assert {name.rpartition(".")[2] for name in names} == set(opinfo.DTYPES)


def test_samples_are_the_same_each_time() -> None:
    first, again = (list(opinfo.programs("opinfo.add.float32", seed=3)) for _ in range(2))
    assert [p.name for p in first] == [p.name for p in again]
    for sample, other in zip(first, again, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(sample.inputs, other.inputs, strict=True))


def test_a_limit_spreads_over_all_samples() -> None:
    every = list(opinfo.programs("opinfo.add.float32"))
    some = [int(p.name.rpartition(":")[2]) for p in opinfo.programs("opinfo.add.float32", limit=3)]
    assert some == [number * len(every) // 3 for number in range(3)]


def test_even_cheap_operators_become_groups() -> None:
    outcome = checked("opinfo.add.float32", 0)
    assert outcome is not None and (outcome.status, outcome.groups) == ("ok", 1)


def test_without_expecttest(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("torch.testing._internal"):
            raise ModuleNotFoundError("No module named 'expecttest'", name="expecttest")
        return real(name, *args, **kwargs)

    opinfo.operators.cache_clear()
    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(NotAvailableError, match="expecttest"):
        opinfo.names(["float32"])


# --- forms -----------------------------------------------------------------------------------------------------------

# Operator with dtype and form, and the expected status.
FORMED = [
    ("opinfo.add.float32@inplace", "ok"),
    ("opinfo.tanh.float32@out", "ok"),
    ("opinfo.max.reduction_with_dim.int64@out", "ok"),
    ("opinfo.softmax.float32@strided", "ok"),
    ("opinfo.cat.float32@errors", "ok"),
]


@pytest.mark.parametrize(("name", "status"), FORMED)
def test_forms(name: str, status: str) -> None:
    for program in opinfo.programs(name, limit=2):
        outcome = check(program, WAY, variant_of(WAY))
        assert outcome is not None and outcome.status == status, outcome


@pytest.mark.parametrize("form", opinfo.FORMS)
def test_forms_exist(form: str) -> None:
    names = opinfo.names(["float32"], [form])
    assert len(names) > 100
    assert all(name.endswith(f"@{form}") == (form != "plain") for name in names)


def test_in_place_programs_write_to_their_input() -> None:
    for program in islice(opinfo.programs("opinfo.tanh.float32@inplace"), 2):
        arguments = [tensor.clone() for tensor in program.inputs]
        program.make()(*arguments)
        assert torch.equal(arguments[0], torch.tanh(program.inputs[0]))


def test_inputs_that_eager_refuses_must_be_refused() -> None:
    (program, *_) = opinfo.programs("opinfo.cat.float32@errors")
    assert program.is_refused

    def first(*arguments: Any) -> Any:
        return arguments[0 if torchmdla.is_enabled() else len(arguments)]

    variant = Variant(lambda subject, inputs, methods: {"forward": first}, lambda *_: True)
    outcome = check(replace(program, name="test.refused"), "test:frontend", variant)
    assert outcome is not None and outcome.status == "wrong"
