"""Run a training script and tell how long its steps take, from outside.

python benchmarks/step_clock.py SECONDS script.py ...

Writes a line of JSON to the file that STEP_CLOCK names: `step_ms`, the mean time from one optimizer
step to the next (loading, evaluation and all), and how many. The first ten steps, or a quarter of
fewer than 40, are left out: caches are cold, and something may be compiled. After so many SECONDS
the script is ended.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import sys
import time
from pathlib import Path

LEFT_OUT = 10
"""Steps that are not counted, at most."""


def main() -> None:
    limit_s = float(sys.argv[1])
    del sys.argv[:2]
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    times: list[float] = []
    began = time.perf_counter()

    def told() -> None:
        first = min(LEFT_OUT, len(times) // 4)
        counted = times[first:]
        if len(counted) > 1:
            mean_s = (counted[-1] - counted[0]) / (len(counted) - 1)
            line = json.dumps({"step_ms": 1000 * mean_s, "steps": len(counted) - 1})
            Path(os.environ["STEP_CLOCK"]).write_text(line)

    def stepped(*_: object) -> None:
        now = time.perf_counter()
        if len(times) == LEFT_OUT:
            nonlocal began
            began = now
        times.append(now)
        if len(times) > LEFT_OUT and now - began > limit_s:
            told()
            sys.stdout.flush()
            os._exit(0)

    atexit.register(told)
    register_optimizer_step_post_hook(stepped)
    torch.manual_seed(0)
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
