"""Kill -9 of monitors beside a job, and of jobs beside a monitor: who is harmed, what is told."""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import record

from flatout.watching.observing import JobsObserver

JOB = """
import sys, time, torch
torch.manual_seed(0)
w = torch.ones(8, requires_grad=True)
optimizer = torch.optim.SGD([w], lr=0.001)
for step in range(int(sys.argv[1])):
    (w * torch.randn(8)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.02)
print(float(w.detach().sum()))
"""
LIMIT_S = 120.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=50)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "job.py").write_text(JOB)
        figures = {
            "monitor_killed": monitors(folder, arguments.times),
            "job_killed": jobs(folder, arguments.times),
        }
    record.write("monitor_kills", figures)


def started(folder: str, steps: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "flatout", "run", "--quiet", "--no-plan", "job.py", str(steps)]
    return subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def monitors(folder: str, times: int) -> dict[str, Any]:
    """One long job; monitors beside it are killed one after the other at their first frame."""
    alone, _ = started(folder, 200).communicate(timeout=LIMIT_S)
    job = started(folder, max(200, 60 * times))
    command = [sys.executable, "-m", "flatout", "monitor", "--json", "--follow"]
    for _ in range(times):
        monitor = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert monitor.stdout is not None
        monitor.stdout.readline()
        monitor.kill()
        monitor.communicate()
    running = job.poll() is None
    out, errors = job.communicate(timeout=60 * times * 0.1 + LIMIT_S)
    again, _ = started(folder, 200).communicate(timeout=LIMIT_S)
    return {
        "times": times,
        "job_ran_on": running,
        "exit_code": job.returncode,
        "printed_one_line": len(out.splitlines()) == 1,
        "stderr": errors,
        "same_result_before_and_after": alone == again,
    }


def jobs(folder: str, times: int) -> dict[str, Any]:
    """Jobs killed beside one observer: how soon the end is told, and with what cause."""
    told: list[float] = []
    causes: list[str] = []
    with JobsObserver() as observer:
        for _ in range(times):
            job = started(folder, 100_000)
            program = wait_for(observer, lambda sample: (sample.step or 0) > 5, job.pid)
            os.kill(program.pid, signal.SIGKILL)
            began = time.perf_counter()
            ended = wait_for(observer, lambda sample: sample.state == "ended", job.pid)
            told.append(time.perf_counter() - began)
            alerts = [a for a in observer.frame().alerts if a.job == ended.id]
            causes += [alert.evidence for alert in alerts if alert.code == "END001"]
            job.communicate()
    return {
        "times": times,
        "told": len(told),
        "causes": {cause: causes.count(cause) for cause in set(causes)},
        "told_s": {"median": round(statistics.median(told), 3), "most": round(max(told), 3)},
    }


def wait_for(observer: JobsObserver, holds: Any, host: int) -> Any:
    """The first sample of that job of which this is true, looked at once a second."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        for sample in observer.frame().jobs:
            if sample.id.startswith(f"{host}-") and holds(sample):
                return sample
        time.sleep(1.0)
    raise TimeoutError("the monitor did not tell")


if __name__ == "__main__":
    main()
