"""Random numbers of one rank, used inside regions, with a separate seed for each call.

Dropout must draw different numbers for each rank's rows. The seeds follow from the program's own
seed (`root`), the number of the call and the rank. So a program that seeds its random numbers gets
the same ones at each start with the same number of ranks. A checkpoint needs only two integers, the
same in all ranks, to continue with them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from flatout_agent.ranks.kept import random_states, set_random


class OwnNumbers:
    """Seeds for the calls of one rank."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.root: int | None = None
        """The root of the seeds, or None if nothing has been drawn so far."""
        self.calls = 0
        """The number of calls for which own numbers were drawn."""

    @contextmanager
    def drawn(self) -> Iterator[None]:
        """Draw from this rank's numbers meanwhile; the program's numbers go on as if none were
        drawn.
        """
        common = random_states()
        if self.root is None:
            self.root = _digest(*(bytes(state.tolist()) for _, state in common))
        # Seed the generators that these states belong to, and no other device's.
        seed = _digest(f"{self.root} {self.calls} {self.rank}".encode())
        torch.default_generator.manual_seed(seed)
        if len(common) > 1:
            torch.cuda.default_generators[torch.cuda.current_device()].manual_seed(seed)
        self.calls += 1
        try:
            yield
        finally:
            set_random(common)


def _digest(*parts: bytes) -> int:
    """A number of 63 bits."""
    digest = hashlib.sha256(b"".join(parts)).digest()
    return int.from_bytes(digest[:8], "big") >> 1
