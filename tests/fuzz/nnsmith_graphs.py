"""Programs of NNSmith (https://github.com/ise-uiuc/nnsmith) as text. A solver makes their graphs valid.

Other authors chose its operators. Their sizes and attributes are solutions of constraints.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from importlib.util import find_spec
from random import Random
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx

from fuzz.text import Input, Text

# The project does not install it, because it depends on a solver (``pip install nnsmith``).
IS_INSTALLED = find_spec("nnsmith") is not None

_CALLS = 4
_NODES = (3, 12)
_LARGEST_TENSOR = 20_000
_SOLVING_MILLISECONDS = 3000
# Arguments that only concern eager: the placement of values.
_PLACES = frozenset({"device", "layout", "pin_memory"})


def draw(seed: int, way: str) -> Text:
    """Return the program of a seed. It is the same each time, unless the solver times out."""
    module, inputs = _solved(seed)
    leaves = {**dict(module.named_parameters()), **dict(module.named_buffers())}

    def of_leaves(*values: Tensor) -> Any:
        weights = dict(zip(leaves, values[: len(leaves)], strict=True))
        return functional_call(module, weights, kwargs=dict(zip(inputs, values[len(leaves) :], strict=True)))

    with torch.no_grad():
        traced = make_fx(of_leaves, pre_dispatch=True)(*leaves.values(), *inputs.values())
    return _text(traced.graph, [*leaves.values(), *inputs.values()], way)


def _solved(seed: int) -> tuple[nn.Module, dict[str, Tensor]]:
    from nnsmith.abstract.extension import activate_ext
    from nnsmith.graph_gen import model_gen
    from nnsmith.materialize import Model
    from nnsmith.narrow_spec import auto_opset

    made_of = Model.init("torch", backend_target="cpu")
    made_of.add_seed_setter()
    operators = auto_opset(made_of)
    activate_ext(opset=operators)
    torch.manual_seed(seed)
    solved = model_gen(
        opset=operators,
        method="symbolic-cinit",  # Sizes are drawn, because the solver's own sizes are mostly 1.
        seed=seed,
        max_nodes=Random(seed).randint(*_NODES),
        max_elem_per_tensor=_LARGEST_TENSOR,
        timeout_ms=_SOLVING_MILLISECONDS,
    )
    module = made_of.from_gir(solved.make_concrete()).torch_model.eval().requires_grad_(False)
    # Code that reads values cannot be traced.
    module.check_intermediate_numeric = False
    module.debug_numeric = lambda _: None
    return module, module.get_random_inps()


def _text(graph: fx.Graph, values: Sequence[Tensor], way: str) -> Text:
    inputs: list[Input] = []
    body: list[str] = []
    results: list[str] = []
    for node in graph.nodes:
        if node.op == "placeholder":
            inputs.append(Input(node.name, _drawn_like(values[len(inputs)])))
        elif node.op == "call_function":
            body.append(f"{node.name} = {_call(node)}")
        elif node.op == "output":
            results = [_written(value) for value in _flat(node.args[0])]
        else:
            raise ValueError(f"{node.op} {node.target} has no form as text")
    return Text(way, tuple(inputs), tuple(body), tuple(dict.fromkeys(results)), ((7, 7),) * _CALLS)


def _flat(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _call(node: fx.Node) -> str:
    if node.target is operator.getitem:
        return f"{_written(node.args[0])}[{_written(node.args[1])}]"
    assert isinstance(node.target, torch._ops.OpOverload)
    named = [f"{name}={_written(value)}" for name, value in node.kwargs.items() if name not in _PLACES]
    return f"torch.ops.aten.{node.target.overloadpacket.__name__}({', '.join([*map(_written, node.args), *named])})"


def _written(value: Any) -> str:
    if isinstance(value, fx.Node):
        return value.name
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_written, value))}]"
    if isinstance(value, float):
        return repr(value) if abs(value) < float("inf") else f"float('{value}')"
    return repr(value)


def _drawn_like(value: Tensor) -> str:
    shape = "".join(f"{size}, " for size in value.shape)
    if value.dtype == torch.bool:
        return f"booleans({shape.removesuffix(', ')})"
    if not value.is_floating_point() and not value.is_complex():
        return f"integers({shape}high=5, dtype={value.dtype})"
    return f"normal({shape}dtype={value.dtype})"
