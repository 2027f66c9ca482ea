"""Backend of ``torch.compile(model, backend="torchmdla")``, which PyTorch finds by the package's entry point.

Dynamo captures Python. AOT Autograd makes flat functional graphs of it, forward and backward, in which groups form.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch import fx, nn
from torch._dynamo import config as dynamo_config
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._dynamo.variables.builder import VariableBuilder
from torch._functorch import config as functorch_config
from torch._guards import TracingContext
from torch.compiler import config as compiler_config
from torch.nn import functional

from torchmdla import devices
from torchmdla.capture import cache_artifacts
from torchmdla.capture.double_backward import compile_each_set, differentiable_backward
from torchmdla.capture.fx.decompositions import decompositions, keep_operators_whole
from torchmdla.capture.fx.graph import Boxed, compile_boxed, run_without_modes
from torchmdla.capture.fx.recurrent import is_traced
from torchmdla.capture.options import Options
from torchmdla.compile_service import service
from torchmdla.errors import unknown_name
from torchmdla.importer.decompositions.recurrent_steps import STEP_OPERATORS
from torchmdla.support.garbage import pause_collection
from torchmdla.version import __version__


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
    # In strict mode, a backward pass that cannot be compiled raises an error when it runs.
    may_train = not chosen.is_strict() and not _is_evaluation(module)
    if may_train and any(isinstance(value, torch.Tensor) and value.requires_grad for value in example_inputs):
        service.default_service().prestart(2)  # Forward and backward are compiled at once.

    def finish(graph: fx.GraphModule, run: Boxed, weights: Sequence[fx.Node]) -> Boxed:
        run = run_without_modes(graph, run)
        if not _is_saved():
            return run
        # PyTorch's code for saving graphs takes part of a second to import.
        from torchmdla.capture.fx.saved_graph import SavedGraph

        return SavedGraph(run, graph, chosen, _references(weights, graph, example_inputs))

    def compile_forward(graph: fx.GraphModule, _: Sequence[Any], *, trains: bool) -> Boxed:
        begins = trains and may_train and _uses_all_gradients()
        weights = _parameters(graph, trains)
        return finish(graph, compile_boxed(graph, weights, chosen, begins=begins), weights)

    def compile_backward(graph: fx.GraphModule, begins: bool) -> Boxed:
        return finish(graph, compile_boxed(graph, (), chosen, gives_up_inputs=True, begins=begins), ())

    def compile_backwards(graph: fx.GraphModule, _: Sequence[Any]) -> Boxed:
        begins = _is_saved() or (may_train and _uses_all_gradients())
        return compile_each_set(graph, compile_backward, begins)

    def compile_module(module: nn.Module, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        with (
            pause_collection(),
            keep_operators_whole(),
            differentiable_backward(compile_module) as partition,
            functorch_config.patch(force_non_lazy_backward_lowering=True),
            _caching(chosen) if _is_saved() else nullcontext(),
        ):
            compiler = aot_autograd(
                fw_compiler=partial(compile_forward, trains=True),
                bw_compiler=compile_backwards,
                inference_compiler=partial(compile_forward, trains=False),
                decompositions=decompositions(),
                partition_fn=partition,
                keep_inference_input_mutations=True,
            )
            compiled: Callable[..., Any] = compiler(module, example_inputs)  # type: ignore[arg-type]
        return compiled

    return compile_module(module, example_inputs)


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


def _is_saved() -> bool:
    """Return whether PyTorch saves the graph that it compiles now, as ``aot_compile`` and its caches do."""
    return functorch_config.bundled_autograd_cache or dynamo_config.caching_precompile


@contextmanager
def _caching(options: Options) -> Iterator[None]:
    """Let AOT Autograd save what it compiles in this context, under keys of this backend alone."""
    tag = f"{compiler_config.cache_key_tag} torchmdla {__version__} {options}"
    # Modules of settings get this method when they are imported.
    own_keys = compiler_config.patch(cache_key_tag=tag)  # type: ignore[attr-defined]
    with functorch_config.patch(force_autograd_cache=True), own_keys:
        yield


def _references(
    weights: Sequence[fx.Node], graph: fx.GraphModule, inputs: Sequence[Any]
) -> dict[str, weakref.ref[torch.Tensor]]:
    """Return references to the tensors of the placeholders ``weights``, if AOT Autograd kept Dynamo's ``inputs``."""
    placeholders = graph.graph.find_nodes(op="placeholder")
    values = dict(zip(placeholders, inputs, strict=False)) if len(placeholders) == len(inputs) else {}
    return {node.name: weakref.ref(values[node]) for node in weights if isinstance(values.get(node), torch.Tensor)}


