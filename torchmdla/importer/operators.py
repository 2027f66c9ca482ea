"""Records that specify how calls of operators become ops of the Torch dialect.

An operator needs a record unless it is simply the op of its name. A row names operators of ATen; ``add.*`` means every
overload of ``add``. :func:`operator` merges all rows of an operator into one record. ``translate.py`` specifies the
order in which the fields apply.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial
from typing import Any, Literal

import torch

from torchmdla.importer import guards, rewrites
from torchmdla.importer.decompositions import (
    attention,
    convolutions,
    elementwise,
    normalisation,
    paddings,
    pooling,
    products,
    quantisation,
    recurrent,
    reductions,
    writing,
)
from torchmdla.importer.decompositions.resize import RESIZES, grid_sampler
from torchmdla.importer.emitter import Emitter, Value
from torchmdla.importer.rewrites import Rewrite
from torchmdla.importer.types import HALVES, ProductKind

# A function of an operator's arguments in the schema's order, written with other operators and traced on the recorded
# types (``trace.py``). It must be functional: no writes.
Decomposition = Callable[..., object]

# Makes the call fail for operand values that eager's kernel refuses. Operands are by their names in the schema.
Check = Callable[[Emitter, Mapping[str, Any]], None]

# Checks or changes the operands of an op immediately before it is written.
Guard = Callable[[Emitter, Sequence[Any]], "list[Any]"]


@dataclass(frozen=True)
class Operator:
    """Record of one operator, which specifies how its calls are written.

    Attributes:
        rewrite: writes a call as a cast, slices or another form of itself, or refuses it (``rewrites.py``).
        least_rank: the minimum rank of its first tensor. A tensor with fewer dimensions gets one more, of size 1.
            Upstream refuses some such tensors, ends the process on others, and loops forever on the softmax of a 0-d
            tensor.
        decomposition: the operator in terms of others, where torch-mlir lacks it or lowers it badly. The docstring of
            the function gives the reason. PyTorch's decompositions are ``"composite"`` (the kernel, into which the
            recorder sees) and ``"table"`` (the entry of ``torch._decomp``).
        computed_in: the dtype that tensors are converted to first. ``"result"`` is the result's dtype. ``"promoted"``
            is the dtype that the first two operands are promoted to. ``"float"`` is float64 if the result is a float,
            the Torch dialect's only float. None keeps the dtypes. torch-mlir refuses integers in some of these
            operators, and ends the process on others.
        with_number: the overload that has a known number as second operand in its kernel.
        with_tensors: the overload that accepts tensors in place of numbers.
        number_as_tensor: whether ``with_tensors`` is also used for a known number, which becomes a tensor.
        needs_number: the property that needs a number known at compile time. It completes the phrase "its …".
        keeps_whole_with_runtime_scalars: whether the op without its decomposition is correct, if slower, for these
            operands. The decomposition needs its numbers.
        takes_sizes: whether it may compute with varying sizes among integers. Other operators inspect numbers, for
            zero or a sign.
        positions: the arguments that are positions among elements. They may be known only at run time, for any dtype.
        omits_zeros: the optional argument that is omitted if its recorded elements are zeros, which calls check.
        check: the checks of eager's kernel on operand values that the written op does not make.
        guard: the code that comes immediately before it.
        keeps_dtype: whether it is written directly in dtypes that are only stored (``COMPUTED`` in ``types.py``). Such
            an operator only places, selects or converts elements, or its decomposition specifies the rounding. Others
            are computed in float32 or int32, and their results are rounded, or wrap around, once.
        rounds_each_step: whether its decomposition also keeps the dtype for such operands, because eager's kernel
            rounds every step.
        converts: whether it returns its first tensor in another dtype, or unchanged.
        autocasts: whether autocast computes it in another dtype although the dispatcher has no autocast kernel for it.
            Its component operators have one.
        factors: the kind of product, and the arguments that are its factors.
    """

    rewrite: Rewrite | None = None
    least_rank: int = 0
    decomposition: Decomposition | Literal["composite", "table"] | None = None
    computed_in: Literal["result", "promoted", "float"] | None = None
    with_number: str = ""
    with_tensors: str = ""
    number_as_tensor: bool = False
    needs_number: str = ""
    keeps_whole_with_runtime_scalars: Callable[[Sequence[Any]], bool] | None = None
    takes_sizes: bool = False
    positions: tuple[str, ...] = ()
    omits_zeros: str = ""
    check: Check | None = None
    guard: Guard | None = None
    keeps_dtype: bool = False
    rounds_each_step: Callable[[Sequence[Any]], bool] = lambda operands: False
    converts: bool = False
    autocasts: bool = False
    factors: tuple[ProductKind, tuple[str, ...]] | None = None


Row = tuple[str, Operator]


@lru_cache(maxsize=4096)
def operator(name: str) -> Operator:
    """Return the record of an operator, by its schema name with overload."""
    every = f"{name.partition('.')[0]}.*"
    records = [OPERATORS[key] for key in (every, name) if key in OPERATORS]
    return _merge(name, records)


def _rows(names: str, record: Operator) -> list[Row]:
    """Return a row for each of ``names``, which are separated by white space."""
    return [(f"aten::{name}", record) for name in names.split()]


def _number_forms(names: str, *, scalar: str = "Scalar", tensor: str = "Tensor") -> list[Row]:
    """Return the rows of the overloads of ``names`` for a number, and for a tensor in its place."""
    rows: list[Row] = []
    for name in names.split():
        with_number, with_tensors = (f"aten::{name}.{form}".removesuffix(".") for form in (scalar, tensor))
        rows.append((with_number, Operator(with_tensors=with_tensors)))
        rows.append((with_tensors, Operator(with_number=with_number)))
    return rows


def _tensor_form(names: str, form: str) -> list[Row]:
    return _rows(names, Operator(with_tensors=f"aten::{form}"))


def _merge(name: str, records: Iterable[Operator]) -> Operator:
    """Return the union of all ``records`` of an operator.

    Raises:
        ValueError: If two records differ in a field.
    """
    merged = Operator()
    for record in records:
        settings = {f.name: getattr(record, f.name) for f in fields(record) if getattr(record, f.name) != f.default}
        for field in settings:
            if getattr(merged, field) not in (getattr(Operator, field), settings[field]):
                raise ValueError(f"two rows for {name} differ in {field}")
        merged = replace(merged, **settings)
    return merged


def _table(*tables: Sequence[Row]) -> dict[str, Operator]:
    named: dict[str, list[Operator]] = {}
    for rows in tables:
        for name, record in rows:
            named.setdefault(name, []).append(record)
    return {name: _merge(name, records) for name, records in named.items()}


_IN_RESULT = Operator(computed_in="result")
_COMPOSITE = Operator(decomposition="composite")
_FROM_TABLE = Operator(decomposition="table")
_SIZES = Operator(takes_sizes=True)
_KEEPS_DTYPE = Operator(keeps_dtype=True)
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


def _decompose(names: str, decomposition: Decomposition) -> list[Row]:
    """Return the rows of operators with a decomposition of torchmdla."""
    return _rows(names, Operator(decomposition=decomposition))


def _is_floor_of_halves(operands: Sequence[Any]) -> bool:
    """Return whether a quotient is rounded down in a 16-bit divisor's dtype. A single number is widened instead."""
    divisor, *mode = operands[1:]
    if mode not in ([], ["floor"]) or not isinstance(divisor, Value) or divisor.meta is None:
        return False
    return divisor.meta.dtype in HALVES and math.prod(divisor.meta.shape) != 1


