"""Whether a pass changes what a program computes: ``TORCHMDLA_VERIFY=values`` runs the program before and after it.

Both run on the same made-up arguments (:data:`SAMPLES`). Integers and bools must be the same; floats, which are
computed in float64, may differ by :data:`TOLERANCES`, since passes put sums in another order. Special values are among
the arguments where a pass is *exact*: it moves and merges, and computes nothing in another way.

Sizes are those of the program; those of a dynamic one are as small as its accesses allow. A program of more than
:data:`MOST_ITERATIONS` iterations is skipped. Each check leaves a line in the file that ``TORCHMDLA_VERIFY_COUNTS``
names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from torchmdla.compiler.sizes import at
from torchmdla.devices.cpu.accesses import Buffer
from torchmdla.devices.cpu.loop_program import LoopProgram, flattened
from torchmdla.devices.cpu.passes.bounds import conditions_of_bounds
from torchmdla.devices.cpu.printer import StepsPrinter, program_text
from torchmdla.devices.cpu.reference.interpreter import (
    Footprint,
    Given,
    InvalidProgram,
    Outcome,
    count_iterations,
    run,
)
from torchmdla.devices.cpu.reference.operations import DTYPES, Array, NotInterpreted, rounded
from torchmdla.errors import CompileError

VARIABLE, COUNTS = "TORCHMDLA_VERIFY", "TORCHMDLA_VERIFY_COUNTS"

# Of all nests of a program; of sums of products one in many counts.
MOST_ITERATIONS = 1_000_000

# Of floats in results, by their type: relative, and to the largest finite one. Programs hold numbers of sizes in single
# precision; a program for all sizes computes them itself.
TOLERANCES: Mapping[str, float] = {"f64": 1e-6, "f32": 1e-5, "f16": 4e-3, "bf16": 4e-2}

# What the symbols of a dynamic program may be here, and how many combinations are tried.
_SYMBOLS = (2, 3, 4, 5, 7, 8, 9, 12, 16)
_MOST_TRIES = 500


@dataclass(frozen=True)
class Sample:
    """Made-up arguments: ``floats`` of a generator and a count, ``integers`` of 32 bits and more below ``below``, which
    may be indices, and, if it ``is_special``, values among them that rules are wrong about. Those
    of another ``noise`` are a little away."""

    floats: Callable[[np.random.Generator, int], Array]
    below: int = 3
    is_special: bool = False
    noise: int = 0

    def elements(self, buffer: Buffer, count: int) -> Array:
        """What lies in an argument."""
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
            values = generator.integers(0, self.below, count)
            least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
            special = (least, most, -1, least + 1)
        if self.is_special and special:
            chosen = generator.random(count) < _SPECIAL_PART
            chosen[: count and 1] = True
            values = np.where(chosen, generator.choice(np.array(special, dtype), count), values)
        values = rounded(values, kind)
        if self.noise and dtype.kind == "f":
            values = values * (1 + _NOISE * np.random.default_rng([buffer.position, self.noise]).standard_normal(count))
        return values

    def scalar(self, argument: int) -> float:
        """A scalar argument."""
        return float(self.floats(np.random.default_rng([argument, 1]), 1)[0])


_FLOATS = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1e3, -1e-3, 0.5)
_SPECIAL_PART = 1 / 12

# A rounding error (a sum that is 0, and a quotient by it) is not a value to compare. Arguments that are ``_NOISE``
# away, in so many ways, change what is made of one. An element may be off by ``_DOUBT`` times as much.
_NOISE, _NOISES, _DOUBT = 1e-12, 4, 1e4


def _positive(generator: np.random.Generator, count: int) -> Array:
    return generator.uniform(0.5, 2.0, count)


def _signed(generator: np.random.Generator, count: int) -> Array:
    return generator.standard_normal(count)


SAMPLES: Mapping[str, Sample] = {
    "positive numbers": Sample(_positive),
    "numbers of both signs": Sample(_signed, below=2),
    "special values": Sample(_signed, is_special=True),
}


@dataclass(frozen=True)
class Observed:
    """What a program computes: its outcome for each sample, where its symbols have the values ``symbols``."""

    text: str
    symbols: tuple[int, ...]
    outcomes: Mapping[str, Outcome]


class Skipped(Exception):
    """A program is not run; says why."""


def is_asked_for() -> bool:
    """Whether the environment asks for values to be compared."""
    return os.environ.get(VARIABLE) == "values"


# What was observed last, on this thread's way through the passes: most passes change nothing of most programs.
_latest: list[Observed] = []


def observed(steps: LoopProgram, symbols: Sequence[int] | None = None) -> Observed:
    """What a program computes. ``symbols``: values for its own; some that are small if None.

    Raises:
        Skipped: it is too large, or holds something that is not interpreted.
        InvalidProgram: it does what no program may do.
    """
    text = program_text(steps)
    for known in _latest:
        if known.text == text and (symbols is None or known.symbols == tuple(symbols)):
            return known
    values = tuple(_small_symbols(steps) if symbols is None else symbols)
    if count_iterations(steps, values) > MOST_ITERATIONS:
        raise Skipped("too large")
    footprint = Footprint()
    try:
        outcomes = {name: _outcome(steps, values, sample, footprint) for name, sample in SAMPLES.items()}
    except NotInterpreted as error:
        raise Skipped(f"not interpreted: {error}") from None
    _latest[:] = [*_latest[-1:], Observed(text, values, outcomes)]
    return _latest[-1]


def _outcome(steps: LoopProgram, symbols: Sequence[int], sample: Sample, footprint: Footprint | None = None) -> Outcome:
    return run(steps, Given(symbols, sample.elements, sample.scalar), footprint)


def _small_symbols(steps: LoopProgram) -> Sequence[int]:
    """Values of the symbols for which all accesses lie inside of buffers, and few iterations are run."""
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
    """Values of a program before a stage, which it must also compute behind that stage.

    Those behind a stage are those before the next. Nothing is checked where the program is skipped.

    Args:
        symbols: values of the symbols that the program has before the first stage, if they are not chosen here.
    """

    def __init__(self, steps: LoopProgram, symbols: Sequence[int] | None = None) -> None:
        self._symbols = symbols
        self._before: Observed | None = None
        try:
            self._before = observed(steps, symbols)
        except Skipped as error:
            note(f"skipped {error}")
        except InvalidProgram as error:
            raise _fault(f"the program is not valid as it is read: {error}") from None

    def finish(self, stage: str, steps: LoopProgram, is_exact: bool) -> None:
        """Hold the program to what it computed; it is held to what it computes now by the next call.

        Raises:
            CompileError: it computes something else; names the stage, the result, and the nest.
        """
        before, self._before = self._before, None
        try:
            after = observed(steps, before.symbols if before else self._symbols)
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


def _compare(stage: str, before: Observed, after: Observed, steps: LoopProgram, is_exact: bool) -> None:
    for name, old in before.outcomes.items():
        if SAMPLES[name].is_special and not is_exact:
            continue
        new = after.outcomes[name]
        fault = _difference(old, new, is_exact, partial(_doubt, steps, after, name))
        if fault is not None:
            raise _fault(f"{stage} changes what {fault}, of {name}", _suspect(steps, old, new))


def _fault(message: str, nest: str = "") -> CompileError:
    """Return the error of a stage that is wrong, and note it: where code is not required, the group falls back."""
    note(f"wrong {message}")
    return CompileError(f"internal error: {message}", diagnostic=nest)


def _difference(old: Outcome, new: Outcome, is_exact: bool, doubt: Callable[[int], Array]) -> str | None:
    """What two runs disagree in, in words. ``doubt``: how far a result may be off, by position."""
    if old.fails != new.fails:
        return "is checked: " + ("a call fails that did not" if new.fails else "a call does not fail that did")
    kinds = {buffer.position: buffer.element for buffer in new.memory if buffer.kind == "result"}
    for position, expected in {} if old.fails else old.results.items():
        found = new.results.get(position)
        if found is None or found.shape != expected.shape:
            return f"result{position} is"
        agree = _agree(found, expected, TOLERANCES.get(kinds[position], 0.0))
        if is_exact and expected.dtype.kind == "f":
            agree &= (found != 0) | (expected != 0) | (np.signbit(found) == np.signbit(expected))
        if not agree.all() and expected.dtype.kind == "f":
            with np.errstate(invalid="ignore"):
                agree |= np.abs(found - expected) <= doubt(position)
        places = np.flatnonzero(~agree)
        if len(places):
            first = places[0]
            return (
                f"result{position} holds: element {first} is {found[first]} instead of {expected[first]} "
                f"({len(places)} of {len(found)} differ)"
            )
    return None


def _doubt(steps: LoopProgram, after: Observed, name: str, position: int) -> Array:
    """How far each element of a result may be off, for one sample."""
    exact = after.outcomes[name].results[position]
    shifted = (replace(SAMPLES[name], noise=number) for number in range(1, 1 + _NOISES))
    others = [_outcome(steps, after.symbols, sample).results[position] for sample in shifted]
    with np.errstate(invalid="ignore"):
        most: Array = np.max([np.abs(other - exact) for other in others], axis=0)
    return _DOUBT * most


def _agree(found: Array, expected: Array, tolerance: float) -> Array:
    """Whether elements are equal, or, of floats, near."""
    agree: Array = found == expected
    if expected.dtype.kind == "f":
        finite = np.isfinite(expected)
        largest = np.abs(expected[finite]).max(initial=0.0)
        with np.errstate(invalid="ignore"):
            agree |= finite & (np.abs(found - expected) <= tolerance * largest)
        agree |= np.isnan(found) & np.isnan(expected)
    return agree


def _suspect(steps: LoopProgram, old: Outcome, new: Outcome) -> str:
    """The first step that writes something else to a buffer than what it held before."""
    for step in flattened(steps.steps):
        for buffer in step.writes:
            if buffer in old.memory and buffer in new.memory:
                found, expected = new.memory[buffer], old.memory[buffer]
                tolerance = TOLERANCES.get(buffer.element, 0.0)
                if found.shape != expected.shape or not _agree(found, expected, tolerance).all():
                    return StepsPrinter(steps).step(step)
    return ""
