"""Random numbers that depend on what is loaded, not on the process that loads it.

Each batch is loaded under its own seed, derived from (seed, epoch, position, rank): Python's,
NumPy's and torch's global generators and those in the data set start from it. So augmentation gives
the same batch in any worker, with any number of workers, and in a resumed run.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import random
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import get_worker_info


def seed_for(*parts: int | str) -> int:
    """A 63-bit seed, a hash of the parts."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


@contextlib.contextmanager
def seeded(seed: int, own: Sequence[Any] = ()) -> Iterator[None]:
    """Seed the global generators and those in `own`; the global ones are restored at the end.

    In a loader worker, whose global generators have no other use, they are not restored.
    """
    if get_worker_info() is not None:
        _seed_all(seed, own)
        yield
        return
    # torch itself imports NumPy, where it is installed
    numpy = importlib.import_module("numpy.random") if "numpy" in sys.modules else None
    before, before_torch = random.getstate(), torch.get_rng_state()
    before_numpy = None if numpy is None else numpy.get_state()
    _seed_all(seed, own)
    try:
        yield
    finally:
        random.setstate(before)
        torch.set_rng_state(before_torch)
        if numpy is not None:
            numpy.set_state(before_numpy)


def _seed_all(seed: int, own: Sequence[Any]) -> None:
    random.seed(seed)
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would reseed the devices too
    if "numpy" in sys.modules:
        importlib.import_module("numpy.random").seed([seed & 0xFFFFFFFF, seed >> 32])
    for number, generator in enumerate(own):
        own_seed = seed_for(seed, number)
        if isinstance(generator, torch.Generator):
            generator.manual_seed(own_seed)
        elif hasattr(generator, "bit_generator"):
            bits = generator.bit_generator
            bits.state = type(bits)(own_seed).state
        else:
            generator.seed(own_seed % 2**32)