_ARITHMETIC = (
    _rows("add.* sub.* rsub.* mul.* div.* floor_divide.* remainder.* fmod.* pow.* square.* reciprocal.*", _IN_RESULT),
    _rows("addcmul.* addcdiv.* lerp.* maximum.* minimum.* fmax.* fmin.* atan2.* xlogy.* copysign.*", _IN_RESULT),
    _decompose("bitwise_left_shift.Tensor", elementwise.left_shift),
    _decompose("bitwise_right_shift.Tensor", elementwise.right_shift),
    _rows("bitwise_and.* bitwise_or.* bitwise_xor.* heaviside.* clamp.* clamp_min.* clamp_max.*", _IN_RESULT),
    _number_forms("add sub mul div fmod"),
    _number_forms("floor_divide", tensor=""),
    _number_forms("div", scalar="Scalar_mode", tensor="Tensor_mode"),
    _rows("pow.Tensor_Tensor", Operator(with_number="aten::pow.Tensor_Scalar")),
    _rows("pow.Tensor_Tensor", Operator(rewrite=rewrites.check_floats("a power of integers by a tensor"))),
    _tensor_form("pow.Scalar pow.Tensor_Scalar", "pow.Tensor_Tensor"),
    _tensor_form("rsub.Scalar", "rsub.Tensor"),
    # Upstream folds the remainder of a constant by a number with the sign of C's remainder.
    _rows("remainder.Scalar", Operator(with_tensors="aten::remainder.Tensor", number_as_tensor=True)),
    _tensor_form("lerp.Scalar", "lerp.Tensor"),
    _tensor_form("clamp hardtanh", "clamp.Tensor"),
    _tensor_form("clamp_min", "clamp_min.Tensor"),
    _tensor_form("clamp_max", "clamp_max.Tensor"),
    _rows("div.Tensor_mode remainder.Tensor", Operator(guard=guards.check_divisor)),
    _rows("add.Tensor add.Scalar sub.Tensor sub.Scalar rsub.Tensor rsub.Scalar mul.Tensor mul.Scalar", _SIZES),
    _rows("clamp clamp_min clamp_max", _SIZES),
    _rows("clamp clamp_min clamp_max hardtanh", Operator(rewrite=rewrites.nan_between_bounds)),
    _decompose("pow.Tensor_Scalar", elementwise.pow_by_number),
    _decompose("pow.Scalar", elementwise.power_of_number),
    _rows("rsub.Tensor", _FROM_TABLE),
    _decompose("reciprocal", elementwise.reciprocal),
    _decompose("neg", elementwise.neg),
    _decompose("fmod.Tensor fmod.Scalar", elementwise.fmod),
    _decompose("floor_divide floor_divide.Scalar", partial(elementwise.divide, rounding_mode="floor")),
    _rows("floor_divide div.Tensor_mode", Operator(rounds_each_step=_is_floor_of_halves)),
    _decompose("div.Tensor_mode div.Scalar_mode", elementwise.divide),
    _decompose("lerp.Tensor lerp.Scalar", elementwise.lerp),
    _decompose("addcmul", elementwise.addcmul),
    _decompose("addcdiv", elementwise.addcdiv),
    _decompose("clamp hardtanh clamp_min", elementwise.clamp),
    _decompose("clamp_max", lambda value, largest: elementwise.clamp(value, None, largest)),
    _decompose("clamp.Tensor clamp_min.Tensor", elementwise.clamp_between),
    _decompose("clamp_max.Tensor", lambda value, largest: elementwise.clamp_between(value, None, largest)),
    _decompose("max.other", torch.maximum),
    _decompose("min.other", torch.minimum),
    _decompose("heaviside", elementwise.heaviside),
    _decompose("hypot", elementwise.hypot),
    _rows("xlogy.Tensor", Operator(decomposition=elementwise.xlogy, keeps_dtype=True)),
    _decompose("deg2rad", lambda value: value * (math.pi / 180)),
    _decompose("rad2deg", lambda value: value * (180 / math.pi)),
    _rows("__and__.Tensor __or__.Tensor __xor__.Tensor", _COMPOSITE),
)

