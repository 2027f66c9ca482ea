"""Export of programs for the runtime without libtorch (``src/native/``)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

import torchmdla_runtime as runtime
from torchmdla import devices
from torchmdla.capture.specialise import constant_of
from torchmdla.compile_service.stored_code import (
    features_of,
    freestanding_target_of,
    packing_target_of,
    target_of,
)
from torchmdla.compile_service.versions import producers
from torchmdla.compiler.artifact import Artifact
from torchmdla.compiler.program import Program
from torchmdla.compiler.program import Target as CodeTarget
from torchmdla.errors import CaptureError, CompileError
from torchmdla.importer import Binding
from torchmdla.packages.compiling import compile_programs, retarget
from torchmdla.packages.native_capture import Calls, Captured, Group, GroupCode, capture, frozen_program
from torchmdla.packages.native_direct import direct_model
from torchmdla.packages.native_file import Argument, Code, GroupCodes, Model, ModelInfo, Target
from torchmdla.packages.native_program import Constants, Refused, lower_program
from torchmdla.packages.weights import Weights, run_packs
from torchmdla.support.files import atomic_write


def export_native(
    model: Any,
    inputs: Any,
    file: str | os.PathLike[str],
    target: str | Sequence[str] = "native",
) -> ModelInfo:
    """Write a program to a file that ``libtorchmdla_runtime.so`` runs without PyTorch and Python.

    The file contains the methods, the code of their groups, and the packed weights. A module must be in eval mode.
    Methods may write attributes. All operators that compute with tensors must be in groups.

    Args:
        model: an ``nn.Module`` or function, which is traced with the first of the inputs, or a TorchScript program.
        inputs: a tuple of the positional arguments of a call, or its only argument; or a list of calls, for each of
            which code is generated. A third call that differs only in sizes generates code for all sizes from 2 on.
            A dictionary has the calls of several methods, by their names.
        file: the path to write to. An existing file is replaced once the new file is complete.
        target: ``"native"``, or a level, which this machine need not support: ``"x86-64-v2"`` to ``"x86-64-v4"``,
            ``"armv8-a"`` or ``"armv8.6-a"``; or several. The runtime takes the one with the most features that its
            processor has. Weights are packed by code for this machine with the level's layouts.

    Returns:
        A description of the file.

    Raises:
        CaptureError: something of the program does not run natively; the message contains all of it.
        CompileError: a group does not compile, or needs a function that the runtime does not have.
        TypeError: ``model`` is not a program and cannot be converted to one, or only Python can load the code of the
            device in use.
        ValueError: the target does not exist, or there are not any inputs.
    """
    calls = _calls_of(inputs)
    device = devices.get(devices.in_use())
    targets = [target] if isinstance(target, str) else list(target)
    freestanding = [freestanding_target_of(device, name) for name in targets]
    captured = capture(frozen_program(model, calls), calls)
    weights = Weights()
    program = lower_program(captured, weights)
    if program.refused:
        listed = "".join(f"\n  {refused}" for refused in program.refused)
        raise CaptureError(f"the program does not run without PyTorch:{listed}")
    built = [
        _target(name, target_of(device, name), freestanding_target, captured, device, program.constants, weights)
        for name, freestanding_target in zip(targets, freestanding, strict=True)
    ]
    built.sort(key=lambda target: len(target.features), reverse=True)
    direct = direct_model(captured, calls, built[0].groups)
    exported = Model(built, program, direct, weights, dict(producers(device)))
    with atomic_write(Path(file)) as temporary:
        with temporary.open("wb") as written:
            exported.write(written)
        if isinstance(device, devices.LibraryLoading):
            runtime.load_device(device.library)
        runs_here = any(packing_target_of(device, target) == target for target in freestanding)
        _run_calls(temporary, calls, runs_here)
    return exported.info


def check_native(model: Any, inputs: Any) -> tuple[Refused, ...]:
    """Return the operators and values of a program that do not run natively, with their places.

    Args:
        model: as for :func:`export_native`.
        inputs: as for :func:`export_native`.

    Raises:
        CaptureError: the program does not have a method.
        TypeError: ``model`` is not a program and cannot be converted to one.
        ValueError: there are not any inputs.
    """
    calls = _calls_of(inputs)
    return tuple(lower_program(capture(frozen_program(model, calls), calls), Weights()).refused)


def _run_calls(path: Path, calls: Calls, runs_here: bool) -> None:
    """Run each call of the export natively: the runtime must accept the file, and have code for all of them."""
    try:
        session = runtime.Model(path, threads=1).session()
    except runtime.ModelError as error:
        if runs_here or error.status != runtime.WRONG_PROCESSOR:
            raise
        return
    for name, several in calls.items():
        for arguments in several:
            with suppress(runtime.Raised):
                session.call(name, *map(_as_argument, arguments))


def _as_argument(value: Any) -> Any:
    """Return an argument with arrays in place of tensors."""
    if isinstance(value, torch.Tensor):
        copied = value.detach().clone()
        # NumPy does not support bfloat16; its bits are passed as an integer.
        return copied.view(torch.uint16).numpy() if value.dtype == torch.bfloat16 else copied.numpy()
    if isinstance(value, list | tuple):
        return (
            type(value)(map(_as_argument, value)) if type(value) in (list, tuple) else tuple(map(_as_argument, value))
        )
    return {key: _as_argument(item) for key, item in value.items()} if isinstance(value, dict) else value


def _calls_of(inputs: Any) -> Calls:
    methods = inputs if isinstance(inputs, Mapping) else {"forward": inputs}
    several = {name: calls if isinstance(calls, list) else [calls] for name, calls in methods.items()}
    if not several or not all(several.values()):
        raise ValueError("export_native needs the inputs of a call at least")
    return {name: [call if isinstance(call, tuple) else (call,) for call in calls] for name, calls in several.items()}


def _target(
    name: str,
    requested: CodeTarget,
    freestanding: CodeTarget,
    captured: Captured,
    device: devices.Device,
    constants: Constants,
    weights: Weights,
) -> Target:
    """Return the code of all groups for a target."""
    packing = packing_target_of(device, freestanding)
    pairs = [(group, code) for group in captured.groups for code in group.codes]
    programs = [
        replace(retarget(Program.from_bytes(code.compiled.program), requested), target=freestanding)
        for _, code in pairs
    ]
    packers = [replace(program, target=packing) for program in programs]
    artifacts = compile_programs([*programs, *packers])
    codes: dict[int, list[Code]] = {}
    for (group, code), program, packer in zip(pairs, programs, packers, strict=True):
        loaded = device.load(artifacts[packer.key])
        built = _code(group, code, artifacts[program.key], loaded, constants, weights)
        codes.setdefault(id(group), []).append(built)
    groups = [
        GroupCodes(
            group.source,
            group.inputs,
            group.outputs,
            # Codes for fixed sizes come first.
            sorted(codes.get(id(group), ()), key=lambda code: code.symbols is not None),
        )
        for group in captured.groups
    ]
    used = [artifacts[program.key] for program in programs]
    features = features_of(device, freestanding, used)
    return Target(name, freestanding.cpu or device.name, features, device.name, groups)


def _code(
    group: Group,
    code: GroupCode,
    artifact: Artifact,
    packer: devices.LoadedCode,
    constants: Constants,
    weights: Weights,
) -> Code:
    specialised, manifest = code.compiled, artifact.manifest
    missing = [name for name in manifest.device_calls if not runtime.provides(name)]
    if missing and artifact.is_image:
        raise CompileError(f"code calls {', '.join(missing)}, which the runtime does not have")
    constant = cache(group.subgraph.constant)
    tensors = {
        place: constant_of(binding, constant)
        for place, binding in enumerate(specialised.bindings)
        if binding.source == "constant"
    }
    buffers = run_packs(packer, manifest, tensors)
    if unpacked := [pack.symbol for pack, buffer in zip(manifest.packs, buffers, strict=True) if buffer is None]:
        raise CompileError(
            f"the pack {unpacked[0]!r} cannot be in a file: it needs values that are not constants, or its buffer has "
            "a handle that must be released (LoadedCode.releases)"
        )
    kinds = [argument.kind for argument in specialised.arguments]
    read = set(manifest.parameters)
    if not artifact.is_image:  # A device may omit them. A parameter that no pack uses is then read by the entry.
        read |= tensors.keys() - {place for pack in manifest.packs for place in pack.arguments}
    return Code(
        artifact=artifact,
        signature=code.signature[:-1],
        symbols=code.symbols and (code.symbols[0], code.symbols[1][:-1]),
        sizes=specialised.sizes if code.symbols else None,
        arguments=[
            _argument(binding, kinds[place] == "scalar", tensors.get(place), place in read, weights)
            for place, binding in enumerate(specialised.bindings)
        ],
        packs=[weights.add(buffer) for buffer in buffers if buffer is not None],
        outputs=[_output(kind, value, constants) for kind, value in specialised.outputs],
    )


def _argument(
    binding: Binding, is_scalar: bool, tensor: torch.Tensor | None, is_read: bool, weights: Weights
) -> Argument:
    if tensor is not None:
        return Argument("weight", weights.add(tensor)) if is_read else Argument("unused", 0)
    if binding.source == "size":
        return Argument("size", binding.index)
    if is_scalar:
        return Argument("scalar", binding.index)
    return Argument("input", binding.index, binding.element, binding.permutation)


def _output(kind: str, value: Any, constants: Constants) -> tuple[str, Any]:
    if kind == "tensor" and value[4] is not None:
        raise CaptureError("a group returns a quantised tensor, which the runtime does not have")
    return (kind, constants.add(value)) if kind == "constant" else (kind, value)
