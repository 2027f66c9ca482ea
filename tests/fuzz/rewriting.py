"""Equivalent forms of a program: reordered, split, batched, transposed. They compute the same values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random

from torch import Tensor

from fuzz.text import Text

# Identities of a tensor that has at least one dimension.
_SAME = (
    "{v}.clone()",
    "{v}.transpose(0, -1).contiguous().transpose(0, -1)",
    "torch.cat([{v}[:{k}], {v}[{k}:]])",
    "torch.cat([{v}[..., :{k}], {v}[..., {k}:]], -1)",
    "torch.stack([{v}, {v}])[1]",
    "{v}.flip(0).flip(0)",
    "{v}[None].squeeze(0)",
    "{v}.reshape(-1).reshape({v}.shape)",
    "torch.roll(torch.roll({v}, {k}, 0), -{k}, 0)",
    "torch.cat([{v}, {v}])[{v}.size(0):]",
    "torch.where(torch.zeros_like({v}) == 0, {v}, {v})",
    "{v}.transpose(0, -1).clone().transpose(0, -1)",
)
_SAME_FLOATS = ("-(-{v})", "{v} * 1", "F.pad({v}, [{k}, {k}])[..., {k}:-{k}]")

# Equivalent forms of an elementwise expression. Each value of the dictionary replaces the operand {v}.
_MAPPED = (
    ("torch.cat([{a}, {b}])", {"a": "{v}[:{k}]", "b": "{v}[{k}:]"}),
    ("torch.stack([{a}, {b}])[1]", {"a": "{v} * 2", "b": "{v}"}),
    ("{a}.transpose(0, -1)", {"a": "{v}.transpose(0, -1)"}),
    ("{a}[0]", {"a": "torch.stack([{v}, {v}])"}),
    ("{a}.flip(0)", {"a": "{v}.flip(0)"}),
)
_ELEMENTWISE = re.compile(
    r"^\(?torch\.(?:ops\.aten\.)?(?:tanh|sigmoid|relu|relu6|exp|expm1|sin|cos|tan|atan|silu|mish|erf|hardswish|hardsigmoid|"
    r"log_sigmoid|square|selu|asinh|gelu|leaky_relu|elu|celu|softplus|hardtanh|clamp|abs|neg|log1p|sqrt)"
    r"\((\w+)(?:(?!\b[vx]\d)[^()])*\)(?: \* \d)?(?:\) \* 2 \+ 1)?$"
)


def rewritten(text: Text, random: Random, tensors: Mapping[str, Tensor]) -> Text:
    """Return ``text`` with an equivalent program for the frontend. ``tensors`` are values of its names at one size."""
    body = _reordered(text.body, random)
    return replace(text, rewritten=tuple(_rewritten(statement, random, tensors) for statement in body))


def _reordered(body: Sequence[str], random: Random) -> list[str]:
    """Return another order in which every name is assigned before it is used. No statement writes in place."""
    left, done = list(body), []
    while left:
        assigned = {_name(statement) for statement in left}
        free = [s for s in left if not any(name in assigned for name in re.findall(r"\w+", s.partition(" = ")[2]))]
        chosen = random.choice(free)
        left.remove(chosen)
        done.append(chosen)
    return done


def _name(statement: str) -> str:
    return statement.partition(" = ")[0]


def _rewritten(statement: str, random: Random, tensors: Mapping[str, Tensor]) -> str:
    name, _, expression = statement.partition(" = ")
    # The operand may be replaced by a copy of another layout that has no such view.
    expression = expression.replace(".view(", ".reshape(")
    used = [
        candidate
        for candidate in dict.fromkeys(re.findall(r"\w+", expression))
        if candidate in tensors and tensors[candidate].dim()
    ]
    if not used or random.random() < 0.3:
        return f"{name} = {expression}"
    mapped = _ELEMENTWISE.match(expression)
    if mapped and mapped[1] in used and random.random() < 0.7:
        whole, parts = random.choice(_MAPPED)
        factor = str(random.randint(1, 4))
        filled = {
            place: _with(expression, mapped[1], part.format(v=mapped[1], k=factor)) for place, part in parts.items()
        }
        return f"{name} = {whole.format(**{place: f'({part})' for place, part in filled.items()})}"
    operand = random.choice(used)
    same = [*_SAME, *(_SAME_FLOATS if tensors[operand].is_floating_point() else ())]
    return f"{name} = " + _with(expression, operand, random.choice(same).format(v=operand, k=random.randint(1, 4)))


def _with(expression: str, name: str, value: str) -> str:
    return re.sub(rf"\b{name}\b", f"({value})", expression)