_CONDITIONS = (
    _rows(" ".join(f"{name}.*" for name in _COMPARISONS), Operator(computed_in="promoted")),
    _number_forms(" ".join(_COMPARISONS)),
    _rows(" ".join(f"{name}.{form}" for name in _COMPARISONS for form in ("Tensor", "Scalar")), _SIZES),
    _rows("logical_and logical_or logical_xor", Operator(computed_in="promoted")),
    _rows("eq.Tensor", Operator(rewrite=rewrites.equal)),
    _tensor_form("where.Scalar where.ScalarSelf where.ScalarOther", "where.self"),
    _tensor_form("masked_fill.Scalar", "masked_fill.Tensor"),
    _decompose("isfinite", elementwise.isfinite),
    _rows("nan_to_num", Operator(decomposition=elementwise.nan_to_num, keeps_dtype=True)),
)

_FUNCTIONS = (
    _rows("exp.* exp2.* expm1.* log.* log2.* log10.* log1p.* sqrt.* rsqrt.* erf.* logit.* softplus.*", _IN_RESULT),
    _rows("sin.* cos.* tan.* asin.* acos.* atan.* sinh.* cosh.* asinh.* acosh.* atanh.* tanh.* sigmoid.*", _IN_RESULT),
    _rows("relu.* relu6.* hardtanh.*", _IN_RESULT),
    _decompose("gelu", elementwise.gelu),
    _decompose("prelu _prelu_kernel", elementwise.prelu),
    _decompose("leaky_relu", elementwise.leaky_relu),
    _decompose("softshrink", elementwise.softshrink),
    _decompose("threshold", elementwise.threshold),
    _decompose("log_sigmoid", elementwise.log_sigmoid),
    _decompose("elu", elementwise.elu),
    _decompose("selu", elementwise.selu),
    _decompose("celu", elementwise.celu),
    _rows("logit", Operator(decomposition=elementwise.logit, keeps_dtype=True)),
    _decompose("softplus", elementwise.softplus),
    _decompose("asinh", elementwise.asinh),
    _decompose("acosh", elementwise.acosh),
    _decompose("trunc", elementwise.trunc),
    _decompose("frac", lambda value: value - elementwise.trunc(value)),
    _decompose("logaddexp", elementwise.logaddexp),
    _decompose("sinc", elementwise.sinc),
    _decompose("hardtanh_backward", elementwise.hardtanh_backward),
    _decompose("tanh_backward", elementwise.tanh_backward),
    _decompose("sigmoid_backward", elementwise.sigmoid_backward),
    _decompose("hardswish_backward", elementwise.hardswish_backward),
    _decompose("elu_backward", elementwise.elu_backward),
    _rows("hardshrink threshold_backward", _FROM_TABLE),
    _rows("gelu_backward silu_backward hardsigmoid_backward leaky_relu_backward", _FROM_TABLE),
    _rows(
        "dropout feature_dropout alpha_dropout feature_alpha_dropout",
        Operator(rewrite=rewrites.dropout),
    ),
)

