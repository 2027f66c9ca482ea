"""Programs of the wild kinds, as files of TorchScript: each kind yields samples, which are written one at a time."""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from script_files.language import PROGRAMS as LANGUAGE
from torchmdla.testing.models import MODELS
from torchmdla.testing.programs import PROGRAMS
from torchmdla.testing.programs.inputs import Draw
from torchmdla.testing.programs.program import is_scriptable

# torchvision's models up to this many parameters, at a small size of pictures.
_MOST_PARAMETERS = 12_000_000
_IMAGE = (1, 3, 96, 96)


@dataclass(frozen=True)
class Sample:
    """Program that is saved, or a file that a package ships.

    Attributes:
        make: makes the program and the arguments of a call; None for a file.
        shipped: the file.
    """

    kind: str
    name: str
    make: Callable[[], tuple[Any, Sequence[Any]]] | None = None
    shipped: Path | None = None


def _both(kind: str, name: str, make: Callable[[], tuple[Any, Sequence[Any]]]) -> Iterator[Sample]:
    def script() -> tuple[Any, Sequence[Any]]:
        program, inputs = make()
        return torch.jit.script(program), inputs

    def trace() -> tuple[Any, Sequence[Any]]:
        program, inputs = make()
        function = program if isinstance(program, nn.Module) else lambda *arguments: program(*arguments)
        return torch.jit.trace(function, tuple(inputs), check_trace=False, strict=False), inputs

    yield Sample(f"{kind}, scripted", name, script)
    yield Sample(f"{kind}, traced", name, trace)


def _language() -> Iterator[Sample]:
    for name, (make, inputs) in LANGUAGE.items():
        yield Sample(
            "language of TorchScript", name, lambda make=make, inputs=inputs: (torch.jit.script(make()), inputs)
        )


def _modules_of_pytorch() -> Iterator[Sample]:
    database = importlib.import_module("torch.testing._internal.common_modules").module_db
    for info in database:

        def make(info: Any = info) -> tuple[Any, Sequence[Any]]:
            settings = {"device": "cpu", "dtype": torch.float32, "requires_grad": False, "training": False}
            entry = info.module_inputs_func(info, **settings)[0]
            arguments = entry.constructor_input
            module = info.module_cls(*arguments.args, **arguments.kwargs).eval()
            return module, entry.forward_input.args

        yield from _both("PyTorch's test modules", info.name, make)


def _programs() -> Iterator[Sample]:
    for name, program in PROGRAMS.items():
        if ":" in name:  # a variant with gradients
            continue

        def make(program: Any = program) -> tuple[Any, Sequence[Any]]:
            generator = torch.Generator().manual_seed(1)
            subject = program.make()
            if inspect.isfunction(subject) and not is_scriptable(subject):
                raise TypeError("a function without source")
            return subject, tree_map(lambda entry: _drawn(entry, generator), program.inputs)

        scripted, traced = _both("torchmdla's programs", name, make)
        yield scripted
        if "chooses" not in program.tags and program.takes_tensors_only:
            yield traced


def _drawn(entry: Any, generator: torch.Generator) -> Any:
    if isinstance(entry, Draw):
        return entry.make(generator)
    return entry.clone() if isinstance(entry, torch.Tensor) else entry


def _models() -> Iterator[Sample]:
    for name, spec in MODELS.items():
        small = spec.small or spec
        yield from _both("models", name, lambda small=small: (small.build().eval(), small.inputs()))


def _torchvision() -> Iterator[Sample]:
    try:
        importlib.import_module("packages_of_others.operators")  # torchvision's own are for CUDA
        models = importlib.import_module("torchvision.models")
    except (ImportError, RuntimeError):
        return
    for name in models.list_models(module=models):
        if _count_parameters(models, name) <= _MOST_PARAMETERS:
            yield from _both(
                "torchvision", name, lambda name=name: (models.get_model(name).eval(), (torch.rand(_IMAGE),))
            )


def _count_parameters(models: Any, name: str) -> float:
    try:
        with torch.device("meta"):
            return sum(weight.numel() for weight in models.get_model(name).parameters())
    except NotImplementedError:  # it is made by values, as the large Swin transformers
        return math.inf


def shipped(folders: Sequence[Path]) -> Iterator[Sample]:
    """Return the files of TorchScript in folders of packages."""
    for folder in folders:
        for path in sorted(path for path in folder.rglob("*") if path.suffix in (".pt", ".jit", ".ts")):
            yield Sample("files of packages", str(path.relative_to(folder.parent)), shipped=path)


KINDS: Mapping[str, Callable[[], Iterator[Sample]]] = {
    "language": _language,
    "modules": _modules_of_pytorch,
    "models": _models,
    "torchvision": _torchvision,
    "programs": _programs,
}
