"""Run one program on one frontend and compare all its observable results with eager."""

from __future__ import annotations

import copy
import hashlib
import os
import re
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

import torchmdla
from torchmdla import _C, devices
from torchmdla.compile_service import service
from torchmdla.compiler.program import Program as CompiledProgram
from torchmdla.importer.trace import qualified_name
from torchmdla.testing.compare import TOLERANCES, assert_matches
from torchmdla.testing.device_use import DeviceUse, device_use
from torchmdla.testing.frontends import Captured, Variant, eager_methods
from torchmdla.testing.programs import Program
from torchmdla.testing.programs.inputs import copy_tensor, draw_inputs

Status = Literal[
    "ok", "fallback", "not captured", "pytorch", "not compiled", "wrong", "error", "no reference", "crash", "time-out"
]

STATUSES: dict[Status, str] = {
    "ok": "everything as eager",
    "fallback": "right, but a group ran in PyTorch's interpreter",
    "not captured": "PyTorch's own capture refuses the program",
    "pytorch": "PyTorch's own capture computes something else than eager, without torchmdla too",
    "not compiled": "right, but the compiler failed on a group",
    "wrong": "values, dtypes, sizes, strides, aliasing, mutation or gradients are not eager's",
    "error": "an exception that eager does not raise",
    "no reference": "eager itself does not run it",
    "crash": "the process died",
    "time-out": "not ready in time",
}

# Statuses that need no entry in the table of expected failures.
PASSING: frozenset[Status] = frozenset({"ok", "fallback", "not captured", "pytorch"})

# Statuses of programs whose results are eager's.
RIGHT: frozenset[Status] = frozenset({"ok", "fallback", "not compiled"})

# Prefixes of the fallback reasons that mean that the compiler failed, not that it refused the group. A counter of
# failures would not do: a failure is cached, and counted once for all programs that share a group.
_FAULTS = (
    "the compiler failed",
    "the compiler process died",
    "no lowering",
    "bufferisation failed",
    "internal error",
    "the object code",
    "compiled code calls",
)

# An error of eager's own derivatives: the gradient has other sizes than the input (pixel_unshuffle of an empty tensor).
_FAULT_OF_EAGER = re.compile("returned an invalid gradient")

# Errors of PyTorch's functionalisation, which do not depend on the backend.
_FUNCTIONALISATION_ERROR = re.compile(
    "functionalization encountered a tensor being mutated that has internal overlap"
    "|only support functionalizing operators whose outputs do not have alias annotations"
)

# Number of calls. The profiling executor profiles the first call and optimises in the second. A differentiable graph is
# optimised one call later. The next call records and compiles; the last call runs the compiled code.
_CALLS = {"inference": 4, "gradients": 5, "training": 6}


@dataclass(frozen=True)
class Outcome:
    """Result of one program on one frontend variant.

    Attributes:
        program, way: the names.
        status: see :data:`STATUSES`.
        detail: the first difference and its location, or the error; one line.
        fallbacks: reason → count of group calls in PyTorch's interpreter, and of groups compiled around an op, as in
            ``torchmdla.stats()``.
        groups: number of groups that were formed.
        specialisations: number of groups that were compiled for given input types.
        compiled_calls: number of calls of compiled code of the device.
        operators: each declared operator of the program → why it did not run in compiled code; empty if it did
            (:class:`torchmdla.testing.device_use.DeviceUse`).
        seconds: wall time of the check.
        precision: the device's number format, if it has its own.
        code: a hash of each artifact's code, in the order of the compiles.
    """

    program: str
    way: str
    status: Status
    detail: str = ""
    fallbacks: dict[str, int] = field(default_factory=dict)
    groups: int = 0
    specialisations: int = 0
    compiled_calls: int = 0
    operators: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    precision: str | None = None
    code: tuple[str, ...] = ()


