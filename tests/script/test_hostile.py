"""Archives that are damaged or hostile: :func:`torchmdla.read` refuses them by ReadError, in little time and memory."""

from __future__ import annotations

import functools
import io
import pickletools
import random
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from script_files.hostile import change_file, change_record, read_all, records_of, refusal_of, write_records
from script_files.language import PROGRAMS

import torchmdla

Records = dict[str, bytes]


@functools.cache
def seed(name: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        torch.jit.script(PROGRAMS[name][0]()).save(f"{folder}/model.pt")
        return Path(folder, "model.pt").read_bytes()


def seed_records(folder: Path, name: str = "containers") -> Records:
    (folder / "seed.pt").write_bytes(seed(name))
    return records_of(folder / "seed.pt")


def code_of(body: str) -> bytes:
    """Return the code of a module whose forward has these lines."""
    lines = "".join(f"    {line}\n" for line in body.split("\n"))
    return f"class M(Module):\n  def forward(self: __torch__.M,\n    x: Tensor) -> Tensor:\n{lines}".encode()


def pickle_of(opcodes: bytes) -> bytes:
    return b"\x80\x02" + opcodes + b"."


MODULE = pickle_of(b"c__torch__\nM\n)\x81}b")


def archive_of(code: bytes = code_of("return x"), data: bytes = MODULE, constants: bytes = pickle_of(b")")) -> Records:
    records = {"data.pkl": data, "constants.pkl": constants, "code/__torch__.py": code, "version": b"10"}
    return {f"m/{name}": content for name, content in records.items()}


def tensor_pickle(sizes: bytes, strides: bytes, offset: bytes = b"K\x00", count: bytes = b"K\x04") -> bytes:
    storage = b"((X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpu" + count + b"tQ"
    hooks = b"ccollections\nOrderedDict\n)R"
    return pickle_of(
        b"ctorch._utils\n_rebuild_tensor_v2\n" + storage + offset + sizes + strides + b"\x89" + hooks + b"tR\x85"
    )


def with_storage(constants: bytes) -> Records:
    return archive_of(constants=constants) | {"m/constants/0": bytes(16)}


CODE = {
    "brackets": ("return " + "(" * 150 + "x" + ")" * 150, "nested too deeply"),
    "signs": ("return " + "-" * 100_000 + "1", "nested too deeply"),
    "sum": ("return " + "+".join(["x"] * 100_000), "nested too deeply|recursion"),
    "attributes": ("return x" + ".a" * 100_000, "nested too deeply"),
    "blocks": (
        "\n".join("  " * depth + "if True:" for depth in range(120)) + "\n" + "  " * 120 + "pass",
        "indentation",
    ),
    "integer": ("return torch.add(x, 99999999999999999999)", "64 bits"),
    "digits": ("return torch.add(x, " + "9" * 5000 + ")", "digits|64 bits"),
    "import": ("import os\nreturn x", "Import: TorchScript does not print"),
    "lambda": ("return (lambda: x)()", "Lambda: TorchScript does not print"),
    "eval": ('return eval("x")', "eval: the name is not defined"),
    "dunder": ("return torch.__class__.__mro__", "torch.__class__|does not"),
    "operator": ("return torch.frobnicate(x)", "torch.frobnicate: the operator is not known"),
    "arguments": ('return torch.relu("text")', r"torch.relu: arguments of types \(str\) do not fit any of: aten::relu"),
    "undefined": ("return y", "y: the name is not defined"),
    "one path": ("if bool(x):\n  y = x\nelse:\n  pass\nreturn y", "y: the name is not defined on all paths"),
    "result": ('return "text"', "returns a value of type str, and declares Tensor"),
    "constant": ("return CONSTANTS.c7", "CONSTANTS.c7: the table of constants has 0 entries"),
    "class": ("return __torch__.Missing()", "cannot be called"),
    "attribute": ("return self.weight", "M.weight: the value does not have this attribute"),
    "early return": (
        "if bool(x):\n  return x\nelse:\n  pass\nreturn x",
        "return: TorchScript prints return at the end",
    ),
    "unpacking": ("a, b, = x\nreturn a", "cannot be unpacked"),
}


@pytest.mark.parametrize("name", CODE)
def test_code_is_refused_by_its_place(name: str, tmp_path: Path) -> None:
    body, reason = CODE[name]
    path = tmp_path / "model.pt"
    write_records(path, archive_of(code_of(body)))
    with pytest.raises(torchmdla.ReadError, match=reason) as raised:
        read_all(path)
    assert raised.value.file == str(path)
    assert raised.value.record == "code/__torch__.py"
    assert raised.value.line >= 1


LAUGHS = b"]" + b"q\x00" + b"".join(b"](" + b"h\x00" * 20 + b"eq\x00" for _ in range(8))
PICKLES = {
    "system": (
        archive_of(data=pickle_of(b"cos\nsystem\nX\x02\0\0\0id\x85R")),
        "os.system: the pickle calls a function",
    ),
    "builtins": (
        archive_of(data=pickle_of(b"cbuiltins\neval\nX\x01\0\0\x001\x85R")),
        "builtins.eval: the pickle calls",
    ),
    "opcode": (archive_of(data=pickle_of(b"i")), "opcode 0x69"),
    "protocol": (archive_of(data=b"\x80\x04."), "protocol 2"),
    "truncated": (archive_of(data=b"\x80\x02X\xff\xff\xff\xff"), "truncated"),
    "empty": (archive_of(data=pickle_of(b"")), "does not leave one value"),
    "memo": (archive_of(data=pickle_of(b"j\xff\xff\xff\xff")), "damaged"),
    "marks": (archive_of(data=pickle_of(b"t")), "damaged"),
    "deep": (archive_of(data=pickle_of(b"]" * 100_000 + b"a" * 99_999)), "nested deeper"),
    "cycle": (archive_of(data=pickle_of(b"]q\x00h\x00a")), "contains itself"),
    "laughs": (archive_of(data=pickle_of(LAUGHS)), "parts when it is written out|does not leave one value"),
    "function": (archive_of(data=pickle_of(b"cos\nsystem\n")), "function in place of a value"),
    "list": (archive_of(data=pickle_of(b"NK\x01a")), "a value that is not a list"),
    "key": (archive_of(data=pickle_of(b"}]Ns")), "a key of a dict"),
    "root": (archive_of(data=pickle_of(b"K\x01")), "the program is not an object"),
    "attributes": (archive_of(data=pickle_of(b"c__torch__\nM\n)\x81Nb")), "not a dict of strings"),
    "missing": (archive_of(code_of("return x").replace(b"  def", b"  n : int\n  def")), "M.n: an attribute is missing"),
    "type": (
        archive_of(
            code_of("return x").replace(b"  def", b"  n : List[Tuple[int, str]]\n  def"),
            pickle_of(b"c__torch__\nM\n)\x81}X\x01\0\0\0n](K\x01K\x02\x86esb"),
        ),
        "M.n: an attribute is missing, or does not have its type",
    ),
    "constants": (archive_of(constants=pickle_of(b"]")), "not a tuple"),
    "sizes": (with_storage(tensor_pickle(b"(K\x05t", b"(K\x01t")), "reaches outside of its storage"),
    "strides": (with_storage(tensor_pickle(b"(K\x02t", b"(K\x09t")), "reaches outside of its storage"),
    "offset": (with_storage(tensor_pickle(b"(K\x01t", b"(K\x01t", b"K\x04")), "reaches outside of its storage"),
    "negative": (with_storage(tensor_pickle(b"(K\x01t", b"(J\xff\xff\xff\xfft")), "sizes of a tensor are damaged"),
    "ranks": (with_storage(tensor_pickle(b"(K\x01t", b"(t")), "sizes of a tensor are damaged"),
    "storage": (with_storage(tensor_pickle(b"(K\x01t", b"(K\x01t", count=b"K\x05")), "needs 20 bytes"),
    "no storage": (archive_of(constants=tensor_pickle(b"(K\x01t", b"(K\x01t")), "does not have this record"),
    "sparse": (archive_of(data=pickle_of(b"ctorch._utils\n_rebuild_sparse_tensor\n)R")), "sparse tensors are not read"),
}


@pytest.mark.parametrize("name", PICKLES)
def test_pickles_are_refused(name: str, tmp_path: Path) -> None:
    records, reason = PICKLES[name]
    for record, content in records.items():
        if record.endswith(".pkl") and name in ("system", "cycle", "sizes"):
            pickletools.dis(content, out=io.StringIO())  # it is a pickle that Python reads
    write_records(tmp_path / "model.pt", records)
    with pytest.raises(torchmdla.ReadError, match=reason):
        read_all(tmp_path / "model.pt")


def test_the_plain_archive_is_read(tmp_path: Path) -> None:
    write_records(tmp_path / "model.pt", with_storage(tensor_pickle(b"(K\x02K\x02t", b"(K\x02K\x01t")))
    assert "graph __torch__.M.forward" in read_all(tmp_path / "model.pt")


def patched(content: bytes, name: bytes, offset: int, value: bytes) -> bytes:
    """Return an archive with other bytes in the directory's entry of a record."""
    place = content.rfind(b"PK\x01\x02", 0, content.rfind(name)) + offset
    return content[:place] + value + content[place + len(value) :]


def bomb() -> bytes:
    """Return 16 bytes whose directory claims four gibibytes."""
    return struct.pack("<II", 0xFFFFFFF0, 0xFFFFFFF0)


FILES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda content: b"", "the file is empty"),
    "text": (lambda content: b"hello" * 100, "not an archive of torch.jit.save"),
    "pickle": (lambda content: b"\x80\x02" + bytes(100), "of torch.save in its old form"),
    "no records": (lambda content: b"PK\5\6" + bytes(18), "does not have data.pkl"),
    "half": (lambda content: content[: len(content) // 2], "truncated"),
    "without the start": (lambda content: content[100:], "damaged|overlaps"),
    "sizes": (lambda content: patched(content, b"m/data.pkl", 20, bomb()), "overlaps"),
    "place": (lambda content: patched(content, b"m/data.pkl", 42, b"\xff\xff\xff\x7f"), "overlaps"),
    "same place": (lambda content: patched(content, b"m/version", 42, bytes(4)), "overlaps"),
    "encrypted": (lambda content: patched(content, b"m/data.pkl", 8, b"\1"), "encrypted"),
    "method": (lambda content: patched(content, b"m/data.pkl", 10, b"\x0c"), "compressed in a way"),
    "checksum": (lambda content: content.replace(b"return x", b"return y"), "checksum differs"),
    "name": (lambda content: content.replace(b"m/version", b"m/../sion"), "leaves the archive"),
    "absolute": (lambda content: content.replace(b"m/version", b"/etc/pass"), "leaves the archive"),
    "twice": (lambda content: content.replace(b"m/version", b"m/data.pkl"[:9]), "does not have|version"),
}


@pytest.mark.parametrize("name", FILES)
def test_damaged_files_are_refused(name: str, tmp_path: Path) -> None:
    change, reason = FILES[name]
    path = tmp_path / "model.pt"
    write_records(path, archive_of())
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(torchmdla.ReadError, match=reason):
        read_all(path)


def test_records_of_one_name_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in archive_of().items():
            archive.writestr(name, content)
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("m/data.pkl", MODULE)
    assert "two records of this name" in refusal_of(path)


def test_bombs_are_not_inflated(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    records = archive_of()
    code = records.pop("m/code/__torch__.py") + b"#" * (300 << 20)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in [*records.items(), ("m/code/__torch__.py", code)]:
            archive.writestr(name, content)
    assert path.stat().st_size < 1 << 20
    assert "more than 256 MiB of code" in refusal_of(path)
    # A record that inflates to more than its directory claims is damaged.
    small = path.read_bytes()
    claim = struct.pack("<I", len(code))
    path.write_bytes(small.replace(claim, struct.pack("<I", 1000)))
    assert "checksum differs" in refusal_of(path)
    assert zlib.crc32(code)


OTHERS = {
    "model.json": "of TorchScript before 1.4",
    "archive_format": "of torch.export",
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_formats_are_named(name: str, tmp_path: Path) -> None:
    write_records(tmp_path / "model.pt", archive_of() | {f"m/{name}": b"pt2"})
    assert OTHERS[name] in refusal_of(tmp_path / "model.pt")


def test_files_of_torch_save_are_named(tmp_path: Path) -> None:
    torch.save({"weight": torch.ones(2)}, tmp_path / "state.pt")
    assert "of torch.save" in refusal_of(tmp_path / "state.pt")


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(PROGRAMS)), st.integers(0, 1 << 32), st.booleans())
def test_changed_files_are_read_or_refused(name: str, number: int, is_record: bool) -> None:
    chance = random.Random(number)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.pt")
        if is_record:
            write_records(path, change_record(seed_records(Path(folder), name), chance))
        else:
            path.write_bytes(change_file(seed(name), chance))
        refusal_of(path)
