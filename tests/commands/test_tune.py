"""`flatout tune` as a user starts it: what it says of each bad input, and what it leaves behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import forked
from commands.called import Flatout
from measuring.programs import PAUSED, PLAIN, SLOW_UNLESS_PAUSED, at_each_step
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


def words(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "flatout", "tune", *arguments]


def tune(folder: Path, *arguments: str, python: str = "", **variables: str) -> Told:
    environment = {**os.environ, **variables}
    done = subprocess.run(
        words("--python", python or forked.python(), *arguments),
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    return Told(done.returncode, done.stdout, done.stderr)


def job(name: str) -> str:
    return str(JOBS / f"{name}.py")


def files(folder: Path) -> set[str]:
    """The user's files: all but flatout's own."""
    paths = (path.relative_to(folder) for path in folder.rglob("*"))
    return {str(path) for path in paths if path.parts[0] not in (".flatout", "flatout.toml")}


# Wrong usage ------------------------------------------------------------------------------------


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("arguments", "told", "cure"),
    [
        (["none.py"], "no such script: none.py", "next: "),
        (["--only", "bf16-autocas", "train.py"], "no boost 'bf16-autocas'", "bf16-autocast"),
        (["--budget", "10x", "train.py"], "'10x' is not a time", "10m"),
        ([], "no script is named", "flatout tune train.py"),
        (["--skip", "tf-32", "train.py"], "no boost 'tf-32'", "tf32"),
        (["--only", "tf32", "--skip", "tf32", "train.py"], "tf32 is named by", "once"),
        (["--budget", "0", "train.py"], "'0' is not a time", "10m"),
        (["--steps", "1", "train.py"], "--steps", "flatout tune --help"),
        (["--python", "none/python", "train.py"], "none/python", "next: "),
        (["--plan", "none/plan.toml", "train.py"], "no folder none", "next: "),
        (["--plan", ".", "train.py"], "is a folder", "--plan plan.toml"),
    ],
)
def test_wrong_usage_is_told_before_anything_runs(
    flat: Flatout, tmp_path: Path, arguments: list[str], told: str, cure: str
) -> None:
    (tmp_path / "train.py").write_text("open('started', 'w')")
    done = flat("tune", *arguments, folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
    assert cure in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.py"]


# A program that cannot be measured --------------------------------------------------------------


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
    python = sys.executable if script == "no_torch" else ""
    words = ("--json", "--budget", "60s", job(script), *options)
    done = tune(tmp_path, *words, python=python)
    error = json.loads(done.out)
    assert (done.code, error["schema"], error["exit_code"]) == (1, "flatout.error/1", 1)
    for text in told:
        assert text in done.err
    log = Path(done.err.rpartition("its whole output: ")[2].strip())
    assert log.read_text().splitlines()[-1] in done.err
    assert "Traceback" not in "".join(x for x in done.err.splitlines() if not x.startswith("  | "))
    assert not (tmp_path / "flatout.toml").exists()


@pytest.mark.thorough
def test_a_program_that_hangs_is_ended_with_the_budget(tmp_path: Path) -> None:
    """On a loaded machine it may not have come to its first steps by then."""
    done = tune(tmp_path, "--budget", "6s", job("hangs"))
    assert done.code == 1
    assert re.search(r"stopped after \d+ s with [0-5] steps taken", done.err), done.err
    assert "--budget" in done.err.splitlines()[-1]
    assert under_orders(str(tmp_path)) == []


@pytest.mark.thorough
def test_an_interpreter_that_ignores_the_agent(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('trained')")
    done = tune(tmp_path, "--", sys.executable, "-I", "train.py")
    assert done.code == 2
    assert "python -I" in done.err
    assert "| trained" in done.err
    assert "Traceback" not in done.err


# A good run -------------------------------------------------------------------------------------


def check(done: Told, folder: Path, plan: Path) -> None:
    """Exit code, document and plan file agree, and nothing of flatout's runs any more."""
    document = done.document
    assert document.keys() >= KEYS
    assert document["schema"] == "flatout.tune/1"
    assert document["baseline"]["step_ms"] > 0
    assert (document["faults"], document["leaked"]) == ([], [])
    assert Path(folder, document["report"]).is_file()
    assert done.code == (0 if document["plan"] else 1)
    assert plan.is_file() == bool(document["plan"])
    assert bool(document["boosts"]) == bool(document["plan"])
    if document["plan"]:
        # None where other tests took cores from the A/B runs.
        interval = document["speedup_interval"]
        assert interval is None or interval[0] > 1
    assert under_orders(str(folder)) == []


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
    done = tune(tmp_path, *options, "--plan", "fast.toml", "train.py")
    check(done, tmp_path, tmp_path / "fast.toml")
    assert (done.code, done.document["plan"]) == (0, "fast.toml")
    assert done.document["speedup"] > 1
    assert [boost["id"] for boost in done.document["boosts"]] == ["gc-pause"]
    assert "[boosts.gc-pause]" in (tmp_path / "fast.toml").read_text()
    verdicts = done.verdicts()
    assert verdicts["tf32"] == ("skipped", "not named by --only")
    assert verdicts["bf16-autocast"] == ("failed", "RuntimeError: no kernel for this type")
    # What the program saves is listed and not left behind.
    redirected = {Path(path).name for path in done.document["redirected"]}
    assert redirected >= {"log.txt", "checkpoint-00020.pt"}
    assert files(tmp_path) == {"train.py", "fast.toml", "out", "out/log.txt"}
    assert (tmp_path / "out" / "log.txt").read_text() == "of an earlier run"