def check(program: Program, way: str, variant: Variant, seed: int = 0, precision: str | None = None) -> Outcome | None:
    """Return the outcome of ``program`` on a variant, in this process; None if the variant does not support it.

    ``precision`` is the device's number format, as in :func:`torchmdla.testing.compare.assert_matches`.
    """
    subject = _make(program, seed)
    if not variant.takes(program, subject):
        return None
    # A rewritten program computes its values differently, so their strides and aliases may differ.
    variant = replace(variant, has_memory=variant.has_memory and program.rewritten is None)
    start = perf_counter()
    torchmdla.reset_stats()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with _set_options(program), _code_hashes() as code:
            status, detail, use = _compare(program, variant, seed, precision)
        stats = torchmdla.stats()
        if (
            status in ("wrong", "error")
            and not variant.has_device
            and _is_pytorch_fault(program, variant, seed, status, precision)
        ):
            status = "pytorch" if status == "wrong" else "not captured"
    fallbacks = Counter(stats.fallbacks) + Counter(map(_strip_location, stats.left_out))
    if status == "ok" and any(reason.startswith(_FAULTS) for reason in fallbacks):
        status = "not compiled"
    elif status == "ok" and fallbacks:
        status = "fallback"
    return Outcome(
        program.name,
        way,
        status,
        detail or "; ".join(fallbacks),
        dict(fallbacks),
        stats.groups,
        stats.specialisations,
        use.calls,
        use.operators,
        round(perf_counter() - start, 3),
        precision,
        tuple(code),
    )


@contextmanager
def _set_options(program: Program) -> Iterator[None]:
    """Set the program's options and environment variables.

    Afterwards, the device has its default options if the program has options.
    """
    before = {name: os.environ.get(name) for name in program.environment}
    os.environ.update(program.environment)
    if program.options:
        torchmdla.enable(device=devices.in_use(), **program.options)
    try:
        yield
    finally:
        if program.options:
            torchmdla.enable(device=devices.in_use())
        for name, value in before.items():
            os.environ.pop(name)
            os.environ.update({name: value} if value is not None else {})


@contextmanager
def _code_hashes() -> Iterator[list[str]]:
    """Collect a hash of the code of each program that is compiled inside the context."""
    hashes: list[str] = []
    compile_program = service.compile_program

    def compiled(program: CompiledProgram) -> service.CompileOutcome:
        outcome = compile_program(program)
        hashes.append(hashlib.sha256(outcome.artifact.object_code).hexdigest()[:16])
        return outcome

    service.compile_program = compiled
    try:
        yield hashes
    finally:
        service.compile_program = compile_program


def _strip_location(left_out: str) -> str:
    """Return the reason in a row of ``stats().left_out``."""
    return re.sub(r"^\S+: | \(at \S+:\d+\)$", "", left_out)


def _compare(program: Program, variant: Variant, seed: int, precision: str | None) -> tuple[Status, str, DeviceUse]:
    """Return the status before fallbacks are considered, the difference, and the use of the device."""
    if program.is_refused:
        return *_check_refusal(program, variant, seed), DeviceUse()
    try:
        expected = _eager_run(program, variant, seed)
    except Exception as error:
        return "no reference", _line(error), DeviceUse()
    if all(seen.get("raises") for seen in expected):
        return "no reference", str(expected[0]["raises"]), DeviceUse()
    try:
        run = _CapturedRun(program, variant, seed)
        actual = run.results()
    except Exception as error:
        refused = _FUNCTIONALISATION_ERROR.search(str(error))
        return ("not captured" if refused else "error"), _line(error), DeviceUse()
    # The groups exist as long as the run does.
    use = device_use(devices.get(devices.in_use()), torchmdla.stats())
    difference = _difference(program, actual, expected, variant.has_memory, precision)
    if difference and program.in_doubt:
        others = _vary_eager(program, seed, variant, _ROUNDINGS)
        elsewhere = _vary_eager(program, seed, variant, [(_zero_indices, nullcontext)])
        difference = _difference(program, actual, expected, variant.has_memory, precision, others, elsewhere)
    return ("wrong" if difference else "ok"), difference, use


# A function that changes the inputs, and a context that changes the results of ops.
_Change = tuple[Callable[[Any], Any] | None, Callable[[], AbstractContextManager[Any]]]


def _eager_run(
    program: Program, variant: Variant, seed: int, change: _Change = (None, nullcontext)
) -> list[dict[str, Any]]:
    """Return the results of eager PyTorch."""
    inputs_changed, results_changed = change
    subject = _make(program, seed)
    eager = eager_methods(subject, program.inputs, program.methods)
    run = _Run(program, eager, _state(subject), seed, variant, is_reference=True, change=inputs_changed)
    with results_changed():
        return run.results()


