"""Formation of groups in FX graphs. Operators that the device does not support stay as they are.

``torch.compile`` and ``torch.export`` both use this module.
"""

from __future__ import annotations

import hashlib
import operator
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import fx, nn
from torch._functorch import config as functorch_config
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.fx.graph import _BoxedCodeGen
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode_stack

from torchmdla import _C, devices
from torchmdla.capture import ungrouped
from torchmdla.capture.fx.group import FxSubgraph, make_group
from torchmdla.capture.fx.normalise import copy_without_detaching, may_share_memory, merge_equal_calls, normalise
from torchmdla.capture.fx.partition import Partition, partition
from torchmdla.capture.options import Options
from torchmdla.capture.specialise import compile_ahead
from torchmdla.capture.ungrouped import Ungrouped
from torchmdla.errors import CompileError
from torchmdla.importer.fx import name_of_call, named_arguments, source_of_node

aten = torch.ops.aten

# Function of a list of inputs, which it empties, so that an input lives only as long as needed.
Boxed = Callable[[list[Any]], Sequence[Any]]


def form_groups(module: fx.GraphModule, parameters: Collection[fx.Node], options: Options) -> fx.GraphModule:
    """Form groups in ``module``, in place, and return it.

    An internal fault leaves ``module`` unchanged and is counted.

    Args:
        module: a flat functional graph of ATen calls, each node with an example of its value in ``meta["val"]``.
            In-place operators stay outside of groups.
        parameters: the placeholders that are weights. They should be the same tensors from call to call and change
            rarely, because each version is packed for the compiled code.
        options: the device and options of the groups.

    Raises:
        CompileError: in strict mode, the device does not support an operator.
    """
    chosen = replace(options, device=options.device_name())
    with _restore_after_error(module):
        normalise(module.graph)
        if chosen.is_strict():
            ungrouped.refuse(_ungrouped(partition(module.graph, devices.get(chosen.device_name()))))
        _add_groups(chosen, module, parameters)
    return module


