"""`flatout launch` as a process, and a program whose losses show how it was trained."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import forked

LIMIT_S = 150.0
PROGRAM = """
import os, sys, time
import torch
import flatout

STEPS, SLEEP = int(sys.argv[1]), float(sys.argv[2])
torch.manual_seed(0)
dice = torch.Generator().manual_seed(1)
inputs, targets = torch.randn(64, 24, 8, generator=dice), torch.randn(64, 24, 1, generator=dice)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
checkpoint = flatout.Checkpoint(sys.argv[3], every=None, model=model, optimizer=optimizer)
begun = checkpoint.resume()
print("from", begun, flush=True)
for number in range(begun, STEPS):
    loss = torch.nn.functional.mse_loss(model(inputs[number % 64]), targets[number % 64])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", number + 1, f"{loss.item():.7f}", flush=True)
    if os.environ.get("FAILS") == os.environ.get("FLATOUT_RANK", "0") and number == 4:
        raise ValueError("no such label")
    checkpoint.after_step()
    time.sleep(SLEEP)
checkpoint.close()
"""


def command(*words: str) -> list[str]:
    """A call of `flatout launch`."""
    return [sys.executable, "-m", "flatout", "launch", *words]


class LaunchCalls:
    """Calls of `flatout launch` in one folder, with these variables."""

    def __init__(self, folder: Path, variables: Mapping[str, str]) -> None:
        self.folder = folder
        self._env = {**os.environ, "COLUMNS": "200", "LC_ALL": "C.UTF-8", **variables}

    def __call__(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Run it to its end; more: further variables."""
        return subprocess.run(
            command(*words),
            cwd=self.folder,
            env={**self._env, **more},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            stdin=subprocess.DEVNULL,
        )

    def begin(self, *words: str) -> Following:
        """Start it; its output is read as it comes."""
        return Following(command(*words), self.folder, self._env)

    def alone(self, *words: str) -> dict[int, float]:
        """The losses of the program as one process."""
        program = forked.start(list(words), self.folder, self._env)
        out, err = program.communicate(timeout=LIMIT_S)
        assert program.returncode == 0, err
        return losses(out)


class Following:
    """A call that is still running."""

    def __init__(self, command: list[str], folder: Path, env: Mapping[str, str]) -> None:
        self._said = folder / f"said-{time.monotonic_ns()}"
        with self._said.open("wb") as said:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                env=env,
                stdout=said,
                stderr=said,
                stdin=subprocess.DEVNULL,
                preexec_fn=_heeds_ctrl_c,
            )

    @property
    def said(self) -> str:
        """All of its output so far."""
        return self._said.read_text(errors="replace")

    def until(self, pattern: str) -> re.Match[str]:
        """Wait until its output has that."""
        found: list[re.Match[str]] = []

        def there() -> bool:
            found.extend(re.finditer(pattern, self.said))
            return bool(found) or self.process.poll() is not None

        wait_for(there, lambda: f"{pattern!r} is not in\n{self.said}")
        assert found, f"it has ended without {pattern!r}:\n{self.said}"
        return found[0]

    def interrupt(self) -> int:
        """Ctrl-C; the exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.end()

    def end(self) -> int:
        """Wait for its end; the exit code."""
        return self.process.wait(LIMIT_S)

    def close(self) -> None:
        """End it where it still runs."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def _heeds_ctrl_c() -> None:
    """A shell that starts the tests in the background has them ignore it, and all below them."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def losses(output: str) -> dict[int, float]:
    """Of each step, as it was printed last; behind a node's name or not."""
    found = re.findall(r"^(?:\[node \d+\] )?step (\d+) (\S+)$", output, re.MULTILINE)
    return {int(step): float(loss) for step, loss in found}


def wait_for(true: Callable[[], bool], otherwise: Callable[[], str]) -> None:
    """Look again and again, for LIMIT_S at most."""
    deadline = time.monotonic() + LIMIT_S
    while not true():
        assert time.monotonic() < deadline, otherwise()
        time.sleep(0.1)
