"""Export of programs that consist of one group, for the runtime without libtorch (``src/native/``)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import torchmdla_runtime as runtime
from torchmdla import api, devices
from torchmdla.capture.specialise import constant_of
from torchmdla.compile_service.versions import producers
from torchmdla.compiler.artifact import Artifact
from torchmdla.compiler.program import Program
from torchmdla.errors import CaptureError, CompileError
from torchmdla.packages.compiling import compile_programs, retarget
from torchmdla.packages.native_file import VARIES, Code, InputLayout, Model, ModelInfo, OutputLayout, Port
from torchmdla.packages.native_group import Group, GroupCode, extract_group, tensor_output
from torchmdla.packages.weights import Weights, run_packs
from torchmdla.support.files import atomic_write

if TYPE_CHECKING:
    from torchmdla.importer import Binding

# Layout of a tensor's part of a signature (src/group/signature.h): its kind, the bit position of its rank, and the
# number of entries before the sizes.
_TENSOR, _RANK_BIT, _BEFORE_SIZES = 1, 16, 2


def export_native(model: Any, inputs: Any, file: str | os.PathLike[str], target: str = "native") -> ModelInfo:
    """Write a model to a file that ``libtorchmdla_runtime.so`` runs without PyTorch and Python.

    The file contains the code and the packed weights. The model must be in eval mode, and its program must be one
    group. Inputs and outputs are tensors, and the device must support all operators.

    Args:
        model: an ``nn.Module`` or function, which is traced with the first of the inputs, or a TorchScript program.
        inputs: a tuple of the positional arguments of a call, or its only argument; or a list of calls, for each of
            which code is generated. A third call that differs only in sizes generates code for all sizes from 2 on.
        file: the path to write to. An existing file is replaced once the new file is complete.
        target: ``"native"``, or a level, which this machine need not support: ``"x86-64-v2"`` to ``"x86-64-v4"``,
            ``"armv8-a"`` or ``"armv8.6-a"``. Weights are packed by code for this machine with the level's layouts.

    Returns:
        A description of the file.

    Raises:
        CaptureError: the program is not one group; the message contains the operators outside of it, and the reasons.
        CompileError: the group does not compile, or needs a function that the runtime does not have.
        TypeError: ``model`` is not a program and cannot be converted to one, or the device in use does not have such
            code.
        ValueError: the target does not exist, or there are not any inputs.
    """
    several = inputs if isinstance(inputs, list) else [inputs]
    if not several:
        raise ValueError("export_native needs the inputs of a call at least")
    calls = [call if isinstance(call, tuple) else (call,) for call in several]
    device = devices.get(devices.in_use())
    requested = device.target_for(target)
    freestanding = device.freestanding(requested)
    packing = device.packing(freestanding)
    group = extract_group(api.as_frozen_torchscript(model, calls[0]), calls)
    compiled = (Program.from_bytes(code.compiled.program) for code in group.codes)
    programs = [replace(retarget(program, requested), target=freestanding) for program in compiled]
    packers = [replace(program, target=packing) for program in programs]
    artifacts = compile_programs([*programs, *packers])
    pairs = [(artifacts[a.key], artifacts[b.key]) for a, b in zip(programs, packers, strict=True)]
    codes, weights = _codes(group, pairs, device)
    exported = Model(
        freestanding.cpu,
        device.features(freestanding),
        _ports(group.inputs, [code.inputs for code in codes]),
        _ports(group.outputs, [code.outputs for code in codes]),
        codes,
        weights,
        dict(producers(device)),
    )
    with atomic_write(Path(file)) as temporary:
        with temporary.open("wb") as written:
            exported.write(written)
        _check_file(temporary, calls, runs_here=packing == freestanding)
    return exported.info


def _check_file(path: Path, calls: Sequence[tuple[torch.Tensor, ...]], runs_here: bool) -> None:
    """Check that the runtime accepts the file, and has code for each of the calls if this machine can run it."""
    try:
        loaded = runtime.Model(path, threads=1)
    except runtime.ModelError as error:
        if runs_here or error.status != runtime.WRONG_PROCESSOR:
            raise
        return
    for call in calls:
        loaded.output_shapes(*(tensor.shape for tensor in call))


def _codes(
    group: Group, artifacts: Sequence[tuple[Artifact, Artifact]], device: devices.Device
) -> tuple[list[Code], Weights]:
    """Return the codes and their weights; codes for fixed sizes come first.

    ``artifacts`` are, for each code of the group, that of the target and the one that packs on this machine.
    """
    weights, codes = Weights(), []
    for code, (artifact, packer) in zip(group.codes, artifacts, strict=True):
        if missing := [name for name in artifact.manifest.device_calls if not runtime.provides(name)]:
            raise CompileError(f"code calls {', '.join(missing)}, which the runtime does not have")
        codes.append(_code(group, code, artifact, device.load(packer), weights))
    return sorted(codes, key=lambda code: code.symbols), weights


def _code(group: Group, code: GroupCode, artifact: Artifact, packer: devices.LoadedCode, weights: Weights) -> Code:
    specialised, manifest = code.compiled, artifact.manifest
    constant = cache(group.subgraph.constant)
    tensors = {
        place: constant_of(binding, constant)
        for place, binding in enumerate(specialised.bindings)
        if binding.source == "constant"
    }
    buffers = run_packs(packer, manifest, tensors)
    outputs = [tensor_output(output) for output in specialised.outputs]
    return Code(
        artifact=artifact,
        inputs=_input_layouts(group, code),
        outputs=[OutputLayout(outputs[k][0], outputs[k][2], outputs[k][3]) for k in group.output_numbers],
        symbols=code.symbols[0] if code.symbols else 0,
        sizes=specialised.sizes if code.symbols else None,
        arguments=[
            _argument(group, place, binding, manifest.parameters, tensors, weights)
            for place, binding in enumerate(specialised.bindings)
        ],
        packs=[weights.add(buffer) for buffer in buffers if buffer is not None],
    )


def _argument(
    group: Group,
    place: int,
    binding: Binding,
    read: Sequence[int],
    tensors: Mapping[int, torch.Tensor],
    weights: Weights,
) -> tuple[str, int]:
    if binding.source == "size":
        return "size", binding.index
    if binding.source == "input":
        return "input", group.input_numbers[binding.index]
    return ("weight", weights.add(tensors[place])) if place in read else ("unused", 0)


def _input_layouts(group: Group, code: GroupCode) -> list[InputLayout]:
    """Return the layouts of the program's inputs, from a specialisation's signature and bindings."""
    layouts = [_layout(tuple(tensor.shape)) for tensor in group.call]
    bindings = code.compiled.bindings
    permutations = {binding.index: binding.permutation for binding in bindings if binding.source == "input"}
    at = 0
    for index, number in enumerate(group.input_numbers):
        if code.signature[at] & 0xFF != _TENSOR:
            raise CaptureError(f"input {group.inputs[number][0]} is not a plain tensor")
        begin = at + _BEFORE_SIZES
        at = begin + (code.signature[at] >> _RANK_BIT)
        symbols = tuple(code.symbols[1][begin:at]) if code.symbols else None
        layouts[number] = _layout(tuple(code.signature[begin:at]), symbols, permutations.get(index))
    return layouts


def _layout(
    sizes: tuple[int, ...], symbols: tuple[int, ...] | None = None, permutation: tuple[int, ...] | None = None
) -> InputLayout:
    dimensions = tuple(range(len(sizes)))
    return InputLayout(sizes, symbols or (VARIES,) * len(sizes), permutation or dimensions)


def _ports(
    named: Sequence[tuple[str, torch.dtype]], layouts: Sequence[Sequence[InputLayout | OutputLayout]]
) -> list[Port]:
    ports = []
    for number, (name, dtype) in enumerate(named):
        seen = [_known_sizes(code[number]) for code in layouts]
        sizes = [column[0] if len(set(column)) == 1 else VARIES for column in zip(*seen, strict=True)]
        ports.append(Port(name, dtype, tuple(sizes)))
    return ports


def _known_sizes(layout: InputLayout | OutputLayout) -> list[int]:
    if isinstance(layout, OutputLayout):
        return [VARIES if isinstance(size, tuple) else int(size) for size in layout.sizes]
    pairs = zip(layout.sizes, layout.symbols, strict=True)
    return [size if symbol == VARIES else VARIES for size, symbol in pairs]
