"""Tests of the emulator of the accelerator's C API: operators, number formats, tiles, cycles, and errors."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from child_process import run_script  # noqa: E402
from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from mdla_library import EMULATOR, Context, MdlaError  # noqa: E402
from mdla_models import (  # noqa: E402
    CONVOLUTIONS,
    DATA,
    ELEMENTWISE,
    MODELS,
    NETWORKS,
    POOLS,
    PRODUCTS,
    Array,
    Model,
    convolution,
    floats,
    ints,
    normal,
    operator,
)
from onnx import helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

TESTS = Path(__file__).parents[1]
PRECISIONS = ("float32", "fixed16", "fixed8", "variable")
FIXED = PRECISIONS[1:]

# A board whose buffers are so small that each layer has many tiles.
SMALL_BOARD = """
name = small
clock_mhz = 100
clusters = 8
fpgas = 2
macs_per_cluster = 32
mac_vector = 8
vector_lanes = 8
maps_bytes = 4096
weights_bytes = 2048
accumulators = 256
memory_bytes = 1000000000
bandwidth_gb_s = 1
host_gb_s = 1
instruction_cycles = 4
latency_cycles = 10
buffers = 3
"""


def small_board(folder: Path, **changed: object) -> Path:
    """Write the file of the small board, with other values for some keys, and return its path."""
    path = folder / "small.board"
    path.write_text(SMALL_BOARD + "".join(f"{key} = {value}\n" for key, value in changed.items()))
    return path


def by_name(models: Iterable[Model]) -> Any:
    return pytest.mark.parametrize("model", models, ids=lambda model: model.name)


def expected(model: Model, path: Path) -> list[Array]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, dict(zip(model.inputs, model.samples(), strict=True)))


def results(model: Model, path: Path, precision: str, **flags: object) -> tuple[list[Array], list[Array]]:
    """Return the results of the device and of the reference software, calibrated with the same inputs, no headroom."""
    with Context(precision=precision, headroom=0, **flags) as context:
        context.compile(path, samples=model.samples() if precision == "variable" else ())
        return context.run(*model.samples()), context.run(*model.samples(), software=True)


@by_name(MODELS)
@pytest.mark.sampled(10)
def test_float32_agrees_with_onnx_runtime(model: Model, tmp_path: Path) -> None:
    path = model.save(tmp_path)
    for ours, theirs in zip(results(model, path, "float32")[0], expected(model, path), strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=2e-6 * max(1.0, float(np.abs(theirs).max())))


# The largest error of the documented rounding for values up to about 4: half a step, and the error of the weights.
TOLERANCES = {"fixed16": 0.05, "fixed8": 0.6, "variable": 2e-3}


@by_name([model for model in MODELS if model.name != "conv2d_deep"])
@pytest.mark.parametrize("precision", FIXED)
@pytest.mark.sampled(15)
def test_fixed_formats_stay_near_float(model: Model, precision: str, tmp_path: Path) -> None:
    if precision == "variable" and not model.inputs:
        pytest.skip("nothing to calibrate with")
    path = model.save(tmp_path)
    for ours, theirs in zip(results(model, path, precision)[0], expected(model, path), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=TOLERANCES[precision] * max(1, np.abs(theirs).max()))


BOARDS = {"shipped": {"nclusters": 2}, "small": {"nclusters": 5, "nfpgas": 2}}
LONG_ON_SMALL_BOARD = ("conv2d_deep", "conv2d_large")


@by_name(MODELS)
@pytest.mark.parametrize("board", BOARDS)
@pytest.mark.parametrize("precision", ["fixed16", "fixed8"])
@pytest.mark.sampled(15)
def test_tiles_change_nothing(model: Model, precision: str, board: str, tmp_path: Path) -> None:
    """Check that tiles give the bits of the reference software, on the shipped board and on one with tiny buffers."""
    flags: dict[str, object] = dict(BOARDS[board])
    if board == "small":
        if model.name in LONG_ON_SMALL_BOARD:
            pytest.skip("hundreds of thousands of tiles")
        flags["board"] = small_board(tmp_path)
    device, software = results(model, model.save(tmp_path), precision, **flags)
    for ours, theirs in zip(device, software, strict=True):
        np.testing.assert_array_equal(ours, theirs)


# ---- the documented rounding, modelled in numpy ----


def stored_limit(precision: str) -> int:
    return 127 if precision == "fixed8" else 32767


def rounded(values: Array, fraction: int, precision: str) -> Array:
    """Round to the nearest multiple of 2**-fraction, halves up, with saturation."""
    limit = stored_limit(precision)
    return np.clip(np.floor(np.float64(values) * 2.0**fraction + 0.5), -limit - 1, limit) / 2.0**fraction


def fraction_of(values: Array, precision: str) -> int:
    """Return the largest number of fractional bits from -8 to 24 with which no value saturates."""
    most = float(np.abs(values).max())
    return next(bits for bits in range(24, -9, -1) if bits == -8 or most * 2.0**bits <= stored_limit(precision))


def modelled(model: Model, path: Path, precision: str) -> list[Array]:
    """Return the results of one layer: exact arithmetic on rounded operands, and one rounding of each result.

    The biases are constants ``c1`` of convolutions and products. They have the fraction of the products.
    """
    inputs = dict(zip(model.inputs, model.samples(), strict=True))
    exact = expected(model, path)

    def fraction(values: Array, weights: bool) -> int:
        if precision == "fixed16":
            return 8
        return fraction_of(values, precision) if weights or precision == "variable" else 4

    operands = {name: rounded(x, fraction(x, False), precision) for name, x in inputs.items()}
    constants: dict[str, Array] = {}
    for name, values in model.constants.items():
        if values.dtype != np.float32:
            constants[name] = values
        elif name == "c1" and model.nodes[0].op_type in ("Conv", "ConvTranspose", "Gemm"):
            bits = fraction(inputs["x0"], False) + fraction(model.constants["c0"], True)
            constants[name] = np.floor(np.float64(values) * 2.0**bits + 0.5) / 2.0**bits
        else:
            constants[name] = rounded(values, fraction(values, True), precision)
    wide = Model(model.name, model.nodes, model.inputs, constants, model.outputs, model.opset).proto()
    products = ReferenceEvaluator(wide).run(None, operands)
    return [
        rounded(values, fraction(ours, False), precision).astype(np.float32)
        for values, ours in zip(products, exact, strict=True)
    ]


# Layers with more than one rounding, and layers that the reference evaluator does not support or evaluates slowly.
NOT_MODELLED = {
    "gemm_scaled",
    "gemm_full_bias",
    "gemm_computed",
    "conv2d_large",
    "conv2d_deep",
    "matmul_constant_left",
    "transposed2d_groups",
    "pad_crop",
}
# Words in the names of functions, and of interpolation, which rounds after each axis.
BOUNDED_ONLY = ("tanh", "sigmoid", "softmax", "leaky", "linear", "resize", "same", "large")
EXACT = [
    model
    for model in [*CONVOLUTIONS, *PRODUCTS, *POOLS, *ELEMENTWISE, *DATA]
    if model.name not in NOT_MODELLED and not any(word in model.name for word in BOUNDED_ONLY)
]


@by_name(EXACT)
@pytest.mark.parametrize("precision", FIXED)
@pytest.mark.sampled(15)
def test_rounding_is_as_documented(model: Model, precision: str, tmp_path: Path) -> None:
    path = model.save(tmp_path)
    for ours, theirs in zip(results(model, path, precision)[0], modelled(model, path, precision), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@st.composite
def convolutions(draw: st.DrawFn) -> Model:
    groups, cin, cout = (draw(st.integers(1, most)) for most in (3, 20, 20))
    kernel = [draw(st.integers(1, 4)) for _ in range(2)]
    dilations = [draw(st.integers(1, 2)) for _ in range(2)]
    pads = [draw(st.integers(0, 2)) for _ in range(4)]
    least = [(size - 1) * step + 1 for size, step in zip(kernel, dilations, strict=True)]
    sizes = [low + draw(st.integers(0, 20)) for low in least]
    return convolution(
        "drawn",
        (draw(st.integers(1, 2)), groups * cin, *sizes),
        (groups * cout, cin, *kernel),
        group=groups,
        pads=pads,
        dilations=dilations,
        strides=[draw(st.integers(1, 3)) for _ in range(2)],
        scale=draw(st.sampled_from([0.1, 1.0, 40.0])),
    )


@given(model=convolutions(), clusters=st.integers(1, 8), precision=st.sampled_from(FIXED))
@settings(max_examples=40, suppress_health_check=list(HealthCheck))
def test_any_convolution_in_any_tiles(model: Model, clusters: int, precision: str, tmp_path: Path) -> None:
    path = model.save(tmp_path)
    (device,), (software,) = results(model, path, precision, board=small_board(tmp_path), nclusters=clusters)
    (theirs,) = modelled(model, path, precision)
    np.testing.assert_array_equal(device, theirs)
    np.testing.assert_array_equal(software, theirs)


def test_calibration_takes_the_largest_of_all_samples(tmp_path: Path) -> None:
    path = operator("calibrated", "Add", [(4, 5), (4, 5)]).save(tmp_path)
    small, two, five = (np.full((4, 5), value, np.float32) for value in (0.9, 1.1, 5.0))
    with Context(precision="variable", headroom=0) as context:
        context.compile(path, samples=[small, small])
        assert context.layers()[0]["fraction"] == 14
        context.compile(path, samples=[small, small, five, two, two, small])
        assert context.layers()[0]["fraction"] == 12
        (y,) = context.run(small, two)
        np.testing.assert_allclose(y, small + two, atol=2.0**-12)
        # The second input was below 2 in calibration, and saturates at 2.
        (y,) = context.run(small, five)
        np.testing.assert_allclose(y, small + 2, atol=2.0**-12)
    with Context(precision="fixed8") as context:
        assert context.compile(path).layers()[0]["fraction"] == 4
        assert context.compile(path, samples=[small, small]).layers()[0]["fraction"] == 6


@pytest.mark.parametrize(
    ("precision", "flags", "spare"),
    [("variable", {}, 1), ("variable", {"headroom": 0}, 0), ("variable", {"headroom": 3}, 3), ("fixed8", {}, 0)],
)
def test_headroom_of_calibrated_formats(precision: str, flags: dict[str, object], spare: int, tmp_path: Path) -> None:
    path = operator("spare", "Add", [(4, 5), (4, 5)]).save(tmp_path)
    sample = np.full((4, 5), 0.9, np.float32)
    with Context(precision=precision, **flags) as context:
        context.compile(path, samples=[sample, sample])
        fraction = (14 if precision == "variable" else 6) - spare
        assert context.layers()[0]["fraction"] == fraction
        for factor in (1, 2.0**spare):
            (y,) = context.run(sample * factor, sample * factor)
            np.testing.assert_allclose(y, 1.8 * factor, atol=2.0**-fraction * 2)


@pytest.mark.parametrize(
    ("kind", "attributes", "fraction"),
    [("Sigmoid", {}, 14), ("Tanh", {}, 14), ("Softmax", {"axis": 1}, 15), ("LeakyRelu", {"alpha": 0.5}, 13)],
)
def test_headroom_ends_where_values_do(kind: str, attributes: dict[str, Any], fraction: int, tmp_path: Path) -> None:
    """Check that headroom does not exceed the range of a function.

    A softmax of equal numbers is 1/4. One more bit allows 1/2.
    """
    path = operator("bounded", kind, [(5, 4)], **attributes).save(tmp_path)
    with Context(precision="variable") as context:
        context.compile(path, samples=[np.full((5, 4), 1.9, np.float32)])
        assert context.layers()[0]["fraction"] == fraction


def test_sums_beyond_32_bits_are_exact(tmp_path: Path) -> None:
    """Check inputs and weights at the limits of the formats, which overflow 32-bit sums. Results saturate."""
    signs = np.where(np.arange(600) % 3 == 0, -1, 1).astype(np.float32)
    weights = np.stack([signs * 127, -signs * 127, np.full(600, 127, np.float32), signs / 64])
    model = operator("limits", "Gemm", [(2, 600)], weights, transB=1, scale=200.0)
    path = model.save(tmp_path)
    (ours,), _ = results(model, path, "fixed16")
    (theirs,) = modelled(model, path, "fixed16")
    np.testing.assert_array_equal(ours, theirs)
    assert np.abs(theirs).max() > 127


# ---- binaries ----


def classifier() -> Model:
    return next(model for model in NETWORKS if model.name == "classifier")


def test_binary_is_the_whole_program(tmp_path: Path) -> None:
    model = classifier()
    path, binary = model.save(tmp_path), tmp_path / "model.bin"
    with Context(precision="fixed16") as compiler, Context() as loaded:
        compiler.compile(path, binary)
        path.unlink()
        loaded.init(binary)
        assert loaded.shapes == [(2, 10)]
        assert loaded.info("innames") == "x" and loaded.info("inshapes") == "2x3x16x16"
        assert loaded.info("outnames") == "y" and loaded.info("outshapes") == "2x10"
        np.testing.assert_array_equal(loaded.run(*model.samples())[0], compiler.run(*model.samples())[0])
        assert loaded.layers() == compiler.layers()


HEADER = struct.Struct("<8sqqQ")


def checksum(payload: bytes) -> int:
    value = 14695981039346656037
    for byte in payload:
        value = ((value ^ byte) * 1099511628211) & (2**64 - 1)
    return value


def test_checksum_is_documented(tmp_path: Path) -> None:
    binary = tmp_path / "model.bin"
    with Context() as context:
        context.compile(operator("identity", "Relu", [(3, 4)]).save(tmp_path), binary)
    data = binary.read_bytes()
    magic, version, length, given_sum = HEADER.unpack_from(data)
    payload = data[HEADER.size :]
    assert (magic, version, length, given_sum) == (b"MDLAEMU\n", 2, len(payload), checksum(payload))


DAMAGE = {
    "empty": (lambda data: b"", "not a binary of the emulator"),
    "other_file": (lambda data: b"\x7fELF" + data, "not a binary of the emulator"),
    "version": (lambda data: data[:8] + struct.pack("<q", 99) + data[16:], "version 99"),
    "cut": (lambda data: data[:-7], "is cut"),
    "longer": (lambda data: data + b"more", "is cut"),
    "flipped": (lambda data: data[:200] + bytes([data[200] ^ 1]) + data[201:], "checksum"),
    "last_byte": (lambda data: data[:-1] + bytes([data[-1] ^ 128]), "checksum"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_binary_is_refused(damage: str, tmp_path: Path) -> None:
    change, message = DAMAGE[damage]
    binary = tmp_path / "model.bin"
    with Context() as context:
        context.compile(classifier().save(tmp_path), binary)
    binary.write_bytes(change(binary.read_bytes()))
    with Context() as context:
        with pytest.raises(MdlaError, match=message):
            context.init(binary)
        with pytest.raises(MdlaError, match="no network"):
            context.run(*classifier().samples())


FUZZ = """
import sys
sys.path[:0] = sys.argv[1:2]
import random
from pathlib import Path
import numpy as np
from mdla_library import Context, MdlaError
from test_mdla_emulator import HEADER, checksum
kind, path = sys.argv[2], Path(sys.argv[3])
data, draw, refused = path.read_bytes(), random.Random(0), 0
damaged = path.with_suffix(".damaged")
for _ in range(int(sys.argv[4])):
    start = HEADER.size if kind == "binary" else 0
    changed = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(start, len(changed))
        changed[at] = draw.choice([0, 1, 127, 128, 255, changed[at] ^ (1 << draw.randrange(8))])
    if kind == "binary":
        payload = bytes(changed[start:])
        changed = HEADER.pack(*HEADER.unpack_from(data)[:2], len(payload), checksum(payload)) + payload
    damaged.write_bytes(changed)
    with Context() as context:
        try:
            context.init(damaged) if kind == "binary" else context.compile(damaged)
            shapes = [[int(n) for n in shape.split("x")] for shape in context.info("inshapes").split(";")]
            if sum(np.prod(shape, dtype=float) for shape in shapes) < 1e6:
                context.run(*(np.ones(shape, np.float32) for shape in shapes))
        except (MdlaError, ValueError):
            refused += 1
