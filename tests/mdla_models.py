"""Small ONNX models for tests of the accelerator: one operator each, with its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray


def normal(*shape: int, scale: float = 1.0, seed: int = 0) -> Array:
    generator = np.random.default_rng((seed, *shape))
    return (generator.standard_normal(shape) * scale).astype(np.float32)


@dataclass(frozen=True)
class Model:
    """Nodes with inputs (names to shapes) and constants."""

    name: str
    nodes: Sequence[onnx.NodeProto]
    inputs: dict[str, tuple[int, ...]]
    constants: dict[str, Array] = field(default_factory=dict)
    outputs: Sequence[str] = ("y",)
    opset: int = 13
    scale: float = 1.0

    def proto(self) -> onnx.ModelProto:
        graph = helper.make_graph(
            list(self.nodes),
            self.name,
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in self.inputs.items()],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in self.outputs],
            [numpy_helper.from_array(values, name) for name, values in self.constants.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)

    def save(self, folder: Path) -> Path:
        path = folder / f"{self.name}.onnx"
        onnx.save(self.proto(), path)
        return path

    def samples(self, seed: int = 0) -> list[Array]:
        return [normal(*shape, scale=self.scale, seed=seed + at) for at, shape in enumerate(self.inputs.values())]


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


def floats(*values: float) -> Array:
    return np.array(values, np.float32)


def operator(
    name: str,
    kind: str,
    shapes: Sequence[tuple[int, ...]],
    *constants: Array | None,
    outputs: int = 1,
    **options: object,
) -> Model:
    """Build a model of one node: inputs of these shapes, then constants (None: left out)."""
    opset = options.pop("opset", 13)
    scale = options.pop("scale", 1.0)
    inputs = {f"x{at}": shape for at, shape in enumerate(shapes)}
    named = {f"c{at}": values for at, values in enumerate(constants) if values is not None}
    operands = [*inputs, *(f"c{at}" if values is not None else "" for at, values in enumerate(constants))]
    results = ["y"] if outputs == 1 else [f"y{at}" for at in range(outputs)]
    node = helper.make_node(kind, operands, results, name=f"{name}_node", **options)
    return Model(name, [node], inputs, named, results, opset, scale)  # type: ignore[arg-type]


def _chain(name: str, shape: tuple[int, ...], *steps: tuple[str, Sequence[Array], dict[str, object]]) -> Model:
    """Build a model of consecutive nodes, each with its constants."""
    nodes, constants, last = [], {}, "x"
    for at, (kind, operands, options) in enumerate(steps):
        names = [f"c{at}_{index}" for index in range(len(operands))]
        constants.update(zip(names, operands, strict=True))
        result = "y" if at + 1 == len(steps) else f"t{at}"
        nodes.append(helper.make_node(kind, [last, *names], [result], name=f"{kind.lower()}{at}", **options))
        last = result
    return Model(name, nodes, {"x": shape}, constants)


def _weights(*shape: int) -> Array:
    return normal(*shape, scale=float(np.prod(shape[1:])) ** -0.5, seed=7)


def _statistics(channels: int) -> list[Array]:
    return [normal(channels, seed=at) if at < 3 else np.abs(normal(channels, seed=at)) + 0.5 for at in range(4)]


def convolution(name: str, x: tuple[int, ...], w: tuple[int, ...], bias: bool = True, **options: object) -> Model:
    kind = options.pop("kind", "Conv")
    channels = w[0] if kind == "Conv" else w[1] * int(options.get("group", 1))  # type: ignore[call-overload]
    constants = [_weights(*w)] + ([normal(channels, seed=3)] if bias else [])
    return operator(name, str(kind), [x], *constants, **options)


CONVOLUTIONS = [
    convolution("conv2d", (2, 3, 17, 19), (8, 3, 3, 3), pads=[1, 1, 1, 1]),
    convolution("conv2d_1x1", (1, 32, 9, 9), (16, 32, 1, 1), bias=False),
    convolution("conv2d_stride", (1, 5, 21, 20), (7, 5, 5, 3), strides=[2, 3], pads=[2, 0, 1, 1]),
    convolution("conv2d_asymmetric_pads", (1, 4, 8, 8), (6, 4, 3, 3), pads=[0, 2, 1, 0]),
    convolution("conv2d_dilation", (1, 4, 16, 16), (6, 4, 3, 3), dilations=[2, 3]),
    convolution("conv2d_groups", (2, 12, 10, 10), (8, 3, 3, 3), group=4, pads=[1, 1, 1, 1]),
    convolution("conv2d_depthwise", (1, 24, 14, 14), (24, 1, 3, 3), group=24, pads=[1, 1, 1, 1], strides=[2, 2]),
    convolution("conv2d_depth_multiplier", (1, 6, 9, 9), (12, 1, 3, 3), group=6),
    convolution("conv2d_same_upper", (1, 3, 11, 11), (4, 3, 4, 4), auto_pad="SAME_UPPER", strides=[2, 2]),
    convolution("conv2d_same_lower", (1, 3, 11, 11), (4, 3, 4, 4), auto_pad="SAME_LOWER", strides=[2, 2]),
    convolution("conv2d_whole_input", (1, 4, 6, 6), (5, 4, 6, 6)),
    convolution("conv2d_large", (1, 64, 56, 56), (64, 64, 3, 3), pads=[1, 1, 1, 1]),
    convolution("conv2d_deep", (1, 512, 7, 7), (512, 512, 3, 3), pads=[1, 1, 1, 1]),
    convolution("conv1d", (2, 6, 40), (9, 6, 5), pads=[2, 1], strides=[2]),
    convolution("conv3d", (1, 3, 6, 9, 8), (5, 3, 2, 3, 3), pads=[1, 1, 0, 0, 1, 2], strides=[1, 2, 1]),
    convolution("transposed2d", (2, 6, 7, 8), (6, 5, 3, 3), kind="ConvTranspose", strides=[2, 2], pads=[1, 1, 1, 1]),
    convolution("transposed2d_output_padding", (1, 4, 5, 5), (4, 3, 3, 3), kind="ConvTranspose", strides=[2, 3],
          pads=[0, 1, 1, 0], output_padding=[1, 2]),
    convolution("transposed2d_groups", (1, 8, 5, 5), (8, 3, 2, 2), kind="ConvTranspose", group=2, strides=[2, 2]),
    convolution("transposed2d_dilation", (1, 3, 6, 6), (3, 4, 3, 3), kind="ConvTranspose", dilations=[2, 2]),
    convolution("transposed2d_cropped", (1, 3, 6, 6), (3, 4, 2, 2), kind="ConvTranspose", pads=[2, 2, 2, 2],
                strides=[3, 3]),
    convolution("transposed1d", (1, 4, 9), (4, 6, 4), kind="ConvTranspose", strides=[2], pads=[1, 1]),
    convolution("transposed3d", (1, 3, 4, 4, 4), (3, 2, 2, 2, 2), kind="ConvTranspose", strides=[2, 2, 2]),
]  # fmt: skip

PRODUCTS = [
    operator("gemm", "Gemm", [(4, 20)], _weights(20, 15), normal(15)),
    operator("gemm_turned", "Gemm", [(4, 20)], _weights(15, 20), normal(15), transB=1),
    operator("gemm_turned_left", "Gemm", [(20, 4)], _weights(15, 20), transA=1, transB=1),
    operator("gemm_scaled", "Gemm", [(4, 20)], _weights(20, 15), normal(1, 15), alpha=0.5, beta=2.0),
    operator("gemm_scalar_bias", "Gemm", [(4, 20)], _weights(20, 15), floats(0.5)),
    operator("gemm_full_bias", "Gemm", [(4, 20)], _weights(20, 15), normal(4, 15)),
    operator("gemm_computed", "Gemm", [(4, 20), (20, 6), (4, 1)], scale=0.5),
    operator("gemm_large", "Gemm", [(1, 2048)], _weights(1000, 2048), normal(1000), transB=1),
    operator("matmul", "MatMul", [(2, 5, 12)], _weights(12, 7)),
    operator("matmul_computed", "MatMul", [(2, 3, 5, 12), (2, 3, 12, 4)]),
    operator("matmul_shared_left", "MatMul", [(5, 12), (3, 12, 4)]),
    operator("matmul_vectors", "MatMul", [(12,), (12,)]),
    operator("matmul_vector_right", "MatMul", [(3, 4, 12), (12,)]),
    operator("matmul_constant_left", "MatMul", [], _weights(3, 12), _weights(12, 4)),
]

POOLS = [
    operator("maxpool", "MaxPool", [(2, 5, 13, 12)], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
    operator("maxpool_ceil", "MaxPool", [(1, 3, 12, 12)], kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
    operator("maxpool_dilation", "MaxPool", [(1, 3, 12, 12)], kernel_shape=[2, 3], dilations=[2, 2]),
    operator("maxpool1d", "MaxPool", [(1, 4, 21)], kernel_shape=[4], strides=[3]),
    operator("maxpool3d", "MaxPool", [(1, 2, 6, 7, 8)], kernel_shape=[2, 3, 2], strides=[2, 1, 2]),
    operator("avgpool", "AveragePool", [(2, 5, 13, 12)], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
    operator("avgpool_with_pad", "AveragePool", [(2, 5, 13, 12)], kernel_shape=[3, 3], strides=[2, 2],
              pads=[1, 0, 1, 1], count_include_pad=1),
    operator("avgpool_ceil", "AveragePool", [(1, 3, 12, 12)], kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
    operator("avgpool3d", "AveragePool", [(1, 2, 6, 7, 8)], kernel_shape=[2, 3, 2]),
    operator("global_average", "GlobalAveragePool", [(2, 9, 7, 5)]),
    operator("global_average_large", "GlobalAveragePool", [(1, 2, 600, 700)]),
    operator("global_max", "GlobalMaxPool", [(2, 9, 7, 5)]),
    operator("global_max_large", "GlobalMaxPool", [(1, 2, 600, 700)]),
    operator("reduce_mean", "ReduceMean", [(2, 9, 7, 5)], axes=[2, 3]),
    operator("reduce_mean_dropped", "ReduceMean", [(2, 9, 7, 5)], axes=[-1], keepdims=0),
    operator("reduce_mean_18", "ReduceMean", [(2, 9, 7, 5)], ints(2, 3), opset=18),
]  # fmt: skip

ELEMENTWISE = [
    *(operator(kind.lower(), kind, [(2, 3, 8, 9), (2, 3, 8, 9)]) for kind in ("Add", "Sub", "Mul")),
    *(operator(f"{kind.lower()}_broadcast", kind, [(2, 3, 8, 9), (3, 1, 9)]) for kind in ("Add", "Sub", "Mul")),
    *(operator(f"{kind.lower()}_constant", kind, [(2, 3, 8, 9)], normal(3, 1, 1)) for kind in ("Add", "Sub", "Mul")),
    operator("add_scalar", "Add", [(4, 5)], np.array(0.25, np.float32)),
    operator("add_both_broadcast", "Add", [(4, 1, 5), (1, 6, 1)]),
    operator("add_large", "Add", [(1, 64, 100, 100), (1, 64, 100, 100)]),
    *(operator(kind.lower(), kind, [(2, 3, 8, 9)], scale=3.0) for kind in ("Relu", "Tanh", "Sigmoid")),
    operator("leaky_relu", "LeakyRelu", [(2, 3, 8, 9)], alpha=0.2),
    operator("leaky_relu_default", "LeakyRelu", [(2, 3, 8, 9)]),
    operator("clip", "Clip", [(2, 30)], np.array(-0.5, np.float32), np.array(1.0, np.float32)),
    operator("clip_above", "Clip", [(2, 30)], None, np.array(1.0, np.float32)),
    operator("softmax", "Softmax", [(4, 10)], scale=2.0),
    operator("softmax_channels", "Softmax", [(2, 5, 6, 7)], axis=1),
]

DATA = [
    operator("identity", "Identity", [(3, 4)]),
    operator("reshape", "Reshape", [(2, 6, 4)], ints(0, -1, 8)),
    operator("flatten", "Flatten", [(2, 6, 4)]),
    operator("flatten_axis", "Flatten", [(2, 6, 4)], axis=2),
    operator("squeeze", "Squeeze", [(1, 6, 1, 4)], ints(0, -2)),
    operator("squeeze_all", "Squeeze", [(1, 6, 1, 4)]),
    operator("unsqueeze", "Unsqueeze", [(6, 4)], ints(0, -1)),
    operator("transpose", "Transpose", [(2, 3, 4, 5)], perm=[0, 3, 1, 2]),
    operator("transpose_default", "Transpose", [(2, 3, 4)]),
    operator("transpose_large", "Transpose", [(1, 300, 500)], perm=[0, 2, 1]),
    operator("concat", "Concat", [(2, 3, 4), (2, 1, 4), (2, 5, 4)], axis=1),
    operator("concat_last", "Concat", [(2, 3, 4), (2, 3, 2)], axis=-1),
    operator("split", "Split", [(2, 9, 4)], ints(2, 3, 4), axis=1, outputs=3),
    operator("split_even", "Split", [(2, 9, 4)], axis=1, outputs=3),
    operator("split_18", "Split", [(2, 8, 4)], axis=1, outputs=3, num_outputs=3, opset=18),
    operator("slice", "Slice", [(4, 9, 6)], ints(1, -5), ints(3, 100), ints(0, 1)),
    operator("slice_steps", "Slice", [(4, 9, 6)], ints(-1, 1), ints(-100, 8), ints(1, 2), ints(-2, 2)),
    operator("pad", "Pad", [(2, 3, 4)], ints(0, 1, 2, 1, 0, 3), np.array(0.5, np.float32)),
    operator("pad_crop", "Pad", [(2, 5, 6)], ints(0, -1, 2, 0, 1, -2)),
    operator("pad_18", "Pad", [(2, 5, 6)], ints(1, 2), np.array(-1, np.float32), ints(-1), opset=18),
    *(
        operator(f"resize_{mode}_{way}", "Resize", [(1, 3, 6, 7)], None, None, ints(1, 3, 9, 16), mode=mode,
                  coordinate_transformation_mode=way)
        for mode in ("nearest", "linear")
        for way in ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
    ),
    *(
        operator(f"resize_{mode}", "Resize", [(2, 3, 6, 7)], None, floats(1, 1, 2, 2), nearest_mode=mode,
                 coordinate_transformation_mode="asymmetric")
        for mode in ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")
    ),
    operator("resize_smaller", "Resize", [(1, 2, 10, 9)], None, floats(1, 1, 0.5, 0.4), mode="linear"),
    operator("resize_3d", "Resize", [(1, 2, 4, 5, 3)], None, floats(1, 1, 2, 2, 2), mode="linear"),
]  # fmt: skip

NORMS = [
    operator("batch_norm", "BatchNormalization", [(2, 6, 5, 4)], *_statistics(6)),
    operator("batch_norm_rank2", "BatchNormalization", [(3, 6)], *_statistics(6), epsilon=1e-3),
    _chain("conv_batch_norm", (2, 3, 9, 9), ("Conv", [_weights(5, 3, 3, 3)], {}),
           ("BatchNormalization", _statistics(5), {}), ("Relu", [], {})),
    _chain("conv_bias_batch_norm", (2, 4, 9, 9), ("Conv", [_weights(6, 2, 3, 3), normal(6)], {"group": 2}),
           ("BatchNormalization", _statistics(6), {})),
    _chain("transposed_batch_norm", (1, 4, 6, 6), ("ConvTranspose", [_weights(4, 3, 3, 3), normal(6)],
           {"group": 2, "strides": [2, 2]}), ("BatchNormalization", _statistics(6), {}), ("LeakyRelu", [], {})),
]  # fmt: skip


def _skip_connection() -> Model:
    """Build a model whose activation is read twice, by its name and through a reshape.

    Nothing may be fused into the producer of the activation.
    """
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="conv"),
        helper.make_node("Identity", ["a"], ["b"], name="b"),
        helper.make_node("Identity", ["a"], ["c"], name="c"),
        helper.make_node("Relu", ["b"], ["d"], name="relu"),
        helper.make_node("Add", ["c", "d"], ["y"], name="add"),
    ]
    return Model("skip_connection", nodes, {"x": (1, 3, 8, 8)}, {"w": _weights(4, 3, 3, 3)}, ["y", "a"])


def _constant_nodes() -> Model:
    nodes = [
        helper.make_node("Constant", [], ["shape"], name="shape", value_ints=[2, -1]),
        helper.make_node("Constant", [], ["half"], name="half", value=numpy_helper.from_array(floats(0.5))),
        helper.make_node("Reshape", ["x", "shape"], ["r"], name="reshape"),
        helper.make_node("Mul", ["r", "half"], ["y"], name="mul"),
    ]
    return Model("constant_nodes", nodes, {"x": (2, 3, 4)})


NETWORKS = [
    # The norm's channels are not the convolution's, so it must not be folded.
    _chain("reshaped_batch_norm", (1, 3, 6, 6), ("Conv", [_weights(4, 3, 3, 3)], {}),
           ("Reshape", [ints(4, 4, 2, 2)], {}), ("BatchNormalization", _statistics(4), {})),
    _skip_connection(),
    _constant_nodes(),
    _chain("classifier", (2, 3, 16, 16), ("Conv", [_weights(8, 3, 3, 3), normal(8)], {"pads": [1, 1, 1, 1]}),
           ("Relu", [], {}), ("MaxPool", [], {"kernel_shape": [2, 2], "strides": [2, 2]}), ("Flatten", [], {}),
           ("Gemm", [_weights(10, 512), normal(10)], {"transB": 1}), ("Softmax", [], {})),
]  # fmt: skip

MODELS = [*CONVOLUTIONS, *PRODUCTS, *POOLS, *ELEMENTWISE, *DATA, *NORMS, *NETWORKS]
