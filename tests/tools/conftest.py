"""Files of programs, which are written once for all tests of commands."""

from __future__ import annotations

import pytest
from program_files import write_programs


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the paths of programs and other files by name."""
    return write_programs(tmp_path_factory.mktemp("programs"))
