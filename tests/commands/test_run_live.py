"""`flatout run --live` as a user starts it: the program's own results, the decisions, the plan."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import forked
from commands.called import process
from measuring.programs import PAUSED, PLAIN, at_each_step

pytestmark = pytest.mark.slow

SLOW_UNTIL_DECIDED = (
    at_each_step(f"time.sleep(0 if {PAUSED} else 0.01)")
    + """
    if step % 20 == 0:
        records = os.path.dirname(os.environ["FLATOUT_ORDERS"]) + "/records"
        if any('"settled":true' in open(entry).read() for entry in os.scandir(records)): break
"""
)
"""Ends after the last decision: how many steps that takes depends on the machine."""


def live(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    words = ("run", "--live", "--python", forked.python(), *options)
    return process(*words, folder=folder, OMP_NUM_THREADS="1")


def test_what_is_faster_is_told_kept_and_written(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SLOW_UNTIL_DECIDED)
    done = live(tmp_path, "--only", "gc-pause", "train.py")
    assert (done.returncode, done.stdout) == (0, "")
    assert "flatout: gc-pause on, " in done.stderr
    assert "x faster: " in done.stderr
    assert "plan: flatout.toml" in done.stderr
    assert "[boosts.gc-pause]" in (tmp_path / "flatout.toml").read_text()
    (report,) = (tmp_path / ".flatout").rglob("report.html")
    assert "While it trained" in report.read_text()


ENDINGS = {
    "signal": ("os.kill(os.getpid(), signal.SIGTERM)", -15),
    "exception": ("raise ValueError", 1),
    "sys.exit": ("sys.exit(3)", 3),
    "end": ("break", 0),
}


def ends_when(record: str, ending: str) -> str:
    """The program that gc-pause makes faster; it ends so once there is such a record."""
    return (
        at_each_step(f"time.sleep(0 if {PAUSED} else 0.01)")
        + f"""
    records = os.path.dirname(os.environ["FLATOUT_ORDERS"]) + "/records"
    if any({record!r} in open(entry).read() for entry in os.scandir(records)):
        {ending}
"""
    )


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ENDINGS)
def test_however_it_ends_what_is_kept_is_told(tmp_path: Path, name: str) -> None:
    """In a first run once it is kept; in the next one, which has a plan, before it is measured."""
    ending, code = ENDINGS[name]
    script = tmp_path / "train.py"
    script.write_text(ends_when('"verdict":"kept"', ending))
    first = live(tmp_path, "--only", "gc-pause", "train.py")
    assert first.returncode == code
    assert "x faster: " in first.stderr
    assert "plan: flatout.toml" in first.stderr
    script.write_text(ends_when('"kind":"live"', ending))
    again = live(tmp_path, "--only", "gc-pause", "train.py")
    assert again.returncode == code
    told = "flatout: it ran with gc-pause; the program ended before that was measured"
    assert told in again.stderr
    for done in (first, again):
        assert "no boost made" not in done.stderr
    assert "[boosts.gc-pause]" in (tmp_path / "flatout.toml").read_text()


def test_the_program_s_own_results_are_the_same_to_the_last_bit(tmp_path: Path) -> None:
    """Boosts that reorder nothing are tried, switched and taken out: the losses stay."""
    script = PLAIN.replace("100_000):", "700):") + "    print(repr(loss.item()))\n"
    (tmp_path / "train.py").write_text(script + "print('end', torch.rand(1).item())\n")
    plain = forked.bare([str(tmp_path / "train.py")], tmp_path, tmp_path)
    tuned = live(tmp_path, "--only", "gc-pause", "--only", "allocator", "train.py")
    assert tuned.returncode == plain.returncode == 0
    assert tuned.stdout == plain.stdout
    assert len(plain.stdout.splitlines()) == 701
