"""Models that several tests run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from native_models import Exported, export
from native_programs import Stateful, export_counter

from torchmdla.testing.models import MODELS


@pytest.fixture(autouse=True)
def owned_files() -> Iterator[None]:
    """Set a umask, so that only the owner can write the files of tests."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def exported(name: str, folder: Path) -> Exported:
    spec = MODELS[name].reduced()
    return export(spec.build(), spec.inputs(), folder / f"{name}.tmdla", spec.layers)


@pytest.fixture(scope="session")
def mlp(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return exported("mlp", tmp_path_factory.mktemp("mlp"))


@pytest.fixture(scope="session")
def any_batch(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """Return a model for any batch size from 2 on."""
    spec = MODELS["mlp"].reduced()
    calls = [spec.inputs(batch=batch) for batch in (2, 5, 7)]
    return export(spec.build(), calls, tmp_path_factory.mktemp("any") / "mlp.tmdla", spec.layers)


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """Return a model with weights of 16 MiB, and work for several threads."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(2048, 2048), torch.nn.ReLU())
    return export(module, (torch.randn(8, 2048),), tmp_path_factory.mktemp("large") / "large.tmdla")


@pytest.fixture(scope="session")
def counter(tmp_path_factory: pytest.TempPathFactory) -> Stateful:
    """Return a program with state that raises an exception in the sixth call."""
    return export_counter(tmp_path_factory.mktemp("counter"), 5)


@pytest.fixture(scope="session")
def steady(tmp_path_factory: pytest.TempPathFactory) -> Stateful:
    """Return a program with state for any number of calls."""
    return export_counter(tmp_path_factory.mktemp("steady"), 1 << 40)
