"""The same random numbers in all ranks, if the script seeds none itself.

A script that asks the system for entropy (`numpy.random.default_rng()`, `secrets`, `torch.seed`)
would draw other batches in each rank.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from flatout_agent.attach.importing import Callback

of_the_system: list[random.Random] = []
"""The generator that replaces the system's entropy."""


def before_torch(seed: int) -> Mapping[str, Callback]:
    """Seed Python's numbers now; returns actions for once NumPy and torch are imported."""
    random.seed(seed)
    entropy = random.Random(seed)
    of_the_system.append(entropy)

    def getrandbits(self: Any, k: int) -> int:
        return entropy.getrandbits(k)

    # NumPy's default_rng asks this one through `secrets`.
    random.SystemRandom.getrandbits = getrandbits  # type: ignore[method-assign]

    def numpy_imported(numpy: Any) -> None:
        numpy.random.seed(seed % 2**32)

    return {"numpy": numpy_imported}


def after_torch(torch: Any, seed: int) -> None:
    """Seed torch's numbers; `torch.seed()` and `Generator.seed()` give the same in all ranks."""
    torch.manual_seed(seed)
    numbers = random.Random(seed + 1)
    of_the_system.append(numbers)

    def seed_again() -> int:
        chosen = numbers.getrandbits(63)
        torch.manual_seed(chosen)
        return chosen

    torch.seed = torch.random.seed = seed_again