@pytest.mark.thorough
@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a folder nobody can write to")
def test_a_plan_that_cannot_be_written_there_is_kept(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SLOW_UNLESS_PAUSED)
    options = ["--json", "--budget", "60s", "--only", "gc-pause", "--steps", STEPS]
    done = tune(tmp_path, *options, "--plan", "/proc/plan.toml", "train.py")
    assert done.code == 0
    kept = Path(done.document["plan"])
    assert kept.name == "plan.toml"
    assert "[boosts.gc-pause]" in (tmp_path / kept).read_text()
    assert "cannot write the plan to /proc/plan.toml" in done.err
    assert f"flatout run --plan {kept}" in done.err


@pytest.mark.thorough
def test_a_module_by_its_name_where_nothing_can_be_written(tmp_path: Path) -> None:
    """As root a read-only folder cannot be had: a file stands where flatout's folder would be."""
    work, temporary, package = (tmp_path / name for name in ("work", "temporary", "package"))
    for folder in (work, temporary, package):
        folder.mkdir()
    (work / ".flatout").write_text("")
    slower = at_each_step(f"time.sleep(SLOW_S if {PAUSED} else 0)")
    (package / "__init__.py").write_text("")
    (package / "slow.py").write_text("SLOW_S = 0.02\n")
    (package / "train.py").write_text(f"from .slow import SLOW_S\n{slower}")
    options = ["--json", "--budget", "90s", "--only", "gc-pause", "--steps", "8"]
    variables = {"PYTHONPATH": str(tmp_path), "TMPDIR": str(temporary)}
    done = tune(work, *options, "-m", "package.train", **variables)
    assert Path(done.document["run_folder"]).parent == temporary
    assert done.document["trials"][0]["verdict"] == "kept"
    check(done, work, work / "flatout.toml")
    assert done.verdicts()["gc-pause"][0] == "slower"
    assert files(work) == set()
    assert under_orders(str(tmp_path)) == []


# Ctrl-C -----------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.few(1)
@pytest.mark.parametrize("after", ["switching", "as written:"])
def test_ctrl_c_leaves_nothing_running(tmp_path: Path, after: str) -> None:
    # It is interrupted before its first step, however late that comes.
    waits = "import time; time.sleep(600)\n" if after == "switching" else ""
    (tmp_path / "train.py").write_text(waits + PLAIN)
    with subprocess.Popen(
        words("--json", "--steps", "1000", "train.py"),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        while after not in process.stderr.readline():
            assert process.poll() is None
        while not under_orders(str(tmp_path)):
            assert process.poll() is None
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert under_orders(str(tmp_path)) == []
    assert "Traceback" not in err
    assert not (tmp_path / "flatout.toml").exists()
    assert process.returncode == 130
    document = json.loads(out)
    if after == "switching":
        assert document["error"] == "interrupted"
    else:
        assert document["interrupted"] is True
        assert document["plan"] is None


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_ctrl_c_keeps_the_best_plan_so_far(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SLOW_UNLESS_PAUSED)
    with subprocess.Popen(
        words("--json", "--steps", STEPS, "--only", "gc-pause", "train.py"),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stderr is not None
        while "confirming" not in process.stderr.readline():
            assert process.poll() is None
        os.killpg(process.pid, signal.SIGINT)
        out, _ = process.communicate(timeout=120)
    document = json.loads(out)
    assert process.returncode == 0
    assert (document["interrupted"], document["answer"]) == (True, "unconfirmed")
    assert "[boosts.gc-pause]" in (tmp_path / document["plan"]).read_text()
    assert under_orders(str(tmp_path)) == []