class _Dispatched(TorchDispatchMode):
    """Mode that collects the operators that PyTorch dispatches, by schema name without the mark of in-place forms."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(re.sub(r"(?<=\w)_(?=\.|$)", "", qualified_name(func._schema)))
        return func(*args, **(kwargs or {}))


def dispatched_operators(program: Program, variant: Variant, seed: int) -> frozenset[str]:
    """Return the operators that PyTorch dispatches below autograd, in backward passes too; none if eager raises."""
    mode = _Dispatched()
    _exception_of(lambda: _eager_run(program, variant, seed, (None, lambda: mode)))
    return frozenset(mode.names)


def _check_refusal(program: Program, variant: Variant, seed: int) -> tuple[Status, str]:
    """Return the status of a program on which eager raises."""
    if _exception_of(lambda: _eager_run(program, variant, seed)) is None:
        return "no reference", "eager does not raise"
    error = _exception_of(lambda: _CapturedRun(program, variant, seed).results())
    return ("ok", "") if error is not None else ("wrong", "raises: nothing, but eager does")


def _exception_of(run: Callable[[], object]) -> Exception | None:
    try:
        run()
    except Exception as error:
        return error
    return None


def _vary_eager(
    program: Program, seed: int, variant: Variant, changes: Sequence[_Change]
) -> list[list[dict[str, Any]]]:
    """Return the results of eager with each of ``changes``, except those with which eager raises."""
    runs = []
    for change in changes:
        try:
            runs.append(_eager_run(program, variant, seed, change))
        except Exception:
            continue
    return runs


def _nudge(leaf: Any, direction: int) -> Any:
    """Increase the magnitude of half of the elements by about 2 epsilon; ``direction`` (0, 1) selects the half."""
    if not isinstance(leaf, Tensor) or leaf.dtype not in TOLERANCES or leaf.is_complex() or not leaf.numel():
        return leaf
    places = torch.arange(leaf.numel()).view(leaf.shape) * 7 // 3 % 2 == direction
    nudged = torch.where(places, leaf * (1 + 2 * torch.finfo(leaf.dtype).eps), leaf)
    # Write in place if possible, to keep the strides of the input.
    return leaf.copy_(nudged) if len(set(leaf.stride())) == leaf.dim() and 0 not in leaf.stride() else nudged


def _to_float64(leaf: Any) -> Any:
    return leaf.double() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf


# Operators that return rounded floats although they have no floating-point operands.
_ROUNDING_OPS = frozenset((torch.ops.aten.linspace.default, torch.ops.aten.logspace.default))


class _NudgedResults(TorchDispatchMode):
    """Mode that nudges the results of every op.

    A value near a cancellation deep inside a program depends on these more than on the inputs.
    """

    def __init__(self, direction: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._direction = direction

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        # Skip views, which alias other tensors. An op without floating-point operands is exact.
        operands = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        is_exact = not any(operand.is_floating_point() for operand in operands) and func not in _ROUNDING_OPS
        aliases = [returned.alias_info for returned in func._schema.returns if returned.alias_info is not None]
        if is_exact or not all(alias.is_write for alias in aliases):
            return results
        return tree_map(partial(_nudge, direction=self._direction), results)


def _zero_indices(leaf: Any) -> Any:
    """Replace integer tensors by zeros: index 0 is valid in every tensor that is not empty."""
    return torch.zeros_like(leaf) if isinstance(leaf, Tensor) and leaf.dtype in (torch.int32, torch.int64) else leaf


# Inputs and every op's results rounded differently, and everything in float64.
_ROUNDINGS: Sequence[_Change] = (
    *((partial(_nudge, direction=k), partial(_NudgedResults, k)) for k in (0, 1)),
    (_to_float64, nullcontext),
)


def _is_pytorch_fault(program: Program, variant: Variant, seed: int, status: Status, precision: str | None) -> bool:
    """Return whether PyTorch's own capture causes the failure: it gives the same results without torchmdla."""
    try:
        alone = _run_without_torchmdla(program, variant, seed)
    except Exception:
        return status == "error"
    try:
        eager = _eager_run(program, variant, seed)
        # PyTorch's capture draws random numbers in the order of its groups. With torchmdla, the groups differ.
        if "random" in program.tags and _difference(program, alone, eager, variant.has_memory, precision):
            return status == "wrong"
        again = _CapturedRun(program, variant, seed).results()
        # Where eager raises and PyTorch's capture does not, its results may be uninitialised memory.
        refused = _raising_calls(eager)
        unlike = refused - _raising_calls(alone)
        # PyTorch's executor may raise where eager does not. With groups, it may do so from another call on.
        if program.in_doubt and _raising_calls(again) - refused:
            ever = _raising_calls(_run_without_torchmdla(replace(program, series=program.series * 3), variant, seed))
            if {call % len(alone) for call in ever} - refused:
                unlike |= (_raising_calls(alone) | _raising_calls(again)) - refused
        again, alone = (_omit_calls(run, unlike) for run in (again, alone))
        difference = _difference(program, again, alone, variant.has_memory, precision)
        if difference and program.in_doubt:
            others = [_omit_calls(run, unlike) for run in _vary_eager(program, seed, variant, _ROUNDINGS)]
            difference = _difference(program, again, alone, variant.has_memory, precision, others)
        return status == "wrong" and not difference
    except Exception:
        return False


