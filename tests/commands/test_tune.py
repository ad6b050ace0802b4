"""`flatout tune` as a user starts it: what it says of each bad input, and what it leaves behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import forked
from commands.called import process
from measuring.programs import PAUSED, PLAIN, at_each_step
from processes import under_orders

pytestmark = pytest.mark.slow

JOBS = Path(__file__).parent.parent / "jobs"
KEYS = {
    "schema", "baseline", "best", "speedup", "speedup_interval", "trials", "guard", "plan",
    "report", "redirected", "leaked", "faults", "notes", "interrupted",
}  # fmt: skip

STEPS = "40"
"""Of 2 ms each, so that a pause of the machine itself is not the whole window."""


@dataclass
class Told:
    """How `flatout tune` ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out)
        return found

    def verdicts(self) -> dict[str, tuple[str, str]]:
        """Boost -> verdict and reason of its last row."""
        rows = self.document["trials"]
        return {row["tried"]: (row["verdict"], row["reason"]) for row in rows if row["tried"]}


def tune(folder: Path, *arguments: str, python: str) -> Told:
    done = process("tune", "--python", python, *arguments, folder=folder)
    return Told(done.returncode, done.stdout, done.stderr)


def files(folder: Path) -> set[str]:
    """The user's files: all but flatout's own."""
    paths = (path.relative_to(folder) for path in folder.rglob("*"))
    return {str(path) for path in paths if path.parts[0] not in (".flatout", "flatout.toml")}


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("script", "options", "told"),
    [
        ("raises", ["--after", "4"], ["ValueError: step 4 went wrong (exit code 1)", "line 31"]),
        ("eager_exit", ["--after", "4"], ["(exit code 3)", "| enough"]),
        ("few_steps", [], ["after 2 steps: too few", "| step 2"]),
        ("no_torch", [], ["never imported torch", "| sum 1.64"]),
        ("no_train", [], ["took no optimizer step", "| sum"]),
    ],
)
def test_a_program_that_gives_no_measurement(
    tmp_path: Path, script: str, options: list[str], told: list[str]
) -> None:
    python = sys.executable if script == "no_torch" else forked.python()
    words = ("--json", "--budget", "60s", str(JOBS / f"{script}.py"), *options)
    done = tune(tmp_path, *words, python=python)
    error = json.loads(done.out)
    assert (done.code, error["schema"], error["exit_code"]) == (1, "flatout.error/1", 1)
    for text in told:
        assert text in done.err
    log = Path(done.err.rpartition("its whole output: ")[2].strip())
    assert log.read_text().splitlines()[-1] in done.err
    assert "Traceback" not in "".join(x for x in done.err.splitlines() if not x.startswith("  | "))
    assert not (tmp_path / "flatout.toml").exists()


REFUSES_AND_SAVES = (
    at_each_step(f"time.sleep(0 if {PAUSED} else 0.01)")
    .replace(
        "model = nn",
        """class Refuse(nn.Module):
    def forward(self, x):
        if torch.is_autocast_enabled('cpu'):
            raise RuntimeError('no kernel for this type')
        return x
log = open("out/log.txt", "w")
model = nn""",
    )
    .replace("nn.ReLU()", "nn.ReLU(), Refuse()")
)
REFUSES_AND_SAVES += """
    log.write(f"{step}\\n")
    if step % 20 == 0:
        torch.save(model.state_dict(), f"out/checkpoint-{step:05d}.pt")
        if step >= 40:
            os.unlink(f"out/checkpoint-{step - 40:05d}.pt")
"""
"""Fails under autocast; keeps a log, where one is already, and the newest two checkpoints."""


def test_what_is_faster_becomes_a_plan_and_what_breaks_the_program_a_row(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(REFUSES_AND_SAVES)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "log.txt").write_text("of an earlier run")
    chosen = ["--only", "bf16-autocast", "--only", "gc-pause"]
    options = ["--json", "--budget", "200s", "--steps", STEPS, *chosen]
    given = (*options, "--plan", "fast.toml", "train.py")
    done = tune(tmp_path, *given, python=forked.python())
    document = done.document
    assert document.keys() >= KEYS
    assert (document["schema"], document["plan"], done.code) == ("flatout.tune/1", "fast.toml", 0)
    assert document["baseline"]["step_ms"] > 0
    assert (document["faults"], document["leaked"]) == ([], [])
    assert (tmp_path / document["report"]).is_file()
    assert document["speedup"] > 1
    # None where other tests took cores from the A/B runs.
    assert document["speedup_interval"] is None or document["speedup_interval"][0] > 1
    assert under_orders(str(tmp_path)) == []
    assert [boost["id"] for boost in done.document["boosts"]] == ["gc-pause"]
    assert "[boosts.gc-pause]" in (tmp_path / "fast.toml").read_text()
    verdicts = done.verdicts()
    assert verdicts["tf32"] == ("skipped", "not named by --only")
    assert verdicts["bf16-autocast"] == ("failed", "RuntimeError: no kernel for this type")
    # What the program saves is listed and not left behind.
    redirected = {Path(path).name for path in done.document["redirected"]}
    assert redirected >= {"log.txt", "checkpoint-00020.pt"}
    assert files(tmp_path) == {"train.py", "fast.toml", "out", "out/log.txt"}
    assert not list(tmp_path.rglob("checkpoint*")), "nor is a copy"
    assert (tmp_path / "out" / "log.txt").read_text() == "of an earlier run"


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.few(1)
@pytest.mark.parametrize("after", ["switching", "as written:"])
def test_ctrl_c_leaves_nothing_running(tmp_path: Path, after: str) -> None:
    # It is interrupted before its first step, however late that comes.
    waits = "import time; time.sleep(600)\n" if after == "switching" else ""
    (tmp_path / "train.py").write_text(waits + PLAIN)
    with subprocess.Popen(
        [sys.executable, "-m", "flatout", "tune", "--json", "--steps", "1000", "train.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as tuning:
        assert tuning.stdout is not None
        assert tuning.stderr is not None
        while after not in tuning.stderr.readline():
            assert tuning.poll() is None
        while not under_orders(str(tmp_path)):
            assert tuning.poll() is None
            time.sleep(0.02)
        os.killpg(tuning.pid, signal.SIGINT)
        out, err = tuning.communicate(timeout=120)
    assert under_orders(str(tmp_path)) == []
    assert "Traceback" not in err
    assert not (tmp_path / "flatout.toml").exists()
    assert tuning.returncode == 130
    document = json.loads(out)
    if after == "switching":
        assert document["error"] == "interrupted"
    else:
        assert document["interrupted"] is True
        assert document["plan"] is None
