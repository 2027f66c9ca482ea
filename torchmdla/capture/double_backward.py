"""Backward passes of ``torch.compile`` for forces: they can be differentiated, and compute only what is asked for.

AOT Autograd compiles a backward pass once, from values that the forward pass saved, and cannot differentiate it. If a
backward pass runs with ``create_graph=True``, another function takes its place: the gradients as a function of the
inputs (*primals*) and of the outputs' gradients (*tangents*). It computes the forward pass again. It is traced at its
first use and compiled as a graph of its own. The backward pass of that graph is the second derivative, and may be
differentiated, too.

The forward pass also saves its inputs, which it does not copy. Other backward passes run as AOT Autograd compiles them,
but without the gradients that ``autograd.grad`` does not return, and that eager mode would not compute.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import sympy
import torch
from torch import Tensor, fx, nn
from torch._dynamo.convert_frame import compile_lock
from torch._dynamo.source import ConstantSource
from torch._functorch._aot_autograd import graph_capture, graph_capture_wrappers, runtime_wrappers
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import SYMPY_INTERP, DimDynamic, ShapeEnv

from torchmdla.capture import ungrouped
from torchmdla.capture.fx.decompositions import differentiate_twice
from torchmdla.capture.fx.graph import divide_step, draws_numbers
from torchmdla.capture.ungrouped import Ungrouped
from torchmdla.errors import CompileError
from torchmdla.importer.trace import leaves

# Compiles a module for examples of its inputs.
Compile = Callable[[nn.Module, Sequence[Any]], Callable[..., Any]]

Partition = Callable[..., tuple[fx.GraphModule, fx.GraphModule]]

_Function = Callable[..., Sequence[Any]]
# Returns whether a function is right for these sizes.
_Condition = Callable[[Sequence[int]], bool]

# Most compiled functions of one graph, for different sizes and sets of gradients.
_MOST_COMPILED = 8


@contextmanager
def differentiable_backward(compile_module: Compile) -> Iterator[Partition]:
    """Make the backward pass differentiable that AOT Autograd builds in this context. Yield its partitioner.

    PyTorch's functions are replaced for the process, so the caller must hold Dynamo's compile lock.

    Args:
        compile_module: compiles the function of gradients. It may use this context again, for third derivatives.
    """
    graph = _Graph()
    create_joint = graph_capture.create_joint  # type: ignore[attr-defined]
    build = runtime_wrappers._AOTDispatchAutogradFunctionFactory.build

    def capture_forward(forward: Any, *args: Any, **kwargs: Any) -> Any:
        graph.forward = forward
        return create_joint(forward, *args, **kwargs)

    def build_differentiable(factory: Any) -> type[torch.autograd.Function]:
        # Groups write to no tensor that was saved, so that a graph may be retained after a pass that freed another.
        factory.spec.fw_metadata.bw_donated_idxs = []
        function = build(factory)
        if _is_plain(factory.spec):
            _Gradients(graph, factory.spec.fw_metadata, compile_module).install(function)
        return function

    def partition(joint: fx.GraphModule, inputs: Any, **kwargs: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
        graph.inspect(joint, kwargs["num_fwd_outputs"])
        return divide_step(joint, inputs, **kwargs)

    with (
        patch.object(graph_capture, "create_joint", capture_forward),
        patch.object(runtime_wrappers._AOTDispatchAutogradFunctionFactory, "build", build_differentiable),
    ):
        yield partition


class _Present(threading.local):
    """Backward pass that runs on this thread.

    Attributes:
        wanted: the primals whose gradients it uses; None if that is unknown.
    """

    wanted: frozenset[int] | None = None


_present = _Present()


def compile_each_set(
    module: fx.GraphModule, compile_graph: Callable[[fx.GraphModule, bool], Callable[[list[Any]], Any]], begins: bool
) -> Callable[[list[Any]], Any]:
    """Return a backward pass that computes the gradients which are used. It is compiled for each set of them.

    ``compile_graph`` is called with a graph, and whether it is compiled before its first call. With ``begins``, this
    applies to all gradients.
    """
    results: Any = module.graph.output_node().args[0]
    every = frozenset(index for index, result in enumerate(results) if result is not None)
    # PyTorch drops the examples of values of a graph that it saves.
    module = _restrict(module, every)
    functions: dict[frozenset[int], Callable[[list[Any]], Any]] = {}
    if begins:
        functions[every] = compile_graph(_restrict(module, every), True)

    def run(inputs: list[Any]) -> Any:
        wanted = every if _present.wanted is None else every & _present.wanted
        if wanted not in functions:
            with compile_lock:
                if wanted not in functions:
                    functions[wanted] = compile_graph(_restrict(module, wanted), False)
        return functions[wanted](inputs)

    run._boxed_call = True  # type: ignore[attr-defined]
    if begins:
        run.__wrapped__ = functions[every]  # type: ignore[attr-defined]  # which PyTorch saves
    return run


def _restrict(module: fx.GraphModule, wanted: frozenset[int]) -> fx.GraphModule:
    """Return a copy of ``module`` that returns None in place of the results that are not wanted."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    results: Any = graph.graph_copy(module.graph, copies)
    output = graph.output(tuple(result if index in wanted else None for index, result in enumerate(results)))
    output.meta = dict(module.graph.output_node().meta)
    graph.eliminate_dead_code()
    return fx.GraphModule(module, graph)


