"""Write the seed inputs of fuzz.cpp: ``python seeds.py FOLDER``."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor, nn

import torchmdla
from torchmdla.packages import native_file


class Several(nn.Module):
    """A module with several inputs and results."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        total = torch.matmul(x.transpose(0, 1), y) + 1
        return total, total * 2, x.sum(0)


MODELS = {
    "layer": (nn.Sequential(nn.Linear(4, 6), nn.ReLU()), [(torch.ones(2, 4),)]),
    "any": (nn.Sequential(nn.Linear(4, 6), nn.Softmax(-1)), [(torch.ones(size, 4),) for size in (2, 5, 7)]),
    "several": (Several(), [(torch.ones(3, 4), torch.ones(3, 5)), (torch.ones(2, 4), torch.ones(2, 4))]),
    "image": (nn.Sequential(nn.Conv2d(2, 3, 3), nn.MaxPool2d(2)), [(torch.ones(1, 2, 8, 8),)]),
}


def main(folder: Path) -> None:
    """Write each model as a file, as the sealed content of its block, and as its first image."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, (module, calls) in MODELS.items():
        path = folder / f"{name}.file"
        torchmdla.export_native(module.eval(), calls, path, "x86-64-v2")
        data = path.read_bytes()
        path.write_bytes(b"f" + data)
        sealed = data[: native_file._FORMAT.size_of(data)]
        content: bytes = native_file._FORMAT.open(sealed, lambda _, content: content)
        (folder / f"{name}.content").write_bytes(b"c" + content)
        start = content.index(b"mdlaimg\0")
        size = int.from_bytes(content[start - 8 : start], "little")
        (folder / f"{name}.image").write_bytes(b"i" + content[start : start + size])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
