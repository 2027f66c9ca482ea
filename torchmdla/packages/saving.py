"""Saving of programs to files that contain the code of their groups."""

from __future__ import annotations

import io
import os
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any, overload

import torch

from torchmdla import _C, api, devices
from torchmdla.capture.script_subgraph import ScriptSubgraph
from torchmdla.compile_service.signatures import SigningKey
from torchmdla.compile_service.stored_code import features_of, packing_target_of, target_of
from torchmdla.compile_service.versions import producers
from torchmdla.compiler.artifact import Artifact
from torchmdla.compiler.program import Program as CodeProgram
from torchmdla.compiler.program import Target as CodeTarget
from torchmdla.importer.script_graph import convert_graph
from torchmdla.packages.compiling import compile_programs, reload_and_call, retarget
from torchmdla.packages.format import FOLDER, INDEX, PackageInfo, Target, info_of, records
from torchmdla.packages.signing import SIGNATURE, signature_of
from torchmdla.packages.snapshot import Snapshot
from torchmdla.packages.specialisation import PackedWeight, Specialisation, TargetCode
from torchmdla.packages.weights import Weights, run_packs
from torchmdla.script.ir import Program
from torchmdla.script.writing import write
from torchmdla.support import jit
from torchmdla.support.files import atomic_write
from torchmdla.version import __version__


@overload
def save(model: Program, file: str | os.PathLike[str], *, extra: Mapping[str, bytes] | None = None) -> None: ...


@overload
def save(
    model: Any,
    file: str | os.PathLike[str],
    inputs: Sequence[Any] = (),
    targets: Sequence[str] = ("native",),
    *,
    freeze: bool = True,
    pack_weights: bool = False,
    extra: Mapping[str, bytes] | None = None,
    sign: str | os.PathLike[str] | None = None,
) -> PackageInfo: ...


def save(
    model: Any,
    file: str | os.PathLike[str],
    inputs: Sequence[Any] = (),
    targets: Sequence[str] = ("native",),
    *,
    freeze: bool = True,
    pack_weights: bool = False,
    extra: Mapping[str, bytes] | None = None,
    sign: str | os.PathLike[str] | None = None,
) -> PackageInfo | None:
    """Save a program with the compiled code of its groups: a package.

    The file is a TorchScript archive, or that of an exported program. PyTorch without torchmdla loads and runs it like
    any other. With torchmdla, in Python or in C++ (``libtorchmdla.so``), the groups use the code in the file. Nothing
    is compiled, and a compiler is not needed.

    The program is called with each of the ``inputs``, without gradients, as often as PyTorch's executor needs to
    optimise it. The file contains all specialisations that these calls compile, for each target. Sizes that vary among
    the inputs are handled as in any program. Two inputs are two specialisations. A third input that differs only in
    sizes generates code for all sizes from 2 on.

    Args:
        model: an ``nn.Module`` or function, which is traced with the first of the inputs, a TorchScript program, or a
            ``torch.export.ExportedProgram``. A program of :func:`torchmdla.read`, and a module
            of :func:`torchmdla.load` by the own reader, are written without compiled code, unless inputs are given.
        file: the path to write to. An existing file is replaced once the package is complete.
        inputs: for each call a tuple of its positional arguments, or its only argument. The default for an exported
            program is its own example inputs.
        targets: ``"native"``, which every device has, or others of the device in use. Those of the cpu device are
            levels, ``"x86-64-v2"`` to ``"x86-64-v4"``, ``"x86-64-v4-amx"``, ``"armv8-a"`` and ``"armv8.6-a"``, even if
            this machine does not support them. The loader selects the target with the most features that its machine
            has. ``"native-threads16"`` is for 16 threads, and selected from 16 threads on (4, 8, 16 or 32).
        pack_weights: also write constants in packed form. They are mapped from the file, so that loading takes less
            time and processes share them. The file grows by their size.
        freeze: turn the weights of TorchScript into constants if the module is in eval mode, as
            :func:`torchmdla.compile` does. They are packed when the file is loaded. Otherwise the first call packs
            them.
        extra: further extra files of a TorchScript archive, by name.
        sign: the file of a private key (PEM, Ed25519) that signs the package. ``python -m torchmdla keys generate``
            makes one. Signing needs the package ``cryptography``.

    Returns:
        A description of the package. None for a program of :func:`torchmdla.read` without inputs.

    Raises:
        ReadError: the program of :func:`torchmdla.read` has a value or an operator that cannot be written.
        TypeError: ``model`` is not a program and cannot be converted to one.
        ValueError: the inputs or the key do not exist, the device in use does not have the target, or no group of the
            program is compiled.
        CompileError: a group does not compile for a target.
    """
    key = None if sign is None else SigningKey(sign)
    calls = [call if isinstance(call, tuple) else (call,) for call in inputs]
    if isinstance(model, Program) or hasattr(model, "_script_class"):
        if not calls:
            _write(model, file, extra)
            return None
        model = _as_torchscript(model)
    program: _Script | _Exported
    if api.is_exported(model):
        program = _Exported(model, extra)
        calls = calls or [model.example_inputs[0]]
    elif not calls:
        raise ValueError("save needs the inputs of a call at least: inputs=[(tensor, …), …]")
    else:
        program = _Script(
            api.as_frozen_torchscript(model, calls[0]) if freeze else api.as_torchscript(model, calls[0]), extra
        )
    content = _package(program, calls, targets, pack_weights)
    if key is not None:
        content[SIGNATURE] = signature_of(content[INDEX], key)
    with atomic_write(Path(file)) as temporary, temporary.open("wb") as written:
        program.write(content, written)
    return replace(info_of(content[INDEX]), signer="" if key is None else key.number)


