"""Lowering of a program to an artifact for the CPU: only the order of the stages."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from torch_mlir import ir

from torchmdla.compiler import dump
from torchmdla.compiler.artifact import Artifact, Manifest
from torchmdla.compiler.mlir import convert_errors, located_text, new_context, shared_context
from torchmdla.compiler.program import Program, Target
from torchmdla.devices.cpu.codegen.checks import check_bounds
from torchmdla.devices.cpu.codegen.emit import (
    capture_optimised_ir,
    disassemble,
    fold,
    to_llvm,
    to_llvm_ir,
    to_object,
)
from torchmdla.devices.cpu.codegen.entry import ENTRY, Code, function_attributes, write_module
from torchmdla.devices.cpu.codegen.linking import link
from torchmdla.devices.cpu.codegen.object_file import is_elf, join_objects, undefined_symbols
from torchmdla.devices.cpu.codegen.parts import Part, partition
from torchmdla.devices.cpu.codegen.relocations import NotLinkable
from torchmdla.devices.cpu.ir.loop_program import LoopProgram
from torchmdla.devices.cpu.ir.printer import program_text
from torchmdla.devices.cpu.ir.verifier import verify
from torchmdla.devices.cpu.linalg.fusion import fuse
from torchmdla.devices.cpu.linalg.reading import read_program
from torchmdla.devices.cpu.passes import pipeline
from torchmdla.devices.cpu.passes.bounds import conditions_of_bounds
from torchmdla.devices.cpu.passes.pipeline import Tiles, transform
from torchmdla.devices.cpu.passes.share_buffers import find_in_place_results, find_releases
from torchmdla.devices.cpu.schedule.plan import Decisions, Plan, plan_schedules
from torchmdla.devices.cpu.schedule.tile_loops import symbols_of
from torchmdla.devices.cpu.target.machine import PACKS_ON, Machine
from torchmdla.devices.levels.linalg import to_linalg
from torchmdla.errors import CompileError
from torchmdla.support import trace
from torchmdla.support.sharing import parallel_map

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")

# Functions that LLVM may call. They are listed here for object formats whose symbols are not read.
_LIKELY_SYMBOLS = ("memcpy", "memmove", "memset")


def lower(program: Program) -> Artifact:
    """Compile a program for the CPU of its target.

    Raises:
        torchmdla.CompileError: the program cannot be compiled; names the op and the diagnostic.
    """
    seconds: dict[str, float] = {}
    with shared_context(), ir.Location.unknown():
        code, plan = _generate(program, seconds)
        parts = partition(code)
        objects = _map_in_parallel(partial(_compile_part, code, program, seconds), parts, seconds)
    with _measure_stage(seconds, "image"):
        object_code = _link_parts(objects)
    return Artifact(object_code, _manifest(program, code, plan, objects, seconds))


def loop_program_text(program: Program) -> str:
    """Return the text of a static program's loop program before any pass of the device.

    Raises:
        torchmdla.CompileError: as for :func:`lower`.
    """
    with new_context(), ir.Location.unknown():
        return program_text(read_loop_program(program))


def read_loop_program(program: Program) -> LoopProgram:
    """Return a static program's loop program before any pass of the device, in the current context.

    Raises:
        torchmdla.CompileError: as for :func:`lower`.
    """
    return _read(program, {})


def run_passes(text: str, passes: Sequence[str], target: Target) -> Iterator[tuple[str, LoopProgram]]:
    """Yield the name of each pass, and the loop program of ``text`` after that pass.

    All passes run if ``passes`` is empty.

    Raises:
        torchmdla.CompileError: a pass does not exist, the text is not a loop program, or lark is not installed.
    """
    try:
        from torchmdla.devices.cpu.ir.parser import parse_program
    except ModuleNotFoundError as error:
        raise CompileError(f"loop programs are read with {error.name}: pip install 'torchmdla[tools]'") from None
    steps = parse_program(text)
    verify(steps, "reading")
    for loop_pass in pipeline.find_passes(passes) if passes else pipeline.PASSES:
        pipeline.run(loop_pass, steps, Machine.of(target))
        yield loop_pass.name, steps


def generated_module(program: Program) -> ir.Module:
    """Return the module that :func:`lower` makes object code from, in the LLVM dialect, in the current context.

    Raises:
        torchmdla.CompileError: as for :func:`lower`.
    """
    code, _ = _generate(program, {})
    return _lower_to_llvm(code.text, code, program)


def _generate(program: Program, seconds: dict[str, float]) -> tuple[Code, Plan]:
    steps, plan = plan_program(program, seconds)
    if PACKS_ON in program.target.features:
        steps.steps, steps.not_negative = [], []
    with _measure_stage(seconds, "kernels"):
        return write_module(steps, plan, program), plan


def plan_program(program: Program, seconds: dict[str, float]) -> tuple[LoopProgram, Plan]:
    """Return the loop program after all passes, in the current context, and its schedules.

    The time of each stage is added to ``seconds``.

    Raises:
        torchmdla.CompileError: as for :func:`lower`.
    """
    steps, tiles = loop_program(program, seconds)
    with _measure_stage(seconds, "steps"):
        steps.not_negative = conditions_of_bounds(steps)
        steps.in_place, steps.releases = find_in_place_results(steps), find_releases(steps)
    with _measure_stage(seconds, "schedules"):
        symbols = symbols_of(steps, len(program.symbols))
        plan = plan_schedules(steps, Machine.of(program.target, program.options), symbols, Decisions.of(program))
    dump.write("schedules.json", lambda: plan.to_json(tiles))
    return steps, plan


def _compile_part(code: Code, program: Program, seconds: dict[str, float], part: Part) -> bytes:
    with _measure_stage(seconds, "llvm"):
        generated = _lower_to_llvm(part.text, code, program)
    dump.write("llvm.ll", lambda: to_llvm_ir(generated))
    with _measure_stage(seconds, "object"), capture_optimised_ir(dump.is_on()) as optimised_ir:
        object_code = to_object(generated, program.target, part.symbol, part.externals)
    dump.write("optimised.ll", lambda: optimised_ir.text)
    dump.write("code.o", lambda: object_code)
    dump.write("assembly.s", lambda: disassemble(object_code))
    return object_code


def _link_parts(objects: Sequence[bytes]) -> bytes:
    """Return the parts of a module as one image, or concatenated for the loader to link if they cannot be an image."""
    try:
        return link(objects).to_bytes()
    except NotLinkable:
        return join_objects(objects)


def _lower_to_llvm(text: str, code: Code, program: Program) -> ir.Module:
    """Return the module ``text``, a part of ``code``, in the LLVM dialect, in the current context."""
    with convert_errors("the generated code is not valid"):
        generated = ir.Module.parse(text)
    dump.write("generated.mlir", lambda: str(generated))
    has_regions = any(f"@{region}(" in text for region in code.regions)
    to_llvm(generated, program.target, has_regions, has_bf16="bf16" in text)
    if code.fault:
        with convert_errors("checks of bounds cannot be added"):
            fold(generated)
            lower_more = partial(to_llvm, target=program.target, has_regions=False)
            check_bounds(generated, code.regions, function_attributes(program), lower_more)
    return generated


def loop_program(program: Program, seconds: dict[str, float]) -> tuple[LoopProgram, Tiles]:
    """Return the loop program after all passes, in the current context, and the tiles of its tile loops.

    The time of each stage is added to ``seconds``.

    Raises:
        torchmdla.CompileError: as for :func:`lower`.
    """
    written = [program.sample(k) for k in range(len(program.samples))] or [program]
    samples = _map_in_parallel(partial(_read, seconds=seconds), written, seconds)
    decisions = Decisions.of(program)
    with _measure_stage(seconds, "steps"), _report_mismatched_tiles(decisions.tiles):
        return transform(program, samples, decisions.tiles, decisions.algorithms)


@contextmanager
def _report_mismatched_tiles(tiles: Tiles | None) -> Iterator[None]:
    """Report mismatching tiles as a CompileError.

    Raises:
        CompileError: ``tiles`` are not the tiles of the program's loops.
    """
    try:
        yield
    except ValueError as error:
        if tiles is None:
            raise
        raise CompileError(f"the tiles that are given are not this program's: {error}") from None


def _read(program: Program, seconds: dict[str, float]) -> LoopProgram:
    with _measure_stage(seconds, "linalg"):
        module = to_linalg(program)
    dump.write("linalg.mlir", lambda: located_text(module))
    with _measure_stage(seconds, "fusion"):
        fuse(module)
    dump.write("fused.mlir", lambda: located_text(module))
    with _measure_stage(seconds, "steps"):
        return read_program(module, program)


def _map_in_parallel(
    work: Callable[[Item], Outcome], items: Sequence[Item], seconds: dict[str, float]
) -> list[Outcome]:
    """Return the results of ``work`` for each item, in order, and add the time without a stage to ``seconds``."""
    start, before = time.perf_counter(), sum(seconds.values())
    # Dumps are written only by this process, so it does all the work if dumping is on.
    results = list(map(work, items)) if dump.is_on() else parallel_map(work, items)
    spent = sum(seconds.values()) - before
    seconds["waiting"] = seconds.get("waiting", 0.0) + time.perf_counter() - start - spent
    return results


def _manifest(
    program: Program, code: Code, plan: Plan, objects: Sequence[bytes], seconds: dict[str, float]
) -> Manifest:
    counts = {"kernels": float(code.nests), "distinct_kernels": float(code.distinct_kernels)}
    counts |= {"measured_kernels": float(len(plan.measured)), "ignored_records": float(len(plan.ignored))}
    return Manifest(
        program=program.key,
        entry=ENTRY,
        arguments=program.arguments,
        results=program.results,
        workspace_bytes=code.workspace_bytes,
        symbols=len(program.symbols),
        workspace=code.workspace,
        packs=code.packs,
        parameters=code.parameters,
        in_place=code.in_place,
        releases=code.releases,
        device_calls=_device_calls(objects, code),
        fault=code.fault,
        kernels=code.kernels,
        statistics={**{f"seconds_{stage}": spent for stage, spent in seconds.items()}, **counts},
    )


def _device_calls(objects: Sequence[bytes], code: Code) -> tuple[str, ...]:
    """Return every symbol to resolve, including those that LLVM calls for loops (``memset``) and intrinsics."""
    if all(map(is_elf, objects)):
        return tuple(undefined_symbols(objects))
    return (*code.externals, *_LIKELY_SYMBOLS)


@contextmanager
def _measure_stage(seconds: dict[str, float], stage: str) -> Iterator[None]:
    dump.begin(stage)
    start = time.perf_counter()
    with trace.span(stage, "stage"):
        yield
    seconds[stage] = seconds.get(stage, 0.0) + time.perf_counter() - start
