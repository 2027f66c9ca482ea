"""Files that are not valid models. A file that may crash a process is loaded in a child process."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from child_process import output_of
from native_models import Exported

from torchmdla.packages import native_file
from torchmdla.packages.native_file import DamagedModel, info_of
from torchmdla_runtime import Model, ModelError

NOT_READABLE, BAD_FILE, WRONG_PROCESSOR, NOT_TRUSTED = 2, 3, 4, 9


def refused(path: Path, status: int, reason: str) -> None:
    with pytest.raises(ModelError, match=reason) as raised:
        Model(path)
    assert raised.value.status == status


def sealed_bytes(model: Exported) -> int:
    size = native_file._FORMAT.size_of(model.path.read_bytes())
    assert size is not None
    return size


def resealed(model: Exported, old: bytes, new: bytes) -> bytes:
    """Return the file with other content and a correct checksum."""
    data, size = model.path.read_bytes(), sealed_bytes(model)
    block = native_file._FORMAT.open(
        data[:size], lambda described, content: native_file._FORMAT.seal(described, content.replace(old, new))
    )
    assert len(block) == size and block != data[:size]
    return block + data[size:]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    refused(tmp_path / "missing.tmdla", NOT_READABLE, "missing.tmdla: No such file")
    refused(tmp_path, NOT_READABLE, "it is a folder")


def test_files_that_others_may_write(mlp: Exported, tmp_path: Path) -> None:
    path = tmp_path / "model.tmdla"
    path.write_bytes(mlp.path.read_bytes())
    path.chmod(0o664)
    refused(path, NOT_TRUSTED, "model.tmdla: it is writable by others than its owner")
    mlp.check(Model(path, any_owner=True))
    path.chmod(0o644)
    mlp.check(Model(path))


def test_files_that_are_no_model(tmp_path: Path) -> None:
    path = tmp_path / "model.tmdla"
    for content in (b"", b"PK\3\4", bytes(10_000), b"torchmdla-modes" + bytes(1000)):
        path.write_bytes(content)
        refused(path, BAD_FILE, "model.tmdla: it is not a model file of torchmdla; make one with `torchmdla export`")
        with pytest.raises(DamagedModel, match="not a model's file"):
            info_of(path)


def test_another_version(mlp: Exported, tmp_path: Path) -> None:
    path = tmp_path / "model.tmdla"
    data = bytearray(mlp.path.read_bytes())
    data[16] = 99
    path.write_bytes(data)
    refused(path, BAD_FILE, "model.tmdla: .* it is of version 99, where version 3 is needed")
    with pytest.raises(DamagedModel, match="version 99, where version 3"):
        info_of(path)


def test_another_processor(mlp: Exported, tmp_path: Path) -> None:
    path = tmp_path / "model.tmdla"
    path.write_bytes(resealed(mlp, b"64bit", b"65bit"))
    refused(path, WRONG_PROCESSOR, "instructions that this one lacks: 65bit")


def test_another_machine(mlp: Exported, tmp_path: Path) -> None:
    path = tmp_path / "model.tmdla"
    path.write_bytes(resealed(mlp, b"mdlaimg\0\1\0\0\0\x3e", b"mdlaimg\0\1\0\0\0\x3f"))
    refused(path, BAD_FILE, "for another machine")


def test_truncated(mlp: Exported, tmp_path: Path) -> None:
    path = tmp_path / "model.tmdla"
    data, sealed = mlp.path.read_bytes(), sealed_bytes(mlp)
    lengths = {*range(0, 100), *range(100, sealed, 97), sealed - 1, *range(sealed, len(data), 4099), len(data) - 1}
    for length in lengths:
        path.write_bytes(data[:length])
        reason = (
            "it is not a model file" if length < 15 else "it is cut short" if length < sealed else "weights are miss"
        )
        refused(path, BAD_FILE, f"model.tmdla: .*{reason}")


def test_weights_are_checked_on_demand(mlp: Exported, tmp_path: Path) -> None:
    path = tmp_path / "model.tmdla"
    data = bytearray(mlp.path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    model = Model(path)
    with pytest.raises(ModelError, match="does not match its checksum"):
        model.verify()
    with pytest.raises(DamagedModel, match="does not match its checksum"):
        info_of(path)
    assert info_of(path, verify=False) == info_of(mlp.path)
    mlp.load().verify()


# Loads variants of a file with random bit flips, and prints the number of refused ones.
LOADING = """
import json, random, sys
from pathlib import Path
from torchmdla.packages import native_file
from torchmdla_runtime import Model, ModelError

