"""The code to send, copied to a folder of its own for engines that take a folder."""

from __future__ import annotations

import tarfile
import tempfile
from pathlib import Path

from flatout.launching import packing
from flatout.nouns.launched import PackedCode

CODE = "code"


def stage(packed: PackedCode, folder: Path) -> Path:
    """Copy the code folder's files to send into `folder`/code, without links and secrets."""
    target = folder / CODE
    target.mkdir()
    with tempfile.TemporaryFile(dir=folder) as archive:
        packing.write(packed, archive)
        archive.seek(0)
        with tarfile.open(fileobj=archive, mode="r:gz") as files:
            files.extractall(target, filter="data")
    return target
