"""``python -m script_files``: the results of files, and the table that is made of them."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from script_files.__main__ import COLUMNS, Reader, Row, table_of, try_sample
from script_files.hostile import records_of, write_records
from script_files.kinds import KINDS, Sample, shipped


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_files_are_tried_and_counted(tmp_path: Path) -> None:
    good = next(KINDS["language"]())
    module = torch.jit.script(torch.nn.ReLU())
    module.save(tmp_path / "other.pt")
    records = records_of(tmp_path / "other.pt")
    code = next(name for name in records if name.endswith("functional.py"))
    write_records(
        tmp_path / "other.pt", {**records, code: records[code].replace(b"torch.relu_(", b"torch.frobnicate(")}
    )
    (other,) = shipped([tmp_path])
    impossible = Sample("language of TorchScript", "impossible", lambda: (torch.jit.script(object()), ()))
    reader, rows = Reader(), []
    for sample in (good, other, impossible):
        rows.append(Row(sample.kind, sample.name))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try_sample(sample, rows[-1], tmp_path, reader)
    assert list(rows[0].results.values()) == [""] * len(COLUMNS)
    assert rows[1].results["read without torch"] == "torch.frobnicate"
    assert rows[2].results["made"]
    lines = table_of(rows).splitlines()
    assert lines[2].startswith("| language of TorchScript | 1 | 1 of 1 | 1 of 1 | 1 of 1 | 1 of 1 |")
    assert lines[-1].endswith("| read without torch | `torch.frobnicate` |")
