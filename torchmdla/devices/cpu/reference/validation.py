"""Validation of passes: ``TORCHMDLA_VERIFY=values`` runs the program before and after each pass.

Both runs have the same generated arguments (:data:`SAMPLES`). Integers and bools must be equal. Floats, which are
computed in float64, may differ by :data:`TOLERANCES`, since passes reorder sums. Special values are among the arguments
if a pass is *exact*: it moves and merges operations, but does not compute differently.

A static program has its own sizes. A dynamic program has sizes as small as its accesses allow. A program of more than
:data:`MOST_ITERATIONS` iterations is skipped. Each check appends a line to the file that ``TORCHMDLA_VERIFY_COUNTS``
names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from torchmdla.compiler.sizes import at
from torchmdla.devices.cpu.ir.accesses import Buffer
from torchmdla.devices.cpu.ir.loop_program import LoopProgram, flatten
from torchmdla.devices.cpu.ir.printer import StepsPrinter, program_text
from torchmdla.devices.cpu.passes.bounds import conditions_of_bounds
from torchmdla.devices.cpu.reference.interpreter import (
    CallArguments,
    Footprint,
    InvalidProgram,
    Outcome,
    count_iterations,
    run,
)
from torchmdla.devices.cpu.reference.operations import DTYPES, Array, UnsupportedOperation, round_to_type
from torchmdla.errors import CompileError

VARIABLE, COUNTS = "TORCHMDLA_VERIFY", "TORCHMDLA_VERIFY_COUNTS"

# The limit on the iterations of all nests of a program. A sum of products counts as fewer iterations.
MOST_ITERATIONS = 1_000_000

# The tolerances of floats in results, by type, relative to the largest finite value. A sample of a dynamic program
# contains numbers that depend on sizes in single precision. The dynamic program computes these itself.
TOLERANCES: Mapping[str, float] = {"f64": 1e-6, "f32": 1e-5, "f16": 4e-3, "bf16": 4e-2}

# The candidate values of a dynamic program's symbols, and the most combinations that are tried.
_SYMBOLS = (2, 3, 4, 5, 7, 8, 9, 12, 16)
_MOST_TRIES = 500


@dataclass(frozen=True)
class Sample:
    """Generated arguments.

    Attributes:
        floats: a function that returns floats, given a generator and their number.
        below: the bound of integers of 16 bits and more, which may be indices.
        is_special: whether the arguments include special values, for which invalid rules fail.
        noise: the seed of small deviations from the values; 0 for none.
    """

    floats: Callable[[np.random.Generator, int], Array]
    below: int = 3
    is_special: bool = False
    noise: int = 0

    def elements(self, buffer: Buffer, count: int) -> Array:
        """Return the elements of an argument."""
        generator = np.random.default_rng([buffer.position, self.below, self.is_special])
        kind, dtype = buffer.element, np.dtype(DTYPES[buffer.element])
        values: Array
        special: Sequence[float] = ()
        if dtype.kind == "f":
            values, special = self.floats(generator, count).astype(np.float32), _FLOATS
        elif dtype.itemsize == 1:
            bits = 1 if dtype.kind == "b" else buffer.bits or 8
            values = generator.integers(-(2 ** (bits - 1)), 2 ** (bits - 1), count)
        else:
            values = generator.integers(0, 1 if buffer.bits else self.below, count)
            least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
            special = () if buffer.bits else (least, most, -1, least + 1)
        if self.is_special and special:
            chosen = generator.random(count) < _SPECIAL_PART
            chosen[: count and 1] = True
            values = np.where(chosen, generator.choice(np.array(special, dtype), count), values)
        values = round_to_type(values, kind)
        if self.noise and dtype.kind == "f":
            values = values * (1 + _NOISE * np.random.default_rng([buffer.position, self.noise]).standard_normal(count))
        return values

    def scalar(self, argument: int) -> float:
        """Return a scalar argument."""
        return float(self.floats(np.random.default_rng([argument, 1]), 1)[0])


_FLOATS = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1e3, -1e-3, 0.5)
_SPECIAL_PART = 1 / 12

# Values that consist of rounding errors must not be compared: a sum that is 0, or a quotient by it. Changing the
# arguments by ``_NOISE``, ``_NOISES`` times, changes such values. An element may differ by ``_DOUBT`` times that
# change.
_NOISE, _NOISES, _DOUBT = 1e-12, 4, 1e4


def _draw_signed(generator: np.random.Generator, count: int) -> Array:
    return generator.standard_normal(count)


SAMPLES: Mapping[str, Sample] = {
    "positive numbers": Sample(lambda generator, count: generator.uniform(0.5, 2.0, count)),
    "numbers of both signs": Sample(_draw_signed, below=2),
    "special values": Sample(_draw_signed, is_special=True),
}


@dataclass(frozen=True)
class Observation:
    """Results of a program.

    Attributes:
        text: the text of the program.
        symbols: the values of the symbols.
        outcomes: the outcome for each sample.
    """

    text: str
    symbols: tuple[int, ...]
    outcomes: Mapping[str, Outcome]


class Skipped(Exception):
    """Program that is not run. The message is the reason."""


def is_enabled() -> bool:
    """Return whether the environment requests the comparison of values."""
    return os.environ.get(VARIABLE) == "values"


# The latest results. Most passes do not change most programs.
_latest: list[Observation] = []


def observe(steps: LoopProgram, symbols: Sequence[int] | None = None) -> Observation:
    """Return the results of a program.

    ``symbols`` are the values of its symbols. Without them, small values are chosen.

    Raises:
        Skipped: the program is too large, or an operation is not supported.
        InvalidProgram: the program violates a rule for all programs.
    """
    text = program_text(steps)
    for known in _latest:
        if known.text == text and (symbols is None or known.symbols == tuple(symbols)):
            return known
    values = tuple(_choose_symbols(steps) if symbols is None else symbols)
    if count_iterations(steps, values) > MOST_ITERATIONS:
        raise Skipped("too large")
    footprint = Footprint()
    try:
        outcomes = {name: _run_sample(steps, values, sample, footprint) for name, sample in SAMPLES.items()}
    except UnsupportedOperation as error:
        raise Skipped(f"not interpreted: {error}") from None
    _latest[:] = [*_latest[-1:], Observation(text, values, outcomes)]
    return _latest[-1]


def _run_sample(
    steps: LoopProgram, symbols: Sequence[int], sample: Sample, footprint: Footprint | None = None
) -> Outcome:
    return run(steps, CallArguments(symbols, sample.elements, sample.scalar), footprint)


def _choose_symbols(steps: LoopProgram) -> Sequence[int]:
    """Return values of the symbols for which all accesses are inside buffers, and few iterations run."""
    if not steps.typical:
        return ()
    conditions = conditions_of_bounds(steps)
    generator = np.random.default_rng(0)
    for _ in range(_MOST_TRIES):
        values = [int(value) for value in generator.choice(_SYMBOLS, len(steps.typical))]
        if all(at(condition, values) >= 0 for condition in conditions):
            return values
    return steps.typical


class Check:
    """Comparison of a program's results before and after each stage.

    The results after a stage are those before the next stage. Programs that are skipped are not compared.

    Args:
        steps: the program before the first stage.
        symbols: the values of the symbols; chosen here if None.
    """

    def __init__(self, steps: LoopProgram, symbols: Sequence[int] | None = None) -> None:
        self._symbols = symbols
        self._before: Observation | None = None
        try:
            self._before = observe(steps, symbols)
        except Skipped as error:
            note(f"skipped {error}")
        except InvalidProgram as error:
            raise _fault(f"the program is not valid as it is read: {error}") from None

    def finish(self, stage: str, steps: LoopProgram, is_exact: bool) -> None:
        """Compare the program's results with those before the stage, and store them for the next call.

        Raises:
            CompileError: the results differ; names the stage, the result, and the nest.
        """
        before, self._before = self._before, None
        try:
            after = observe(steps, before.symbols if before else self._symbols)
        except InvalidProgram as error:
            raise _fault(f"{stage} makes a program that is not valid: {error}") from None
        except Skipped as error:
            note(f"skipped {error}")
            return
        self._before = after
        if before is None:
            return
        if after is not before:
            _compare(stage, before, after, steps, is_exact)
        note("unchanged" if after is before else f"checked {stage}")


def note(line: str) -> None:
    """Append a line to the file of counts, if there is one."""
    path = os.environ.get(COUNTS)
    if path:
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{line}\n")


def _compare(stage: str, before: Observation, after: Observation, steps: LoopProgram, is_exact: bool) -> None:
    for name, old in before.outcomes.items():
        if SAMPLES[name].is_special and not is_exact:
            continue
        new = after.outcomes[name]
        fault = _difference(old, new, is_exact, partial(_extra_tolerance, steps, after, name))
        if fault is not None:
            raise _fault(f"{stage} changes what {fault}, of {name}", _find_first_difference(steps, old, new))


def _fault(message: str, nest: str = "") -> CompileError:
    """Return the error of an incorrect stage, and note it.

    Where compiled code is optional, the group falls back.
    """
    note(f"wrong {message}")
    return CompileError(f"internal error: {message}", diagnostic=nest)


def _difference(old: Outcome, new: Outcome, is_exact: bool, doubt: Callable[[int], Array]) -> str | None:
    """Return a description of the difference of two runs, or None.

    ``doubt`` returns the extra tolerance of each element of a result, by position.
    """
    if old.fails != new.fails:
        return "is checked: " + ("a call fails that did not" if new.fails else "a call does not fail that did")
    kinds = {buffer.position: buffer.element for buffer in new.memory if buffer.kind == "result"}
    for position, expected in {} if old.fails else old.results.items():
        actual = new.results.get(position)
        if actual is None or actual.shape != expected.shape:
            return f"result{position} is"
        agree = _agree(actual, expected, TOLERANCES.get(kinds[position], 0.0))
        if is_exact and expected.dtype.kind == "f":
            agree &= (actual != 0) | (expected != 0) | (np.signbit(actual) == np.signbit(expected))
        if not agree.all() and expected.dtype.kind == "f":
            with np.errstate(invalid="ignore"):
                agree |= np.abs(actual - expected) <= doubt(position)
        places = np.flatnonzero(~agree)
        if len(places):
            first = places[0]
            return (
                f"result{position} holds: element {first} is {actual[first]} instead of {expected[first]} "
                f"({len(places)} of {len(actual)} differ)"
            )
    return None


def _extra_tolerance(steps: LoopProgram, after: Observation, name: str, position: int) -> Array:
    exact = after.outcomes[name].results[position]
    shifted = (replace(SAMPLES[name], noise=number) for number in range(1, 1 + _NOISES))
    others = [_run_sample(steps, after.symbols, sample).results[position] for sample in shifted]
    with np.errstate(invalid="ignore"):
        most: Array = np.max([np.abs(other - exact) for other in others], axis=0)
    return _DOUBT * most


def _agree(actual: Array, expected: Array, tolerance: float) -> Array:
    agree: Array = actual == expected
    if expected.dtype.kind == "f":
        finite = np.isfinite(expected)
        largest = np.abs(expected[finite]).max(initial=0.0)
        with np.errstate(invalid="ignore"):
            agree |= finite & (np.abs(actual - expected) <= tolerance * largest)
        agree |= np.isnan(actual) & np.isnan(expected)
    return agree


def _find_first_difference(steps: LoopProgram, old: Outcome, new: Outcome) -> str:
    for step in flatten(steps.steps):
        for buffer in step.writes:
            if buffer in old.memory and buffer in new.memory:
                actual, expected = new.memory[buffer], old.memory[buffer]
                tolerance = TOLERANCES.get(buffer.element, 0.0)
                if actual.shape != expected.shape or not _agree(actual, expected, tolerance).all():
                    return StepsPrinter(steps).step(step)
    return ""
