"""Packages that builds need, in a separate folder searched after those of the user's interpreter.

The user's environment is never touched: missing packages go into flatout's cache folder, one for
each interpreter. That folder is last on `sys.path`, and nothing that the interpreter already has is
installed into it, so torch and numpy stay the user's.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from flatout.exporting import candidates
from flatout.nouns.errors import UserError
from flatout.nouns.exported import ExportSettings
from flatout.probing import packages as probing
from flatout.probing.packages import InstalledPackages
from flatout_programs.backends import RuntimePackage

LIMIT_S = 1800.0
KEPT = ("torch", "numpy")
"""Never installed or replaced: the model is exported with the user's own."""


@dataclass(frozen=True)
class OverlayInstallation:
    """The planned packages, and their folder."""

    python: str
    folder: Path
    packages: tuple[RuntimePackage, ...]
    """The packages that builds name."""
    pinned: tuple[str, ...]
    """These and their dependencies, as `name==version`."""

    @property
    def mb(self) -> int:
        """Approximate installed size in MB."""
        return sum(package.mb for package in self.packages)

    @property
    def line(self) -> str:
        """The line that installs them."""
        words = ["-m", "pip", "install", "--no-deps", "--target", str(self.folder), *self.pinned]
        return " ".join([self.python, *words])


def overlay(python: str) -> Path:
    """The folder for this interpreter's packages; it may not exist yet."""
    key = hashlib.sha256(str(Path(python).absolute()).encode()).hexdigest()[:12]
    return cache_root() / "packages" / key


def existing(python: str) -> Path | None:
    """The folder, or None if nothing was installed into it."""
    folder = overlay(python)
    return folder if folder.is_dir() else None


def cache_root() -> Path:
    """Flatout's own folder among the user's caches."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or str(Path.home() / "AppData/Local")
    elif sys.platform == "darwin":
        base = str(Path.home() / "Library/Caches")
    else:
        base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base, "flatout")


def missing(settings: ExportSettings, cuda: bool) -> tuple[RuntimePackage, ...]:
    """The packages that the requested builds lack, each once."""
    there = {*probing.look(settings.python).versions, *_in(overlay(settings.python))}
    facts: dict[str, object] = {"cuda": cuda}
    wanted = [
        package
        for plan in candidates.plans(settings)
        if not candidates.why_not(plan, settings, facts)
        for package in plan.backend.packages(plan.variant)
    ]
    return tuple(package for package in dict.fromkeys(wanted) if _normal(package.pip) not in there)


def plan(python: str, packages: Sequence[RuntimePackage]) -> OverlayInstallation:
    """The packages that pip would add to the existing ones.

    Raises UserError if it would have to replace torch or numpy, or if pip fails.
    """
    with _constraints(probing.look(python)) as constraints:
        names = [package.pip for package in packages]
        options = ["--dry-run", "--quiet", "--report", "-", "--constraint", str(constraints)]
        report = _pip(python, ["install", *options, *names])
    try:
        entries = [item["metadata"] for item in json.loads(report)["install"]]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"pip's report cannot be read: {error}", "update pip") from error
    replaced = [item["name"] for item in entries if _normal(item["name"]) in KEPT]
    if replaced:
        raise UserError(
            f"{', '.join(names)} would replace the installed {' and '.join(replaced)}",
            "leave out --install, or the backend that needs it: --skip",
            1,
        )
    pinned = tuple(f"{item['name']}=={item['version']}" for item in entries)
    return OverlayInstallation(python, overlay(python), tuple(packages), pinned)


def install(installation: OverlayInstallation) -> None:
    """Install it. Raises UserError if pip fails; the folder then keeps its old content."""
    installation.folder.mkdir(parents=True, exist_ok=True)
    target = ["--no-deps", "--upgrade", "--target", str(installation.folder)]
    _pip(installation.python, ["install", "--quiet", *target, *installation.pinned])


def _pip(python: str, words: Sequence[str]) -> str:
    """Pip's output. Raises UserError."""
    command = [python, "-m", "pip", "--disable-pip-version-check", "--no-input", *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"pip of {python} did not answer: {error}") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        last = lines[-1].removeprefix("ERROR: ") if lines else f"exit code {done.returncode}"
        raise UserError(f"pip cannot install into {python}'s folder: {last}", " ".join(command), 1)
    return done.stdout


@contextlib.contextmanager
def _constraints(installed: InstalledPackages) -> Iterator[Path]:
    """A file that pins every installed package."""
    with tempfile.TemporaryDirectory(prefix="flatout-") as folder:
        path = Path(folder, "constraints.txt")
        path.write_text("\n".join(installed.lines) + "\n", encoding="utf-8")
        yield path


def _in(folder: Path) -> set[str]:
    """Names of the packages in an overlay folder."""
    return {_normal(path.name.split("-")[0]) for path in folder.glob("*.dist-info")}


def _normal(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")
