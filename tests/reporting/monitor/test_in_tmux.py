"""The screen on a real terminal, which is tmux: sizes, a job, its end."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed"),
]

TESTS = Path(__file__).parents[2]
LIMIT_S = 120.0
PROGRAM = """
import time
from reporting.monitor import frames
from flatout.reporting.monitor.live_screen import show

def source():
    while True:
        yield frames.eight_gpus()
        time.sleep(0.2)

show(source())
print("it has ended")
"""
TRAINS = """
import time, torch
weight = torch.ones(4, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.01)
for step in range(100_000):
    loss = weight.square().sum() * (float("nan") if step > 50 else 1.0)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.02)
"""


class Tmux:
    """A server of its own, with one window."""

    def __init__(self, folder: Path) -> None:
        self._command = ["tmux", "-S", str(folder / "tmux"), "-f", os.devnull]
        self._folder = folder

    def __call__(self, *words: str) -> str:
        done = subprocess.run(
            [*self._command, *words], capture_output=True, text=True, timeout=120, check=True
        )
        return done.stdout

    def start(self, *command: str, size: str = "80x24", **environ: str) -> None:
        """Run the command in a shell, so that the window stays when it has ended."""
        width, height = size.split("x")
        path = os.pathsep.join([str(TESTS), str(TESTS.parent / "src")])
        settings = {"PYTHONPATH": path, "XDG_RUNTIME_DIR": str(self._folder), **environ}
        unset = ("-u", "COLUMNS", "-u", "LINES", "-u", "NO_COLOR")  # those of the tests
        words = ["env", *unset, *(f"{name}={value}" for name, value in settings.items()), *command]
        line = f"cd {shlex.quote(str(self._folder))}; {shlex.join(words)}; cat"
        self("new-session", "-d", "-x", width, "-y", height, line)

    def press(self, *keys: str) -> None:
        self("send-keys", *keys)

    def lines(self, *words: str) -> list[str]:
        return self("capture-pane", "-p", *words).splitlines()

    def until(self, holds: Callable[[str], object], *words: str) -> str:
        """The screen as soon as it is so."""
        deadline = time.monotonic() + LIMIT_S
        while not holds(text := "\n".join(self.lines(*words))):
            assert time.monotonic() < deadline, text
            time.sleep(0.1)
        return text


@pytest.fixture
def tmux(tmp_path: Path) -> Iterator[Tmux]:
    tmux = Tmux(tmp_path)
    yield tmux
    subprocess.run([*tmux._command, "kill-server"], check=False, capture_output=True)


@pytest.mark.thorough
@pytest.mark.parametrize("size", ["80x24", "120x40", "200x50"])
def test_all_is_there_at_any_size(tmux: Tmux, size: str) -> None:
    tmux.start(sys.executable, "-c", PROGRAM, size=size)
    patterns = ["5 jobs, 2 alerts", "HANG001", "WAIT001", "[Ss]ort", "(?s)" + ".*61G/80G" * 8]
    for number in (3, 4) if size == "80x24" else range(5):
        patterns.append(rf"train.py --epochs {number} .* 1234/20000 .* 201 ms .* 41% .* 2\.317")
    if size != "80x24":
        patterns += ["1h02", "thermal", "exit 1", re.escape("$ flatout run --live S")]
    # A screen is drawn part by part, and may be looked at in between.
    text = tmux.until(lambda text: all(re.search(pattern, text) for pattern in patterns))
    assert text.count("61G/80G") == 8
    tmux.press("q")
    text = tmux.until(lambda text: "it has ended" in text)
    assert "flatout monitor" not in text  # the terminal is as it was


@pytest.mark.thorough
def test_a_real_job(tmux: Tmux, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINS)
    flatout = [sys.executable, "-m", "flatout"]
    environ = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [*flatout, "run", "train.py", "in-tmux"], cwd=tmp_path, env=environ,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as job:  # fmt: skip
        try:
            tmux.start(*flatout, "monitor", size="120x40")
            tmux.until(lambda text: "flatout monitor  " in text)
            tmux.until(lambda text: re.search("in-tmux +training", text) and "NAN001" in text)
            job.terminate()
            tmux.until(lambda text: re.search("in-tmux +exit 143", text))
        finally:
            job.kill()
