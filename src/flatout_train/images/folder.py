"""The pictures of a folder and the label of each: class folders, or a mapping."""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from flatout_train.errors import UsageError

SUFFIXES = frozenset(
    (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp", ".gif")
)
"""Suffixes of pictures in a class folder: ImageFolder's list, and GIF (its first frame)."""
_SOME = 5

Labels = Mapping[str, int | str]


@dataclass(frozen=True)
class ImageFiles:
    """Names below `folder` in a fixed order; labels int64 [count], indices into `classes`."""

    folder: Path
    names: list[str]
    labels: Tensor
    classes: list[str]
    left_out: int = 0
    """Number of files in the class folders that are not pictures by their suffix."""

    def __len__(self) -> int:
        return len(self.names)

    def path(self, index: int) -> Path:
        return self.folder / self.names[index]

    def digest(self) -> int:
        """Checksum (CRC-32) of names and labels: equal if two runs see the same pictures."""
        names = "\0".join(self.names).encode("utf-8", "surrogateescape")
        labels = " ".join(map(str, self.labels.tolist())).encode()
        return zlib.crc32(labels, zlib.crc32(names))


def find(
    folder: str | os.PathLike[str],
    labels: Labels | None = None,
    classes: Sequence[str] | None = None,
) -> ImageFiles:
    """The pictures of `folder`; UsageError if it has none, or a class without any.

    Without `labels`, each folder in it is a class with all pictures below that folder, at any
    depth; names that begin with a dot are ignored. `labels` maps a picture's name below `folder` to
    its label. `classes` fixes the classes and their order.
    """
    root = Path(folder)
    if not root.is_dir():
        there = "is a file" if root.exists() else "does not exist"
        raise UsageError(f"image_loader: {root} {there}; pass the folder that holds the pictures.")
    if labels is None:
        return _by_class_folder(root, classes)
    return _by_labels(root, labels, classes)


def _by_class_folder(root: Path, classes: Sequence[str] | None) -> ImageFiles:
    found_classes = sorted(
        entry.name for entry in root.iterdir() if not entry.name.startswith(".") and entry.is_dir()
    )
    if classes is None:
        chosen = found_classes
        if not chosen:
            raise UsageError(_no_classes(root))
    else:
        chosen = _checked(classes, found_classes, f"{root} has folders")
    names: list[str] = []
    counts: list[int] = []
    others = 0
    for name in chosen:
        files, other = _files(root, name) if name in found_classes else ([], 0)
        names += files
        counts.append(len(files))
        others += other
    if not names:
        raise UsageError(
            f"image_loader: no pictures below {root} (searched for {', '.join(sorted(SUFFIXES))}); "
            "pass the folder whose sub-folders hold them."
        )
    empty = [name for name, count in zip(chosen, counts, strict=True) if not count]
    if empty and classes is None:
        raise UsageError(
            f"image_loader: no pictures in the class folders {_some(empty)} of {root}; remove "
            "them, or list the intended classes with classes=[...]."
        )
    labels = torch.repeat_interleave(torch.arange(len(chosen)), torch.tensor(counts))
    return ImageFiles(root, names, labels, chosen, others)


def _no_classes(root: Path) -> str:
    if any(entry.suffix.lower() in SUFFIXES for entry in root.iterdir()):
        return (
            f"image_loader: the pictures are in {root} itself, without classes; move them to one "
            "folder per class, or pass labels={name: label}."
        )
    return (
        f"image_loader: {root} has no folders; pass a folder with one folder of pictures per "
        "class, or labels=."
    )


def _files(root: Path, name: str) -> tuple[list[str], int]:
    """The pictures of one class, sorted, relative to `root`, and the number of other files."""
    pictures: list[str] = []
    others = 0
    visited: set[str] = set()
    for place, folders, files in os.walk(root / name, followlinks=True):
        real = str(Path(place).resolve())
        folders[:] = [folder for folder in folders if not folder.startswith(".")]
        if real in visited:  # a cycle of links
            folders.clear()
            continue
        visited.add(real)
        below = Path(place).relative_to(root).as_posix()
        for file in files:
            if file.startswith("."):
                continue
            if os.path.splitext(file)[1].lower() in SUFFIXES:  # noqa: PTH122 (a million times)
                pictures.append(f"{below}/{file}")
            else:
                others += 1
    return sorted(pictures), others


def _by_labels(root: Path, given: Labels, classes: Sequence[str] | None) -> ImageFiles:
    rows = [(str(name), label) for name, label in given.items()]
    if not rows:
        raise UsageError("image_loader: labels= lists no pictures; pass name and label of each.")
    numbers = all(isinstance(label, int) for _, label in rows)
    kinds = {label for _, label in rows}
    found_classes = [str(kind) for kind in (sorted(kinds) if numbers else sorted(map(str, kinds)))]
    chosen = (
        found_classes if classes is None else _checked(classes, found_classes, "labels= has labels")
    )
    index = {name: place for place, name in enumerate(chosen)}
    labels = torch.tensor([index[str(label)] for _, label in rows])
    if not (root / rows[0][0]).exists() and not any((root / name).exists() for name, _ in rows):
        raise UsageError(
            f"image_loader: none of the pictures in labels= is in {root} (the first is "
            f"{rows[0][0]!r}); names must be relative to that folder."
        )
    return ImageFiles(root, [name for name, _ in rows], labels, chosen)


def _checked(classes: Sequence[str], found_classes: Sequence[str], where: str) -> list[str]:
    chosen = [str(name) for name in classes]
    if len(set(chosen)) != len(chosen) or not chosen:
        raise UsageError("image_loader: classes= must list one or more classes, each once.")
    unknown = sorted(set(found_classes) - set(chosen))
    if unknown:
        raise UsageError(
            f"image_loader: {where} {_some(unknown)}, which classes= does not list; add them to it."
        )
    return chosen


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:_SOME])
    return shown if len(names) <= _SOME else f"{shown} and {len(names) - _SOME} more"
