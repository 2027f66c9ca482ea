"""Normalisation of ATen from AOT Autograd: equal calls become one, and operators become those that devices support.

Below autograd PyTorch has several names for one computation. Examples are an operator that also returns values for its
backward, one of a certain backend, and one that promises not to alias. If the program does not use the difference, the
usual operator replaces it, which both the device and eager PyTorch support.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from torchmdla import _C
from torchmdla.importer.fx import named_arguments
from torchmdla.importer.trace import leaves

aten = torch.ops.aten


def normalise(graph: fx.Graph) -> None:
    """Replace operators of ``graph``, in place, by others that compute the same."""
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target in _SAME_ARGUMENTS:
            node.target = _SAME_ARGUMENTS[node.target]
        elif node.op == "call_function" and node.target in _FIRST_RESULTS and _is_only_first_result_used(node):
            _replace(graph, node)
        elif node.target is aten.bernoulli.p and not node.kwargs:
            _draw_mask(graph, node)
        elif node.target is torch.ops.prims.convert_element_type.default:
            node.target, node.args, node.kwargs = aten._to_copy.default, node.args[:1], {"dtype": node.args[1]}
        elif node.target is aten._assert_tensor_metadata.default and node.args[0].op == "call_function":
            # The value is computed in the graph, so its operators determine its metadata. The assertion would make it a
            # result of a group.
            graph.erase_node(node)
        elif node.target is aten.copy_.default and _may_write_in_place(node):
            node.args[1].target = _IN_PLACE[node.args[1].target]
            graph.erase_node(node)


def merge_equal_calls(graph: fx.Graph) -> None:
    """Replace calls, in place, by earlier ones that compute the same.

    Results of the graph stay apart, with the values that share their memory. PyTorch's function for this imports
    Inductor, which takes a third of a second.
    """
    results = {storage for node in graph.output_node().all_input_nodes for storage in _storages(node)}
    calls: dict[Hashable, fx.Node] = {}
    writes = 0
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        if not _is_repeatable(node):
            writes += 1
        elif results.isdisjoint(_storages(node)):
            form = _form([node.target, node.args, sorted(node.kwargs.items())])
            first = calls.setdefault((writes, form), node)
            if first is not node:
                node.replace_all_uses_with(first)
                graph.erase_node(node)


def _is_repeatable(node: fx.Node) -> bool:
    """Return whether a call computes the same again if no memory changes in between, and writes to none."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return getattr(node.target, "__module__", "") == operator.add.__module__
    schema = node.target._schema
    if schema.is_mutable or schema.name.startswith("aten::empty") or "val" not in node.meta:
        return False
    return torch.Tag.nondeterministic_seeded not in node.target.tags and not free_unbacked_symbols(node.meta["val"])


def _storages(node: fx.Node) -> set[int]:
    """Return the memory of the example of a node's value."""
    values = (value for value in leaves(node.meta.get("val")) if isinstance(value, torch.Tensor))
    return {value.untyped_storage()._cdata for value in values if value.layout == torch.strided}


def _form(value: Any) -> Hashable:
    """Return a key of nested arguments. Python considers 1, 1.0 and True equal."""
    if isinstance(value, list | tuple):
        return tuple(map(_form, value))
    return value if isinstance(value, fx.Node) else (type(value), repr(value))


def _draw_mask(graph: fx.Graph, node: fx.Node) -> None:
    """Let a faster function draw the numbers of ``aten::bernoulli.p`` if these are booleans like an empty tensor."""
    like = node.args[0]
    sizes = _empty_sizes(like)
    if sizes is None or node.meta["val"].dtype != torch.bool:
        return
    node.target, node.args = _C.draw_mask, (sizes, *node.args[1:])
    while isinstance(like, fx.Node) and not like.users:
        unused, like = like, like.args[0]
        graph.erase_node(unused)


def _empty_sizes(node: Any) -> list[Any] | None:
    """Return the sizes of an empty tensor, possibly permuted; None for another one."""
    if node.target is aten.permute.default:
        sizes = _empty_sizes(node.args[0])
        return None if sizes is None else [sizes[dim] for dim in node.args[1]]
    return list(node.args[0]) if node.target is aten.empty_strided.default else None


