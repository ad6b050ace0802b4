"""The other Pythons of this machine, found by reading files: none is started."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from flatout.nouns.interpreter import OtherPython
from flatout.probing import reading

MOST = 10
LIMIT_S = 0.2
WINDOWS = sys.platform == "win32"
COMMANDS = ("python.exe", "python3.exe") if WINDOWS else ("python", "python3")
FOLDER = "" if WINDOWS else "bin"
"""The interpreter's folder in an installation; Windows' virtual environments use Scripts."""
SHIM = "shims"


class _Surroundings(NamedTuple):
    """Where to start looking."""

    environ: Mapping[str, str]
    working: Path
    home: Path


def pythons(
    besides: str | None = None,
    environ: Mapping[str, str] | None = None,
    working: Path | None = None,
    home: Path | None = None,
) -> tuple[OtherPython, ...]:
    """At most ten Pythons: those on PATH in its order, then environments and versions nearby.

    besides: the interpreter that reports on itself and is left out.
    """
    around = _Surroundings(
        os.environ if environ is None else environ,
        Path.cwd() if working is None else working,
        Path(os.path.expanduser("~")) if home is None else home,  # noqa: PTH111  # never raises
    )
    deadline = time.monotonic() + LIMIT_S
    identities = {_identity(Path(besides), around)} if besides else set()
    interpreters: list[OtherPython] = []
    for path in chain(_on_path(around.environ), _near(around)):
        identity = _identity(path, around)
        if len(interpreters) == MOST or time.monotonic() > deadline:
            break
        if identity is not None and identity not in identities:
            identities.add(identity)
            interpreters.append(_python(identity[0], around.home))
    return tuple(interpreters)


def _on_path(environ: Mapping[str, str]) -> Iterator[Path]:
    paths = (
        Path(folder, name) for folder in reading.folders(environ.get("PATH")) for name in COMMANDS
    )
    yield from filter(reading.is_file, paths)


def _near(around: _Surroundings) -> Iterator[Path]:
    """Interpreters of environments and versions that are not on PATH."""
    active = [around.environ.get(name) for name in ("VIRTUAL_ENV", "CONDA_PREFIX")]
    folders = [Path(folder) for folder in active if folder]
    folders += [around.working / ".venv", around.working / "venv"]
    environments = reading.text(around.home / ".conda/environments.txt") or ""
    folders += [Path(line.strip()) for line in environments.splitlines() if line.strip()]
    folders += reversed(reading.entries(_pyenv(around) / "versions") or [])
    folders += reading.entries(around.home / ".local/share/uv/python") or []
    for folder in [*folders, *_registered_folders()]:
        yield from _interpreters_in(folder)


def _interpreters_in(folder: Path) -> Iterator[Path]:
    """The interpreter of an environment or an installation."""
    places = ("Scripts", "") if WINDOWS else ("bin",)
    candidates = (Path(folder, place, name) for place in places for name in COMMANDS)
    yield from filter(reading.is_file, candidates)


def _identity(path: Path, around: _Surroundings) -> tuple[Path, Path] | None:
    """(interpreter, its real file), equal for two names of one Python.

    The interpreter's own links are not followed: in a virtual environment it is only a link.
    """
    if path.parent.name == SHIM:
        target = _behind_shim(path, around)
        if target is None:
            return None
        path = target
    try:
        if path.stat().st_size == 0:  # Windows' stub that offers to install one from its store
            return None
        return path.parent.resolve() / _plain(path), path.resolve()
    except (OSError, RuntimeError):
        return None


def _plain(path: Path) -> str:
    """One name for `python` and `python3` in a folder if they are the same file."""
    plain = path.with_name(COMMANDS[0])
    try:
        same = plain.samefile(path)
    except OSError:
        same = False
    return plain.name if same else path.name


def _behind_shim(path: Path, around: _Surroundings) -> Path | None:
    """The Python that pyenv's shim starts, by the version in a variable or a file."""
    root = _pyenv(around)
    folders = (around.working, *around.working.parents)
    files = [*(folder / ".python-version" for folder in folders), root / "version"]
    requested = [around.environ.get("PYENV_VERSION"), *map(reading.text, files)]
    for version in re.split(r"[:\s]+", next((text for text in requested if text), "")):
        interpreter = root / "versions" / version / FOLDER / path.name
        if version and reading.is_file(interpreter):
            return interpreter
    return None


