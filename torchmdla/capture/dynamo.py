"""``torch.compile(model, backend="torchmdla")``: PyTorch finds this module by the package's entry point.

Dynamo captures Python, AOT Autograd makes flat functional graphs of it, forward and backward, and groups form in these.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import TracingContext
from torch.fx.graph import _BoxedCodeGen
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode_stack

from torchmdla.capture.decompositions import decompositions, whole_operators
from torchmdla.capture.fx import form_groups
from torchmdla.capture.options import Options


def torchmdla(
    module: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, object] | None = None,
) -> Callable[..., Any]:
    """The backend. PyTorch calls it with each graph that Dynamo captures.

    Args:
        module: the graph as Dynamo captured it.
        example_inputs: its inputs, fake or real.
        mode: any of PyTorch's; all mean the same, because schedules are computed and never tried out.
        options: see :class:`torchmdla.capture.options.Options`.

    Raises:
        ValueError, TypeError: no such mode or option, or a wrong value of one.
    """
    if mode not in _MODES:
        raise ValueError(f"no mode {mode!r}; there are {', '.join(map(repr, _MODES[1:]))}")
    chosen = Options.of(options)
    _unmark_gathered(module)
    forward, inference = (partial(_compile, options=chosen, trains=trains) for trains in (True, False))
    compiler = aot_autograd(
        fw_compiler=forward,
        bw_compiler=partial(_compile_backward, options=chosen),
        inference_compiler=inference,
        decompositions=decompositions(),
        # Saves little for the backward pass: what is elementwise, a kernel computes again at no cost.
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )
    with whole_operators():
        compiled: Callable[..., Any] = compiler(module, example_inputs)
    return compiled


def _unmark_gathered(module: fx.GraphModule) -> None:
    """Has parameters that FSDP manages be inputs like others, not weights.

    It frees their memory after a call and gathers them anew before the next one: what is packed of them would be in use
    once, and stay.
    """
    for node in module.graph.find_nodes(op="placeholder"):
        source = getattr(node, "_dynamo_source", None)
        is_managed = source is not None and source.guard_source.is_fsdp_module()
        if is_managed and isinstance(node.meta.get("example_value"), torch.nn.Parameter):
            # What AOT Autograd takes its static inputs from.
            node.meta.get("tensor_dict", {}).pop("_dynamo_static_input_type", None)


_MODES = (None, "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


def _compile(
    module: fx.GraphModule, example_inputs: Sequence[Any], *, options: Options, trains: bool
) -> Callable[[list[Any]], Any]:
    """A forward graph. Weights are parameters where no step of training changes them."""
    return _boxed(module, _parameters(module, trains), options)


def _compile_backward(
    module: fx.GraphModule, example_inputs: Sequence[Any], *, options: Options
) -> Callable[[list[Any]], Any]:
    return _boxed(module, (), options)


def _boxed(module: fx.GraphModule, parameters: Collection[fx.Node], options: Options) -> Callable[[list[Any]], Any]:
    """Takes its inputs in a list, which it empties, so that an input lives no longer than it is needed."""
    form_groups(module, parameters, options)
    module.graph.set_codegen(_BoxedCodeGen())
    # A module of its own: Dynamo's compile their code when they are called, in every call's way.
    run: Any = fx.GraphModule(module, module.graph).forward
    has_only_builtins = not any(map(_is_custom, module.graph.nodes))

    def call(inputs: list[Any]) -> Any:
        # The first call runs under a mode of AOT Autograd that watches custom operators, under which no group compiles.
        if torch._C._len_torch_dispatch_stack() and has_only_builtins and _modes_look_away():
            with _disable_current_modes():
                return run(inputs)
        return run(inputs)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def _is_custom(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target.namespace not in ("aten", "prim", "prims")


def _modes_look_away() -> bool:
    """Whether every dispatch mode that is on says that what compilers do inside is not its business."""
    return all(mode.ignore_compile_internals() for mode in _get_current_dispatch_mode_stack())


def _parameters(module: fx.GraphModule, trains: bool) -> list[fx.Node]:
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
