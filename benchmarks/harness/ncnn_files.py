"""Converter and loader of ncnn files: pnnx converts a traced model, ncnn loads it, both in float32.

ncnn's tensors have no batch dimension. pnnx chooses the batch dimension of each input and output, and writes it to a
Python file beside the others.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_TRACE, _PARAMETERS, _WEIGHTS, _EXAMPLE = "model.pt", "model.ncnn.param", "model.ncnn.bin", "model_ncnn.py"
_TYPES = {torch.float32: "f32", torch.int64: "i64"}
# The text file has two lines before the layers. Each layer has a line that starts with its type.
_LINES_BEFORE_LAYERS = 2


@dataclass(frozen=True)
class Files:
    """Files that pnnx wrote to ``folder``."""

    folder: Path

    @property
    def parameters(self) -> Path:
        return self.folder / _PARAMETERS

    @property
    def weights(self) -> Path:
        return self.folder / _WEIGHTS

    def batch_of(self, name: str) -> int:
        """Return the batch dimension of an input or output, as ncnn counts; a large number for none.

        Raises:
            RuntimeError: pnnx's example does not specify it.
        """
        example = (self.folder / _EXAMPLE).read_text()
        match = re.search(rf"\b{name}\.numpy\((?:\), )?batch_index=(\d+)", example)
        if match is None:
            raise RuntimeError(f"{_EXAMPLE} of pnnx names no batch of {name}: another pnnx is needed")
        return int(match[1])

    def foreign_layers(self) -> list[str]:
        """Return the types of layers that pnnx did not convert, because ncnn lacks them. They have torch's names."""
        lines = self.parameters.read_text().splitlines()[_LINES_BEFORE_LAYERS:]
        types = {line.split()[0] for line in lines if line.strip()}
        return sorted(kind for kind in types if re.search(r"[.:]", kind))


def convert(trace: torch.jit.ScriptModule, inputs: Sequence[Tensor], folder: Path) -> None:
    """Write the files of ``trace`` to the existing ``folder``.

    Raises:
        RuntimeError: pnnx does not convert it.
        KeyError: an input has a dtype other than float32 and int64.
    """
    import pnnx

    trace.save(str(folder / _TRACE))
    shapes = ",".join(f"[{','.join(map(str, tensor.shape))}]{_TYPES[tensor.dtype]}" for tensor in inputs)
    command = [pnnx.EXEC_PATH, _TRACE, f"inputshape={shapes}", "fp16=0", "device=cpu"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode or not all((folder / name).exists() for name in (_PARAMETERS, _WEIGHTS, _EXAMPLE)):
        messages = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise RuntimeError(f"error: pnnx ended with status {done.returncode}: {' '.join(messages[-1:])}")
    for file in folder.iterdir():  # remove three further copies of the weights
        if file.name not in (_PARAMETERS, _WEIGHTS, _EXAMPLE):
            file.unlink()


def load(files: Files, threads: int, in_bf16: bool = False) -> Any:
    """Return an ``ncnn.Net`` of the files that computes and stores float32, or stores bfloat16.

    All other options are ncnn's defaults.

    Raises:
        RuntimeError: ncnn lacks layers, or cannot read the files.
    """
    import ncnn

    if foreign := files.foreign_layers():
        raise RuntimeError(f"error: ncnn has no layer for {', '.join(foreign)}, which pnnx left as they were")
    net = ncnn.Net()
    for name in dir(net.opt):
        if name.startswith(("use_fp16", "use_bf16")):
            setattr(net.opt, name, in_bf16 and name.startswith("use_bf16"))
    net.opt.num_threads = threads
    if net.load_param(str(files.parameters)) or net.load_model(str(files.weights)):
        raise RuntimeError("error: ncnn does not load what pnnx wrote")
    return net
