"""The CUDA toolkits on disk, and those that a build would use: by PATH, CUDA_HOME, the loader."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from flatout.nouns.machine import CudaToolkit
from flatout.probing import conversation, reading

NVCC = "nvcc.exe" if sys.platform == "win32" else "nvcc"
SIGNS = (f"bin/{NVCC}", "version.json", "version.txt", "include/cuda.h")
"""A folder with one of these is a toolkit; a folder with only libraries is not."""
WINDOWS = "NVIDIA GPU Computing Toolkit/CUDA"
STARTING_S = 1.0
SCRIPT_BYTES = 4096


@dataclass(frozen=True)
class ToolkitPaths:
    """Where to look for toolkits besides the folders in variables."""

    root: Path = Path("/")
    programs: Path | None = None
    """Windows' folder of programs."""


def toolkits(
    environ: Mapping[str, str] | None = None, places: ToolkitPaths | None = None
) -> tuple[CudaToolkit, ...]:
    """Every toolkit on this machine, those on PATH first and in its order."""
    environ = os.environ if environ is None else environ
    on_path = list(_on_path(environ))
    configured = [
        Path(value) for name in ("CUDA_HOME", "CUDA_PATH") if (value := environ.get(name))
    ]
    roots = [
        *(root for root, _ in on_path),
        *configured,
        *_usual_folders(places or _default_places(environ), environ),
    ]
    folders = list(dict.fromkeys(_real(root) for root in roots if _is_toolkit(root)))
    libraries = [_real(Path(folder)) for folder in _split(environ.get("LD_LIBRARY_PATH"))]
    starters = {_real(root): nvcc for root, nvcc in reversed(on_path)}
    positions = {
        root: number
        for number, root in enumerate(dict.fromkeys(map(_real, [root for root, _ in on_path])))
    }
    return tuple(
        CudaToolkit(
            path=str(root),
            version=version(root)
            or _nvcc_version(starters.get(root, root / "bin" / NVCC), environ),
            on_path=positions.get(root),
            cuda_home=any(_real(folder) == root for folder in configured),
            on_library_path=any(root == folder or root in folder.parents for folder in libraries),
        )
        for root in folders
    )


def version(root: Path) -> str | None:
    """The toolkit's version, major and minor, from its files or the name of its folder."""
    record = reading.text(root / "version.json")
    if record is not None:
        try:
            return _short(str(json.loads(record)["cuda"]["version"]))
        except (ValueError, KeyError, TypeError, RecursionError):
            pass
    match = re.search(r"CUDA Version (\S+)", reading.text(root / "version.txt") or "")
    if match:
        return _short(match[1])
    for header in (root / "include/cuda.h", root / "targets/x86_64-linux/include/cuda.h"):
        definition = re.search(r"#define CUDA_VERSION (\d+)", reading.text(header) or "")
        if definition:
            return f"{int(definition[1]) // 1000}.{int(definition[1]) % 1000 // 10}"
    name = re.fullmatch(r"(?:cuda-|v)(\d+\.\d+).*", root.name)
    return name[1] if name else None


def _on_path(environ: Mapping[str, str]) -> Iterator[tuple[Path, Path]]:
    """(toolkit, program) for every nvcc on PATH."""
    for folder in _split(environ.get("PATH")):
        nvcc = Path(folder, NVCC)
        if _is_file(nvcc) and os.access(nvcc, os.X_OK):
            yield _toolkit_of(nvcc), nvcc


def _toolkit_of(nvcc: Path) -> Path:
    """Its toolkit. Distributions put a link or a small script that starts nvcc in /usr/bin."""
    real = _real(nvcc)
    try:
        script = real.read_bytes()[:SCRIPT_BYTES] if real.stat().st_size < SCRIPT_BYTES else b""
    except OSError:
        script = b""
    target_match = re.search(rb"(/[^\s\"']+/bin/nvcc)\b", script) if script[:2] == b"#!" else None
    if target_match and _is_file(target := Path(os.fsdecode(target_match[1]))) and target != real:
        real = _real(target)
    return real.parent.parent if real.parent.name == "bin" else real.parent


def _usual_folders(places: ToolkitPaths, environ: Mapping[str, str]) -> Iterator[Path]:
    """Folders in which installers put toolkits."""
    local = places.root / "usr/local"
    yield from (folder for folder in _entries(local)[::-1] if re.match("cuda(-|$)", folder.name))
    yield places.root / "opt/cuda"
    yield places.root / "usr/lib/nvidia-cuda-toolkit"
    if prefix := environ.get("CONDA_PREFIX"):
        yield Path(prefix)
        yield Path(prefix, "Library")
    if places.programs is not None:
        yield from _entries(places.programs / WINDOWS)[::-1]


def _default_places(environ: Mapping[str, str]) -> ToolkitPaths:
    programs = environ.get("PROGRAMFILES") if sys.platform == "win32" else None
    return ToolkitPaths(programs=Path(programs) if programs else None)


def _nvcc_version(nvcc: Path, environ: Mapping[str, str]) -> str | None:
    """The version that nvcc prints, asked only if no file has it."""
    if not _is_file(nvcc):
        return None
    output = conversation.output([str(nvcc), "--version"], environ, STARTING_S)
    release = re.search(r"release (\d+\.\d+)", output or "")
    return release[1] if release else None


def _is_toolkit(root: Path) -> bool:
    """Whether it is a toolkit; in general folders such as /usr only nvcc proves one."""
    signs = SIGNS if re.match(r"cuda|v\d", _real(root).name) else SIGNS[:1]
    return any(_is_file(root / sign) for sign in signs)


def _short(text: str) -> str | None:
    match = re.match(r"\d+\.\d+", text)
    return match[0] if match else None


def _split(value: str | None) -> list[str]:
    return [folder for folder in (value or "").split(os.pathsep) if folder]


def _real(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError):
        return path.absolute()


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _entries(folder: Path) -> list[Path]:
    return reading.entries(folder) or []