_REDUCTIONS = (
    _rows("sum sum.dim_IntList", Operator(rewrite=rewrites.check_sum)),
    _rows("mean mean.dim", _IN_RESULT),
    _rows("amax amin aminmax cumsum flip", Operator(rewrite=rewrites.fold_single_element)),
    _rows(
        "cumprod",
        Operator(rewrite=rewrites.first_of(rewrites.fold_single_element, rewrites.cast_first("torch.aten.cumprod"))),
    ),
    _rows("prod.dim_int all.dim any.dim any.dims argmax argmin", Operator(least_rank=1)),
    _rows(
        "var.dim var.correction std.dim std.correction var_mean.dim var_mean.correction",
        Operator(least_rank=1),
    ),
    _rows("var.* std.* var_mean.* std_mean.*", Operator(rewrite=rewrites.nan_without_elements)),
    _rows(
        "var.correction std.correction var_mean.correction std_mean.correction",
        Operator(needs_number="correction is", guard=guards.limit_correction),
    ),
    _decompose("max.dim", reductions.extremum_of_dim(largest=True)),
    _decompose("min.dim", reductions.extremum_of_dim(largest=False)),
    _decompose("argmax", reductions.index_of_extremum(largest=True)),
    _decompose("argmin", reductions.index_of_extremum(largest=False)),
    _decompose("logsumexp", reductions.logsumexp),
    _rows("count_nonzero", _FROM_TABLE),
    _decompose("nansum", reductions.nansum),
    _decompose("linalg_vector_norm norm.Scalar", reductions.vector_norm),
    _decompose("norm.ScalarOpt_dim", reductions.norm_of_dims),
    _decompose("_grad_sum_to_size sum_to_size", reductions.sum_to_size),
    _rows("softmax.int _softmax _log_softmax _log_softmax_backward_data", Operator(least_rank=1)),
    _rows("log_softmax.int", Operator(least_rank=1, rewrite=rewrites.cast_first("torch.aten.log_softmax.int"))),
    _rows(
        "_softmax_backward_data",
        Operator(least_rank=1, decomposition=reductions.softmax_backward),
    ),
)

