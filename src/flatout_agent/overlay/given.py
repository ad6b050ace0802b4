"""Files that the baseline prepared and later trials may use: its data sets, not its outputs.

Before its first step a program makes data sets on first use, but it also creates output folders,
event files and copies of its configuration. A later trial that found those would not behave like
the baseline: `os.makedirs(out)` would fail, a Trainer would refuse a folder that is not empty. The
program's use distinguishes the two: a data set is read back.
"""
# ruff: noqa: PTH118, PTH120

from __future__ import annotations

import os

from flatout_agent.overlay.index import (
    JOURNAL,
    READ,
    EntryKind,
    Index,
    Layer,
    OverlayEntry,
    fold,
    parse,
)
from flatout_agent.overlay.native import raw_io


def load(root: str) -> list[OverlayEntry]:
    """The entries of a prepared layer in folders from which the program read."""
    try:
        with raw_io.open(os.path.join(root, JOURNAL), "rb") as file:
            text = file.read()
    except FileNotFoundError:
        return []
    index = Index()
    read: set[str] = set()
    for path, kind, where, layer in parse(text, root, Layer.PREPARED):
        if kind == READ:
            read.add(path)
        else:
            index.put(OverlayEntry(path, EntryKind(kind), where, layer))
    roots = {fold(_outermost(index, folder)) for folder in read}
    visible = [entry for entry in index.entries.values() if _below(entry.path, roots)]
    return [
        entry._replace(layer=Layer.GIVEN) if entry.layer is Layer.PREPARED else entry
        for entry in [*_links(index, roots), *visible]
    ]


def _outermost(index: Index, folder: str) -> str:
    """The outermost folder around `folder` that the program itself created; else `folder`."""
    outermost = path = folder
    while True:
        entry = index.entries.get(fold(path))
        if entry is not None and entry.kind is EntryKind.FOLDER:
            outermost = path
        parent = os.path.dirname(path)
        if parent == path:
            return outermost
        path = parent


def _below(path: str, roots: set[str]) -> bool:
    key = fold(path)
    while key not in roots:
        parent = os.path.dirname(key)
        if parent == key:
            return False
        key = parent
    return True


def _links(index: Index, roots: set[str]) -> list[OverlayEntry]:
    """The links through which a visible folder may be reached."""
    return [
        entry
        for entry in index.entries.values()
        if entry.kind is EntryKind.LINK and not _below(entry.path, roots)
    ]