def _is_evaluation(module: fx.GraphModule) -> bool:
    """Return whether a graph of Dynamo has a dropout or norm that does not train."""
    for node in module.graph.nodes:
        if isinstance(node.target, FunctionType) and node.target.__module__ == functional.__name__:
            signature = inspect.signature(node.target)
            if "training" in signature.parameters:
                arguments = signature.bind(*node.args, **node.kwargs)
                arguments.apply_defaults()
                if arguments.arguments["training"] is False:
                    return True
    return False


def _uses_all_gradients() -> bool:
    """Return whether the backward pass probably computes all gradients of the graph.

    They are those of weights and of results of other graphs. Gradients of other inputs may be used alone, as forces.
    """
    metadata = _metadata()
    return metadata is not None and all(
        index in metadata.static_input_indices or not info.is_leaf
        for index, info in enumerate(metadata.input_info)
        if info.requires_grad
    )


def _parameters(module: fx.GraphModule, trains: bool) -> list[fx.Node]:
    """Return the placeholders of parameters that training steps do not change, if the graph ``trains``."""
    metadata = _metadata()
    if metadata is None:
        return []
    placeholders = module.graph.find_nodes(op="placeholder")
    infos = metadata.input_info
    return [
        placeholders[index]
        for index in metadata.static_input_indices
        if index < len(infos) and not infos[index].mutates_data and not (trains and infos[index].requires_grad)
    ]


def _metadata() -> Any:
    """Return AOT Autograd's facts about the graph that it compiles, or None."""
    context = TracingContext.try_get()
    return context.fw_metadata if context is not None else None


def _trace_recurrent_layers() -> None:
    """Let Dynamo trace recurrent layers for this backend only, each as one operator.

    ``torch._dynamo.config.allow_rnn`` is for all backends of a process, and others write the steps out.
    """
    run: Callable[[Any], None] = InstructionTranslator.run
    wrap_module: Callable[[Any, nn.Module], Any] = VariableBuilder.wrap_module

    def run_with_operators(translator: Any) -> None:
        with keep_operators_whole() if _is_for_us(translator.output.compiler_fn) else nullcontext():
            run(translator)

    def wrap(builder: Any, module: nn.Module) -> Any:
        is_allowed = isinstance(module, nn.RNNBase) and _traces(builder.tx.output.compiler_fn, module)
        with dynamo_config.patch(allow_rnn=True) if is_allowed else nullcontext():
            return wrap_module(builder, module)

    InstructionTranslator.run = run_with_operators  # type: ignore[method-assign, assignment]
    VariableBuilder.wrap_module = wrap  # type: ignore[method-assign, assignment]


def _traces(compiler: Any, layer: nn.RNNBase) -> bool:
    """Return whether ``compiler`` is this backend, for a device that runs all steps of ``layer``."""
    if not _is_for_us(compiler) or not is_traced(layer):
        return False
    options = getattr(inspect.unwrap(compiler), "kwargs", {}).get("options")
    return devices.get(Options.of(options).device_name()).ops.keys() >= STEP_OPERATORS


def _is_for_us(compiler: Any) -> bool:
    """Return whether Dynamo traces for the backend :func:`torchmdla`, which it wraps in other functions."""
    backend = inspect.unwrap(compiler)
    return getattr(backend, "compiler_fn", backend) is torchmdla


_trace_recurrent_layers()
cache_artifacts.record_from_now_on()