def _write(model: Any, file: str | os.PathLike[str], extra: Mapping[str, bytes] | None = None) -> None:
    """Write a program of ``read``, or a module of ``load(…, reader="own")`` with its present state."""
    if isinstance(model, Program):
        write(model, file, extra=extra)
    else:
        snapshot = Snapshot(model)
        write(snapshot.program, file, snapshot.read_storage, extra)


def _as_torchscript(model: Any) -> Any:
    """Return a program of ``read``, or a module of ``load(…, reader="own")``, as PyTorch's module."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "program.pt")
        _write(model, path)
        return jit.load(path)


class _Script:
    """TorchScript program, whose package is among its extra files."""

    def __init__(self, module: Any, extra: Mapping[str, bytes] | None) -> None:
        self._module = module
        self._extra = dict(extra or {})
        if clash := [name for name in self._extra if name.startswith(FOLDER)]:
            raise ValueError(f"extra files below {FOLDER} are the package's own: {', '.join(clash)}")

    def write(self, records: Mapping[str, bytes], file: IO[bytes]) -> None:
        jit.save(self._module, file, {**self._extra, **records})

    def load(self, file: IO[bytes]) -> Callable[..., Any]:
        """Return the callable program in a file."""
        loaded: Callable[..., Any] = jit.load(file)
        return loaded


class _Exported:
    """Exported program, whose package is beside PyTorch's own records, because its extra files are text."""

    def __init__(self, program: Any, extra: Mapping[str, bytes] | None) -> None:
        self._program = program
        if extra:
            raise TypeError("extra files are those of a TorchScript program")

    def write(self, records: Mapping[str, bytes], file: IO[bytes]) -> None:
        buffer = io.BytesIO()
        torch.export.save(self._program, buffer)
        with zipfile.ZipFile(buffer, "a") as archive:
            folder = archive.namelist()[0].partition("/")[0]
            for name, content in records.items():
                archive.writestr(f"{folder}/{name}", content)
        file.write(buffer.getbuffer())

    def load(self, file: IO[bytes]) -> Callable[..., Any]:
        from torchmdla.capture import export

        return export.compile_program(torch.export.load(file))


def _package(
    program: _Script | _Exported, calls: Sequence[tuple[Any, ...]], targets: Sequence[str], pack_weights: bool
) -> dict[str, bytes]:
    """Return the records of a program's package."""
    for name in targets:
        target_of(devices.get(devices.in_use()), name)  # An unknown target is an error before the calls.
    # The groups are those that a reader of the file gets.
    _program, reports = reload_and_call(partial(program.write, {}), program.load, calls)
    specialisations = specialisations_of(reports)
    if not any(item.compiled for item in specialisations):
        raise ValueError(
            "no group of the program is compiled for these inputs: torchmdla.explain(model, *inputs) has the reasons"
        )
    return package_of(specialisations, {name: partial(target_of, name=name) for name in targets}, pack_weights)


