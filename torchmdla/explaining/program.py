"""Model that is explained, ready to be called."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from torchmdla import _C, api
from torchmdla.capture import torchscript
from torchmdla.explaining.graphs import graph_of_calls, graph_of_fx, graph_of_script
from torchmdla.importer.script_graph import convert_graph
from torchmdla.report.explanation import Graph


class Program:
    """Model that is ready to be called, with the lines of its operators if it is a TorchScript program."""

    def __init__(self, model: Any, inputs: tuple[Any, ...]) -> None:
        self._model, self._inputs = _prepare(model, inputs), inputs
        if isinstance(self._model, torch.jit.ScriptModule | torch.jit.ScriptFunction) and api.is_enabled():
            torchscript.reoptimise(self._model)
        self._keywords: Mapping[str, Any] = {}
        if not inputs and api.is_exported(model):
            self._inputs, self._keywords = model.example_inputs
        self.places = set(_places(self._model))
        self.is_deferred = _is_deferred(inputs)

    def call(self) -> Any:
        """Return the computed results; those of a lazy device are on the CPU."""
        results = self._model(*self._inputs, **self._keywords)
        # A call of cpu() would be an operator in the profile.
        return tree_map_only(torch.Tensor, lambda value: value if value.device.type == "cpu" else value.cpu(), results)

    def graph(self, groups: Sequence[_C.GroupReport], events: Sequence[tuple[str, float]]) -> Graph:
        """Return the graph of the model, or the sequence of ``events`` of a call if the graph is unknown."""
        called = {report["name"]: report for report in groups}
        seen = dict.fromkeys(name for name, _ in events if name in called)
        # Groups that ran no compiled code, or that ran within an operator, are not among the events.
        in_order = [called[name] for name in [*seen, *(name for name in called if name not in seen)]]
        if isinstance(self._model, torch.jit.ScriptModule | torch.jit.ScriptFunction):
            return graph_of_script(api.graph_for(self._model, *self._inputs), in_order)
        unseen = [(name, 0.0) for name in called if name not in seen]
        return graph_of_fx(in_order) or graph_of_calls([*events, *unseen], called)


def model_name(model: Any) -> str:
    named = getattr(model, "_orig_mod", model)
    return str(
        getattr(named, "original_name", "") or getattr(named, "__name__", "") or getattr(named, "name", "")
        if not isinstance(named, torch.nn.Module) or isinstance(named, torch.jit.ScriptModule)
        else type(named).__name__
    )


def _prepare(model: Any, inputs: tuple[Any, ...]) -> Any:
    if api.is_exported(model):
        return api.compile(model, *inputs)
    if not callable(model):
        raise TypeError(f"explain takes a model that can be called, got {type(model).__name__}")
    is_ready = _is_deferred(inputs) or _is_prepared(model) or is_step(model, inputs)
    return model if is_ready else api.compile(model, *inputs)


def is_step(model: Any, inputs: tuple[Any, ...]) -> bool:
    """Return whether ``model`` is a Python function without inputs, such as a step of training."""
    return isinstance(model, FunctionType | MethodType | partial) and not inputs and not _is_prepared(model)


def _is_deferred(inputs: tuple[Any, ...]) -> bool:
    """Return whether the model is on a device that runs whole graphs."""
    return any(isinstance(input_, torch.Tensor) and input_.device.type != "cpu" for input_ in inputs)


def _is_prepared(model: Any) -> bool:
    if isinstance(model, torch.jit.ScriptModule | torch.jit.ScriptFunction):
        return True
    if hasattr(model, "_torchdynamo_orig_callable") or hasattr(model, "_orig_mod"):
        return True
    fx = sys.modules.get("torchmdla.capture.fx.graph")
    return fx is not None and isinstance(model, torch.fx.GraphModule) and bool(fx.groups(model))


def _places(model: Any) -> Iterator[tuple[str, str]]:
    """Yield the operator and the line of every node of a TorchScript program."""
    if isinstance(model, torch.jit.ScriptModule | torch.jit.ScriptFunction):
        graph: Any = model.inlined_graph
        yield from ((node.op, node.source) for node in convert_graph(graph).walk())
