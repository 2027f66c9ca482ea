"""The passes over an executable's steps, in order."""

from __future__ import annotations

from collections.abc import Sequence

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
from torchmdla.devices.cpu.steps import Steps


def transform(steps: Steps, program: Program) -> None:
    """Runs every pass over ``steps``, in place."""
    rewrite(steps, program)
    reduce_in_parts(steps)
    run_by_tiles(steps, program)


def rewrite(steps: Steps, program: Program) -> None:
    """The passes that decide what each step computes, and in which layout.

    Values are told apart first, so that passes may move one without the other. Layouts change before epilogues merge,
    and both before packing, which then finds every step that depends on parameters alone.
    """
    machine = Machine.of(program.target)
    lanes = machine.vector_bytes // 4
    remove_copies(steps)
    separate_values(steps)
    move_fills(steps)
    store_constant_factors(steps)
    compute_in_place(steps)
    block_channels(steps, lanes)
    merge_copies(steps)
    separate_slices(steps)
    lay_out_panels(steps, lanes)
    merge_epilogues(steps)
    hoist_argument_work(steps)
    scale_weights(steps)
    pack_parameters(steps)
    transpose_factors(steps)
    chain_slices(steps, machine)
    roll_loops(steps)


def run_by_tiles(steps: Steps, program: Program, tiles: Sequence[Sequence[int]] | None = None) -> None:
    """The passes that decide which steps run together, in which memory. ``tiles``: of the chains
    (:func:`~torchmdla.devices.cpu.passes.chains.chain_nests`), where they are chosen already."""
    chain_nests(steps, Machine.of(program.target), tiles)
    share_buffers(steps)
