"""One data-centre GPU: the library's training rates, and the examples' plan against the program.

Each part is a process of its own with a time limit; what fails is written down and does not stop
the rest. The file of results grows part by part.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import record

from tuning import summary, tune

HERE = Path(__file__).parent
EXAMPLES = HERE.parent / "examples"
PARTS = {
    "resnet50": ("gpu_rates.py", 100),
    "gpt2": ("gpu_rates.py", 80),
    "bert_large": ("gpu_rates.py", 80),
    "whole_step": ("gpu_launches.py", 70),
    "overhead": ("gpu_launches.py", 30),
    "resnet50_jpeg": ("gpu_rates.py", 110),
}
"""Part -> its script and the seconds it may take at most."""
RUNS = {
    "images": ["--model", "resnet50", "--size", "224", "--batch-size", "128", "--synthetic"],
    "text": ["--layers", "12", "--heads", "12", "--width", "768", "--context", "1024"],
}
SMALL_RUNS = {
    "images": ["--model", "resnet18", "--size", "32", "--batch-size", "8", "--synthetic"],
    "text": ["--layers", "1", "--heads", "2", "--width", "32", "--context", "32"],
}
LEAST_TUNING_S = 60.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=record.RESULTS)
    parser.add_argument("--seconds", type=float, default=540.0, help="for everything together")
    parser.add_argument("--small", action="store_true", help="tiny, on any machine: does it run?")
    parser.add_argument("--only", nargs="*", choices=[*PARTS, *RUNS], help="these parts")
    arguments = parser.parse_args()
    end = time.monotonic() + arguments.seconds
    wanted = arguments.only or [*PARTS, *RUNS]
    name = "gpu-small" if arguments.small else "gpu"
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as cache:
        for part in wanted:
            left = end - time.monotonic()
            if part in PARTS:
                figures[part] = library_part(part, arguments.small, left, Path(cache))
            else:
                waiting = len([run for run in wanted[wanted.index(part) :] if run in RUNS])
                figures[part] = tuning_part(part, arguments.small, left / waiting)
            record.write(name, figures, arguments.out)


def library_part(part: str, small: bool, left_s: float, cache: Path) -> dict[str, Any]:
    """The figures of one process, or what became of it."""
    script, most_s = PARTS[part]
    limit = min(most_s * (3 if small else 1), left_s)  # small: on a machine that does other work
    if limit < 10:
        return {"failed": "no time was left"}
    command = [sys.executable, str(HERE / script), part, *(["--small"] if small else [])]
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache)}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=limit, env=environment, check=False
        )
    except subprocess.TimeoutExpired as error:
        said = (error.stderr or b"").decode(errors="replace")
        return {"failed": f"took more than {limit:.0f} s", "stderr": said[-2000:]}
    if done.returncode:
        return {"failed": f"exit code {done.returncode}", "stderr": done.stderr[-2000:]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def tuning_part(part: str, small: bool, left_s: float) -> dict[str, Any]:
    """What `flatout tune` finds for an example, within the time that is left."""
    if left_s < LEAST_TUNING_S and not small:
        return {"failed": f"{max(0.0, left_s):.0f} s were left, too few to tune"}
    options = (SMALL_RUNS if small else RUNS)[part]
    script = [str(EXAMPLES / part / "train.py"), *options]
    budget = f"{max(20, int(min(150.0, left_s - 20)))}s"
    with tempfile.TemporaryDirectory() as folder:
        try:
            document = tune(
                script, Path(folder), "--budget", budget, timeout_s=max(30.0, left_s + 30)
            )
        except (SystemExit, subprocess.TimeoutExpired) as error:
            return {"failed": str(error)[-2000:]}
    return summary(document)


if __name__ == "__main__":
    main()
