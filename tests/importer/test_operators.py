"""Operator records: they name operators that PyTorch has, and specify each field once."""

from __future__ import annotations

import pytest
import torch
from single_op import schemas

from torchmdla.importer import operators, scalars
from torchmdla.importer.operators import OPERATORS, Operator, operator
from torchmdla.importer.schemas import schema_of


def test_rows_name_operators_of_pytorch() -> None:
    known = {*schemas(), *(f"{name.partition('.')[0]}.*" for name in schemas())}
    others = ("prims::", "torchao::")  # not in TorchScript; registered when torchao is imported
    assert [name for name in OPERATORS if name not in known and not name.startswith(others)] == []


def test_forms_take_the_same_arguments() -> None:
    for name in OPERATORS:
        record = operator(name)
        for form in filter(None, (record.with_number, record.with_tensors)):
            assert len(schema_of(form).arguments) <= len(schema_of(name).arguments), (name, form)


def test_a_row_for_every_overload_counts_beside_that_of_one() -> None:
    record = operator("aten::pow.Tensor_Scalar")
    assert record.computed_in == "result"
    assert record.with_tensors == "aten::pow.Tensor_Tensor"
    assert operator("aten::conv_tbc") == Operator()


def test_rows_that_differ_are_refused() -> None:
    rows = [("aten::mm", Operator(least_rank=1)), ("aten::mm", Operator(least_rank=2))]
    with pytest.raises(ValueError, match=r"two rows for aten::mm differ in least_rank"):
        operators._table(rows)


def test_rules_of_scalars_name_arguments_of_operators() -> None:
    """Check argument names. A row has arguments of all its operators; each may have some of them."""
    for names, rule in scalars.TABLE.items():
        arguments: set[str] = set()
        for name in names.split():
            base, _, overload = name.partition(".")
            schemas_of_base = torch._C._jit_get_schemas_for_operator(f"aten::{base}")
            matches = [each for each in schemas_of_base if overload in ("", each.overload_name)]
            assert matches, name
            arguments.update(argument.name for schema in matches for argument in schema.arguments)
        assert rule.wide | rule.checked <= arguments, names
