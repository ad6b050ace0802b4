"""What tests of launches share: a program that tells its losses, and `flatout launch` itself."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOSS = re.compile(r"step (\d+) loss (\S+)")
PROGRAM = """\
import os, sys, time, torch
from torch import nn

steps, pause, fails = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1, steps + 1):
    loss = model(torch.randn(16, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", step, "loss", loss.item(), flush=True)
    time.sleep(pause)
    if fails and step == 3:
        raise ValueError("on purpose")
"""


def folder(path: Path) -> Path:
    """A code folder with the program in it."""
    path.mkdir()
    (path / "train.py").write_text(PROGRAM)
    return path


def environment(**more: str) -> dict[str, str]:
    """Of programs that tests start: this flatout, one thread each."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("FLATOUT_")}
    paths = [str(ROOT / "src"), inherited.get("PYTHONPATH", "")]
    return {
        **inherited,
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "OMP_NUM_THREADS": "1",
        **more,
    }


def shim(path: Path, *names: str) -> Path:
    """A folder for the path with this flatout, this python in it."""
    path.mkdir()
    for name in names:
        words = "-m flatout" if name == "flatout" else ""
        file = path / name
        file.write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
        file.chmod(0o755)
    return path


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "flatout", "launch", *words]


def run(
    *words: str, cwd: Path, env: dict[str, str], timeout_s: float = 120
) -> subprocess.CompletedProcess[str]:
    """`flatout launch` to its end."""
    return subprocess.run(
        command(*words),
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def losses(text: str) -> list[float]:
    """Of each step, in the order of their printing."""
    return [float(loss) for _, loss in LOSS.findall(text)]


def alone(path: Path, steps: int) -> list[float]:
    """Those of one process."""
    done = subprocess.run(
        [sys.executable, "train.py", str(steps), "0"],
        cwd=path,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    return losses(done.stdout)
