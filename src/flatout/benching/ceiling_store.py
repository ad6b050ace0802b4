"""Where measured ceilings are kept: one file per machine, driver and torch in the user's cache.

A file that cannot be read or written costs a new measurement, never an error.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flatout.nouns.ceiling import SHORTER_IS_BETTER, Ceiling
from flatout.nouns.decoding import decode
from flatout.nouns.identity import Identity

VERSION = 1
FOLDER_ENV = "FLATOUT_CACHE"
"""Names a cache folder other than the system's usual one."""
VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def load(identity: Identity, environ: Mapping[str, str] | None = None) -> tuple[Ceiling, ...]:
    """The stored ceilings of this machine; with several torch versions, the newest file."""
    environ = os.environ if environ is None else environ
    root, machine = folder(environ), _machine_key(identity, environ)
    if root is None:
        return ()
    if identity.torch is not None:
        return _read(root / f"{machine}-{_safe(identity.torch)}.json")
    with contextlib.suppress(OSError):
        files = sorted(root.glob(f"{machine}-*.json"), key=lambda path: path.stat().st_mtime)
        return _read(files[-1]) if files else ()
    return ()


def keep(
    identity: Identity,
    ceilings: Sequence[Ceiling],
    environ: Mapping[str, str] | None = None,
) -> Path | None:
    """Add the measured ceilings to the stored ones; the better of two figures is kept.

    The lower one was measured while something else ran, or with fewer sizes.
    """
    environ = os.environ if environ is None else environ
    root = folder(environ)
    measured = [ceiling for ceiling in ceilings if ceiling.value is not None]
    if root is None or identity.torch is None or not measured:
        return None
    path = root / f"{_machine_key(identity, environ)}-{_safe(identity.torch)}.json"
    rows = {(row["id"], row["device"]): row for row in _rows(path)}
    for ceiling in measured:
        before = rows.get((ceiling.id, ceiling.device))
        if before is None or not _is_better(before["value"], ceiling):
            rows[ceiling.id, ceiling.device] = dataclasses.asdict(ceiling)
    document = {"version": VERSION, "torch": identity.torch, "ceilings": list(rows.values())}
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        root.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(document), encoding="utf-8")
        partial.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        return None
    return path


def _is_better(before: float | None, ceiling: Ceiling) -> bool:
    if before is None or ceiling.value is None:
        return False
    return before < ceiling.value if ceiling.unit in SHORTER_IS_BETTER else before > ceiling.value


def folder(environ: Mapping[str, str]) -> Path | None:
    """`ceilings/` in the user's cache folder, or None without a home folder."""
    chosen = environ.get(FOLDER_ENV)
    if chosen:
        return Path(chosen, "ceilings")
    try:
        home = Path.home()
    except RuntimeError:
        return None
    if sys.platform == "win32":
        base = Path(environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = home / "Library" / "Caches"
    else:
        base = Path(environ.get("XDG_CACHE_HOME") or home / ".cache")
    return base / "flatout" / "ceilings"


def _machine_key(identity: Identity, environ: Mapping[str, str]) -> str:
    """Identifies the machine; memory is rounded to GiB, since a kernel update may take some."""
    gib = round(identity.memory_bytes / 2**30) if identity.memory_bytes is not None else None
    gpus = [(gpu.name, gpu.memory_bytes, gpu.driver) for gpu in identity.gpus]
    visible = [environ.get(name) for name in VISIBLE] if gpus else []
    facts = [identity.system, identity.cpu, identity.cores, gib, gpus, visible]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def _safe(version: str) -> str:
    return re.sub(r"[^A-Za-z0-9.+-]", "_", version)


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return []
    if not isinstance(document, dict) or document.get("version") != VERSION:
        return []
    rows = document.get("ceilings")
    if not isinstance(rows, list):
        return []
    return [row for row in rows if isinstance(row, dict) and decode(Ceiling, row) is not None]


def _read(path: Path) -> tuple[Ceiling, ...]:
    return tuple(ceiling for row in _rows(path) if (ceiling := decode(Ceiling, row)) is not None)
