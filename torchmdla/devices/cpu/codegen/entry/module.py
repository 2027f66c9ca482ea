"""Module of an executable: kernels, packs, the entry, and their entries in the manifest."""

from __future__ import annotations

from dataclasses import dataclass

from torchmdla.compiler.artifact import KernelCall, Pack
from torchmdla.compiler.program import Program
from torchmdla.devices.cpu.codegen.checks import FAULT, Marks
from torchmdla.devices.cpu.codegen.entry.abi import ENTRY, SHARED, WORKSPACE, Abi
from torchmdla.devices.cpu.codegen.entry.function import FunctionWriter
from torchmdla.devices.cpu.codegen.entry.kernel_functions import KernelFunctions
from torchmdla.devices.cpu.codegen.entry.manifest import describe_packs
from torchmdla.devices.cpu.codegen.entry.waits import find_waits, is_shareable
from torchmdla.devices.cpu.ir.loop_program import LoopProgram
from torchmdla.devices.cpu.schedule.plan import Plan
from torchmdla.devices.cpu.target.machine import CHECK_BOUNDS, Machine, emission_target

# The baseline processor by architecture, to which features are added.
_BASELINES = {"x86_64": "x86-64", "aarch64": "generic"}


@dataclass(frozen=True)
class Code:
    """Whole module as MLIR text.

    Attributes:
        declarations: the texts of declarations by symbol.
        globals: the texts of globals by symbol.
        functions: the texts of functions by symbol.
        kernel_symbols: the functions that others call with the type of kernels.
        workspace_bytes: the size of the workspace, without that of the entry of a dynamic program.
        workspace: the function that computes the size for the entry of a dynamic program; empty in a static program.
        regions: the functions of regions.
        kernels: the calls of kernels in the entry.
        nests: the number of nests in these calls.
        distinct_kernels: the number of kernels and regions in the module.
        packs: the manifest entries of packs.
        parameters: the positions of parameters that the entry reads itself.
        in_place, releases: the manifest's entries of these names.
        fault: the function that returns the message of a failed check, if accesses are checked
            (:mod:`~torchmdla.devices.cpu.codegen.checks`); empty otherwise.
        marks: the part of the text that checks need.
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
    in_place: tuple[tuple[int, int], ...] = ()
    releases: tuple[tuple[int, int], ...] = ()
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
    """Return the module that implements the ABI for ``steps``, computed as ``plan`` specifies."""
    attributes = function_attributes(program, is_kernel=False)
    abi = Abi(plan.symbols, len(steps.packings), len(program.arguments) + len(program.results), attributes)
    marks = Marks() if CHECK_BOUNDS in program.target.features.split(",") else None
    kernels = KernelFunctions(Machine.of(program.target, program.options), function_attributes(program), plan, marks)
    packs = [FunctionWriter("{symbol}", packing.steps, abi, kernels, packing) for packing in steps.packings]
    # Checked kernels run one after another, so that the first fault is found.
    waits = find_waits(steps, plan) if is_shareable(steps, plan) and not marks else []
    entry = FunctionWriter(ENTRY, steps.steps, abi, kernels, waits=waits)
    entry.require(steps.not_negative)
    pack_codes = [pack.write() for pack in packs]
    pack_symbols = {code: f"mdla_pack_{k}" for k, code in enumerate(dict.fromkeys(pack_codes))}
    functions = {symbol: code.replace("{symbol}", symbol) for code, symbol in pack_symbols.items()}
    functions[SHARED if waits else ENTRY] = entry.write()
    if waits:
        functions |= entry.write_shared()
    if plan.symbols.is_used:
        functions[WORKSPACE] = entry.write_workspace()
    planned = packs if plan.symbols.is_used else [*packs, entry]
    parameters = {k for k, argument in enumerate(program.arguments) if argument.role == "parameter"}
    written = {symbol: code.replace("{symbol}", symbol) for symbol, code in kernels.code.items()}
    return Code(
        declarations={name: declaration(name, kinds) for name, kinds in sorted(kernels.externals.items())},
        globals=steps.globals | (entry.shared_kernels if waits else {}),
        functions={**written, **kernels.regions, **functions},
        kernel_symbols=frozenset(written),
        workspace_bytes=max((writer.workspace_bytes for writer in planned), default=0),
        workspace=WORKSPACE if plan.symbols.is_used else "",
        regions=tuple(kernels.regions),
        kernels=tuple(entry.listed.calls),
        nests=entry.listed.nests,
        distinct_kernels=kernels.count,
        packs=describe_packs(steps, program, [(pack_symbols[code], code) for code in pack_codes], kernels.code),
        parameters=tuple(sorted(entry.arguments & parameters)),
        # A check that fails ends a call, and the caller computes it again from its inputs.
        in_place=() if marks else tuple((result - len(program.arguments), a) for result, a in steps.in_place),
        releases=() if marks else steps.releases,
        fault=FAULT if marks else "",
        marks=tuple(marks.declarations) if marks else (),
    )


def declaration(name: str, kinds: str) -> str:
    """Return the declaration of the function ``name``, whose type is ``kinds``, for example ``(f32) -> f32``."""
    # The declaration of a function without a result does not have a result type.
    return f"llvm.func @{name}{kinds.removesuffix(' -> ()').replace('-> ()', '')}"


def function_attributes(program: Program, is_kernel: bool = True) -> str:
    """Return the LLVM attributes of generated functions: of kernels, or of functions that call kernels.

    A function of the second kind is called only by a function that the engine adds, and should not be inlined there.
    LLVM's vectoriser of straight-line code finds nothing in such functions, but takes quadratic time in a block's
    length. It skips functions with ``noimplicitfloat``.

    Features are listed individually on top of the architecture's baseline. A processor's name promises features that a
    virtual machine may not offer.
    """
    target = emission_target(program.target)
    items = ['passthrough = [["prefer-vector-width", "512"]]']
    if not is_kernel:
        items = ["no_inline", 'passthrough = ["noimplicitfloat"]']
    baseline = _BASELINES.get(target.architecture)
    if baseline:
        items.append(f'target_cpu = "{baseline}"')
    if target.cpu:
        items.append(f'tune_cpu = "{target.cpu}"')
    features = [f'"{name}"' for name in target.features.split(",") if name.startswith("+")]
    if features:
        items.append(f"target_features = #llvm.target_features<[{', '.join(features)}]>")
    return f"attributes {{{', '.join(items)}}}"