def _run_without_torchmdla(program: Program, variant: Variant, seed: int) -> list[dict[str, Any]]:
    """Return the results of PyTorch's capture without torchmdla."""
    with torchmdla.enabled(False), without_groups():
        return _CapturedRun(program, replace(variant, capture=variant.alone or variant.capture), seed).results()


@contextmanager
def without_groups() -> Iterator[None]:
    """Disable torchmdla's pass in TorchScript. A group may fail even if it is switched off."""
    _C.use_device("")
    try:
        yield
    finally:
        _C.use_device(devices.in_use())


def _omit_calls(run: Sequence[Any], calls: Collection[int]) -> list[Any]:
    return [seen for call, seen in enumerate(run) if call not in calls]


def _raising_calls(run: Sequence[Mapping[str, Any]]) -> set[int]:
    """Return the indices of the calls that raise."""
    return {call for call, seen in enumerate(run) if seen.get("raises")}


def _difference(
    program: Program,
    actual: Sequence[Any],
    expected: Sequence[Any],
    has_memory: bool,
    precision: str | None,
    others: Sequence[Sequence[Any]] = (),
    elsewhere: Sequence[Sequence[Any]] = (),
) -> str:
    """Return a description of the first difference, or an empty string.

    Strides and aliases count only with ``has_memory``. ``others`` are as in
    :func:`torchmdla.testing.compare.assert_matches`. ``elsewhere`` holds eager's results with other indices.
    """
    for call, (ours, theirs) in enumerate(zip(actual, expected, strict=True)):
        if bool(ours.get("raises")) != bool(theirs.get("raises")):
            if program.in_doubt and _FAULT_OF_EAGER.search(theirs["raises"]):
                continue
            if any(_index_is_unused(ours, theirs, run[call], program.layers) for run in elsewhere):
                continue
            return f"call {call}, raises: {ours['raises'] or 'nothing'}, expected {theirs['raises'] or 'nothing'}"
        if program.errors and not _is_same_error(ours.get("raises", ""), theirs.get("raises", "")):
            return f"call {call}, raises: {ours['raises']}, expected {theirs['raises']}"
        for what, wanted in theirs.items():
            if what not in ours or what == "raises":  # not observable on this device
                continue
            # TorchScript's derivative formulas give gradients other strides than autograd's.
            strides = has_memory and not (program.in_doubt and what == "gradients")
            try:
                assert_matches(
                    ours[what] if program.values else _describe(ours[what], has_memory),
                    wanted if program.values else _describe(wanted, has_memory),
                    layers=program.layers,
                    strides=strides,
                    precision=precision,
                    others=[other[call][what] for other in others if what in other[call]],
                )
            except AssertionError as error:
                return f"call {call}, {what}: {error}"
    return ""


# TorchScript's interpreter raises one class for all errors, and prefixes the message with its name.
_INTERPRETER_PREFIX = "RuntimeError: RuntimeError: "


