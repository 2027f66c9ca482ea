"""Run a model on a run host, and go on without it when it ends."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import warnings
from pathlib import Path

import torch
from torch import nn

os.environ["RUN_HOST_SECRET"] = secrets.token_hex(32)

from remote_device import RemoteDevice

import torchmdla

host = subprocess.Popen([sys.executable, Path(__file__).with_name("run_host.py")], stdout=subprocess.PIPE, text=True)
assert host.stdout
try:
    port = int(host.stdout.readline())
    torchmdla.devices.register(RemoteDevice())
    torchmdla.enable(device="remote", address=f"localhost:{port}")
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
    x = torch.randn(2, 8)
    with torch.no_grad():
        expected = model(x)
        compiled = torchmdla.compile(model, x)
        torch.testing.assert_close(compiled(x), expected)
        print("run host: as eager,", torchmdla.stats().compiled_calls, "calls or more", flush=True)
        host.kill()
        host.wait()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.testing.assert_close(compiled(x), expected)
        print("without it: as eager;", caught[0].message)
finally:
    host.kill()