def copy_without_detaching(graph: fx.Graph) -> None:
    """Let copies to inputs read values themselves, not aliases, which are not part of the groups of the values.

    The graph must run without gradients.
    """
    for copy in graph.find_nodes(op="call_function", target=aten.copy_.default):
        while isinstance(alias := copy.args[1], fx.Node) and alias.target in _ALIASES:
            copy.update_arg(1, alias.args[0])
            if not alias.users:
                graph.erase_node(alias)


_ALIASES = frozenset([aten.detach.default, aten.alias.default])

# Operators that write a part of a tensor, such as the cache of a decoder.
_IN_PLACE: Mapping[Any, Any] = {
    aten.index_copy.default: aten.index_copy_.default,
    aten.index_put.default: aten.index_put_.default,
}


def _may_write_in_place(copy: fx.Node) -> bool:
    """Return whether the value that is copied back to an input at the end can be written to it directly.

    That requires that the input is not read later and that the written value is not a result itself.
    """
    written, value = copy.args[:2]
    if not isinstance(written, fx.Node) or not isinstance(value, fx.Node) or value.target not in _IN_PLACE:
        return False
    if written.op != "placeholder" or value.args[0] is not written or any(user.op == "output" for user in value.users):
        return False
    others = [user for user in written.users if user not in (value, copy)]
    return all(user < value and not may_share_memory(user) for user in others)


def may_share_memory(node: fx.Node) -> bool:
    """Return whether the result of a call may alias its operands, or the call writes to them."""
    schema = getattr(node.target, "_schema", None)
    return schema is None or any(argument.alias_info is not None for argument in schema.arguments)


# Overloads that differ only in their guarantees.
_SAME_ARGUMENTS: Mapping[Any, Any] = {
    aten._unsafe_view.default: aten.view.default,
    aten._adaptive_avg_pool2d.default: aten.adaptive_avg_pool2d.default,
    aten._adaptive_avg_pool3d.default: aten.adaptive_avg_pool3d.default,
    aten._unsafe_index.Tensor: aten.index.Tensor,
    aten._unsafe_index_put.default: aten.index_put.default,
    aten.lift_fresh_copy.default: aten.clone.default,
    aten.true_divide.Tensor: aten.div.Tensor,
    aten.unsafe_split.Tensor: aten.split.Tensor,
    aten.unsafe_split_with_sizes.default: aten.split_with_sizes.default,
}

Arguments = Mapping[str, Any]
Call = tuple[Any, tuple[Any, ...], dict[str, Any]]


def _batch_norm(a: Arguments) -> Call:
    statistics = (a["running_mean"], a["running_var"])
    arguments = (a["input"], a["weight"], a["bias"], *statistics, False, a["momentum"], a["eps"], False)
    return aten.batch_norm.default, arguments, {}


def _max_pool(pool: Any) -> Callable[[Arguments], Call]:
    return lambda a: (pool, tuple(a.values()), {})


def _attention(a: Arguments) -> Call:
    arguments = (a["query"], a["key"], a["value"], a["attn_mask"], a["dropout_p"], a["is_causal"])
    # The operator supports any numbers of heads that can share keys and values.
    return aten.scaled_dot_product_attention.default, arguments, {"scale": a["scale"], "enable_gqa": True}


# Operators of which often only the first result is used, and calls that compute it alone.
_FIRST_RESULTS: Mapping[Any, Callable[[Arguments], Call]] = {
    aten._native_batch_norm_legit_no_training.default: _batch_norm,
    aten.max_pool2d_with_indices.default: _max_pool(aten.max_pool2d.default),
    aten.max_pool3d_with_indices.default: _max_pool(aten.max_pool3d.default),
    aten._scaled_dot_product_flash_attention_for_cpu.default: _attention,
}


def _is_only_first_result_used(node: fx.Node) -> bool:
    return all(user.target is operator.getitem and (user.args[1] == 0 or not user.users) for user in node.users)


def _replace(graph: fx.Graph, node: fx.Node) -> None:
    target, args, kwargs = _FIRST_RESULTS[node.target](named_arguments(node))
    with graph.inserting_before(node):
        replacement = graph.call_function(target, args, kwargs)
    replacement.meta = {**node.meta, "val": node.meta["val"][0]}
    for user in list(node.users):
        user.replace_all_uses_with(replacement)
        graph.erase_node(user)
    graph.erase_node(node)
