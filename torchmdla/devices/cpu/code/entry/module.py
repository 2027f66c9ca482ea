"""The module of an executable, put together: kernels, packs, the entry, and what the manifest says of them."""

from __future__ import annotations

from dataclasses import dataclass

from torchmdla.compiler.artifact import KernelCall, Pack
from torchmdla.compiler.program import Program
from torchmdla.devices.cpu.code.checks import FAULT, Marks
from torchmdla.devices.cpu.code.entry.abi import ENTRY, WORKSPACE, Abi
from torchmdla.devices.cpu.code.entry.attributes import function_attributes
from torchmdla.devices.cpu.code.entry.function import FunctionWriter
from torchmdla.devices.cpu.code.entry.kernel_functions import KernelFunctions
from torchmdla.devices.cpu.code.entry.manifest import described_packs
from torchmdla.devices.cpu.loop_program import LoopProgram
from torchmdla.devices.cpu.machine import CHECK_BOUNDS, Machine
from torchmdla.devices.cpu.schedule.plan import Plan


@dataclass(frozen=True)
class Code:
    """The whole module as MLIR text, what it needs, the kernels that its entry calls, the nests in these, and how many
    kernels it holds. ``declarations``, ``globals`` and ``functions`` are the parts of the text by symbol;
    ``kernel_symbols`` are the functions that others call by the type of kernels. ``workspace_bytes`` leaves out the
    entry of a dynamic program: the function ``workspace`` says what that needs. ``regions`` are the functions of
    regions. Of code that is to be checked (:mod:`~torchmdla.devices.cpu.code.checks`), ``fault`` tells what failed, and
    ``marks`` are part of the text. ``parameters`` are those that the entry reads itself.
    """

    declarations: dict[str, str]
    globals: dict[str, str]
    functions: dict[str, str]
    kernel_symbols: frozenset[str]
    workspace_bytes: int
    workspace: str
    regions: tuple[str, ...]
    kernels: tuple[KernelCall, ...]
    nests: int
    distinct_kernels: int
    packs: tuple[Pack, ...]
    parameters: tuple[int, ...]
    fault: str = ""
    marks: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        parts = (self.declarations, self.globals, self.functions)
        return "\n".join([*(text for part in parts for text in part.values()), *self.marks])

    @property
    def externals(self) -> tuple[str, ...]:
        return tuple(self.declarations)


def write_module(steps: LoopProgram, plan: Plan, program: Program) -> Code:
    """The module that runs ``steps`` by the ABI, computed as ``plan`` says."""
    attributes = function_attributes(program, is_kernel=False)
    abi = Abi(plan.symbols, len(steps.packings), len(program.arguments) + len(program.results), attributes)
    marks = Marks() if CHECK_BOUNDS in program.target.features.split(",") else None
    kernels = KernelFunctions(Machine.of(program.target, program.options), function_attributes(program), plan, marks)
    packs = [FunctionWriter("{symbol}", packing.steps, abi, kernels, packing) for packing in steps.packings]
    entry = FunctionWriter(ENTRY, steps.steps, abi, kernels)
    entry.require(steps.not_negative)
    pack_codes = [pack.write() for pack in packs]
    pack_symbols = {code: f"mdla_pack_{k}" for k, code in enumerate(dict.fromkeys(pack_codes))}
    functions = {symbol: code.replace("{symbol}", symbol) for code, symbol in pack_symbols.items()}
    functions[ENTRY] = entry.write()
    if plan.symbols.is_used:
        functions[WORKSPACE] = entry.write_workspace()
    planned = packs if plan.symbols.is_used else [*packs, entry]
    written = {symbol: code.replace("{symbol}", symbol) for symbol, code in kernels.code.items()}
    return Code(
        declarations={name: declaration(name, kinds) for name, kinds in sorted(kernels.externals.items())},
        globals=steps.globals,
        functions={**written, **kernels.regions, **functions},
        kernel_symbols=frozenset(written),
        workspace_bytes=max((writer.workspace_bytes for writer in planned), default=0),
        workspace=WORKSPACE if plan.symbols.is_used else "",
        regions=tuple(kernels.regions),
        kernels=tuple(entry.listed.calls),
        nests=entry.listed.nests,
        distinct_kernels=kernels.count,
        packs=described_packs(steps, program, [(pack_symbols[code], code) for code in pack_codes], kernels.code),
        parameters=tuple(sorted(entry.arguments & _parameters(program))),
        fault=FAULT if marks else "",
        marks=tuple(marks.declarations) if marks else (),
    )


def _parameters(program: Program) -> frozenset[int]:
    return frozenset(k for k, argument in enumerate(program.arguments) if argument.role == "parameter")


def declaration(name: str, kinds: str) -> str:
    """Of the function ``name``, whose type is ``kinds``: ``(f32) -> f32``, say."""
    # A function without result has none.
    return f"llvm.func @{name}{kinds.removesuffix(' -> ()').replace('-> ()', '')}"