_PRODUCTS = (
    _decompose("linear", products.linear),
    _decompose("matmul", products.matmul),
    _decompose("addmv", products.add_product(torch.mv)),
    _decompose("addmm", products.add_product(torch.mm)),
    _decompose("baddbmm", products.add_product(torch.bmm)),
    _rows("einsum tensordot", _COMPOSITE),
)

_FACTORS = (
    _rows("mm bmm", Operator(factors=("matmul", ("self", "mat2")))),
    _rows("mv", Operator(factors=("matmul", ("self", "vec")))),
    _rows("matmul", Operator(factors=("matmul", ("self", "other")))),
    _rows("addmm", Operator(factors=("matmul", ("mat1", "mat2")))),
    _rows("addmv", Operator(factors=("matmul", ("mat", "vec")))),
    _rows("baddbmm", Operator(factors=("matmul", ("batch1", "batch2")))),
    _rows("linear", Operator(factors=("matmul", ("input", "weight")))),
    _rows("convolution _convolution.* conv_transpose1d.*", Operator(factors=("conv", ("input", "weight")))),
)

_CONVOLUTIONS = (
    _decompose("convolution", convolutions.convolution),
    _decompose("_convolution _convolution.deprecated", convolutions.convolution_of_script),
    _decompose("convolution_backward", convolutions.convolution_backward),
    # Upstream lacks these without a batch dimension, and with 'same' padding that is larger at one end.
    _rows("conv1d conv2d conv3d conv1d.padding conv2d.padding conv3d.padding _convolution_mode", _COMPOSITE),
    _rows("conv_transpose1d conv_transpose2d.input conv_transpose3d.input", _COMPOSITE),
)

