"""Write the seed inputs of fuzz.cpp: ``python seeds.py FOLDER``."""

from __future__ import annotations

import hashlib
import sys
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1]))

from package_files import INDEX, TARGET, content_of, make_package, records, sealed_index

import torchmdla
from torchmdla.packages import format

# The bytes before the 32 bytes of a key in public_keys.cpp, and a key, in base64.
KEY = "MCowBQYDK2VwAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo="


class Several(nn.Module):
    """A module with outputs of several kinds: tensors that share memory, sizes and numbers."""

    def forward(self, x: Tensor, numbers: list[Tensor]) -> tuple[Tensor, Tensor, int, list[int]]:
        total = x * 2 + numbers[0]
        return total, total.t(), x.size(0) * 2, x.shape


def packages(folder: Path) -> dict[str, Path]:
    """Return packages of static and dynamic code, with packed weights among them."""
    several = folder / "several.pt"
    calls = [(torch.ones(size, 4), [torch.ones(4)]) for size in (2, 3, 5)]
    torchmdla.save(torch.jit.script(Several().eval()), several, calls)
    return {
        "static": make_package(folder / "static.pt"),
        "any": make_package(folder / "any.pt", sizes=(2, 5, 7)),
        "several": several,
    }


def main(folder: Path) -> None:
    """Write the sealed content of each package's blocks, whole blocks, a signature and a key."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        for name, path in packages(Path(place)).items():
            blocks = records(path)
            (folder / f"{name}.target").write_bytes(b"t" + content_of(blocks[TARGET]))
            (folder / f"{name}.index").write_bytes(b"b" + blocks[INDEX])
    index = sealed_index([("native", ("avx2",), bytes(32)), ("v2", (), hashlib.sha256(b"").digest())])
    content: bytes = format._INDEX.open(index, lambda _, content: content)
    (folder / "index").write_bytes(b"x" + content)
    (folder / "signature").write_bytes(b"s" + hashlib.sha256(bytes(32)).digest() + bytes(64))
    (folder / "key").write_text(f"k-----BEGIN PUBLIC KEY-----\n{KEY}\n-----END PUBLIC KEY-----\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