def _is_same_error(ours: str, theirs: str) -> bool:
    """Return whether the error's class and message equal eager's. Any two out-of-memory errors are equal."""
    if "allocate" in ours and "allocate" in theirs:
        return True
    if ours.startswith(_INTERPRETER_PREFIX):
        # The message of an operator in Python also contains the class of its error.
        return ours.removeprefix(_INTERPRETER_PREFIX) in (theirs, theirs.partition(": ")[2])
    return ours == theirs


def _index_is_unused(ours: dict[str, Any], theirs: dict[str, Any], elsewhere: dict[str, Any], layers: int) -> bool:
    """Return whether the out-of-range index affects no result: other indices give the same results."""
    if not re.search(r"out of \w*\s*(range|bounds)", theirs["raises"]) or ours["raises"] or elsewhere["raises"]:
        return False
    try:
        assert_matches(ours["outputs"], elsewhere["outputs"], layers=layers)
    except AssertionError:
        return False
    return True


def _describe(values: Any, has_memory: bool) -> Any:
    def describe(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        return leaf.dtype, leaf.shape, leaf.stride() if has_memory else None

    return tree_map(describe, values)


class _Run:
    """Calls of a program, and their observable results."""

    def __init__(
        self,
        program: Program,
        methods: Captured,
        state: Sequence[Tensor],
        seed: int,
        variant: Variant,
        *,
        is_reference: bool = False,
        change: Callable[[Any], Any] | None = None,
    ) -> None:
        self._program = program
        self._methods = methods
        self._state = state
        self._seed = seed
        self._variant = variant
        self._change = change
        self._device = "cpu" if is_reference else variant.device

    def results(self) -> list[dict[str, Any]]:
        """Return the observations of each call, by name."""
        program = self._program
        calls = _CALLS[program.mode]
        if program.mode == "training":
            return self._train(calls)
        # Tensors that the program creates itself must be on its device.
        default = torch.device(self._device) if self._variant.has_device else nullcontext()
        with torch.no_grad() if program.mode == "inference" else nullcontext(), default:
            if program.series:
                return [self._try_call(number, inputs) for number, inputs in enumerate(program.series)]
            return [self._call(self._seed + number, program.inputs) for number in range(calls)]

    def _try_call(self, number: int, inputs: tuple[Any, ...]) -> dict[str, Any]:
        try:
            return {"raises": "", **self._call(self._seed + number, inputs)}
        except Exception as error:
            # Ignore the class: TorchScript's interpreter turns each error into a RuntimeError.
            return {"raises": _line(error)}

    def _call(self, seed: int, inputs: tuple[Any, ...]) -> dict[str, Any]:
        arguments = self._draw_inputs(seed, inputs)
        if self._program.mode == "gradients":
            arguments = tree_map(_require_grad, arguments)
        torch.default_generator.manual_seed(seed)
        outputs = {name: method(*arguments) for name, method in self._methods.items()}
        tensors = [leaf for leaf in tree_leaves((outputs, arguments)) if isinstance(leaf, Tensor)]
        seen: dict[str, Any] = {"outputs": outputs, "inputs afterwards": arguments}
        if self._variant.has_memory:
            seen["sharing"] = _storage_indices(tensors)
        if self._program.mode == "gradients":
            seen["gradients"] = _gradients(outputs, [*tree_leaves(arguments), *self._state])
        # Copy now, because later calls write to parameters and buffers.
        return {**_copy_of(seen), "state": _copy_of(list(self._state))}

    def _draw_inputs(self, seed: int, inputs: tuple[Any, ...]) -> Any:
        with torch.device("cpu"):
            arguments = draw_inputs(inputs, seed)
        if self._change:
            arguments = tree_map(self._change, arguments)
        if not self._variant.has_device:
            return arguments
        # Moving to a device drops gaps and repeated elements, so the reference must not have them either.
        arguments = tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, arguments)
        return _move_to_device(arguments, self._device)

    def _train(self, steps: int) -> list[dict[str, Any]]:
        assert self._program.optimiser is not None
        optimiser = self._program.optimiser([tensor for tensor in self._state if tensor.requires_grad])
        seen = []
        for step in range(steps):
            inputs = self._draw_inputs(self._seed + step, self._program.inputs)
            torch.default_generator.manual_seed(self._seed + step)
            optimiser.zero_grad()
            loss = self._methods["forward"](*inputs)
            loss.backward()
            gradients = _copy_of([tensor.grad for tensor in self._state])
            optimiser.step()
            seen.append(_copy_of({"loss": loss, "gradients": gradients, "state": list(self._state)}))
        return seen