def _python(path: Path, home: Path) -> OtherPython:
    real = path.resolve()
    folder = path.parent if WINDOWS and path.parent.name != "Scripts" else path.parent.parent
    settings = reading.text(folder / "pyvenv.cfg")
    return OtherPython(
        executable=str(path),
        version=_version(folder, real, settings),
        kind=_kind(folder, real, settings, home),
        torch=_torch(folder, real, home if settings is None else None),
    )


def _kind(folder: Path, real: Path, settings: str | None, home: Path) -> str | None:
    if settings is not None:
        return "uv" if re.search(r"^uv\s*=", settings, flags=re.MULTILINE) else "venv"
    if reading.exists(folder / "conda-meta"):
        return "conda"
    parts = real.parts
    if "versions" in parts and any("pyenv" in part for part in parts):
        return "pyenv"
    if re.search(r"[/\\]uv[/\\]python[/\\]", str(real)):
        return "uv"
    return "user" if home in real.parents else "system"


def _version(folder: Path, real: Path, settings: str | None) -> str | None:
    """The version from files of each kind, at worst major and minor from the file's name."""
    configured = re.search(
        r"^version(?:_info)?\s*=\s*(\d+\.\d+\.\d+)", settings or "", re.MULTILINE
    )
    if configured:
        return configured[1]
    for record in _entries(folder / "conda-meta", r"python-\d+\.\d+\.\d+-\w+\.json"):
        return record.name.split("-")[1]
    install_folder = re.search(r"(?:versions[/\\]|cpython-)(\d+\.\d+\.\d+)", str(real))
    if install_folder:
        return install_folder[1]
    name = re.fullmatch(r"python(\d+\.\d+)t?", real.name)
    headers = (real.parent.parent / f"include/{real.name}", real.parent / "include")
    for header in headers:
        text = reading.text(header / "patchlevel.h") or ""
        if definition := re.search(r'#define PY_VERSION\s+"(\d+\.\d+\.\d+)', text):
            return definition[1]
    return name[1] if name else None


def _torch(folder: Path, real: Path, home: Path | None) -> str | None:
    """The version and build of torch in its package folders, or None if there is none."""
    for site in _sites(folder, real, home):
        text = reading.text(site / "torch/version.py") or ""
        if match := re.search(r"^__version__\s*=\s*['\"]([^'\"]+)", text, flags=re.MULTILINE):
            return match[1]
    return None


def _sites(folder: Path, real: Path, home: Path | None) -> Iterable[Path]:
    """Package folders. home: set if it also sees the user's own packages."""
    if WINDOWS:
        return [folder / "Lib/site-packages"]
    name = re.fullmatch(r"python3(\.\d+)?t?", real.name)
    exact = real.name if name and name[1] else None
    shape = re.escape(exact) if exact else r"python3\.\d+t?"
    libraries = _entries(folder / "lib", shape) + _entries(folder / "lib64", shape)
    sites = [library / "site-packages" for library in libraries]
    if home is not None and exact is not None:
        debian_folders = [folder / "local/lib" / exact, folder / "lib/python3"]
        sites += [library / "dist-packages" for library in debian_folders]  # Debian's
        sites.append(home / ".local/lib" / exact / "site-packages")
    return sites


def _registered_folders() -> list[Path]:
    """Installations in Windows' registry of Pythons."""
    if sys.platform != "win32":
        return []
    import winreg

    folders = []
    for hive in (winreg.HKEY_CURRENT_USER, winreg.HKEY_LOCAL_MACHINE):
        try:
            with winreg.OpenKey(hive, r"Software\Python\PythonCore") as core:
                names = [winreg.EnumKey(core, n) for n in range(winreg.QueryInfoKey(core)[0])]
                paths = [winreg.QueryValue(core, rf"{name}\InstallPath") for name in names]
        except OSError:
            continue
        folders += [Path(path) for path in paths if path]
    return folders


def _pyenv(around: _Surroundings) -> Path:
    root = around.environ.get("PYENV_ROOT")
    return Path(root) if root else around.home / ".pyenv"


def _entries(folder: Path, shape: str) -> list[Path]:
    return [path for path in reading.entries(folder) or [] if re.fullmatch(shape, path.name)]