print("refused", refused)
"""


@pytest.mark.parametrize(("kind", "rounds"), [("binary", 150), ("onnx", 400)])
@pytest.mark.sampled(0)
def test_no_damage_ends_the_process(kind: str, rounds: int, tmp_path: Path) -> None:
    """Check that files with random damage are refused or run without an abort. Binaries have a correct checksum."""
    model = convolution("small", (1, 2, 6, 6), (3, 2, 3, 3), pads=[1, 1, 1, 1])
    path = model.save(tmp_path)
    if kind == "binary":
        with Context() as context:
            context.compile(path, tmp_path / "small.bin")
        path = tmp_path / "small.bin"
    assert int(run_child(FUZZ, kind, str(path), str(rounds)).split()[-1]) > rounds // 10


# Layouts of the loads and stores of a program whose numbers are changed, and the last bytes by which they are found.
LOAD, STORE = struct.Struct("<2q30qd"), struct.Struct("<14q2d")
LOAD_END, STORE_END = struct.pack("<6qd", *[1] * 6, 0.0), struct.pack("<q2d", 8, -32768.0, 32767.0)
LARGEST, UNIT, ADDRESS, DIMS, STRIDES, OFFSET, EXTENT, SPREAD = 2**63 - 1, 0, 1, 2, 8, 14, 20, 26
HOSTILE_LOADS = {
    "an offset that overflows": ({OFFSET + 4: LARGEST}, "a load beside its tile"),
    "a spread that overflows": ({SPREAD + 4: LARGEST}, "a load beside its tile"),
    "an extent beyond the tile": ({EXTENT + 5: 9}, "a load beside its tile"),
    "a stride that leaves the memory": ({STRIDES + 4: 2**61}, "an address outside the memory"),
    "a negative stride": ({STRIDES + 4: -(2**61)}, "an address outside the memory"),
    "an address at the end": ({ADDRESS: LARGEST - 1}, "an address outside the memory"),
    "a tile of 2**40 elements": ({DIMS: 2**40}, "a tile larger than its buffer"),
    "a tile that overflows": ({DIMS: 2**62, DIMS + 1: 4}, "a tile larger than its buffer"),
    "no unit": ({UNIT: 7}, "a unit that does not exist"),
}
HOSTILE_STORES = {
    "a shift by more than 63 bits": ({13: -70}, "a shift out of range"),
    "a shift that overflows": ({13: -(2**63)}, "a shift out of range"),
    "a stride that overflows": ({11: 2**62}, "an address outside the memory"),
    "more than was summed": ({1: 2**40}, "a tile larger than its buffer"),
}

TRY = """
import sys
sys.path[:0] = sys.argv[1:2]
from pathlib import Path
from mdla_library import Context, MdlaError
for path in map(Path, sys.argv[2:]):
    with Context() as context:
        try:
            context.init(path)
            print(path.name, "was taken")
        except MdlaError as error:
            print(path.name, error)
