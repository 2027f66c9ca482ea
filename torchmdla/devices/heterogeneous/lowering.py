"""Lowering of a program for several devices: place its calls, cut it into parts, compile these, move what fails."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from torchmdla.compiler.artifact import Artifact, DevicePart, KernelCall, Manifest, Pack
from torchmdla.compiler.mlir import convert_errors, nodes_in, shared_context
from torchmdla.compiler.program import Program
from torchmdla.compiler.sizes import Size, terms
from torchmdla.devices.device import Device
from torchmdla.devices.heterogeneous import has_own_memory
from torchmdla.devices.heterogeneous.cutting import Cutter, Piece, assign_slots
from torchmdla.devices.heterogeneous.graph import Call, ProgramGraph
from torchmdla.devices.heterogeneous.loader import FORMAT
from torchmdla.devices.heterogeneous.placement import OPTION, Costs, Part, Placement
from torchmdla.errors import CompileError
from torchmdla.support.sharing import run_apart


def lower(program: Program, devices: Sequence[Device]) -> Artifact:
    """Compile a program for several devices.

    A part that its device does not compile moves to the next devices: the calls at fault if they can be determined,
    else the whole part.

    Raises:
        CompileError: no device compiles a call, or sizes vary and a device does not support that.
    """
    with shared_context(), convert_errors("the program cannot be divided between devices"):
        samples = [program.sample(number) for number in range(len(program.samples))] or [program]
        graphs = list(map(ProgramGraph, samples))
        cutter = Cutter(program, graphs)
        placement = Placement(graphs[0], Costs.from_text(dict(program.options)[OPTION]))
        compiled: dict[str, Artifact] = {}
        while True:
            pieces = cutter.pieces(placement.parts())
            try:
                for piece in pieces:
                    if piece.program.key not in compiled:
                        compiled[piece.program.key] = _compile(piece, devices)
            except _PieceError as failed:
                calls = _find_culprits(failed, cutter, devices)
                placement.forbid(calls, failed.piece.part.device, failed.error)
            else:
                artifacts = [compiled[piece.program.key] for piece in pieces]
                return _assemble(program, devices, placement, pieces, artifacts)


class _PieceError(Exception):
    """Error of a device that does not compile a piece."""

    def __init__(self, piece: Piece, error: CompileError) -> None:
        self.piece = piece
        self.error = error
        super().__init__(str(error))


def _compile(piece: Piece, devices: Sequence[Device]) -> Artifact:
    """Return the artifact of a piece.

    The last device's compiler runs in this process, which ends if it crashes: no other device could take over.

    Raises:
        _PieceError: the device does not compile it, or its compiler crashed.
    """
    device = devices[piece.part.device]
    is_last = piece.part.device == len(devices) - 1
    outcomes = [_lower(device, piece.program)] if is_last else run_apart(lambda _: _lower(device, piece.program), None)
    outcome = outcomes[0] if outcomes else CompileError(f"the compiler of device {device.name!r} crashed")
    if isinstance(outcome, CompileError):
        raise _PieceError(piece, outcome)
    return outcome


def _lower(device: Device, program: Program) -> Artifact | CompileError:
    try:
        artifact = device.lower(program)
    except CompileError as error:
        return error
    except Exception as error:
        trace = "".join(traceback.format_exception(error))
        return CompileError(f"the compiler failed: {type(error).__name__}: {error}", diagnostic=trace)
    if artifact.manifest.program != program.key:
        return CompileError(f"device {device.name!r} returned the artifact of another program")
    if artifact.manifest.symbols != len(program.symbols):
        return CompileError(f"device {device.name!r} takes no sizes that vary")
    return artifact


def _find_culprits(failed: _PieceError, cutter: Cutter, devices: Sequence[Device]) -> Sequence[Call]:
    """Return the calls of a piece that fail: those that the error names, or those that fail without others.

    Raises:
        CompileError: the failure may pass; or the error names no call, and the device is the last one or sizes vary.
            The group is then compiled for each size.
    """
    piece, error = failed.piece, failed.error
    if error.retry_after is not None:
        raise error
    calls = piece.part.calls
    numbers = set(error.nodes) | nodes_in(error.diagnostic)
    if named := [call for call in calls if call.node in numbers] or [call for call in calls if error.op in call.names]:
        return named
    if piece.program.symbols or piece.part.device == len(devices) - 1:
        raise error
    return list(_failing(calls, piece.part.device, cutter, devices)) or calls


def _failing(calls: Sequence[Call], device: int, cutter: Cutter, devices: Sequence[Device]) -> Iterator[Call]:
    """Yield the calls that are alone in a failing part, among ``calls``, which fail together."""
    if len(calls) == 1:
        yield calls[0]
        return
    for half in (calls[: len(calls) // 2], calls[len(calls) // 2 :]):
        try:
            _compile(cutter.piece(Part(device, tuple(half))), devices)
        except _PieceError:
            yield from _failing(half, device, cutter, devices)


def _assemble(
    program: Program,
    devices: Sequence[Device],
    placement: Placement,
    pieces: Sequence[Piece],
    artifacts: Sequence[Artifact],
) -> Artifact:
    """Return one artifact of the pieces' artifacts."""
    manifests = [artifact.manifest for artifact in artifacts]
    blocks = [artifact.to_bytes() for artifact in artifacts]
    slots, values = assign_slots(pieces, len(program.arguments))
    names = [device.name for device in devices]
    parts = [_describe(piece, devices, placement, names) for piece in pieces]
    description = {
        "slots": [_as_terms(size) for size in slots],
        "symbols": len(program.symbols),
        "parts": [
            {"device": part.device, "bytes": len(block), "values": buffers, "transfers": part.transfers}
            for part, block, buffers in zip(parts, blocks, values, strict=True)
        ],
    }
    packs: list[Pack] = []
    kernels: list[KernelCall] = []
    parameters: list[int] = []
    for piece, manifest in zip(pieces, manifests, strict=True):
        numbers = piece.argument_numbers
        packs += [replace(pack, arguments=tuple(numbers[k] for k in pack.arguments)) for pack in manifest.packs]
        parameters += [numbers[k] for k in manifest.parameters]
        kernels += _kernels(piece, manifest, len(kernels))
    sole = manifests[0] if len(pieces) == 1 else None
    return Artifact(
        FORMAT.seal(description, b"".join(blocks)),
        Manifest(
            program=program.key,
            entry="entry",
            arguments=program.arguments,
            results=program.results,
            workspace_bytes=max(manifest.workspace_bytes for manifest in manifests),
            symbols=len(program.symbols),
            packs=tuple(packs),
            parameters=tuple(dict.fromkeys(parameters)),
            in_place=sole.in_place if sole else (),
            releases=sole.releases if sole else (),
            kernels=tuple(kernels),
            parts=tuple(parts),
            statistics=_sum_statistics(manifests),
        ),
    )