def divide_step(joint: fx.GraphModule, inputs: Any, **keywords: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Return the forward and the backward graph of a step, between which few values are saved.

    The arguments are those of AOT Autograd's partitioners. The backward graph computes operands of its products again.
    PyTorch saves them, since the backward pass has to store them, too. It stores them for a short time. Kernels compute
    other elementwise operators again at no cost.
    """
    merge_equal_calls(joint.graph)
    with functorch_config.patch(cse=False, ban_recompute_materialized_backward=False):
        return min_cut_rematerialization_partition(joint, inputs, **keywords)


def compile_boxed(
    module: fx.GraphModule,
    parameters: Collection[fx.Node],
    options: Options,
    gives_up_inputs: bool = False,
    begins: bool = False,
) -> Boxed:
    """Return a function that runs ``module`` in groups. It empties its list of inputs.

    It must run without gradients. The arguments are those of :func:`form_groups`. With ``gives_up_inputs``, groups free
    their inputs after the last use, which pays for activations. With ``begins``, groups whose calls would wait for
    compiles are compiled from now on.
    """
    copy_without_detaching(module.graph)
    form_groups(module, parameters, options)
    if begins and _C.is_enabled() and not options.is_background():
        for group in groups(module):
            compile_ahead(group, options.device_name())
    return boxed(module, gives_up_inputs)


def boxed(module: fx.GraphModule, gives_up_inputs: bool) -> Boxed:
    """Return a function that runs a module with groups. The arguments are those of :func:`compile_boxed`."""
    if gives_up_inputs:
        _give_up_inputs(module.graph)
    module.graph.set_codegen(_BoxedCodeGen())
    # A separate module: a module of Dynamo compiles its code in each call.
    run: Boxed = fx.GraphModule(module, module.graph).forward
    return run


def run_without_modes(module: fx.GraphModule, run: Boxed) -> Boxed:
    """Return ``run``, which runs ``module``, without the modes of AOT Autograd around its first call."""
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


def _give_up_inputs(graph: fx.Graph) -> None:
    """Pass the inputs of each group in a list, in which they remain alone if nothing else needs them."""
    for node in graph.nodes:
        if node.op == "call_function" and isinstance(node.target, _C.Group):
            with graph.inserting_before(node):
                inputs = graph.call_function(_list_of, node.args)
            node.args, node.kwargs = (), {"inputs": inputs}


def _list_of(*values: object) -> list[object]:
    return list(values)


def is_list_of_inputs(node: fx.Node) -> bool:
    """Return whether ``node`` makes the list in which a group gets its inputs."""
    return node.target is _list_of


def group_of(node: fx.Node) -> _C.Group | None:
    """Return the group that ``node`` calls, or None."""
    return node.target if isinstance(node.target, _C.Group) else None


def operands_of(node: fx.Node) -> tuple[fx.Node, ...]:
    """Return the inputs of the group that ``node`` calls."""
    call = node.kwargs.get("inputs", node)
    return call.args  # type: ignore[union-attr, return-value]


@contextmanager
def _restore_after_error(module: fx.GraphModule) -> Iterator[None]:
    """Restore the graph of ``module`` if an exception other than CompileError is raised, and count the fault."""
    before = fx.Graph()
    before.output(before.graph_copy(module.graph, {}))
    before.set_codegen(module.graph._codegen)
    before.output_node().meta = dict(module.graph.output_node().meta)
    try:
        yield
    except CompileError:
        raise
    except Exception as error:
        fault = f"the pass that forms groups failed on its graph, which is as it was: {type(error).__name__}: {error}"
        ungrouped.count([Ungrouped("", fault, "")])
        module.graph = before


def _divide(
    options: Options, module: fx.GraphModule, parameters: Collection[fx.Node], left_out: Collection[fx.Node]
) -> None:
    """Form groups around the nodes ``left_out`` of a module that was a group."""
    with _restore_after_error(module):
        _add_groups(options, module, parameters, left_out)


def _add_groups(
    options: Options, module: fx.GraphModule, parameters: Collection[fx.Node], left_out: Collection[fx.Node] = ()
) -> None:
    graph = module.graph
    weights = {*parameters, *graph.find_nodes(op="get_attr")}
    plan = partition(graph, devices.get(options.device_name()), left_out, weights)
    _reorder(graph, plan.order)
    for groups, copies in ((plan.groups, plan.copied | plan.sunk), (plan.alone, set())):
        for nodes in groups:
            _Extraction(module, nodes, copies, weights, options).run(_group_name(nodes))
    remaining = set(graph.nodes)
    plan.ungrouped = [(node, reason) for node, reason in plan.ungrouped if node in remaining]
    ungrouped.count(_ungrouped(plan))
    graph.lint()
    module.recompile()


_LONGEST_NAME = 60


def _group_name(nodes: Sequence[fx.Node]) -> str:
    """Return the group's name, made of its operators as for groups of TorchScript."""
    names = [name_of_call(node).partition("::")[2].partition(".")[0] for node in nodes if node.op == "call_function"]
    name = "_".join(["mdla", *filter(str.isidentifier, names)])
    if len(name) <= _LONGEST_NAME:
        return name
    # Other names may begin alike.
    return f"{name[:_LONGEST_NAME]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _ungrouped(plan: Partition) -> list[Ungrouped]:
    return [Ungrouped(name_of_call(node), reason, source_of_node(node)) for node, reason in plan.ungrouped]


def groups(module: fx.GraphModule) -> list[_C.Group]:
    """Return the groups of a module that :func:`form_groups` returned."""
    return [group for node in module.graph.nodes if (group := group_of(node)) is not None]


def subgraph_of(
    module: fx.GraphModule, root: nn.Module, graph: fx.Graph, options: Options, written: Mapping[int, int]
) -> FxSubgraph:
    """Return the computation ``graph`` of a group of ``module``. Its constants are those of ``root``."""
    subgraph = FxSubgraph(root, graph, partial(_divide, options), written)
    subgraph.outer = weakref.ref(module.graph)
    return subgraph


def _reorder(graph: fx.Graph, order: Sequence[fx.Node]) -> None:
    last = next(iter(reversed(graph.nodes)))
    for node in order:
        if node is not last:
            last.prepend(node)


class _Extraction:
    """Extraction of one group: moves its nodes from a graph into a subgraph and calls the group in their place."""

    def __init__(
        self,
        module: fx.GraphModule,
        nodes: Sequence[fx.Node],
        copies: Collection[fx.Node],
        weights: Collection[fx.Node],
        options: Options,
    ) -> None:
        self._module = module
        self._nodes = nodes
        self._members = set(nodes)
        self._copies = copies
        self._weights = weights
        self._options = options
        self._subgraph = fx.Graph()
        self._inner: dict[fx.Node, fx.Node] = {}
        self._inputs: list[fx.Node] = []
        self._last_input = self._subgraph._root

    def run(self, name: str) -> None:
        for node in self._nodes:
            self._copy(node)
        escaping = [node for node in self._nodes if any(map(self._is_outside, node.users))]
        if escaping:
            copies = {k: copy for k, node in enumerate(escaping) if (copy := self._only_copy(node)) is not None}
            group = self._group(name, escaping, copies)
            for copy in copies.values():
                self._module.graph.erase_node(copy)
            self._call(group, escaping)
        for node in reversed(self._inner):
            if not node.users and (node in self._members or node in self._copies):
                self._module.graph.erase_node(node)

    def _is_outside(self, user: fx.Node) -> bool:
        """Return whether ``user`` is outside of the group. For a copied node its users decide."""
        if user in self._copies and user.users:
            return any(map(self._is_outside, user.users))
        return user not in self._members

    def _only_copy(self, node: fx.Node) -> fx.Node | None:
        """Return the call that copies a result of the group to an input, if the group can write to the input itself.

        The result must have no other use, and the old value of the input no later one.
        """
        users = [user for user in node.users if self._is_outside(user)]
        if len(users) != 1 or users[0].target is not aten.copy_.default:
            return None
        copy = users[0]
        written, *rest = copy.args
        if not isinstance(written, fx.Node) or written.op != "placeholder" or written not in self._inputs:
            return None
        last = self._nodes[-1]
        others = [user for user in written.users if user is not copy and user not in self._members]
        is_read_before = all(user < last and not may_share_memory(user) for user in others)
        return copy if rest == [node] and not copy.users and is_read_before else None

    def _group(self, name: str, escaping: Sequence[fx.Node], copies: Mapping[int, fx.Node]) -> _C.Group:
        self._subgraph.output(tuple(self._inner[node] for node in escaping))
        parameters = [index for index, node in enumerate(self._inputs) if node in self._weights]
        written = {k: self._inputs.index(copy.args[0]) for k, copy in copies.items()}  # type: ignore[arg-type]
        subgraph = subgraph_of(self._module, self._module, self._subgraph, self._options, written)
        return make_group(subgraph, name, self._options, parameters)

    def _call(self, group: _C.Group, escaping: Sequence[fx.Node]) -> None:
        graph = self._module.graph
        with graph.inserting_before(self._nodes[0]):
            call = graph.call_function(group, tuple(self._inputs))
            call.meta["val"] = tuple(node.meta.get("val") for node in escaping)
            for index, node in enumerate(escaping):
                result = graph.call_function(operator.getitem, (call, index))
                result.meta = dict(node.meta)
                node.replace_all_uses_with(result, delete_user_cb=lambda user: user not in self._members)
                if not result.users:
                    graph.erase_node(result)

    def _copy(self, node: fx.Node) -> fx.Node:
        """Return the copy of ``node`` in the subgraph, or an input of the group if the node stays outside."""
        if node not in self._inner:
            if node in self._members or node in self._copies:
                for needed in node.all_input_nodes:
                    self._copy(needed)
                self._inner[node] = self._subgraph.node_copy(node, self._inner.__getitem__)
            else:
                self._inner[node] = self._input(node)
        return self._inner[node]

    def _input(self, node: fx.Node) -> fx.Node:
        self._inputs.append(node)
        with self._subgraph.inserting_after(self._last_input):
            self._last_input = self._subgraph.placeholder(node.name)
        self._last_input.meta = dict(node.meta)
        return self._last_input


def draws_numbers(node: fx.Node) -> bool:
    """Return whether a node draws random numbers from PyTorch's generator. Attention may be without dropout."""
    is_random = isinstance(node.target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags
    return is_random and named_arguments(node).get("dropout_p") != 0.0
