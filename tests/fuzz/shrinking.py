"""Reduction of a program that fails, by a sequence of changes that preserve the failure."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from dataclasses import replace

from fuzz.text import Text

# The generator yields programs. The caller sends whether each fails like the first one. The generator returns the
# smallest program that fails.
Shrinking = Generator[Text, bool, Text]

# The largest number of programs that are tried.
_TRIES = 150


def shrunk(text: Text) -> Shrinking:
    """Reduce ``text`` while it fails."""
    tries = 0
    again = True
    while again:
        again = False
        for candidate in _smaller(text):
            if tries == _TRIES:
                return text
            tries += 1
            if (yield candidate):
                # Try all changes again, because a change often makes another one possible.
                text, again = candidate, True
                break
    return text


def _smaller(text: Text) -> Iterator[Text]:
    """Yield programs that are a little smaller. The largest steps come first."""
    yield from _fewer_calls(text)
    if text.rewritten:
        yield from _fewer_rewritten(text)
    else:
        yield from _fewer_statements(text)
    if len(text.results) > 1:
        for place in range(len(text.results)):
            yield replace(text, results=text.results[:place] + text.results[place + 1 :])
    yield from _fewer_inputs(text)
    for place in ("options", "environment"):
        if getattr(text, place):
            yield replace(text, **{place: ()})


def _fewer_calls(text: Text) -> Iterator[Text]:
    count = len(text.sizes)
    length = count // 2
    while length:
        for begin in range(0, count, length):
            left = text.sizes[:begin] + text.sizes[begin + length :]
            if left:
                yield replace(text, sizes=left)
        length //= 2


def _fewer_statements(text: Text) -> Iterator[Text]:
    for place, statement in reversed(list(enumerate(text.body))):
        rest = text.body[:place] + text.body[place + 1 :]
        yield replace(text, body=rest)
        yield from (
            replace(text, body=(*text.body[:place], part, *text.body[place + 1 :])) for part in _parts(statement)
        )
        name, equals, expression = statement.partition(" = ")
        if not equals or "\n" in statement:
            continue
        if expression.startswith("(") and expression.endswith(") * 2 + 1"):
            simple = f"{name} = {expression[1 : -len(') * 2 + 1')]}"
            yield replace(text, body=(*text.body[:place], simple, *text.body[place + 1 :]))
        # The users of its result use one of its operands instead.
        for other in dict.fromkeys(re.findall(r"\b[vxi]\d+\b", expression)):
            behind = tuple(re.sub(rf"\b{name}\b", other, line) for line in text.body[place + 1 :])
            results = tuple(dict.fromkeys(re.sub(rf"\b{name}\b", other, result) for result in text.results))
            yield replace(text, body=text.body[:place] + behind, results=results)


def _parts(statement: str) -> Iterator[str]:
    """Yield parts of a branch or loop without its condition.

    One part is its first inner line with the lines outside of it, and the other is its last inner line.
    """
    lines = statement.splitlines()
    inner = [line.strip() for line in lines if line.startswith("    ")]
    if inner and "step" not in "".join(inner):
        yield "\n".join([line for line in lines if not line.startswith("    ") and not line.endswith(":")] + inner[:1])
        yield inner[-1]


def _fewer_rewritten(text: Text) -> Iterator[Text]:
    """Yield programs that lack a statement in both bodies, or that write a statement equally in both bodies."""
    for place, statement in reversed(list(enumerate(text.body))):
        name = statement.partition(" = ")[0]
        others = [line for line in text.rewritten if not line.startswith(f"{name} = ")]
        if len(others) < len(text.rewritten):
            yield replace(text, body=text.body[:place] + text.body[place + 1 :], rewritten=tuple(others))
        alike = tuple(statement if line.startswith(f"{name} = ") else line for line in text.rewritten)
        if alike != text.rewritten:
            yield replace(text, rewritten=alike)


def _fewer_inputs(text: Text) -> Iterator[Text]:
    used = set(re.findall(r"\w+", "\n".join([*text.body, *text.rewritten, *text.results])))
    inputs = tuple(argument for argument in text.inputs if argument.name in used)
    if inputs != text.inputs:
        yield replace(text, inputs=inputs)
    for place, argument in enumerate(text.inputs):
        plain = re.fullmatch(r"(?:transposed|strided|offset|varied|repeated|overlapping)\((.*)\)", argument.draw)
        if plain:
            simple = replace(argument, draw=plain[1])
            yield replace(text, inputs=(*text.inputs[:place], simple, *text.inputs[place + 1 :]))
