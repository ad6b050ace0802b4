"""Run a training script, and time blocks of its steps when told to.

python benchmarks/turns.py GIVEN_S BLOCK_S script.py ...

So several processes can be compared that are long in training: after GIVEN_S seconds of steps the
script waits within a step until a line comes through the FIFO `go` in the folder that TURNS names.
Then it trains for BLOCK_S seconds, writes the median of its steps in ms to the FIFO `told`, and
waits again. When `go` is closed, it ends.
"""

from __future__ import annotations

import atexit
import os
import runpy
import statistics
import sys
import time
from pathlib import Path


class Turns:
    """Stands behind each step of the script's optimizers."""

    def __init__(self, given_s: float, block_s: float) -> None:
        self.block_s = block_s
        self.first_s = given_s
        """Until the first turn."""
        self.began: float | None = None
        self.times: list[float] = []
        folder = Path(os.environ["TURNS"])
        self.go = (folder / "go").open(encoding="utf-8")
        self.told = (folder / "told").open("w", encoding="utf-8")

    def step(self, *_: object) -> None:
        """An optimizer has taken a step."""
        now = time.perf_counter()
        if self.began is None:
            self.began = now
        self.times.append(now)
        if now - self.began < (self.first_s or self.block_s) or len(self.times) < 3:
            return
        steps = [after - before for before, after in zip(self.times, self.times[1:], strict=False)]
        self.told.write(f"{1000 * statistics.median(steps)}\n")
        self.told.flush()
        if not self.go.readline():
            atexit._run_exitfuncs()  # flatout tells there what it has decided
            sys.stdout.flush()
            os._exit(0)
        self.first_s, self.times = 0.0, []
        self.began = time.perf_counter()


def main() -> None:
    turns = Turns(float(sys.argv[1]), float(sys.argv[2]))
    del sys.argv[:3]
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    register_optimizer_step_post_hook(turns.step)
    torch.manual_seed(0)
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
