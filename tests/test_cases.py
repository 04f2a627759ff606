"""The table of field cases names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent


def test_every_case_in_the_table_has_its_tests() -> None:
    rows = [line for line in (HERE / "CASES.md").read_text(encoding="utf-8").splitlines() if line.startswith("| C")]
    assert rows
    for row in rows:
        named = re.findall(r"`(\w+\.py)::(\w+)`", row)
        assert named, row
        for file, test in named:
            assert f"def {test}(" in (HERE / file).read_text(encoding="utf-8"), f"{file} has no {test}"


def test_every_test_of_a_case_is_in_the_table() -> None:
    table = (HERE / "CASES.md").read_text(encoding="utf-8")
    for path in HERE.glob("test_*.py"):
        for case in re.findall(r"def test_(c\d+)_", path.read_text(encoding="utf-8")):
            assert f"| {case.upper()} |" in table, f"{path.name} tests {case}, which the table lacks"