"""


def with_numbers(payload: bytes, kind: struct.Struct, end: bytes, last: bool, changes: dict[int, int]) -> bytes:
    """Return a program whose first or last instruction of a kind has other numbers."""
    at = (payload.rindex if last else payload.index)(end) + len(end) - kind.size
    numbers = list(kind.unpack_from(payload, at))
    for place, number in changes.items():
        numbers[place] = number
    return payload[:at] + kind.pack(*numbers) + payload[at + kind.size :]


def run_child(script: str, *arguments: str) -> str:
    path = os.pathsep.join([str(TESTS.parent), str(TESTS), os.environ.get("PYTHONPATH", "")])
    done = run_script("-c", script, Path(__file__).parent, *arguments, PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.sampled(0)
def test_numbers_of_a_program_are_checked_on_reading(tmp_path: Path) -> None:
    """Check the numbers of the device's code, and of the reference software's, whose tiles have no size limit."""
    binary = tmp_path / "good"
    with Context() as context:
        model = convolution("small", (1, 2, 6, 6), (3, 2, 3, 3), pads=[1, 1, 1, 1])
        context.compile(model.save(tmp_path), binary)
    data = binary.read_bytes()
    payload, messages = data[HEADER.size :], {"good": "was taken"}
    for kind, end, table in ((LOAD, LOAD_END, HOSTILE_LOADS), (STORE, STORE_END, HOSTILE_STORES)):
        for name, (changes, message) in table.items():
            for last in (False, True):
                changed = with_numbers(payload, kind, end, last, changes)
                header = HEADER.pack(*HEADER.unpack_from(data)[:2], len(changed), checksum(changed))
                messages[f"{name}, {last}"] = f"the program is damaged: {message}"
                (tmp_path / f"{name}, {last}").write_bytes(header + changed)
    printed = run_child(TRY, *(str(tmp_path / name) for name in messages))
    assert printed.splitlines() == [f"{name} {message}" for name, message in messages.items()]


# ---- refused models ----

REFUSED = [
    (operator("unknown", "Erf", [(3, 4)]), r'node "unknown_node" \(Erf\): the device has no such operator'),
    (operator("computed_weight", "Conv", [(1, 2, 5, 5), (3, 2, 3, 3)]), r"\(Conv\): the weight must be constant"),
    (operator("groups", "Conv", [(1, 4, 5, 5)], normal(3, 2, 3, 3), group=3), "3 groups for 4 channels"),
    (operator("channels", "Conv", [(1, 4, 5, 5)], normal(3, 2, 3, 3)), "for 4 channels in 1 groups"),
    (operator("too_small", "Conv", [(1, 2, 2, 2)], normal(3, 2, 3, 3)), "no elements"),
    (operator("negative_pads", "Conv", [(1, 2, 5, 5)], normal(3, 2, 3, 3), pads=[-1, 0, 0, 0]), "pads of -1"),
    (operator("rank", "Conv", [(1, 2, 5, 5)], normal(3, 2, 3)), "a weight of the shape 3x2x3"),
    (operator("gemm_sizes", "Gemm", [(4, 20)], normal(19, 15)), "shapes 4x20 and 19x15"),
    (operator("matmul_batches", "MatMul", [(2, 1, 3, 4), (1, 3, 4, 5)]), "batches of the shapes 2x1 and 1x3"),
    (operator("add_sizes", "Add", [(4, 20), (3, 20)]), "4x20 and 3x20 do not broadcast"),
    (operator("pool_indices", "MaxPool", [(1, 1, 4, 4)], kernel_shape=[2, 2], outputs=2), "indices"),
    (operator("pad_mode", "Pad", [(1, 1, 4, 4)], ints(0, 0, 1, 1, 0, 0, 1, 1), mode="reflect"), "mode reflect"),
    (operator("resize_mode", "Resize", [(1, 1, 4, 4)], None, floats(1, 1, 2, 2), mode="cubic"), "mode cubic"),
    (operator("mean_of_channels", "ReduceMean", [(2, 3, 4)], axes=[1]), "axes other than the last ones"),
    (operator("huge_pads", "MaxPool", [(1, 1, 4, 4)], kernel_shape=[2, 2], pads=[2**60] * 4), "pads of 11529"),
    (operator("huge_pad", "Pad", [(4,)], ints(0, 2**62)), "a padding of"),
    (operator("huge_resize", "Resize", [(1, 1, 4, 4)], None, None, ints(1, 1, 4, 2**40)), "a size of 1099511627776"),
    (operator("huge_scale", "Resize", [(1, 1, 4, 4)], None, floats(1, 1, 1, 3e38)), "a size of inf"),
    (operator("negative_scale", "Resize", [(1, 1, 4, 4)], None, floats(1, 1, 1, -1e30)), "a size of -4e"),
    (operator("no_scale", "Resize", [(1, 1, 4, 4)], None, floats(1, 1, 1, np.nan)), "a size of nan"),
    (operator("mean_of_nothing", "ReduceMean", [], np.zeros((0, 4), np.float32), axes=[1]), "no elements"),
    (operator("slice_of_nothing", "Slice", [], floats(), ints(-1), ints(0), ints(0), ints(-1)), "no elements"),
    (operator("wide_strides", "Add", [(4,)], np.zeros((0, 2**41), np.float32)), "larger than any card"),
    (operator("split_sizes", "Split", [(9, 2)], ints(2**62, 2**62), outputs=2), "parts that do not add up to 9"),
    (operator("reshape_sizes", "Reshape", [(2, 3)], ints(4, -1)), "the shape 4x-1 for 2x3"),
    (operator("wide_softmax", "Softmax", [(1, 400_000)]), "a row does not fit the on-chip buffers"),
    (operator("seven", "Add", [(1, 2, 1, 2, 1, 2, 2)], np.float32(1)[None]), "a tensor of 7 dimensions"),
    (operator("old", "Relu", [(3, 4)], opset=9), "opset 9; the device takes 13 to 18"),
]  # fmt: skip


@pytest.mark.parametrize(("model", "message"), REFUSED, ids=[model.name for model, _ in REFUSED])
def test_refused_models_name_node_and_reason(model: Model, message: str, tmp_path: Path) -> None:
    with Context() as context, pytest.raises(MdlaError, match=message):
        context.compile(model.save(tmp_path))


def test_shapes_are_given_where_the_model_leaves_them_open(tmp_path: Path) -> None:
    model = operator("open", "Relu", [(2, 3)])
    proto = model.proto()
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    path = tmp_path / "open.onnx"
    onnx.save(proto, path)
    with Context() as context:
        with pytest.raises(MdlaError, match='input "x0" leaves a size open'):
            context.compile(path)
        with pytest.raises(MdlaError, match="is not of the shape 5x4 that inshapes gives"):
            context.compile(path, shapes="5x4")
        with pytest.raises(MdlaError, match="inshapes has 2 shapes for 1 inputs"):
            context.compile(path, shapes="5x3;1")
        with pytest.raises(MdlaError, match="is not of the form"):
            context.compile(path, shapes="axb")
        assert context.compile(path, shapes="5x3").shapes == [(5, 3)]


def test_other_refusals(tmp_path: Path) -> None:
    path = classifier().save(tmp_path)
    with Context() as context:
        with pytest.raises(MdlaError, match="cannot read"):
            context.compile(tmp_path / "none.onnx")
        with pytest.raises(MdlaError, match=r"unknown flag 'cluster' \(choose from addroff, bitfile, "):
            context.set_flag("cluster", 1)
        with pytest.raises(MdlaError, match="does not take"):
            context.set_flag("precision", "float64")
        context.set_flag("nclusters", 9)
        with pytest.raises(MdlaError, match="the board has 1 to 4"):
            context.compile(path)
        context.set_flag("reset", "")
        context.set_flag("precision", "variable")
        with pytest.raises(MdlaError, match="needs calibration inputs"):
            context.compile(path)
        with pytest.raises(MdlaError, match='calibration array 0 has 12 elements for input "x"'):
            context.compile(path, samples=[normal(3, 4)])
        context.set_flag("precision", "fixed16")
        context.compile(path)
        with pytest.raises(MdlaError, match='input "x" has 12 elements instead of 1536'):
            context.run(normal(3, 4))
        board = tmp_path / "bad.board"
        for text, message in {
            "clock_mhz = fast": "clock_mhz must be a positive number",
            "size = 3": 'unknown key "size"',
            "name = x": "is missing",
            SMALL_BOARD + "memory_bytes = 1000": "bytes of the card's 1000",
        }.items():
            board.write_text(text)
            with Context(board=board) as other, pytest.raises(MdlaError, match=message):
                other.compile(path)


# ---- cycles ----


def network(tmp_path: Path) -> Path:
    nodes, constants, last, channels = [], {}, "x", 3
    for at, (out, stride) in enumerate([(16, 1), (32, 2), (48, 1), (64, 2)]):
        constants[f"w{at}"] = normal(out, channels, 3, 3, scale=0.1)
        attributes = {"pads": [1, 1, 1, 1], "strides": [stride, stride]}
        nodes.append(helper.make_node("Conv", [last, f"w{at}"], [f"c{at}"], name=f"conv{at}", **attributes))
        nodes.append(helper.make_node("LeakyRelu", [f"c{at}"], [f"r{at}"], name=f"act{at}"))
        last, channels = f"r{at}", out
    nodes.append(helper.make_node("GlobalAveragePool", [last], ["y"], name="mean"))
    return Model("network", nodes, {"x": (1, 3, 40, 40)}, constants).save(tmp_path)


def test_report_adds_up(tmp_path: Path) -> None:
    with Context() as context:
        context.compile(network(tmp_path))
        layers = context.layers()
        assert [layer["type"] for layer in layers] == ["Conv", "LeakyRelu"] * 4 + ["GlobalAveragePool"]
        for name in ("cycles", "macs", "bytes_loaded", "bytes_stored"):
            assert sum(layer[name] for layer in layers) == context.info(name) > 0
        time = sum(layer["milliseconds"] for layer in layers)
        assert context.info("hwtime") == pytest.approx(time) == pytest.approx(context.info("cycles") / 250e3)
        assert layers[0]["macs"] == 16 * 40 * 40 * 3 * 9 and layers[2]["macs"] == 32 * 20 * 20 * 16 * 9
        for layer in layers:
            assert 0 <= layer["utilisation"] <= 1
            assert layer["cycles"] >= max(layer["compute_cycles"], layer["memory_cycles"])
            assert layer["bytes_stored"] == 2 * np.prod(layer["shape"])
        # Results are stored once, and each weight and input is loaded at least once.
        assert layers[2]["bytes_loaded"] >= 2 * (16 * 40 * 40 + 32 * 16 * 9)


@pytest.mark.parametrize(
    ("sizes", "kernel", "options"),
    [
        ((1, 8, 6, 7), (2, 2), {"strides": [2, 2]}),
        ((1, 8, 6, 7), (3, 3), {"strides": [2, 2]}),
        ((2, 8, 5, 5), (4, 3), {"strides": [2, 3], "pads": [1, 0, 1, 0]}),
        ((1, 8, 5, 5), (1, 2), {"strides": [3, 1]}),
        ((1, 8, 9), (3,), {"strides": [2], "dilations": [2]}),
        ((1, 8, 3, 4, 5), (2, 3, 2), {"strides": [2, 1, 2]}),
        ((1, 8, 6, 7), (3, 3), {"strides": [2, 2], "group": 2}),
    ],
)
def test_zeros_of_transposed_convolutions_are_not_counted(
    sizes: tuple[int, ...], kernel: tuple[int, ...], options: dict[str, Any], tmp_path: Path
) -> None:
    """Check the number of products by counting: a kernel element meets an input element or a zero between them."""
    weight = normal(8, 4, *kernel)
    path = operator("spread", "ConvTranspose", [sizes], weight, **options).save(tmp_path)
    for flags in ({}, {"board": small_board(tmp_path)}):
        with Context(**flags) as context:
            (layer,) = context.compile(path).layers()
            groups = options.get("group", 1)
            steps, spaces = options["strides"], options.get("dilations", [1] * len(kernel))
            pads = options.get("pads", [0] * 2 * len(kernel))
            products = sizes[0] * 8 * 4
            for axis, (count, step, space) in enumerate(zip(kernel, steps, spaces, strict=True)):
                length = layer["shape"][2 + axis]
                places = [
                    at - k * space + pads[axis] for at in range(length) for k in range(count)
                ]  # positions in the input, in steps
                products *= sum(place % step == 0 for place in places)
            assert layer["macs"] == products
            assert layer["shape"][1] == 4 * groups


def test_a_transposed_convolution_takes_the_time_of_its_products(tmp_path: Path) -> None:
    """Compare with a convolution that has the same numbers of products and outputs."""
    transposed = operator("up", "ConvTranspose", [(1, 64, 32, 32)], normal(64, 64, 2, 2), strides=[2, 2])
    plain = operator("same", "Conv", [(1, 64, 64, 64)], normal(64, 64, 1, 1))
    with Context() as first, Context() as other:
        (up,), (same,) = (
            context.compile(model.save(tmp_path)).layers() for context, model in ((first, transposed), (other, plain))
        )
    assert up["macs"] == same["macs"]
    assert up["compute_cycles"] == pytest.approx(same["compute_cycles"], rel=0.05)


@pytest.mark.parametrize("precision", ["fixed16", "fixed8", "float32"])
@pytest.mark.sampled(1)
def test_more_hardware_is_never_slower(precision: str, tmp_path: Path) -> None:
    path = network(tmp_path)

    def cycles(**flags: object) -> int:
        with Context(precision=precision, **flags) as context:
            return context.compile(path).info("cycles")

    small = {"board": small_board(tmp_path)}
    for flags in ({}, small):
        counts = [cycles(nclusters=clusters, **flags) for clusters in range(1, 5)]
        assert counts == sorted(counts, reverse=True) and counts[0] > counts[-1]
    baseline = cycles(**small)
    assert cycles(board=small_board(tmp_path, bandwidth_gb_s=0.1)) > baseline
    assert cycles(board=small_board(tmp_path, host_gb_s=0.1)) == baseline


@pytest.mark.sampled(0)
def test_transfers_between_cards(tmp_path: Path) -> None:
    path = network(tmp_path)

    def compiled(**flags: object) -> tuple[int, list[dict[str, Any]]]:
        with Context(**flags) as context:
            layers = context.compile(path).layers()
            assert context.info("bytes_transferred") == sum(layer["bytes_transferred"] for layer in layers)
            return context.info("cycles"), layers

    _, layers = compiled(nclusters=2)
    assert {(layer["cards"], layer["bytes_transferred"]) for layer in layers} == {(1, 0)}
    slow, fast = (tmp_path / name for name in ("slow", "fast"))
    for board, rate in ((slow, 0.001), (fast, 1000)):
        small_board(tmp_path, host_gb_s=rate).rename(board)
    counts = {}
    for board in (slow, fast):
        counts[board] = [compiled(nclusters=2, nfpgas=cards, board=board)[0] for cards in (1, 2)]
        assert counts[board] == sorted(counts[board], reverse=True)
    assert counts[slow][0] == counts[fast][0]
    assert counts[slow][1] > counts[fast][1]
    _, layers = compiled(nclusters=2, nfpgas=2, board=fast)
    # Inputs come from the host. A card gets half of the intermediate values from the other card.
    assert (layers[0]["cards"], layers[0]["bytes_transferred"]) == (2, 0)
    second = layers[1]
    assert (second["type"], second["cards"]) == ("LeakyRelu", 2)
    assert second["bytes_transferred"] == second["bytes_loaded"] / 2
    # The bandwidth is 10,000 bytes per cycle for each card.
    assert second["transfer_cycles"] == np.ceil(second["bytes_transferred"] / 20000)


@pytest.mark.parametrize(("precision", "size"), [("fixed16", 2), ("fixed8", 1), ("float32", 4)])
def test_transfers_of_the_host_are_in_the_devices_format(precision: str, size: int, tmp_path: Path) -> None:
    with Context(precision=precision, board=small_board(tmp_path, host_gb_s=0.05)) as context:
        context.compile(network(tmp_path))
        # The bandwidth is half a byte per cycle.
        assert context.info("input_cycles") == 3 * 40 * 40 * size * 2
        assert context.info("output_cycles") == np.prod(context.shapes[0]) * size * 2


def test_shipped_board_is_the_file(tmp_path: Path) -> None:
    path = network(tmp_path)
    with Context() as built_in, Context(board=EMULATOR.parent / "boards" / "ac511.board") as file:
        assert built_in.compile(path).layers() == file.compile(path).layers()
        assert built_in.info("freq") == file.info("freq") == 250


def test_layers_can_be_read_from_the_card(tmp_path: Path) -> None:
    """Check that each layer's output is in memory at the address of the report, in the layer's format."""
    model = classifier()
    with Context(precision="fixed16") as context:
        context.compile(model.save(tmp_path))
        (y,) = context.run(*model.samples())
        last = context.layers()[-1]
        stored = np.zeros(last["shape"], np.int16)
        context.read_data(context.info("base_address") + last["address"], stored)
        np.testing.assert_array_equal(stored / 2.0 ** last["fraction"], y)


def test_weights_can_be_replaced(tmp_path: Path) -> None:
    def gemm(weights: Array, bias: Array) -> Model:
        return Model(
            "two",
            [
                helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
                helper.make_node("Flatten", ["c"], ["f"], name="flatten"),
                helper.make_node("Gemm", ["f", "v", "b"], ["y"], name="gemm", transB=1),
            ],
            {"x": (1, 2, 4, 4)},
            {"w": normal(2, 2, 1, 1, seed=5), "v": weights, "b": bias},
        )

    before, after = ((normal(5, 32, seed=seed), normal(5, seed=seed)) for seed in (1, 2))
    model = gemm(*before)
    with Context() as context, Context() as other:
        context.compile(model.save(tmp_path))
        old = context.run(*model.samples())[0]
        other.compile(gemm(*after).save(tmp_path))
        new = other.run(*model.samples())[0]
        context.write_weights(*after, layer=-1)
        np.testing.assert_array_equal(context.run(*model.samples())[0], new)
        context.write_weights(*before, layer=1)
        np.testing.assert_array_equal(context.run(*model.samples())[0], old)
        context.write_weights(before[0], None, layer=7)
        assert "no such layer" in context.error()
        context.write_weights(after[1], None, layer=1)
        assert "has 160 weights, not 5" in context.error()
        np.testing.assert_array_equal(context.run(*model.samples())[0], old)


def test_linked_contexts_share_a_card(tmp_path: Path) -> None:
    model = classifier()
    path = model.save(tmp_path)
    with Context() as first:
        first.compile(path)
        (alone,) = first.run(*model.samples())
        with Context() as second:
            second.compile(path, linked=first)
            assert second.info("base_address") >= first.info("addroff")
            np.testing.assert_array_equal(second.run(*model.samples())[0], alone)
            np.testing.assert_array_equal(first.run(*model.samples())[0], alone)
            place = second.info("base_address")
        with Context() as third:
            third.compile(path, linked=first)
            assert third.info("base_address") == place, "memory of a freed network is used again"


def test_a_failed_compile_keeps_the_network(tmp_path: Path) -> None:
    model = classifier()
    with Context() as context:
        context.compile(model.save(tmp_path))
        before = context.run(*model.samples())[0]
        with pytest.raises(MdlaError):
            context.compile(operator("unknown", "Erf", [(3, 4)]).save(tmp_path))
        np.testing.assert_array_equal(context.run(*model.samples())[0], before)


# ---- from C ----


@pytest.mark.sampled(0)
def test_whole_api_from_c(tmp_path: Path) -> None:
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        pytest.skip("no C compiler")
    program = tmp_path / "api"
    flags = run_script("-m", "torchmdla", "mdla", "--cflags", "--libs").stdout.split()
    strict = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-pthread"]
    command = [compiler, *strict, str(TESTS / "mdla" / "api.c"), *flags, "-o", str(program)]
    subprocess.run(command, check=True)
    models = [
        convolution("one", (1, 3, 8, 8), (4, 3, 3, 3)).save(tmp_path),
        operator("two", "MaxPool", [(1, 3, 8, 8)], kernel_shape=[2, 2], strides=[2, 2]).save(tmp_path),
    ]
    done = subprocess.run([program, *models, tmp_path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
