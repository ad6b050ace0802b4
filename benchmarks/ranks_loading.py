"""A script that waits for its images on two ranks: what is it worth that they share the loading?

python benchmarks/ranks_loading.py --pairs 5

`rank_programs/slow_loading.py` on two ranks of one thread each that share the loading, in turn with
two that read everything each (`rank_programs/unshared.py`), and with one process of one thread and
of two, whichever is faster. Nothing else may run meanwhile: six minutes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import Any

import ranks
import record

LOADING = {
    "no workers": [],
    "no workers, cut at random": ["--augment"],
    "one worker for each process": ["--workers", "1"],
}
"""Words for slow_loading.py."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    pairs = parser.parse_args().pairs
    figures = {}
    for name, words in LOADING.items():
        figures[name] = loading(words, pairs)
        record.write("ranks_loading", figures)  # what was measured is not lost with the next one


def loading(words: list[str], pairs: int) -> dict[str, Any]:
    """Times of whole steps in turn: shared, every rank reads everything, one process."""
    slow = [str(ranks.PROGRAMS / "slow_loading.py"), *words]
    unshared = [str(ranks.PROGRAMS / "unshared.py"), *slow]
    turns = []
    for _ in range(pairs):
        alone = min(ranks.step_ms(ranks.program(slow, threads)) for threads in (1, 2))
        turns.append((ranks.ranks_ms(slow), ranks.ranks_ms(unshared), alone))
        sys.stderr.write(f"{words}: {turns[-1]}\n")
    return {
        "ms": [round(statistics.median(column), 2) for column in zip(*turns, strict=True)],
        "against_unshared": ranks.interval([whole / shared for shared, whole, _ in turns]),
        "against_one_process": ranks.interval([one / shared for shared, _, one in turns]),
        "pairs": len(turns),
    }


if __name__ == "__main__":
    main()
