"""Run a training script and tell how long its steps take, from outside.

python benchmarks/step_clock.py SECONDS script.py ...

Writes a line of JSON to the file that STEP_CLOCK names: `step_ms`, the mean time from one optimizer
step to the next (loading, evaluation and all), and how many. The first ten steps (or as many as
STEP_CLOCK_SKIP says) are left out, a quarter of all at most where the script ends by itself: caches
are cold, and something may be compiled. A GPU has done its work at both ends of what is counted; a
step that is part of a CUDA graph counts each time that the graph runs. After so many SECONDS the
script is ended.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any

LEFT_OUT = 10
"""Steps that are not counted, at most."""


class Clock:
    """The time of each step of the script."""

    def __init__(self, limit_s: float) -> None:
        import torch

        self.cuda = torch.cuda
        self.limit_s = limit_s
        self.left_out = int(os.environ.get("STEP_CLOCK_SKIP", LEFT_OUT))
        self.times: list[float] = []
        self.enough = False
        self.recorded = 0
        """Steps in the graph that is being recorded."""

    def step(self, *_: object) -> None:
        """An optimizer has taken a step; ends the program when there were enough of them."""
        if self.cuda.is_initialized() and self.cuda.is_current_stream_capturing():
            self.recorded += 1
            return
        if len(self.times) == self.left_out:
            self.wait()
        now = time.perf_counter()
        self.times.append(now)
        if len(self.times) <= self.left_out + 1 or now - self.times[self.left_out] < self.limit_s:
            return
        self.wait()
        self.times[-1] = time.perf_counter()
        self.enough = True
        # `flatout run` learns at the end which boosts took hold.
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(0)

    def wait(self) -> None:
        """For what the GPU has been given."""
        if self.cuda.is_initialized():
            self.cuda.synchronize()

    def tell(self) -> None:
        first = self.left_out if self.enough else min(self.left_out, len(self.times) // 4)
        counted = self.times[first:]
        if len(counted) > 1:
            mean_s = (counted[-1] - counted[0]) / (len(counted) - 1)
            line = json.dumps({"step_ms": 1000 * mean_s, "steps": len(counted) - 1})
            Path(os.environ["STEP_CLOCK"]).write_text(line)

    def watch_graphs(self) -> None:
        """Count a step that was recorded in a graph each time that the graph runs."""
        graphs: Any = self.cuda.CUDAGraph
        end, replay = graphs.capture_end, graphs.replay
        steps: dict[int, int] = {}

        def ended(graph: Any) -> None:
            end(graph)
            steps[id(graph)], self.recorded = self.recorded, 0

        def replayed(graph: Any) -> None:
            replay(graph)
            for _ in range(steps.get(id(graph), 0)):
                self.step()

        graphs.capture_end, graphs.replay = ended, replayed


def main() -> None:
    clock = Clock(float(sys.argv[1]))
    del sys.argv[:2]
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    atexit.register(clock.tell)
    register_optimizer_step_post_hook(clock.step)
    if torch.version.cuda:
        clock.watch_graphs()
    torch.manual_seed(0)
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