def package_of(
    specialisations: Sequence[Specialisation],
    targets: Mapping[str, Callable[[devices.Device], CodeTarget]],
    pack_weights: bool = False,
) -> dict[str, bytes]:
    """Return the records of a package with the code of ``specialisations``.

    Args:
        specialisations: the specialisations, whose programs may be of several devices.
        targets: for each target's name the function that returns it for a device.
        pack_weights: whether to add the outputs of packs.
    """
    originals = [item.program for item in specialisations]
    used = {original.target.device: devices.get(original.target.device) for original in originals if original}
    code_targets = {name: {key: choose(device) for key, device in used.items()} for name, choose in targets.items()}
    programs = {
        name: [original and retarget(original, chosen[original.target.device]) for original in originals]
        for name, chosen in code_targets.items()
    }
    compiled = [retargeted for row in programs.values() for retargeted in row if retargeted]
    # Weights are packed on this machine.
    packers = {
        p.key: replace(p, target=packing_target_of(used[p.target.device], p.target)) for p in compiled if pack_weights
    }
    artifacts = compile_programs([*compiled, *packers.values()])
    described = []
    for name, chosen in code_targets.items():
        weights = Weights()
        codes: list[TargetCode | None] = []
        for item, retargeted in zip(specialisations, programs[name], strict=True):
            packer = packers.get(retargeted.key) if retargeted else None
            loaded = used[packer.target.device].load(artifacts[packer.key]) if packer else None
            codes.append(_target_code(item, retargeted, artifacts, loaded, weights) if retargeted else None)
        features = [
            feature
            for key, target in chosen.items()
            for feature in features_of(used[key], target, [c.artifact for c in codes if c and c.device == key])
        ]
        cpu = " ".join(target.cpu or target.device for target in chosen.values())
        described.append(Target(name, cpu, tuple(features), specialisations, codes, weights))
    versions = {"torchmdla": __version__, "torch": torch.__version__}
    for device in used.values():
        versions |= {name: version for name, version in producers(device) if name not in versions}
    return records(described, list(map(_describe, specialisations)), versions)


def specialisations_of(reports: Sequence[_C.GroupReport]) -> list[Specialisation]:
    """Return the specialisations of groups that a package can contain."""
    specialisations: list[Specialisation | None] = []
    for report in reports:
        subgraph, identity = report["subgraph"], (report["device"], report["parameters"])
        if isinstance(subgraph, torch._C.Graph):
            structure, constant = _C.structure(subgraph, *identity), ScriptSubgraph(convert_graph(subgraph)).constant
        else:
            structure, constant = subgraph.structure(*identity), subgraph.constant
        if structure is not None:
            specialisations += [Specialisation.of(structure, entry, constant) for entry in report["specialisations"]]
    return [specialisation for specialisation in specialisations if specialisation is not None]


def _describe(specialisation: Specialisation) -> str:
    """Return a description of a specialisation, for humans."""
    name = specialisation.structure.hex()[:16]
    compiled, program = specialisation.compiled, specialisation.program
    if compiled is None or program is None:
        return f"{name}: divided around nodes {', '.join(map(str, specialisation.left_out or ()))}"
    types = [f"{argument.dtype}{list(argument.shape)}" for argument in program.arguments if argument.role == "input"]
    sizes = " and other sizes" if specialisation.symbols else ""
    return f"{name}: {', '.join(types) or 'no inputs'}{sizes}, {len(compiled.manifest.kernels)} kernels"


def _target_code(
    specialisation: Specialisation,
    program: CodeProgram,
    artifacts: Mapping[str, Artifact],
    packer: devices.LoadedCode | None,
    weights: Weights,
) -> TargetCode:
    """Return the code of a specialisation for a target.

    The packs of ``packer``, if it is given, run on the constants and their outputs are added to ``weights``.
    """
    artifact, device = artifacts[program.key], program.target.device
    packs = artifact.manifest.packs
    if packer is None:
        return TargetCode(device, artifact, [None] * len(packs))
    constants = specialisation.constants
    buffers = run_packs(packer, artifact.manifest, constants)
    return TargetCode(
        device,
        artifact,
        [
            None if buffer is None else _add_packed(buffer, [constants[place] for place in pack.arguments], weights)
            for pack, buffer in zip(packs, buffers, strict=True)
        ],
    )


def _add_packed(buffer: torch.Tensor, parameters: Sequence[torch.Tensor], weights: Weights) -> PackedWeight:
    number = weights.add(buffer)
    return PackedWeight(weights.infos[number].offset, _C.content_hash(buffer), tuple(map(_C.content_hash, parameters)))
