"""Reading the disk of the current folder: a large file in order, and pieces of a picture's size.

New data is in the page cache, which is dropped before each reading.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from flatout_programs.kernels import stopwatch
from flatout_programs.kernels.kernel import CeilingKernel, Point, Setup, Slice

MIB = 2**20
BYTES_QUICK, BYTES = 128 * MIB, 512 * MIB
BLOCK = 4 * MIB
PIECE = 128 * 1024
"""About one JPEG of ImageNet."""
PIECES = 400


def kernels(setup: Setup) -> list[CeilingKernel]:
    """One kernel, if a file may be written."""
    size = BYTES_QUICK if setup.quick else BYTES
    return [
        CeilingKernel(
            "disk-read",
            "disk of this folder, one reader",
            "cpu",
            "GB/s",
            partial(readings, setup.folder, size),
            note="" if forgets() else "may be read from the page cache",
            impossible=_impossible(setup.folder, size),
        )
    ]


def forgets() -> bool:
    """Whether the page cache can be dropped on this system."""
    return hasattr(os, "posix_fadvise") or sys.platform == "darwin"


def _impossible(folder: str, size: int) -> str:
    import shutil

    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return f"{folder}: {error.strerror or error}"
    if not os.access(folder, os.W_OK):
        return f"{folder}: not writable"
    return f"{folder}: too little free space" if free < 4 * size else ""


def readings(folder: str, size: int, time_slice: Slice) -> Iterator[Point]:
    """GB/s in order, then in randomly placed pieces. The file has no name, so nothing is left
    behind.
    """
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        with stopwatch.preparing():
            _write(file, size)
        rates: list[float] = []
        while len(rates) < 2 or (
            time_slice.remaining_s() > time_slice.seconds / 2 and len(rates) < 9
        ):
            _forget(file)
            began = time.perf_counter()
            _in_order(file)
            rates.append(size / (time.perf_counter() - began) / 1e9)
        in_order = sorted(rates)[len(rates) // 2]
        _forget(file)
        began = time.perf_counter()
        count = _pieces(file, size, max(time_slice.remaining_s(), 0.2))
        pieces = count * PIECE / (time.perf_counter() - began) / 1e9
        yield "pieces of 128 KiB", pieces
        yield f"in order, {size // MIB} MiB", in_order


def _write(file: Any, size: int) -> None:
    block = os.urandom(BLOCK)  # some disks and file systems compress
    for _ in range(size // BLOCK):
        file.write(block)
    os.fsync(file.fileno())


def _forget(file: Any) -> None:
    with contextlib.suppress(OSError):
        if sys.platform == "linux":
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        elif sys.platform == "darwin":
            import fcntl

            fcntl.fcntl(file.fileno(), 48, 1)  # F_NOCACHE
    file.seek(0)


def _in_order(file: Any) -> None:
    block = bytearray(BLOCK)
    while file.readinto(block):
        pass


def _pieces(file: Any, size: int, limit_s: float) -> int:
    places = list(range(0, size - PIECE, PIECE))
    random.Random(0).shuffle(places)
    until = time.perf_counter() + limit_s
    block = bytearray(PIECE)
    for count, place in enumerate(places[:PIECES], 1):
        file.seek(place)
        file.readinto(block)
        if time.perf_counter() > until:
            return count
    return min(len(places), PIECES)
