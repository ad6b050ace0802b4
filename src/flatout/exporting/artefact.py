"""The artefact folder: model, `load.py`, manifest with hashes, an example of a server."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import json
import os
import re
import shutil
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flatout.exporting.candidates import BuildPlan
from flatout.nouns.errors import UserError
from flatout.nouns.exported import ExportCandidate, TensorSpec

SCHEMA = "flatout.artefact/1"
MANIFEST = "manifest.json"
LOAD = "load.py"
SERVE = "serve.py"
REQUIREMENTS = "requirements.txt"
OLD_REPORT = "report.html"
"""A page that exports wrote until December 2026; no part of the model."""
NOT_HASHED = (MANIFEST, OLD_REPORT)
SERVED = "serving"
"""The manifest's key for hashes of files that serve the model. The user may change these; then no
export replaces them."""
START = re.compile(r"^def start\(", re.MULTILINE)
MARK = re.compile(r"  # (type: ignore|noqa).*$", re.MULTILINE)


def write(
    folder: Path,
    plan: BuildPlan,
    options: Mapping[str, Any],
    capture: Mapping[str, Any],
    facts: Mapping[str, Any],
    versions: Mapping[str, str],
) -> None:
    """Write `load.py` and the first manifest beside the files that a build left in `folder`."""
    (folder / LOAD).write_text(program(plan.backend.id), encoding="utf-8", newline="\n")
    # The packages that `load.py` imports, with the versions used to verify it.
    serving = [package.pip for package in plan.backend.serving]
    if not plan.backend.torch_free:
        serving = ["torch", *serving]
    # 2.13.0+cpu is 2.13.0 in an index.
    found = {name: versions[name].partition("+")[0] for name in serving if name in versions}
    packages = {**found, "numpy": facts["numpy"]}
    manifest = {
        "schema": SCHEMA,
        "model": capture["model"],
        "parameters": capture["parameters"],
        "weights": capture["weights"],
        "backend": plan.backend.id,
        "candidate": plan.id,
        "title": plan.variant.title,
        "precision": plan.precision.value,
        "inputs": capture["inputs"],
        "outputs": capture["outputs"],
        "batch_dynamic": capture["batch_dynamic"],
        "batch_sizes": capture["batch_sizes"],
        "batch_matters": facts["batch_matters"],
        "options": dict(options),
        "torch_free": plan.backend.torch_free,
        "packages": packages,
        "install": "pip install " + " ".join(f"{name}=={packages[name]}" for name in packages),
        "versions": dict(versions),
        "python": facts["python"],
        "threads": facts["threads"],
        "isa": facts["isa"],
        "architecture": facts["architecture"],
        "system": facts["system"],
        "device": facts["device"],
        "files": hashes(folder),
    }
    _save(folder / MANIFEST, manifest)


def program(backend: str) -> str:
    """The text of `load.py`: the frame, followed by the backend's own part."""
    own = _source(backend.replace("-", "_"))
    begin = START.search(own)
    assert begin is not None, backend
    return f"{_source('frame').rstrip()}\n\n\n{own[begin.start() :]}"


def add_server(folder: Path) -> None:
    """Write a program that serves the model over HTTP, and the packages that it needs."""
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    pins = "".join(f"{name}=={version}\n" for name, version in manifest["packages"].items())
    texts = {SERVE: _source("serve"), REQUIREMENTS: pins}
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8", newline="\n")
    manifest[SERVED] = {name: _digest(folder / name) for name in texts}
    _save(folder / MANIFEST, manifest)


def size(folder: Path) -> int:
    """Bytes of the files that serving needs."""
    return sum(path.stat().st_size for path in _files(folder) if path.name not in NOT_HASHED)


def hashes(folder: Path) -> dict[str, str | None]:
    """sha256 of every file but the manifest itself."""
    return {
        path.relative_to(folder).as_posix(): _digest(path)
        for path in _files(folder)
        if path.name not in NOT_HASHED
    }


def keep(
    built: Path,
    out: Path,
    chosen: ExportCandidate,
    candidates: Sequence[ExportCandidate],
    more: Mapping[str, Any],
) -> None:
    """Put the chosen build into `out`, and add the measurements to its manifest.

    An artefact already there is replaced; anything else is left alone.
    Raises UserError if `out` holds other files.
    """
    check_target(out)
    staged = out.with_name(f"{out.name}.new-{os.getpid()}")
    shutil.rmtree(staged, ignore_errors=True)
    shutil.copytree(built, staged)
    manifest = json.loads((staged / MANIFEST).read_text(encoding="utf-8"))
    own = dataclasses.asdict(chosen)
    manifest.update(guard=own.pop("guard"), measured=own, **more)
    manifest["candidates"] = [dataclasses.asdict(item) for item in candidates]
    _save(staged / MANIFEST, manifest)
    add_server(staged)
    if out.exists():
        shutil.rmtree(out)
    staged.rename(out)


def check_target(out: Path) -> None:
    """Raise UserError if `out` holds anything that no export wrote."""
    if not out.exists():
        return
    if out.is_symlink() or not out.is_dir():
        raise UserError(f"{out} exists and is no folder", f"name another one: --out {out}-2")
    foreign = _foreign(out)
    if foreign:
        raise UserError(
            f"{out} holds files that are not an exported model's: {', '.join(foreign[:3])}",
            f"name another one: --out {out}-2",
        )


def _foreign(folder: Path) -> list[str]:
    """Files that no export wrote, or that were changed to serve differently."""
    names = [path.relative_to(folder).as_posix() for path in _files(folder)]
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        served = manifest.get(SERVED, {})
        known = {*manifest["files"], *NOT_HASHED}
        known |= {name for name in served if _digest(folder / name) == served[name]}
        if not manifest["schema"].startswith("flatout.artefact/"):
            return names
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return names
    return [name for name in names if name not in known and "__pycache__" not in name]


def specs(items: Sequence[Mapping[str, Any]]) -> tuple[TensorSpec, ...]:
    """Tensor specs from the JSON of a capture."""
    return tuple(TensorSpec(item["name"], item["dtype"], tuple(item["shape"])) for item in items)


def _source(name: str) -> str:
    """A file of the programs' `loading`, without comments for our own checks."""
    spec = importlib.util.find_spec("flatout_programs.loading")
    assert spec is not None and spec.submodule_search_locations
    path = Path(spec.submodule_search_locations[0], f"{name}.py")
    return MARK.sub("", path.read_text(encoding="utf-8"))


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if stat.S_ISREG(path.lstat().st_mode))


def _digest(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def _save(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8", newline="\n")
