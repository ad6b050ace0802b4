"""Whether a word on the command line is a trace of torch.profiler or a program to run."""

from __future__ import annotations

import re
import zlib
from pathlib import Path

SCRIPTS = (".py", ".pyw")
SUFFIXES = (".json", ".json.gz")
"""Suffixes of traces; nobody runs such a file."""
HEAD_BYTES = 1 << 20
"""How much of a file's beginning is searched."""
EVENTS = re.compile(rb'"traceEvents"\s*:')
EVENT = re.compile(rb'"ph"\s*:\s*"')
DOCUMENT = re.compile(rb'"schema"\s*:\s*"(flatout\.[\w-]+)/\d+"')


def is_trace(word: str) -> bool:
    """Whether the word is a trace: by its suffix, or else by the file's or folder's content."""
    name = word.lower()
    if name.endswith(SCRIPTS):
        return False
    return name.endswith(SUFFIXES) or holds_trace(Path(word))


def holds_trace(path: Path) -> bool:
    """Whether the file is a trace, or the folder contains one, by content."""
    if path.is_dir():
        return any(holds_trace(file) for suffix in SUFFIXES for file in path.glob(f"*{suffix}"))
    head = beginning(path)
    pattern = EVENT if head[:1] == b"[" else EVENTS
    return pattern.search(head) is not None


def document(path: Path) -> str | None:
    """The schema of a document that flatout wrote ("flatout.profile"), or None for other files."""
    match = DOCUMENT.search(beginning(path)[:200])
    return match[1].decode() if match else None


def beginning(path: Path) -> bytes:
    """The first bytes of a regular file, unpacked, if it begins with a brace; else empty."""
    try:
        if not path.is_file():
            return b""
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
        if head[:2] == b"\x1f\x8b":
            head = zlib.decompressobj(31).decompress(head, HEAD_BYTES)
    except (OSError, zlib.error):
        return b""
    head = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    return head if head[:1] in (b"{", b"[") else b""
