"""The passes over an executable's steps, in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torchmdla.compiler import dump
from torchmdla.compiler.program import Program
from torchmdla.devices.cpu.ir.loop_program import LoopProgram, TileLoop
from torchmdla.devices.cpu.ir.patterns import Rule, apply
from torchmdla.devices.cpu.ir.printer import program_text
from torchmdla.devices.cpu.ir.verifier import is_enabled, verify
from torchmdla.devices.cpu.passes.constants import STORE_CONSTANT_FACTORS
from torchmdla.devices.cpu.passes.copies import merge_copies, shrink_broadcasts
from torchmdla.devices.cpu.passes.defer_factors import DEFER_NORMS, DEFER_SOFTMAX, MULTIPLY_SOFTMAX
from torchmdla.devices.cpu.passes.elide_inserts import elide_insert_copies
from torchmdla.devices.cpu.passes.epilogue import merge_epilogues
from torchmdla.devices.cpu.passes.fold_scales import FOLD_SCALES
from torchmdla.devices.cpu.passes.generalise import generalise, mark_varying
from torchmdla.devices.cpu.passes.join_loops import join_loops
from torchmdla.devices.cpu.passes.layout import block_channels
from torchmdla.devices.cpu.passes.loop_invariants import hoist_loop_invariants
from torchmdla.devices.cpu.passes.merge_results import merge_results
from torchmdla.devices.cpu.passes.moments import MOMENTS
from torchmdla.devices.cpu.passes.narrow.dot_products import channel_block_sizes, use_dot_products
from torchmdla.devices.cpu.passes.narrow.formats import drop_roundings, keep_floats
from torchmdla.devices.cpu.passes.narrow.nibbles import USE_NIBBLES
from torchmdla.devices.cpu.passes.packing import pack_activations, pack_weights
from torchmdla.devices.cpu.passes.precompute import precompute_parameters
from torchmdla.devices.cpu.passes.reroll import reroll_loops
from torchmdla.devices.cpu.passes.row_maximum import IGNORE_NAN
from torchmdla.devices.cpu.passes.scatters import fuse_scatters
from torchmdla.devices.cpu.passes.share_buffers import delay_steps, merge_equal, share_buffers
from torchmdla.devices.cpu.passes.sliced_contractions import fuse_slices, separate_slices
from torchmdla.devices.cpu.passes.split_reduction import SPLIT_REDUCTIONS
from torchmdla.devices.cpu.passes.strassen import USE_STRASSEN
from torchmdla.devices.cpu.passes.tile_fusion import fuse_by_tiles
from torchmdla.devices.cpu.passes.winograd import USE_INTEGER_WINOGRAD, USE_WINOGRAD
from torchmdla.devices.cpu.reference import validation
from torchmdla.devices.cpu.target.machine import Machine
from torchmdla.errors import CompileError, unknown_name
from torchmdla.support import trace


@dataclass(frozen=True)
class Pass:
    """Pass with the name under which it is printed.

    ``is_exact`` specifies whether each value stays the same, including NaN and infinity. Other passes reorder sums, or
    rely on a value being finite.
    """

    name: str
    run: Callable[[LoopProgram, Machine], object]
    is_exact: bool = True


def _plain(function: Callable[[LoopProgram], object], is_exact: bool = True) -> Pass:
    """Return a pass that does not need the machine."""
    return Pass(function.__name__.replace("_", "-"), lambda steps, _: function(steps), is_exact)


# The rules of each pass that rewrites the nests which match a pattern.
RULES: Mapping[str, tuple[Rule[Any], ...]] = {
    "store-constant-factors": (STORE_CONSTANT_FACTORS,),
    "defer-softmax": (DEFER_SOFTMAX, MULTIPLY_SOFTMAX),
    "ignore-nan": (IGNORE_NAN,),
    "fold-scales": (DEFER_NORMS, FOLD_SCALES),
    "use-nibbles": (USE_NIBBLES,),
    "use-winograd": (USE_WINOGRAD, USE_INTEGER_WINOGRAD),
    "use-strassen": (USE_STRASSEN,),
    "one-walk-moments": (MOMENTS,),
    "split-reductions": (SPLIT_REDUCTIONS,),
}


def _rules(name: str, is_exact: bool = False) -> Pass:
    return Pass(name, partial(apply, RULES[name]), is_exact)


# Passes that change the computation of steps and their layouts. Layouts change before epilogues merge, and both before
# packing, which then finds every step that depends on parameters alone.
REWRITES = (
    _plain(LoopProgram.remove_unread),
    _plain(fuse_scatters),
    _plain(shrink_broadcasts),
    _plain(join_loops, is_exact=False),  # sums over joined loops may be in another order
    _rules("store-constant-factors", is_exact=True),
    _plain(elide_insert_copies),
    Pass("block-channels", lambda steps, machine: block_channels(steps, channel_block_sizes(steps, machine))),
    _plain(merge_copies),
    _plain(separate_slices),
    _rules("defer-softmax"),
    _rules("ignore-nan", is_exact=True),
    Pass("pack-weights", pack_weights),
    Pass("merge-epilogues", merge_epilogues),
    _plain(hoist_loop_invariants),
    _plain(drop_roundings),
    _rules("fold-scales"),
    Pass("use-dot-products", use_dot_products, is_exact=False),
    _rules("use-nibbles"),
    _plain(keep_floats, is_exact=False),
    _rules("use-winograd"),
    _rules("use-strassen"),
    _plain(precompute_parameters),
    Pass("pack-activations", pack_activations),
    _plain(merge_equal),
    Pass("fuse-slices", fuse_slices),
    _plain(reroll_loops),
)


# The extents of a full tile along each axis, for each loop that runs nests tile by tile.
Tiles = Sequence[Sequence[int]]


def _tiling_passes(tiles: Tiles | None = None) -> tuple[Pass, ...]:
    """Return the passes that fuse steps and assign their memory."""
    return (
        Pass("fuse-by-tiles", lambda steps, machine: fuse_by_tiles(steps, machine, tiles)),
        Pass("delay-steps", delay_steps),
        _plain(share_buffers),
    )


# Passes that run once, after samples are merged.
REDUCTIONS = (_rules("one-walk-moments"), _rules("split-reductions"), _plain(merge_results))

# All passes, in the order in which they run.
PASSES = (*REWRITES, *REDUCTIONS, *_tiling_passes())


def find_passes(names: Sequence[str]) -> list[Pass]:
    """Return the passes with the given names.

    Raises:
        CompileError: A name is unknown; the message lists the known names.
    """
    known = {pass_.name: pass_ for pass_ in PASSES}
    for name in names:
        if name not in known:
            raise CompileError(unknown_name("pass", name, known))
    return [known[name] for name in names]


def transform(
    program: Program,
    samples: Sequence[LoopProgram],
    tiles: Tiles | None = None,
    measured: Mapping[str, str] | None = None,
) -> tuple[LoopProgram, Tiles]:
    """Run every pass over the steps of a program.

    The samples of a dynamic program are merged at once into one whose numbers hold for all sizes. If the number of
    steps depends on a size, as for an unrolled recurrence, the samples are rewritten one by one until they contain
    loops.

    Args:
        program: The program.
        samples: The steps of the program, or of each sample of a dynamic program.
        tiles: The tiles of the chains (:func:`~torchmdla.devices.cpu.passes.tile_fusion.fuse_by_tiles`), if they are
            already chosen.
        measured: The algorithms of some contractions (:class:`~torchmdla.devices.cpu.ir.loop_program.LoopProgram`).

    Returns:
        The steps, and the tiles of the loops that run by tiles, in order.

    Raises:
        CompileError: The samples of a dynamic program differ in more than numbers.
        ValueError: ``tiles`` are those of other chains.
    """
    machine = Machine.of(program.target, program.options)
    if len({len(sample.steps) for sample in samples}) == 1:
        samples = [_generalise(program, samples)]
    else:
        mark_varying(samples)
    for k, sample in enumerate(samples):
        name = f"sample{k}" if len(samples) > 1 else ""
        sample.measured = measured or {}
        observe("read-steps", sample, name)
        if validation.is_enabled():
            validation.note("program")
        check = _start_check(sample)
        for pass_ in REWRITES:
            run(pass_, sample, machine, name, check)
    steps = _generalise(program, samples)
    if len(samples) > 1:
        observe("generalise", steps)
    check = _start_check(steps)
    for pass_ in REDUCTIONS:
        run(pass_, steps, machine, check=check)
    before = set(steps.steps)
    for pass_ in _tiling_passes(tiles):
        run(pass_, steps, machine, check=check)
    return steps, [step.tile for step in steps.steps if isinstance(step, TileLoop) and step not in before]


def _generalise(program: Program, samples: Sequence[LoopProgram]) -> LoopProgram:
    """Return the steps for all sizes, which compute the same as the first sample at its sizes."""
    is_checked = validation.is_enabled() and len(samples) > 1
    check = validation.Check(samples[0], program.samples[0].values) if is_checked else None
    steps = generalise(program, samples)
    if check is not None:
        check.finish("generalise", steps, is_exact=True)
    return steps


def _start_check(steps: LoopProgram) -> validation.Check | None:
    return validation.Check(steps) if validation.is_enabled() else None


def run(
    pass_: Pass, steps: LoopProgram, machine: Machine, name: str = "", check: validation.Check | None = None
) -> None:
    """Run one pass; then write, verify and validate the program where that is requested.

    Args:
        pass_: The pass.
        steps: The program.
        machine: The target machine.
        name: The name of the sample, if there are several.
        check: The check with the results before this pass. Without it, a new check is made.
    """
    dump.begin(f"{pass_.name} {name}".rstrip())
    check = check or _start_check(steps)
    with trace.span(pass_.name, "pass"):
        pass_.run(steps, machine)
    observe(pass_.name, steps, name)
    if check is not None:
        check.finish(pass_.name, steps, pass_.is_exact)


def observe(stage: str, steps: LoopProgram, name: str = "") -> None:
    """Write and verify the program after a stage, where that is requested.

    Raises:
        CompileError: The steps are not valid; the message names the stage.
    """
    dump.write(f"{stage}{'-' if name else ''}{name}.steps", lambda: program_text(steps), series=f"steps {name}")
    if is_enabled():
        verify(steps, stage)
