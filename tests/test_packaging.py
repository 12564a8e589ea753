"""What is shipped is complete: code, templates, migrations, and third-party front-end files with their licences."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from signoff import resources

ROOT = Path(__file__).parent.parent
VENDORED = {"htmx.min.js", "hx-sse.min.js", "LICENSE.htmx"}


def build(source: Path, target: str, folder: Path) -> Path:
    """Build offline, and where no npm can be found."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(folder)],
        cwd=source,
        env={"PATH": ""},
        check=True,
    )
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked source distribution."""
    archive = build(ROOT, "sdist", tmp_path_factory.mktemp("sdist"))
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(archive) as tar:
        # Before Python 3.11.4 there are no filters.
        tar.extraction_filter = getattr(tarfile, "data_filter", None)
        tar.extractall(folder)
    (unpacked,) = folder.iterdir()
    return unpacked


def shipped(name: str) -> set[str]:
    """The files of a resource folder of the repository, relative to it."""
    folder = ROOT / name
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.name != ".gitkeep"
    }


def test_a_wheel_from_the_sdist_has_every_file(sdist: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(build(sdist, "wheel", tmp_path)) as wheel:
        names = set(wheel.namelist())
    for folder in ("templates", "static", "migrations"):
        assert {f"signoff/_data/{folder}/{name}" for name in shipped(folder)} <= names
    assert {f"signoff/_data/static/vendor/{name}" for name in VENDORED} <= names
    code = ROOT / "server"
    assert {str(path.relative_to(code)) for path in code.rglob("*.py")} <= names
    assert "signoff/py.typed" in names
    assert not [name for name in names if name.startswith(("tests/", "server/"))]


def test_the_sdist_has_what_its_own_tests_need_and_nothing_that_was_made(sdist: Path) -> None:
    for name in (
        "Makefile",
        "constraints.txt",
        "package-lock.json",
        "tests/conftest.py",
        "LICENSE",
        ".ci/venv",
        ".npmrc",
    ):
        assert (sdist / name).is_file(), name
    for name in (".venv", "node_modules", ".git", "tests/support/vendor", "tests/support/node_modules"):
        assert not (sdist / name).exists(), name


def test_pinned_files_name_no_address() -> None:
    for name in ("constraints.txt", "package-lock.json", ".npmrc"):
        assert "://" not in (ROOT / name).read_text("utf-8"), name


def test_resources_of_a_checkout_are_the_repository_s() -> None:
    assert resources.templates_dir() == ROOT / "templates"
    assert resources.static_dir() == ROOT / "static"
    assert resources.migrations_dir() == ROOT / "migrations"


def test_a_missing_resource_says_what_to_do() -> None:
    with pytest.raises(FileNotFoundError, match="install it again"):
        resources._find("nothing-of-this-name")


def test_the_command_is_installed() -> None:
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="signoff")
    assert script.value == "signoff.cli:main"
