"""A type checker accepts correct calls and rejects wrong arguments, options and results: checked with mypy itself."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "snippets"
ROOT = Path(__file__).parents[2]
EXPECTED = re.compile(r"# E: ([a-z-]+)")
REPORTED = re.compile(r"^.*?(\w+)\.py:(\d+): error: .*\[([a-z-]+)\]$")


@pytest.fixture(scope="module")
def report() -> str:
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", "--warn-unused-ignores", str(HERE)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert not done.stderr, done.stderr
    return done.stdout


def errors_of(report: str, name: str) -> set[tuple[int, str]]:
    found = [match for line in report.splitlines() if (match := REPORTED.match(line))]
    return {(int(match[2]), match[3]) for match in found if match[1] == name}


@pytest.mark.timeout(700)
def test_correct_calls_are_accepted(report: str) -> None:
    assert errors_of(report, "good") == set(), report


@pytest.mark.timeout(700)
def test_wrong_calls_are_refused_each_on_its_line(report: str) -> None:
    lines = (HERE / "bad.py").read_text().splitlines()
    expected = {(no, code) for no, line in enumerate(lines, 1) for code in EXPECTED.findall(line)}
    assert len(expected) > 50
    assert errors_of(report, "bad") == expected, report