def _describe(piece: Piece, devices: Sequence[Device], placement: Placement, names: Sequence[str]) -> DevicePart:
    device = piece.part.device
    moved = piece.transferred if has_own_memory(devices[device]) else []
    nodes = tuple(call.node for call in piece.part.calls if call.node is not None)
    reasons = ((call.node, placement.reason(call, device, names)) for call in piece.part.calls if call.node is not None)
    return DevicePart(
        names[device],
        nodes,
        len(moved),
        terms(sum(moved)),
        tuple((node, reason) for node, reason in reasons if reason),
    )


def _kernels(piece: Piece, manifest: Manifest, first: int) -> list[KernelCall]:
    """Return the kernels of a part, the first of which is number ``first``. A part without any counts as one."""
    device = piece.program.target.device
    if not manifest.kernels:
        nodes = tuple(call.node for call in piece.part.calls if call.node is not None)
        return [KernelCall(device, "", 0, 0, nodes, (), bool(piece.writes_results))]
    return [
        replace(
            kernel,
            symbol=f"{device}:{kernel.symbol}",
            after=tuple(number + first if number >= 0 else number for number in kernel.after),
            is_result=kernel.is_result and bool(piece.writes_results),
        )
        for kernel in manifest.kernels
    ]


def _sum_statistics(manifests: Sequence[Manifest]) -> dict[str, float]:
    sums: Counter[str] = Counter()
    for manifest in manifests:
        sums.update(manifest.statistics)
    return dict(sums)


def _as_terms(size: int | Size) -> Sequence[tuple[Sequence[int], int]]:
    return size.terms if isinstance(size, Size) else (((), size),)
