"""Random numbers of one rank alone, for the inside of regions: a seed of its own for each call.

Dropout must draw other numbers for each rank's rows. The seeds follow from what the program has
seeded (`root`), the number of the call and the rank. So a program that seeds its random numbers
gets the same ones at each start with as many ranks, and two integers, the same in all ranks, are
all that a checkpoint needs to go on with them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from flatout_agent.ranks.kept import Random, random_states, set_random


class OwnNumbers:
    """Seeds for the calls of one rank."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.root: int | None = None
        """What the seeds follow from; None: nothing has been drawn so far."""
        self.calls = 0
        """For which numbers of its own were drawn."""

    @contextmanager
    def drawn(self) -> Iterator[None]:
        """Draw from this rank's numbers meanwhile; the program's go on as if none were drawn."""
        common = random_states()
        if self.root is None:
            self.root = _digest(*(bytes(state.tolist()) for _, state in common))
        _seed(_digest(f"{self.root} {self.calls} {self.rank}".encode()), common)
        self.calls += 1
        try:
            yield
        finally:
            set_random(common)


def _seed(seed: int, states: Random) -> None:
    """Of the generators whose states these are: of no other device."""
    torch.default_generator.manual_seed(seed)
    if len(states) > 1:
        torch.cuda.default_generators[torch.cuda.current_device()].manual_seed(seed)


def _digest(*parts: bytes) -> int:
    """A number of 63 bits."""
    digest = hashlib.sha256(b"".join(parts)).digest()
    return int.from_bytes(digest[:8], "big") >> 1