source, path, count, reseal = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "reseal"
data, draw = source.read_bytes(), random.Random(0)
size = native_file._FORMAT.size_of(data)

def mutated(block):
    changed = bytearray(block)
    for _ in range(draw.randint(1, 3) if reseal else 1):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)

refused = 0
for _ in range(count):
    block = data[:size]
    if reseal:
        block = native_file._FORMAT.open(block, lambda told, content: native_file._FORMAT.seal(told, mutated(content)))
    else:
        block = mutated(block)
    path.write_bytes(block + data[size:])
    try:
        Model(path)
    except ModelError as error:
        assert error.status in (3, 4) and str(error), error
        refused += 1
print(json.dumps(refused))
"""


def test_flipped_bits(mlp: Exported, tmp_path: Path) -> None:
    assert json.loads(output_of(LOADING, str(mlp.path), str(tmp_path / "model.tmdla"), "200", "flip")) == 200


def test_wrong_content_under_a_right_checksum(any_batch: Exported, tmp_path: Path) -> None:
    """The parser of the content trusts no number."""
    assert 0 < json.loads(output_of(LOADING, str(any_batch.path), str(tmp_path / "model.tmdla"), "400", "reseal")) < 400


def test_sizes_that_no_tensor_has(mlp: Exported) -> None:
    with pytest.raises(ModelError, match="no tensor has the sizes 0x4611686018427387904"):
        mlp.load().output_shapes((0, 1 << 62))


STRIDED = """
import struct, sys
from pathlib import Path
import numpy as np
from torchmdla.packages import native_file
from torchmdla_runtime import Model, ModelError

source, path, stride = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
data = source.read_bytes()
size = native_file._FORMAT.size_of(data)

def strided(content):
    # The output's two strides, and two lists that are empty.
    first = content.rindex(struct.pack("<5q", 2, 64, 1, 0, 0)) + 8
    return content[:first] + struct.pack("<q", stride) + content[first + 8 :]

block = native_file._FORMAT.open(data[:size], lambda told, content: native_file._FORMAT.seal(told, strided(content)))
path.write_bytes(block + data[size:])
model = Model(path)
inputs = [np.ones(port.shape, port.dtype) for port in model.inputs]
try:
    model(*inputs)
except ModelError as error:
    print(error.status, error)
"""


@pytest.mark.parametrize("stride", [1 << 40, -(1 << 20), -(1 << 63), (1 << 63) - 1, 1000])
@pytest.mark.sampled(1)
def test_an_output_that_lies_elsewhere(mlp: Exported, tmp_path: Path, stride: int) -> None:
    output = output_of(STRIDED, str(mlp.path), str(tmp_path / "model.tmdla"), str(stride))
    assert output.startswith(f"{BAD_FILE} a model's file: an output is outside of its memory"), output


def test_a_file_that_is_replaced(mlp: Exported, tmp_path: Path) -> None:
    """A model keeps the weights with which it was loaded."""
    path, other = tmp_path / "model.tmdla", tmp_path / "other"
    path.write_bytes(mlp.path.read_bytes())
    model = Model(path)
    other.write_bytes(np.zeros(10, np.int8).tobytes())
    other.replace(path)
    mlp.check(model)
