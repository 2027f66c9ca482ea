"""Writes programs to files that hold the code of their groups."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import torch

from torchmdla import _C, api, devices
from torchmdla.capture import refusals
from torchmdla.compile_service import service
from torchmdla.compile_service.versions import producers
from torchmdla.compiler.artifact import Artifact
from torchmdla.compiler.program import Program
from torchmdla.packages.format import FOLDER, INDEX, PackageInfo, Target, extra_files, info_of
from torchmdla.packages.replacing import replacing
from torchmdla.packages.signing import SIGNATURE, SigningKey
from torchmdla.packages.specialisation import Specialisation
from torchmdla.report import progress

# What this machine measured is of no use to another target.
_OF_THIS_MACHINE = frozenset(("records", "machine"))


def save(
    model: Any,
    file: str | os.PathLike[str] | IO[bytes],
    inputs: Sequence[Any],
    targets: Sequence[str] = ("native",),
    *,
    freeze: bool = True,
    extra: Mapping[str, bytes] | None = None,
    sign: str | os.PathLike[str] | None = None,
) -> PackageInfo:
    """Saves a program with the compiled code of its groups: a package.

    The file is one of TorchScript. PyTorch without torchmdla loads and runs it as any other. Where torchmdla is
    present, in Python or in C++ (``libtorchmdla.so``), its groups find their code in the file: nothing is compiled, and
    no compiler is needed.

    The program is called with each of the ``inputs``, without gradients, as often as PyTorch's executor needs to
    optimise it. What its groups are compiled for then, is in the file, for each target. Sizes that vary among the
    inputs are treated as in any program: two inputs are two specialisations, a third one that differs in sizes alone
    makes code for any sizes.

    Args:
        model: ``nn.Module`` or function, which is traced with the first of the inputs, or a TorchScript program.
        file: a path, or a binary file to write to.
        inputs: for each call a tuple of its positional arguments, or its only argument.
        targets: ``"native"``, or a level of x86-64: ``"x86-64-v2"`` to ``"x86-64-v4"``, whether this machine is of it
            or not. Who loads the file takes the target with most of the features that its processor has.
        freeze: make weights constants, where the module is in eval mode, as :func:`torchmdla.compile` does: they are
            packed when the file is loaded. Otherwise the first call packs them.
        extra: further extra files of the archive, by name.
        sign: the file of a private key (PEM, Ed25519) to sign the package with: ``python -m torchmdla keys generate``
            makes one. It needs the package ``cryptography``.

    Returns:
        What is in the package.

    Raises:
        TypeError: ``model`` is no program of TorchScript and cannot be made one, or the device in use has no targets.
        ValueError: no such target, no inputs, no such key, or no group of the program is compiled.
        CompileError: a group does not compile for a target.
    """
    calls = [call if isinstance(call, tuple) else (call,) for call in inputs]
    if not calls:
        raise ValueError("save needs the inputs of a call at least: inputs=[(tensor, …), …]")
    if clash := [name for name in extra or {} if name.startswith(FOLDER)]:
        raise ValueError(f"extra files below {FOLDER} are the package's own: {', '.join(clash)}")
    key = None if sign is None else SigningKey(sign)
    scripted = api.ready(model, calls[0]) if freeze else api.as_torchscript(model, calls[0])
    files = _package(scripted, calls, targets)
    if key is not None:
        files[SIGNATURE] = key.sign(files[INDEX])
    whole = {**(extra or {}), **files}
    if isinstance(file, str | os.PathLike):
        _write(scripted, Path(file), whole)
    else:
        torch.jit.save(scripted, file, _extra_files=whole)
    return info_of(files[INDEX])


def _write(scripted: Any, path: Path, files: Mapping[str, bytes]) -> None:
    with replacing(path) as temporary:
        torch.jit.save(scripted, str(temporary), _extra_files=dict(files))


def _package(scripted: Any, calls: Sequence[tuple[Any, ...]], targets: Sequence[str]) -> dict[str, bytes]:
    """The extra files of a program."""
    device = devices.get(devices.in_use())
    made_for = [device.target_for(name) for name in dict.fromkeys(targets)]
    specialisations = _specialised(scripted, calls)
    if not any(one.compiled for one in specialisations):
        raise ValueError(
            "no group of the program is compiled for these inputs: torchmdla.explain(model, *inputs) tells why"
        )
    programs = [[_for_target(one.program, target) for one in specialisations] for target in made_for]
    artifacts = _compiled([program for row in programs for program in row if program])
    described = [
        Target(
            name,
            target.cpu,
            device.features(target),
            specialisations,
            [artifacts[program.key] if program else None for program in row],
        )
        for name, target, row in zip(dict.fromkeys(targets), made_for, programs, strict=True)
    ]
    return extra_files(described, list(map(_line, specialisations)), dict(producers(device)))


def _specialised(scripted: Any, calls: Sequence[tuple[Any, ...]]) -> list[Specialisation]:
    """What the groups of a program are compiled for in these calls. The groups are those that a reader of the file
    gets."""
    buffer = io.BytesIO()
    torch.jit.save(scripted, buffer)
    before = {report["number"] for report in _C.groups()}
    with _compiling(), torch.no_grad(), progress.compiling(_C.statistics):
        program = torch.jit.load(io.BytesIO(buffer.getvalue()))
        for call in calls:
            refusals.call_until_whole(lambda call=call: program(*call), api.WARM_UP_CALLS)
        reports = [report for report in _C.groups() if report["number"] not in before]
    found = (
        Specialisation.of(structure, one)
        for report in reports
        if (structure := _structure(report)) is not None
        for one in report["specialisations"]
    )
    return [one for one in found if one is not None]


@contextmanager
def _compiling() -> Iterator[None]:
    """Within the block groups are compiled, at once, whatever packages have for them."""
    with api.waiting_for_compiles():
        _C.set_packages(False)
        try:
            yield
        finally:
            _C.set_packages(True)


def _structure(report: _C.GroupReport) -> bytes | None:
    subgraph, device, parameters = report["subgraph"], report["device"], report["parameters"]
    if isinstance(subgraph, torch._C.Graph):
        return _C.structure(subgraph, device, parameters)
    structure: bytes | None = subgraph.structure(device, parameters)
    return structure


def _for_target(program: Program | None, target: Any) -> Program | None:
    if program is None or program.target == target:
        return program
    options = tuple(option for option in program.options if option[0] not in _OF_THIS_MACHINE)
    return replace(program, target=target, options=options)


def _compiled(programs: Sequence[Program]) -> dict[str, Artifact]:
    """Artifacts by the keys of their programs, with a progress bar on a terminal."""
    from tqdm import tqdm

    distinct = {program.key: program for program in programs}
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        outcomes = threads.map(service.compile_program, distinct.values())
        bar = tqdm(outcomes, desc="torchmdla: compiling for targets", total=len(distinct), disable=None, leave=False)
        return {key: outcome.artifact for key, outcome in zip(distinct, bar, strict=True)}


def _line(specialisation: Specialisation) -> str:
    """What a specialisation is, for people."""
    name = specialisation.structure.hex()[:16]
    compiled = specialisation.compiled
    if compiled is None:
        return f"{name}: divided around nodes {', '.join(map(str, specialisation.left_out or ()))}"
    types = [f"{one.dtype}{list(one.shape)}" for one in compiled.arguments if one.role == "input"]
    sizes = " and other sizes" if specialisation.symbols else ""
    return f"{name}: {', '.join(types) or 'no inputs'}{sizes}, {len(compiled.manifest.kernels)} kernels"