_WINDOWS = (
    *(_rows(f"max_pool{n}d avg_pool{n}d", Operator(least_rank=n + 2)) for n in (1, 2, 3)),
    _rows("max_pool3d", Operator(rewrite=rewrites.check_floats("a maximum of windows of integers"))),
    _decompose("adaptive_avg_pool1d", pooling.adaptive_average(1)),
    _decompose("adaptive_avg_pool2d _adaptive_avg_pool2d", pooling.adaptive_average(2)),
    _decompose("adaptive_avg_pool3d _adaptive_avg_pool3d", pooling.adaptive_average(3)),
    *(_decompose(f"adaptive_max_pool{n}d", pooling.adaptive_maximum(n)) for n in (1, 2, 3)),
    *(_decompose(f"max_pool{n}d_with_indices", pooling.maximum_with_indices(n)) for n in (2, 3)),
    *(_decompose(f"max_pool{n}d_with_indices_backward", pooling.maximum_gradient(n)) for n in (2, 3)),
    *(_decompose(f"avg_pool{n}d_backward", pooling.average_gradient(n)) for n in (2, 3)),
    *(_decompose(f"_adaptive_avg_pool{n}d_backward", pooling.adaptive_average_gradient(n)) for n in (2, 3)),
    *(_decompose(name.removeprefix("aten::"), resize) for name, resize in RESIZES.items()),
    _decompose("grid_sampler", grid_sampler),
    _decompose("pad", paddings.pad),
    _rows(
        "constant_pad_nd",
        Operator(
            decomposition=paddings.constant_pad_nd,
            computed_in="result",
            keeps_whole_with_runtime_scalars=lambda operands: not paddings.is_cropping(operands[1]),
        ),
    ),
    _decompose("reflection_pad1d reflection_pad2d reflection_pad3d", paddings.reflection_pad),
    _decompose("replication_pad1d replication_pad2d replication_pad3d", paddings.replication_pad),
)

_LAYERS = (
    _decompose("batch_norm", normalisation.batch_norm),
    _decompose("instance_norm", normalisation.instance_norm),
    _decompose("group_norm", normalisation.group_norm),
    _decompose("native_group_norm", normalisation.native_group_norm),
    _decompose("rms_norm", normalisation.rms_norm),
    _decompose("scaled_dot_product_attention", attention.scaled_dot_product_attention),
    _decompose("_scaled_dot_product_flash_attention_for_cpu", attention.flash_attention),
    _decompose("_scaled_dot_product_flash_attention_for_cpu_backward", attention.flash_attention_gradients),
    _decompose("_native_multi_head_attention", attention.native_multi_head_attention),
    _decompose("_transformer_encoder_layer_fwd", attention.transformer_encoder_layer),
    _decompose("lstm.input", recurrent.lstm),
    _decompose("gru.input", recurrent.gru),
    _decompose("rnn_tanh.input", recurrent.rnn_tanh),
    _decompose("rnn_relu.input", recurrent.rnn_relu),
    _rows("lstm.input gru.input rnn_tanh.input rnn_relu.input", Operator(keeps_dtype=True, autocasts=True)),
    *([(name, Operator(decomposition=steps))] for name, steps in recurrent.STEPS.items()),
    _rows("_native_multi_head_attention _transformer_encoder_layer_fwd", _KEEPS_DTYPE),
    _decompose("lstm_cell", recurrent.lstm_cell),
    _decompose("gru_cell", recurrent.gru_cell),
    _decompose("rnn_tanh_cell", recurrent.rnn_tanh_cell),
    _decompose("rnn_relu_cell", recurrent.rnn_relu_cell),
)

_LOSSES = (
    _rows(
        "binary_cross_entropy_with_logits",
        Operator(decomposition=reductions.binary_cross_entropy_with_logits, keeps_dtype=True),
    ),
    _rows("kl_div", Operator(decomposition=reductions.kl_div, keeps_dtype=True)),
    _rows("mse_loss", Operator(decomposition=reductions.mse_loss, keeps_dtype=True)),
    _decompose("mse_loss_backward", reductions.mse_loss_backward),
    _rows("cross_entropy_loss nll_loss nll_loss_nd nll_loss2d", _COMPOSITE),
    _rows("l1_loss", replace(_COMPOSITE, keeps_dtype=True)),
    _rows("smooth_l1_loss huber_loss binary_cross_entropy", _FROM_TABLE),
    _rows("binary_cross_entropy", Operator(check=guards.check_unit_interval("self", "target"))),
    _rows("nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward", _FROM_TABLE),
)

