"""Rows grouped by shared keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flatout.profiling.trace.recording import Ints

LARGEST = 2**62
"""All keys of a row are encoded in one number; it must not be larger."""


@dataclass(frozen=True)
class Groups:
    """Groups of rows with the same keys, in order of their keys."""

    keys: Ints
    """One row for each key, one column for each group."""
    group: Ints
    """Number of each row's group."""

    def __len__(self) -> int:
        return int(self.keys.shape[1])

    def total(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """The sum in each group."""
        return np.bincount(self.group, weights=values, minlength=len(self)).astype(np.float64)

    def count(self) -> NDArray[np.float64]:
        """Rows in each group."""
        return np.bincount(self.group, minlength=len(self)).astype(np.float64)


def grouped(*keys: NDArray[Any]) -> Groups:
    """Group by these keys."""
    count = len(keys[0])
    if not count:
        return Groups(np.empty((len(keys), 0), np.int64), np.empty(0, np.int64))
    code, size = np.zeros(count, np.int64), 1
    for key in keys:
        low, width = int(key.min()), int(key.max()) - int(key.min()) + 1
        if size * width > LARGEST:
            _, code = np.unique(code, return_inverse=True)
            size = int(code.max()) + 1
        code, size = code * width + (key - low), size * width
    _, first, group = np.unique(code, return_index=True, return_inverse=True)
    return Groups(np.stack([key[first].astype(np.int64) for key in keys]), group)
