"""docs/promises.md names tests that exist, for every row."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
ROW = re.compile(r"^\| ([A-Z]\d+) \| .+ \| (.+) \|$", re.MULTILINE)
NAMED = re.compile(r"(tests/[\w/]+\.py)(?:::(\w+))?")


def test_every_promise_names_tests_that_exist() -> None:
    rows = ROW.findall((ROOT / "docs" / "promises.md").read_text())
    assert len(rows) > 60
    missing = []
    for row, tests in rows:
        named = NAMED.findall(tests)
        if not named:
            missing.append(f"{row}: no test")
        for path, name in named:
            file = ROOT / path
            if not file.is_file() or (name and not re.search(rf"def {name}\b", file.read_text())):
                missing.append(f"{row}: {path}::{name}")
    assert missing == []