_INDEXING = (
    _rows("index.Tensor", Operator(guard=guards.widen_indices)),
    _rows(
        "index_put",
        Operator(
            rewrite=rewrites.first_of(rewrites.forward_if_empty("indices"), rewrites.put),
            decomposition=writing.index_put,
            guard=guards.normalise_indices,
        ),
    ),
    _rows(
        "scatter.src scatter.value",
        Operator(rewrite=rewrites.forward_if_empty("index"), decomposition=writing.scatter, guard=guards.check_indices),
    ),
    *(
        _rows(
            name,
            Operator(
                rewrite=rewrites.first_of(rewrites.forward_if_empty("index"), rewrites.check_sum),
                decomposition=decomposition,
                check=guards.check_index,
            ),
        )
        for name, decomposition in (
            ("index_add", writing.index_add),
            ("scatter_add", writing.scatter_add),
            ("scatter_reduce.two", writing.scatter_reduce),
        )
    ),
    _rows("slice_scatter", Operator(rewrite=rewrites.forward_if_empty("src"))),
    _rows(
        "select_scatter",
        Operator(rewrite=rewrites.forward_if_empty("src"), decomposition=writing.select_scatter),
    ),
    *(
        _rows(name, Operator(rewrite=rewrites.write_lookup(f"torch.aten.{name}")))
        for name in ("gather", "index_select")
    ),
    _rows("index_select", Operator(check=guards.check_single_row)),
    _rows("take_along_dim", _COMPOSITE),
    _rows("embedding_dense_backward", _FROM_TABLE),
)

_MOVING = (
    _rows(
        "alias clone contiguous detach lift_fresh positive to.dtype to.dtype_layout to.device to.other "
        "to.prim_Device to.prim_dtype to.prim_other _to_copy type_as cpu resolve_conj resolve_neg "
        "_autocast_to_reduced_precision _autocast_to_full_precision",
        Operator(rewrite=rewrites.forward_operand),
    ),
    [("prims::convert_element_type", Operator(rewrite=rewrites.forward_operand))],
    _rows(
        "split split.Tensor split.sizes split_with_sizes chunk unsafe_chunk unsafe_split.Tensor "
        "unsafe_split_with_sizes tensor_split.sections tensor_split.indices",
        Operator(rewrite=rewrites.split),
    ),
    _rows("unbind.int", Operator(rewrite=rewrites.unbind)),
    _rows(
        "view reshape _unsafe_view _reshape_alias flatten.using_ints unflatten.int view_as reshape_as squeeze "
        "squeeze.dim squeeze.dims unsqueeze ravel",
        Operator(rewrite=rewrites.view),
    ),
    _rows("expand expand_as broadcast_to", Operator(rewrite=rewrites.expand)),
    _rows("narrow", Operator(rewrite=rewrites.narrow)),
    _rows("roll", Operator(rewrite=rewrites.roll)),
    _rows("cat", Operator(rewrite=rewrites.join)),
    _rows("concat", Operator(rewrite=rewrites.join, decomposition="composite")),
    _rows("hstack vstack mT numpy_T swapaxes movedim.int meshgrid meshgrid.indexing", _COMPOSITE),
    _rows(
        "alias clone contiguous detach lift_fresh positive to.* _to_copy type_as cpu resolve_conj resolve_neg "
        "_autocast_to_reduced_precision _autocast_to_full_precision",
        Operator(keeps_dtype=True, converts=True),
    ),
    _rows(
        "split.* split_with_sizes chunk unsafe_chunk unsafe_split.* unsafe_split_with_sizes tensor_split.* unbind.* "
        "view reshape _unsafe_view _reshape_alias flatten.* unflatten.* view_as reshape_as squeeze.* unsqueeze ravel "
        "expand expand_as broadcast_to roll cat concat hstack vstack stack mT numpy_T swapaxes movedim.* permute "
        "transpose.* t slice.* select.* index_select flip index.* embedding meshgrid.*",
        _KEEPS_DTYPE,
    ),
    [("prims::convert_element_type", Operator(keeps_dtype=True, converts=True))],
)

