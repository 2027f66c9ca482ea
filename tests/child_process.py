"""Python code in a separate process.

The import of torch takes longer than most of the tests' code. Therefore one process imports torch, and it forks for
each code that imports torch. Code whose environment has variables that libraries read at load time runs in a new
process.
"""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

# PyTorch's warnings of TorchScript are FutureWarnings from 2.14 on.
_NO_DEPRECATIONS = ("-W", "ignore::DeprecationWarning", "-W", "ignore::FutureWarning")

_IMPORTS_TORCH = re.compile(r"^ *(?:import|from) .*\btorch(?:mdla)?\b", re.MULTILINE)

# Each request is a line: the folder with the code, the arguments, the environment. The response is the exit code of the
# child. A child leaves the loop, so that it ends as a program does.
_SERVER = """
import json, os, sys
import torch
for line in sys.stdin:
    folder, arguments, environment = json.loads(line)
    child = os.fork()
    if not child:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    os._exit(0)
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
for stream, name in ((1, "out"), (2, "err")):
    os.dup2(os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CREAT), stream)
os.environ.clear()
os.environ.update(environment)
sys.path[1:1] = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry not in ("", *sys.path)]
sys.argv = ["-c", *arguments]
code = compile(open(f"{folder}/code").read(), "<string>", "exec")
del line, folder, environment, child, stream, name
exec(code)
"""


def run_python(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in a separate process. It uses this test run's cache unless ``environment`` specifies another one."""
    code = textwrap.dedent(code)
    is_read_later = all(name.startswith(("TORCHMDLA_", "PYTHONPATH")) for name in environment)
    if is_read_later and _IMPORTS_TORCH.search(code) and hasattr(os, "fork"):
        return _forked(code, arguments, {**os.environ, **environment})
    command = [sys.executable, *_NO_DEPRECATIONS, "-c", code, *arguments]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True)


def output_of(code: str, *arguments: str, **environment: str) -> str:
    """Run code as :func:`run_python` does, check that it succeeds, and return its output."""
    done = run_python(code, *arguments, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_script(
    *arguments: object, folder: Path | None = None, stdin: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments in a new process, with more variables in its environment."""
    command, variables = [sys.executable, *map(str, arguments)], {**os.environ, **environment}
    return subprocess.run(command, cwd=folder, env=variables, input=stdin, capture_output=True, text=True)


def _forked(code: str, arguments: tuple[str, ...], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run code in a fork of the server, whose standard input is empty."""
    server = _server()
    assert server.stdin and server.stdout
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "code").write_text(code, encoding="utf-8")
        server.stdin.write(json.dumps([folder, arguments, environment]) + "\n")
        server.stdin.flush()
        status = int(server.stdout.readline())
        output, errors = ((Path(folder) / name).read_text(encoding="utf-8") for name in ("out", "err"))
    return subprocess.CompletedProcess(["python", "-c", code, *arguments], status, output, errors)


@functools.cache
def _server() -> subprocess.Popen[str]:
    """Return the process that is forked. It ends with this one."""
    command = [sys.executable, *_NO_DEPRECATIONS, "-c", _SERVER]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