def _is_plain(spec: Any) -> bool:
    """Return whether a graph takes only tensors and numbers, so that PyTorch adds nothing to the inputs of a pass."""
    metadata = spec.fw_metadata
    has_others = metadata.tokens or metadata.num_backward_tokens or metadata.num_graphsafe_rng_states
    return not (
        has_others or metadata.is_rng_op_functionalized or spec.backward_state_indices or spec.maybe_subclass_meta
    )


class _Graph:
    """Facts about one graph that AOT Autograd differentiates.

    Attributes:
        forward: function of the primals that returns ``((outputs, has_tangent), descriptions)``.
        examples: fake primals, then fake tangents.
        needed: indices of the primals whose values the gradients depend on.
        is_random: whether the graph draws random numbers.
    """

    forward: Callable[..., Any]
    examples: Sequence[Any]
    needed: frozenset[int]
    is_random: bool

    def __init__(self) -> None:
        self._autocast = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")

    def autocast(self) -> AbstractContextManager[None]:
        """Return a context with the mode that PyTorch traced the graph in."""
        is_enabled, dtype = self._autocast
        return torch.autocast("cpu", dtype, enabled=is_enabled)

    def inspect(self, joint: fx.GraphModule, num_outputs: int) -> None:
        """Take the facts from the joint graph of the forward and the backward pass."""
        placeholders = joint.graph.find_nodes(op="placeholder")
        results: Any = joint.graph.output_node().args[0]
        reached = set(leaves(results[num_outputs:]))
        for node in reversed(joint.graph.nodes):
            if node in reached:
                reached.update(node.all_input_nodes)
        self.examples = [node.meta.get("val") for node in placeholders]
        self.needed = frozenset(index for index, node in enumerate(placeholders) if node in reached)
        self.is_random = any(map(draws_numbers, joint.graph.nodes))


_DIFFERENTIABLE = torch.empty(0, requires_grad=True)


