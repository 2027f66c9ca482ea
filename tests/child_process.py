"""Python code in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap


def run_python(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a process of its own, with this test run's cache unless told otherwise."""
    return subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(code), *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
