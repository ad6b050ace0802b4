"""Which files of the code folder are sent to nodes that do not see it, and which are not."""

from __future__ import annotations

import fnmatch
import io
import os
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import IO

from flatout.nouns.errors import UserError
from flatout.nouns.launched import LeftOut, PackedCode

CODE = "code"
FILE_LIMIT = 20 << 20
"""Most bytes of one file; larger ones are data or checkpoints."""
LIMIT = 200 << 20
"""Most bytes of all files; more is refused."""
MOST_FILES = 20_000
MADE_ANEW = "made anew"
"""A reason that is not reported."""
HISTORY, ENVIRONMENT = "history", "an environment of this machine"
RECORDS, SECRET = "records of earlier runs", "secrets"
EXPECTED = (HISTORY, ENVIRONMENT, RECORDS)
"""Reasons that surprise nobody."""
FOLDERS = {
    ".git": HISTORY,
    ".hg": HISTORY,
    ".svn": HISTORY,
    ".flatout": MADE_ANEW,
    "__pycache__": MADE_ANEW,
    ".mypy_cache": MADE_ANEW,
    ".pytest_cache": MADE_ANEW,
    ".ruff_cache": MADE_ANEW,
    ".ipynb_checkpoints": MADE_ANEW,
    ".venv": ENVIRONMENT,
    "venv": ENVIRONMENT,
    "node_modules": ENVIRONMENT,
    "wandb": RECORDS,
    "mlruns": RECORDS,
    "lightning_logs": RECORDS,
    ".ssh": SECRET,
    ".aws": SECRET,
    ".azure": SECRET,
    ".gcloud": SECRET,
    ".kube": SECRET,
    ".docker": SECRET,
    ".gnupg": SECRET,
}
SECRETS = (
    ".env",
    ".env.*",
    "*.env",
    ".envrc",
    ".netrc",
    "_netrc",
    ".pgpass",
    ".npmrc",
    ".pypirc",
    ".git-credentials",
    ".htpasswd",
    "*.pem",
    "*.key",
    "*.p12",
    "*.pfx",
    "*.jks",
    "*.keystore",
    "*.ppk",
    "*.kdbx",
    "id_rsa*",
    "id_dsa*",
    "id_ecdsa*",
    "id_ed25519*",
    "credentials",
    "credentials.*",
    "*credentials*.json",
    "*service*account*.json",
    "*secret*.json",
    "*secret*.toml",
    "*secret*.y*ml",
    "secrets",
    "secrets.*",
    "kubeconfig",
    "*.kubeconfig",
    "*.token",
    ".token",
)
PUBLIC = ("*.pub", ".env.example", ".env.sample", ".env.template")
"""Files that look like secrets but are not."""
NOTHING: Mapping[str, bytes] = MappingProxyType({})
PYC = ("*.pyc", "*.pyo", ".DS_Store")


def select(folder: Path, file_limit: int = FILE_LIMIT) -> PackedCode:
    """The files below `folder` to send. Raises UserError if they are too many or too large.

    Links out of the folder are omitted; links within it are sent as their files.
    """
    files: list[str] = []
    left_out: list[LeftOut] = []
    total = 0
    for path, reason, size in _walk(folder):
        if not reason and size is not None and size > file_limit:
            reason = "larger than code is"
        if reason:
            left_out.append(LeftOut(path, reason, size))
            continue
        files.append(path)
        total += size or 0
        if total > LIMIT or len(files) > MOST_FILES:
            raise UserError(
                f"{folder} holds more than {LIMIT >> 20} MiB or {MOST_FILES} files:"
                " too much for a code folder",
                "start in the folder of the code, and keep data elsewhere",
            )
    return PackedCode(folder, tuple(sorted(files)), total, tuple(left_out))


def write(
    packed: PackedCode, target: IO[bytes], prefix: str = "", beside: Mapping[str, bytes] = NOTHING
) -> None:
    """Write a gzipped tar of the files into `target`, without owners and groups.

    prefix: put before each path, such as `code/`. beside: further files, which only their owner
    may read and run.
    """
    with tarfile.open(fileobj=target, mode="w|gz", dereference=True) as archive:
        for name, content in beside.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode, entry.mtime = len(content), 0o700, int(time.time())
            archive.addfile(entry, io.BytesIO(content))
        for name in packed.files:
            try:
                archive.add(packed.folder / name, prefix + name, recursive=False, filter=_anonymous)
            except FileNotFoundError:  # removed since it was selected
                continue


def stage(packed: PackedCode, folder: Path) -> Path:
    """Copy the files into `folder`/code, without links, for engines that take a folder."""
    target = folder / CODE
    target.mkdir()
    with tempfile.TemporaryFile(dir=folder) as archive:
        write(packed, archive)
        archive.seek(0)
        with tarfile.open(fileobj=archive, mode="r:gz") as files:
            files.extractall(target, filter="data")
    return target


def is_secret(name: str) -> bool:
    """Whether a file of that name usually holds a password or key."""
    lowered = name.lower()
    if any(fnmatch.fnmatchcase(lowered, pattern) for pattern in PUBLIC):
        return False
    return any(fnmatch.fnmatchcase(lowered, pattern) for pattern in SECRETS)


def _walk(folder: Path) -> Iterator[tuple[str, str, int | None]]:
    """Path, reason to omit it (or empty) and size of each file; one row per omitted folder."""
    for root, folders, names in os.walk(folder):
        below = Path(root).relative_to(folder)
        for name in sorted(folders):
            why = _folder_stays(Path(root, name), folder)
            if why:
                folders.remove(name)
                if why != MADE_ANEW:
                    yield (below / name).as_posix(), why, None
        folders.sort()
        for name in sorted(names):
            path = Path(root, name)
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in PYC):
                continue
            yield (below / name).as_posix(), *_file_stays(path, folder)


def _folder_stays(path: Path, top: Path) -> str:
    if path.is_symlink():
        return "a link to a folder"
    if path.name in FOLDERS:
        return FOLDERS[path.name]
    if (path / "pyvenv.cfg").is_file() or (path / "conda-meta").is_dir():
        return ENVIRONMENT
    return SECRET if is_secret(path.name) and path != top else ""


def _file_stays(path: Path, top: Path) -> tuple[str, int | None]:
    if is_secret(path.name):
        return SECRET, None
    try:
        if path.is_symlink() and not path.resolve().is_relative_to(top.resolve()):
            return "a link that leads out of the folder", None
        if not path.is_file():
            return "not a file", None
        size = path.stat().st_size
        # Open it now: an unreadable file would end the transfer half-way.
        with path.open("rb"):
            return "", size
    except OSError as error:
        return f"cannot be read: {error.strerror or error}", None


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry
