"""Other machines' /proc, /sys and /dev, as small trees in a test's own folder."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import strategies as st


def _holds_number(content: bytes) -> bool:
    # A number is what its reader expects, and Hypothesis draws some: constants of the sources.
    return re.search(rb"[0-9]|[a-fA-F]{2}", content) is not None


GARBAGE = st.one_of(
    st.binary(max_size=60).filter(lambda content: not _holds_number(content)),
    st.sampled_from(
        [
            b"",
            b"\n",
            b"-1",
            b"0",
            b"9" * 30,
            b"\x00\xff",
            b"N/A",
            b"0x",
            "٣".encode(),
            b"[never",
            b"0-",
            b"2-1",
            b"a: b\n: \n:::",
        ]
    ),
)
"""What a file may hold that is not what its reader expects."""


def plant(
    root: Path, files: Mapping[str, str | bytes], links: Mapping[str, str] | None = None
) -> Path:
    """Write the files, and symbolic links (targets within `root` too); the root."""
    if sys.platform == "win32":
        pytest.skip("Linux' names hold colons, which Windows does not allow")
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    for name, target in (links or {}).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(root / target)
    return root


def namespaces(root: Path, **changed: int) -> Path:
    """The namespaces of the machine itself, some of them changed."""
    initial = {"pid": 4026531836, "uts": 4026531838, "ipc": 4026531839, "cgroup": 4026531835}
    folder = root / "proc/self/ns"
    folder.mkdir(parents=True, exist_ok=True)
    for name, number in {**initial, **changed}.items():
        (folder / name).symlink_to(f"{name}:[{number}]")
    return root
