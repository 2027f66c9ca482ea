"""The passes over an executable's steps, in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torchmdla.compiler import dump
from torchmdla.compiler.program import Program
from torchmdla.devices.cpu.machine import Machine
from torchmdla.devices.cpu.passes.chains import chain_nests
from torchmdla.devices.cpu.passes.constants import store_constant_factors
from torchmdla.devices.cpu.passes.copies import merge_copies, remove_copies
from torchmdla.devices.cpu.passes.epilogue import merge_epilogues
from torchmdla.devices.cpu.passes.fills import move_fills
from torchmdla.devices.cpu.passes.gates import chain_slices, separate_slices
from torchmdla.devices.cpu.passes.hoisting import hoist_argument_work
from torchmdla.devices.cpu.passes.layout import block_channels
from torchmdla.devices.cpu.passes.packing import pack_parameters
from torchmdla.devices.cpu.passes.padding import compute_in_place
from torchmdla.devices.cpu.passes.panels import lay_out_panels
from torchmdla.devices.cpu.passes.partial import reduce_in_parts
from torchmdla.devices.cpu.passes.products import transpose_factors
from torchmdla.devices.cpu.passes.renaming import separate_values, share_buffers
from torchmdla.devices.cpu.passes.rolling import roll_loops
from torchmdla.devices.cpu.passes.scaling import scale_weights
from torchmdla.devices.cpu.printer import steps_text
from torchmdla.devices.cpu.steps import Steps
from torchmdla.devices.cpu.verifier import is_asked_for, verify


@dataclass(frozen=True)
class Pass:
    """A pass, by the name under which it is printed."""

    name: str
    run: Callable[[Steps, Machine], object]


def _plain(function: Callable[[Steps], object]) -> Pass:
    """A pass that needs to know nothing of the machine."""
    return Pass(function.__name__.replace("_", "-"), lambda steps, _: function(steps))


def _lanes(function: Callable[[Steps, int], object]) -> Pass:
    """A pass that needs the number of floats in a vector."""
    return Pass(function.__name__.replace("_", "-"), lambda steps, machine: function(steps, machine.vector_bytes // 4))


# What each step computes, and in which layout. Values are told apart first, so that passes may move one without the
# other. Layouts change before epilogues merge, and both before packing, which then finds every step that depends on
# parameters alone.
REWRITES = (
    _plain(remove_copies),
    _plain(separate_values),
    _plain(move_fills),
    _plain(store_constant_factors),
    _plain(compute_in_place),
    _lanes(block_channels),
    _plain(merge_copies),
    _plain(separate_slices),
    _lanes(lay_out_panels),
    _plain(merge_epilogues),
    _plain(hoist_argument_work),
    _plain(scale_weights),
    _plain(pack_parameters),
    _plain(transpose_factors),
    Pass("chain-slices", chain_slices),
    _plain(roll_loops),
)


def transform(steps: Steps, program: Program) -> None:
    """Runs every pass over ``steps``, in place."""
    rewrite(steps, program)
    run(_plain(reduce_in_parts), steps, program)
    run_by_tiles(steps, program)


def rewrite(steps: Steps, program: Program, name: str = "") -> None:
    """The passes that decide what each step computes, and in which layout. ``name``: of a sample, where it is one."""
    observe("read-steps", steps, name)
    for one in REWRITES:
        run(one, steps, program, name)


def run_by_tiles(steps: Steps, program: Program, tiles: Sequence[Sequence[int]] | None = None, name: str = "") -> None:
    """The passes that decide which steps run together, in which memory. ``tiles``: of the chains
    (:func:`~torchmdla.devices.cpu.passes.chains.chain_nests`), where they are chosen already."""
    run(Pass("chain-nests", lambda steps, machine: chain_nests(steps, machine, tiles)), steps, program, name)
    run(_plain(share_buffers), steps, program, name)


def run(one: Pass, steps: Steps, program: Program, name: str = "") -> None:
    """Runs one pass; then what it made is written and verified, where that is asked for."""
    dump.begin(f"{one.name} {name}".rstrip())
    one.run(steps, Machine.of(program.target))
    observe(one.name, steps, name)


def observe(stage: str, steps: Steps, name: str = "") -> None:
    """Writes and verifies what a stage made, where that is asked for.

    Raises:
        CompileError: the steps are not valid; names the stage.
    """
    dump.write(f"{stage}{'-' if name else ''}{name}.steps", lambda: steps_text(steps), series=f"steps {name}")
    if is_asked_for():
        verify(steps, stage)