_QUANTISED: Mapping[str, Decomposition] = {
    "quantize_per_tensor quantize_per_tensor.tensor": quantisation.quantize,
    "choose_qparams.tensor": quantisation.choose_parameters,
    "quantize_per_channel": quantisation.quantize_per_channel,
    "quantize_per_token": quantisation.quantize_per_token,
    "dequantize_per_tensor dequantize_per_tensor.tensor": quantisation.dequantize,
    "dequantize_per_channel": quantisation.dequantize_per_channel,
    "dequantize_per_channel_group": quantisation.dequantize_per_channel_group,
    "dequantize_per_token": quantisation.dequantize_per_token,
}
_CHECKS_OF_QUANTISED: Mapping[str, Check] = {
    "quantize_per_tensor": guards.check_quantisation,
    "quantize_per_tensor.tensor": guards.check_scale,
    "quantize_per_channel": guards.check_quantisation,
    "quantize_per_token": guards.check_quantisation,
}
_QUANTISATION: list[Row] = [
    *(
        (
            f"quantized_decomposed::{name}",
            Operator(
                decomposition=decomposition,
                omits_zeros="zero_points" if name.startswith("dequantize_per_channel") else "",
                check=_CHECKS_OF_QUANTISED.get(name, guards.check_zero_points),
                keeps_dtype=True,
            ),
        )
        for names, decomposition in _QUANTISED.items()
        for name in names.split()
    ),
    ("torchao::choose_qparams_affine", Operator(decomposition=quantisation.choose_block_parameters, keeps_dtype=True)),
    (
        "torchao::quantize_affine",
        Operator(decomposition=quantisation.quantize_blocks, check=guards.check_zero_points, keeps_dtype=True),
    ),
    ("torchao::dequantize_affine", Operator(decomposition=quantisation.dequantize_blocks, keeps_dtype=True)),
    ("aten::_int_mm", Operator(decomposition=quantisation.product_of_integers, keeps_dtype=True)),
]

_RANGE = Operator(keeps_dtype=True, needs_number="size depends on")

_FILLING = (
    _rows("full.* full_like.* new_full.* fill.* constant_pad_nd.*", _IN_RESULT),
    _tensor_form("fill.Scalar", "fill.Tensor"),
    _decompose("fill.Scalar fill.Tensor", writing.fill),
    _rows("linspace", Operator(decomposition=writing.linspace, keeps_dtype=True)),
    _rows("copy", Operator(decomposition=writing.copy, keeps_dtype=True, converts=True)),
    _decompose("zero", torch.zeros_like),
    _decompose("tril", writing.tril),
    _decompose("triu", writing.triu),
    _rows("tril triu", Operator(positions=("diagonal",), keeps_dtype=True)),
    _rows("arange", Operator(needs_number="size depends on")),
    _rows("arange.start", replace(_RANGE, decomposition=writing.arange)),
    _rows("arange.start_step", replace(_RANGE, decomposition=writing.arange_by_step)),
    _rows("scalar_tensor", Operator(rewrite=rewrites.scalar_tensor, takes_sizes=True)),
    # The Torch dialect's floats have 64 bits. Upstream's lowering of some of these keeps the tensor's dtype.
    _rows("Float.* FloatImplicit.* ScalarImplicit.* item.*", Operator(computed_in="float")),
)

OPERATORS: Mapping[str, Operator] = _table(
    *_ARITHMETIC,
    *_CONDITIONS,
    *_FUNCTIONS,
    *_REDUCTIONS,
    *_PRODUCTS,
    *_FACTORS,
    *_CONVOLUTIONS,
    *_WINDOWS,
    *_LAYERS,
    *_LOSSES,
    *_INDEXING,
    *_MOVING,
    _QUANTISATION,
    *_FILLING,
)