class _CapturedRun(_Run):
    """Calls of the program as a frontend captured it."""

    def __init__(self, program: Program, variant: Variant, seed: int) -> None:
        variant.prepare()
        subject = _move_to_device(_make(program, seed, is_rewritten=program.rewritten is not None), variant.device)
        torch.default_generator.manual_seed(seed)
        # Capture may run the program, so restore its state afterwards.
        before = [tensor.detach().clone() for tensor in _state(subject)]
        with torch.no_grad() if program.mode == "inference" else nullcontext():
            methods = variant.capture(subject, draw_inputs(program.inputs, seed), program.methods)
        for tensor, value in zip(_state(subject), before, strict=True):
            if not torch.equal(tensor, value):
                tensor.detach().copy_(value)
        owner = methods["forward"] if variant.owns_state else subject
        super().__init__(program, methods, _state(owner), seed, variant)


def _make(program: Program, seed: int, is_rewritten: bool = False) -> Callable[..., Any]:
    torch.default_generator.manual_seed(seed)
    return program.rewritten() if is_rewritten and program.rewritten else program.make()


def _state(subject: Any) -> list[Tensor]:
    """Return parameters and buffers, sorted by name."""
    if not isinstance(subject, nn.Module):
        return []
    named = {**dict(subject.named_parameters()), **dict(subject.named_buffers())}
    return [named[name] for name in sorted(named)]


def _move_to_device(values: Any, device: str) -> Any:
    """Return ``values`` with its modules and tensors moved to ``device``."""
    return tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor | nn.Module) else leaf, values)


def _require_grad(leaf: Any) -> Any:
    return leaf.requires_grad_() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf


def _gradients(outputs: Any, leaves: Sequence[Any]) -> list[Tensor | None]:
    """Return the gradients of a sum of all outputs, with a different weight for each element."""
    total: Any = 0.0
    for output in tree_leaves(outputs):
        if isinstance(output, Tensor) and output.requires_grad:
            weights = torch.cos(torch.arange(output.numel(), dtype=output.dtype, device="cpu")).view(output.shape)
            wide = torch.promote_types(output.dtype, torch.float64)
            total = total + (output * weights.to(output.device)).sum().to(wide)
    wanted = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad and leaf.is_leaf]
    return list(torch.autograd.grad(total, wanted, allow_unused=True)) if isinstance(total, Tensor) else []


def _storage_indices(tensors: Sequence[Tensor]) -> list[int]:
    """Return, for each tensor, the index of the first tensor with the same storage."""
    first: dict[int, int] = {}
    return [
        first.setdefault(tensor.untyped_storage().data_ptr(), index)
        for index, tensor in enumerate(tensors)
        if tensor.layout == torch.strided and tensor.numel()
    ]


def _copy_of(values: Any) -> Any:
    """Return the structure with copied tensors, which no later call writes to.

    The copies have the same strides and ``requires_grad``.
    """

    def copy_leaf(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return copy.copy(leaf)
        with torch.no_grad(), torch.device("cpu"):
            values_copy = copy_tensor(leaf) if leaf.device.type == "cpu" else _with_strides(leaf.cpu(), leaf.stride())
            return values_copy.requires_grad_(leaf.requires_grad)

    return tree_map(copy_leaf, values)


def _with_strides(values: Tensor, strides: Sequence[int]) -> Tensor:
    """Return the values with ``strides``, which may have gaps or repeat elements."""
    result = torch.empty_strided(values.shape, strides, dtype=values.dtype)
    once = tuple(slice(1) if stride == 0 else slice(None) for stride in strides)
    result[once].copy_(values[once])
    return result


def _line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if lines and "TorchScript interpreter" in lines[0]:
        # The message follows a traceback of the script, and may have several lines. A group that runs in the
        # interpreter adds another traceback.
        messages = [
            line for line in lines if line.startswith("RuntimeError: ") and "TorchScript interpreter" not in line
        ]
        lines = messages or lines[-1:]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:500]
