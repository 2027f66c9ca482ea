"""Classify an image with a compiled ResNet-18, and compare the result with eager PyTorch.

    python examples/classify_image.py                       an image that the example draws
    python examples/classify_image.py picture.ppm --weights resnet18.pth --labels names.txt

Weights are a state dict with torchvision's names for ResNet-18 (``torchvision.models.resnet18().state_dict()``). Labels
are a text file with a name in each line. Without weights, the convolutions are random. The example then fits only the
last layer, by least squares, to a few drawings of discs, stripes and checkers, so that it can distinguish these.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

import torchmdla

# Mean and deviation of ImageNet's images, with which torchvision normalises.
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class BasicBlock(nn.Module):
    """Two convolutions with a shortcut (He et al. 2015, arXiv:1512.03385)."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = nn.Sequential()
        if stride != 1 or channels != width:
            self.downsample = nn.Sequential(nn.Conv2d(channels, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self.downsample(x))


class ResNet18(nn.Module):
    """ResNet-18 with torchvision's names."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1)
        self.layer1 = nn.Sequential(BasicBlock(64, 64, 1), BasicBlock(64, 64, 1))
        self.layer2 = nn.Sequential(BasicBlock(64, 128, 2), BasicBlock(128, 128, 1))
        self.layer3 = nn.Sequential(BasicBlock(128, 256, 2), BasicBlock(256, 256, 1))
        self.layer4 = nn.Sequential(BasicBlock(256, 512, 2), BasicBlock(512, 512, 1))
        self.fc = nn.Linear(512, classes)

    def features(self, x: Tensor) -> Tensor:
        x = self.maxpool(torch.relu(self.bn1(self.conv1(x))))
        return self.layer4(self.layer3(self.layer2(self.layer1(x)))).mean((2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.fc(self.features(x)), 1)


def drawing(kind: str) -> Tensor:
    """Return an image of ``kind`` with random colours and position: ``[3, 224, 224]``, 0 to 1."""
    y, x = torch.meshgrid(torch.arange(224.0), torch.arange(224.0), indexing="ij")
    (cx, cy), size = 80 + 64 * torch.rand(2), 20 + 20 * torch.rand(1)
    rows, columns = (y - cy).div(size).floor() % 2, (x - cx).div(size).floor() % 2
    shapes = {
        "a disc": (x - cx) ** 2 + (y - cy) ** 2 < (2 * size) ** 2,
        "stripes": rows == 0,
        "checkers": rows == columns,
    }
    paper, ink = 0.3 * torch.rand(3, 1, 1), 0.7 + 0.3 * torch.rand(3, 1, 1)
    return torch.where(shapes[kind], ink, paper)


KINDS = ("a disc", "stripes", "checkers")


def fit_last_layer(model: ResNet18, images: int = 5) -> None:
    """Fit the last layer by ridge regression from the features of drawings to their kinds."""
    features, wanted = [], []
    for index, kind in enumerate(KINDS):
        features.append(model.features(torch.cat([preprocessed(drawing(kind)) for _ in range(images)])))
        wanted.append(functional.one_hot(torch.full((images,), index), len(KINDS)).float())
    x, y = torch.cat(features), torch.cat(wanted)
    centred, mean = x - x.mean(0), x.mean(0)
    gram = centred @ centred.T + 1e-2 * centred.square().sum(1).mean() * torch.eye(len(x))
    weight = 10 * centred.T @ torch.linalg.solve(gram, y - y.mean(0))
    model.fc.weight.copy_(weight.T)
    model.fc.bias.copy_(-mean @ weight)


def read_image(path: Path) -> Tensor:
    """Return an image ``[3, height, width]``, 0 to 1.

    Binary PPM files are read here. Other formats need Pillow.
    """
    data = path.read_bytes()
    if data[:2] != b"P6":
        try:
            from PIL import Image, UnidentifiedImageError
        except ModuleNotFoundError:
            raise SystemExit(f"{path}: only binary PPM files can be read without Pillow (pip install pillow)") from None
        import numpy as np

        try:
            pixels = torch.from_numpy(np.array(Image.open(path).convert("RGB")))
        except UnidentifiedImageError:
            raise SystemExit(f"{path}: no image that Pillow can read") from None
    else:
        _, width, height, _, pixel_data = data.split(maxsplit=4)
        pixels = torch.frombuffer(bytearray(pixel_data), dtype=torch.uint8).view(int(height), int(width), 3)
    return pixels.permute(2, 0, 1).float() / 255


def normalised(images: Tensor) -> Tensor:
    return (images - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(DEVIATION).view(3, 1, 1)


def preprocessed(image: Tensor) -> Tensor:
    """Return a batch of one: shorter side resized to 256, the central 224 × 224 pixels, normalised."""
    height, width = image.shape[1:]
    scale = 256 / min(height, width)
    sizes = [round(height * scale), round(width * scale)]
    resized = functional.interpolate(image[None], sizes, mode="bilinear", antialias=True, align_corners=False)
    top, left = (sizes[0] - 224) // 2, (sizes[1] - 224) // 2
    return normalised(resized[:, :, top : top + 224, left : left + 224])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("image", nargs="?", type=Path)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--labels", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    with torch.no_grad():
        if options.weights:
            state = torch.load(options.weights, map_location="cpu", weights_only=True)
            model = ResNet18(len(state["fc.bias"])).eval()
            model.load_state_dict(state)
            labels = [f"class {index}" for index in range(len(state["fc.bias"]))]
        else:
            print(f"no weights: a random network, whose last layer is fitted to drawings ({', '.join(KINDS)})")
            model = ResNet18(len(KINDS)).eval()
            fit_last_layer(model)
            labels = list(KINDS)
        if options.labels:
            labels = options.labels.read_text().splitlines()
        image = read_image(options.image) if options.image else drawing("checkers")
        print(f"image: {options.image or 'a drawing of checkers'}")
        x = preprocessed(image)

        start = time.perf_counter()
        compiled = torchmdla.compile(model, x)
        print(f"compiled in {time.perf_counter() - start:.2f} s")
        probabilities = compiled(x)
        torch.testing.assert_close(probabilities, model(x), rtol=1e-3, atol=1e-5)
        for name, run in (("eager", model), ("compiled", compiled)):
            start = time.perf_counter()
            for _ in range(3):
                run(x)
            print(f"{name}: {(time.perf_counter() - start) / 3 * 1e3:.1f} ms")
        best = probabilities[0].topk(min(5, len(labels)))
        for probability, index in zip(best.values.tolist(), best.indices.tolist(), strict=True):
            print(f"{probability:6.1%}  {labels[index]}")


if __name__ == "__main__":
    main()
