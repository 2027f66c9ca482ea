"""Backend of ``torch.compile(model, backend="torchmdla")``, which PyTorch finds by the package's entry point.

Dynamo captures Python. AOT Autograd makes flat functional graphs of it, forward and backward, in which groups form.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import config as functorch_config
from torch._guards import TracingContext
from torch.fx.graph import _BoxedCodeGen
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode_stack

from torchmdla.capture.double_backward import compile_each_set, differentiable_backward
from torchmdla.capture.fx.decompositions import decompositions, keep_operators_whole
from torchmdla.capture.fx.graph import form_groups
from torchmdla.capture.fx.normalise import copy_without_detaching
from torchmdla.capture.options import Options
from torchmdla.errors import unknown_name
from torchmdla.support.garbage import pause_collection


def torchmdla(
    module: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, object] | None = None,
) -> Callable[..., Any]:
    """Compile a graph that Dynamo captured; PyTorch calls this function for each graph.

    Args:
        module: the graph as Dynamo captured it.
        example_inputs: its inputs, fake or real.
        mode: any of PyTorch's modes. All mean the same, because schedules are computed and not measured.
        options: see :class:`torchmdla.capture.options.Options`.

    Raises:
        ValueError, TypeError: the mode or an option does not exist, or an option has a wrong value.
    """
    if mode not in _MODES:
        raise ValueError(unknown_name("mode", mode, _MODES[1:]))
    chosen = Options.of(options)
    _unmark_fsdp_parameters(module)

    def compile_forward(graph: fx.GraphModule, _: Sequence[Any], *, trains: bool) -> Callable[[list[Any]], Any]:
        return _compile_boxed(graph, _parameters(graph, trains), chosen)

    def compile_backward(graph: fx.GraphModule) -> Callable[[list[Any]], Any]:
        return _compile_boxed(graph, (), chosen)

    def compile_module(module: nn.Module, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        with (
            pause_collection(),
            keep_operators_whole(),
            _save_few_values(),
            differentiable_backward(compile_module) as partition,
        ):
            compiler = aot_autograd(
                fw_compiler=partial(compile_forward, trains=True),
                bw_compiler=lambda graph, _: compile_each_set(graph, compile_backward),
                inference_compiler=partial(compile_forward, trains=False),
                decompositions=decompositions(),
                partition_fn=partition,
                keep_inference_input_mutations=True,
            )
            compiled: Callable[..., Any] = compiler(module, example_inputs)  # type: ignore[arg-type]
        return compiled

    return compile_module(module, example_inputs)


def _save_few_values() -> AbstractContextManager[None]:
    """Let the backward pass compute operands of its products again, until the context ends.

    PyTorch saves them, since the backward pass has to store them, too. It stores them for a short time. Kernels compute
    other elementwise operators again at no cost.
    """
    context: AbstractContextManager[None] = functorch_config.patch(ban_recompute_materialized_backward=False)
    return context


def _unmark_fsdp_parameters(module: fx.GraphModule) -> None:
    """Make the parameters that FSDP manages ordinary inputs, not weights.

    FSDP frees their memory after a call and gathers them again before the next one. A packed copy would be used once
    and would stay in memory.
    """
    for node in module.graph.find_nodes(op="placeholder"):
        source = getattr(node, "_dynamo_source", None)
        is_managed = source is not None and source.guard_source.is_fsdp_module()
        if is_managed and isinstance(node.meta.get("example_value"), torch.nn.Parameter):
            # AOT Autograd takes its static inputs from this entry.
            node.meta.get("tensor_dict", {}).pop("_dynamo_static_input_type", None)


_MODES = (None, "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


def _compile_boxed(
    module: fx.GraphModule, parameters: Collection[fx.Node], options: Options
) -> Callable[[list[Any]], Any]:
    """Return a function that empties its list of inputs, so that an input lives only as long as needed."""
    copy_without_detaching(module.graph)
    form_groups(module, parameters, options)
    module.graph.set_codegen(_BoxedCodeGen())
    # A separate module: a module of Dynamo compiles its code in each call.
    run: Any = fx.GraphModule(module, module.graph).forward
    has_only_builtins = not any(map(_is_custom, module.graph.nodes))

    def call(inputs: list[Any]) -> Any:
        # The first call runs under a mode of AOT Autograd that watches custom operators. No group compiles under it.
        if (
            torch._C._len_torch_dispatch_stack()
            and has_only_builtins
            and all(mode.ignore_compile_internals() for mode in _get_current_dispatch_mode_stack())
        ):
            with _disable_current_modes():
                return run(inputs)
        return run(inputs)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def _is_custom(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target.namespace not in ("aten", "prim", "prims")


def _parameters(module: fx.GraphModule, trains: bool) -> list[fx.Node]:
    """Return the placeholders of parameters that training steps do not change, if the graph ``trains``."""
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    if metadata is None:
        return []
    placeholders = module.graph.find_nodes(op="placeholder")
    infos = metadata.input_info
    return [
        placeholders[index]
        for index in metadata.static_input_indices
        if index < len(infos) and not infos[index].mutates_data and not (trains and infos[index].requires_grad)
    ]