class _Saved(torch.autograd.Function):
    """Node that holds tensors as PyTorch's operators do: with hooks, and with an error if one was changed in place."""

    @staticmethod
    def forward(ctx: Any, _: Tensor, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        return torch.empty(0)


@dataclass(frozen=True)
class _Call:
    """State of one forward pass.

    Attributes:
        saved: node with the tensors that the gradients depend on.
        others: the other primals, by index.
        random_state: the state of PyTorch's generator before the pass; None if the graph draws no numbers.
    """

    saved: Any
    others: dict[int, Any]
    random_state: Tensor | None

    @contextmanager
    def replay(self) -> Iterator[None]:
        """Draw the random numbers of the forward pass again in this context."""
        with torch.random.fork_rng(devices=[]) if self.random_state is not None else nullcontext():
            if self.random_state is not None:
                torch.set_rng_state(self.random_state)
            yield


class _Gradients:
    """Gradients of a graph as a function of primals and tangents, compiled at its first call."""

    def __init__(self, graph: _Graph, metadata: Any, compile_module: Compile) -> None:
        self._graph = graph
        self._compile_module = compile_module
        infos = metadata.input_info
        self._count = len(infos)
        self._written = frozenset(k for k, info in enumerate(infos) if info.mutates_data or info.mutates_metadata)
        self._needs_copy = frozenset(k for k in self._written if not infos[k].requires_grad)
        self._tensors = [k for k in range(self._count) if isinstance(graph.examples[k], Tensor)]
        self._needed = [k for k in self._tensors if k in graph.needed]
        self._others = [k for k in range(self._count) if k not in self._needed]
        self._places = _places_of_symbols(graph.examples)
        self._functions: dict[Any, list[tuple[_Condition, _Function]]] = defaultdict(list)

    def install(self, function: Any) -> None:
        """Use these gradients in ``function``, a class of AOT Autograd, where it cannot be differentiated."""
        forward, backward = function.forward, function.backward

        def save_and_forward(ctx: Any, *primals: Any) -> Any:
            ctx.torchmdla_call = self._save(primals)
            return forward(ctx, *primals)

        @torch._dynamo.disable  # type: ignore[untyped-decorator]
        def backward_and_free(ctx: Any, *gradients: Any) -> Any:
            before, _present.wanted = _present.wanted, frozenset(self._wanted(ctx))
            try:
                results = backward(ctx, *gradients)
            finally:
                _present.wanted = before
            if self._needed and not torch._C._autograd._get_current_graph_task_keep_graph():
                ctx.torchmdla_call = None
            return results

        def differentiable(ctx: Any, _: Any, arguments: list[Any]) -> tuple[Any, ...]:
            # The tangents follow the values that the forward pass saved.
            tangents = arguments[len(arguments) - len(self._graph.examples) + self._count :]
            return self._run(ctx.torchmdla_call, tangents, tuple(sorted(_present.wanted or ())))

        function.forward = staticmethod(save_and_forward)
        function.backward = staticmethod(backward_and_free)
        function._double_backward = staticmethod(differentiable)

    def _save(self, primals: Sequence[Any]) -> _Call:
        saved = None
        if self._needed:
            with torch.enable_grad():
                # The graph writes to its primals after this.
                tensors = [primals[k].clone() if k in self._written else primals[k] for k in self._needed]
                saved = _Saved.apply(_DIFFERENTIABLE, *tensors).grad_fn  # type: ignore[no-untyped-call]
        random_state = torch.get_rng_state() if self._graph.is_random else None
        return _Call(saved, {k: primals[k] for k in self._others}, random_state)

    def _wanted(self, ctx: Any) -> tuple[int, ...]:
        """Return the primals whose gradients the present backward pass uses. Eager mode computes no others."""
        nodes = (node for node, _ in ctx.next_functions)
        return tuple(k for k, node in zip(self._tensors, nodes, strict=True) if node is not None and _is_used(node))

    def _run(self, call: _Call, tangents: Sequence[Any], wanted: tuple[int, ...]) -> tuple[Any, ...]:
        tensors = call.saved.saved_tensors if self._needed else ()
        primals = {**call.others, **dict(zip(self._needed, tensors, strict=True))}
        inputs = [*(primals[k] for k in range(self._count)), *tangents]
        function = self._function(inputs, wanted)
        with call.replay():
            gradients = dict(zip(wanted, function(*inputs), strict=True))
        return tuple(map(gradients.get, range(self._count)))

    def _differentiate(self, wanted: Sequence[int], *inputs: Any) -> Sequence[Any]:
        """Return the gradients of the primals ``wanted``, by PyTorch's operators or in a trace of them."""
        primals, tangents = inputs[: self._count], inputs[self._count :]
        # The graph writes to copies. Its function copies the others itself.
        copies = [primal.clone() if k in self._needs_copy else primal for k, primal in enumerate(primals)]
        (outputs, has_tangent), _ = self._graph.forward(*copies)
        with_tangents = [output for output, has in zip(outputs, has_tangent, strict=True) if has]
        pairs = [
            (output, tangent)
            for output, tangent in zip(with_tangents, tangents, strict=True)
            if isinstance(output, Tensor) and output.requires_grad
        ]
        return torch.autograd.grad(
            [output for output, _ in pairs],
            [primals[k] for k in wanted],
            [tangent for _, tangent in pairs],
            create_graph=True,
            allow_unused=True,
        )

    def _run_eagerly(self, wanted: Sequence[int], *inputs: Any) -> Sequence[Any]:
        # Views part primals of which one was computed from another.
        apart = [x.view_as(x) if isinstance(x, Tensor) and x.requires_grad else x for x in inputs]
        # The graph's function expects to be traced: it looks for a mode, and synchronises inputs.
        mode = FakeTensorMode(shape_env=ShapeEnv())
        synchronise = patch.object(graph_capture_wrappers, "sync_functional_tensor", lambda _: None)
        with compile_lock, synchronise, tracing(TracingContext(mode)), self._graph.autocast():
            return self._differentiate(wanted, *apart)

    # Compiled functions

    def _function(self, inputs: Sequence[Any], wanted: tuple[int, ...]) -> _Function:
        """Return the function for these inputs, and compile it if necessary."""
        sizes = [inputs[index] if dim is None else inputs[index].shape[dim] for index, dim in self._places.values()]
        requires = tuple(isinstance(x, Tensor) and x.requires_grad for x in inputs)
        # PyTorch traces other graphs for the sizes 0 and 1.
        key = wanted, requires, tuple(min(size, 2) for size in sizes)
        with compile_lock:
            for holds, function in self._functions[key]:
                if holds(sizes):
                    return function
            holds, function = self._compile_or_give_up(inputs, wanted, sizes)
            self._functions[key].append((holds, function))
            return function

    def _compile_or_give_up(
        self, inputs: Sequence[Any], wanted: Sequence[int], sizes: Sequence[int]
    ) -> tuple[_Condition, _Function]:
        try:
            if sum(map(len, self._functions.values())) < _MOST_COMPILED:
                return self._compile(inputs, wanted, sizes)
            reason = f"it has {_MOST_COMPILED} compiled functions"
        except CompileError:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
        ungrouped.count([Ungrouped("", f"the second derivatives of a graph run as eager operators: {reason}", "")])
        return lambda _: True, partial(self._run_eagerly, wanted)

    def _compile(
        self, inputs: Sequence[Any], wanted: Sequence[int], sizes: Sequence[int]
    ) -> tuple[_Condition, _Function]:
        # The conditions on the graph's own symbols are known by now. Those on new symbols are checked here.
        environment = ShapeEnv()
        symbols = {
            symbol: environment.create_symbol(size, ConstantSource(str(symbol)), DimDynamic.DYNAMIC)
            for symbol, size in zip(self._places, sizes, strict=True)
        }
        mode = FakeTensorMode(shape_env=environment)
        with mode:
            examples = [
                _renew(example, environment, symbols, isinstance(value, Tensor) and value.requires_grad)
                for example, value in zip(self._graph.examples, inputs, strict=True)
            ]
        differentiate = _Module(partial(self._differentiate, wanted))
        with tracing(TracingContext(mode)), torch.enable_grad(), self._graph.autocast(), differentiate_twice():
            compiled = self._compile_module(differentiate, examples)

        def run(*inputs: Any) -> Sequence[Any]:
            with torch._C._DisableAutocast():
                results: Sequence[Any] = compiled(*inputs)
                return results

        return _condition(environment, list(symbols.values())), run


class _Module(nn.Module):
    """Function in the form that AOT Autograd takes."""

    def __init__(self, function: _Function) -> None:
        super().__init__()
        self._function = function

    def forward(self, *args: Any) -> tuple[Any, ...]:
        return tuple(self._function(*args))


def _is_used(node: Any) -> bool:
    """Return whether the present backward pass runs ``node`` or returns its gradient."""
    try:
        return bool(torch._C._will_engine_execute_node(node))
    except RuntimeError:  # PyTorch's answer for a leaf whose gradient ``autograd.grad`` returns
        return True


def _places_of_symbols(examples: Sequence[Any]) -> dict[sympy.Symbol, tuple[int, int | None]]:
    """Return an input and a dimension whose size is the symbol, for each symbol; no dimension for an integer."""
    places: dict[sympy.Symbol, tuple[int, int | None]] = {}
    for index, example in enumerate(examples):
        sizes = enumerate(example.shape) if isinstance(example, Tensor) else [(None, example)]
        for dim, size in sizes:
            if isinstance(size, torch.SymInt) and isinstance(size.node.expr, sympy.Symbol):
                places.setdefault(size.node.expr, (index, dim))
    return places


def _renew(example: Any, environment: ShapeEnv, symbols: dict[sympy.Symbol, Any], requires_grad: bool) -> Any:
    """Return ``example`` with the symbols of ``environment``."""

    def renew(number: Any) -> Any:
        is_symbolic = isinstance(number, torch.SymInt)
        return environment.create_symintnode(number.node.expr.xreplace(symbols), hint=None) if is_symbolic else number

    if not isinstance(example, Tensor):
        return renew(example)
    sizes, strides = (list(map(renew, numbers)) for numbers in (example.shape, example.stride()))
    fake = torch.empty_strided(sizes, strides, dtype=example.dtype, device=example.device)
    return fake.requires_grad_(requires_grad)


def _condition(environment: ShapeEnv, symbols: Sequence[Any]) -> _Condition:
    """Return the condition on the symbols' values that a trace found."""
    placeholders = [environment.create_symintnode(symbol, hint=None) for symbol in symbols]
    expression = environment.produce_guards_expression(placeholders, ignore_static=False)  # type: ignore[arg-type]
    code = compile(expression or "True", "<condition on sizes>", "eval")
    return lambda sizes: bool(eval(code, SYMPY_INTERP, {"L": {f"t{k}": size for k, size in enumerate(sizes)}}))
