"""Write the seed inputs of fuzz.cpp: ``python seeds.py FOLDER``."""

import sys
from pathlib import Path
from typing import Dict, List  # noqa: UP035 (TorchScript)

import torch
from torch import Tensor, nn

import torchmdla
from torchmdla.packages import native_file


class Several(nn.Module):
    """A module with several inputs and results."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        total = torch.matmul(x.transpose(0, 1), y) + 1
        return total, total * 2, x.sum(0)


class Stateful(nn.Module):
    """A module with control flow, containers and state."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(4, 4), 0

    def forward(self, x: Tensor, names: List[str], scale: float = 2.0) -> Dict[str, Tensor]:  # noqa: UP006
        results = {"all": self.layer(x).relu() * scale}
        if x.size(0) == 1:
            self.calls += 1
            results[f"{self.calls}"] = x[0, 1:].unsqueeze(0)
        for name in names:
            results[name] = torch.cat([x, x + 1], 1).view(-1, 2)
        return results


MODELS = {
    "program": (torch.jit.script(Stateful().eval()), [(torch.ones(1, 4), ["a"]), (torch.ones(2, 4), [])]),
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
