"""`flatout run --ranks` as a process: output, signals, failures; the ranks are stand-ins."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flatout.nouns.ranks import RankFailure
from flatout.running.one import foreground
from flatout.running.one.command import resolve
from flatout.running.ranks import hang
from flatout.running.ranks.hang import HangSearch, RankHang
from flatout.running.ranks.layout import RankLayout
from flatout.running.ranks.started import RankLimits, StartedRanks, _Member
from flatout_agent import wire
from processes import under_orders
from running.ranks.rank_programs import program
from running.stand_in import DRIVER, Flatout
from running.waiting import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="stacks on a signal"),
]
RANKS = ("run", "--no-plan", "--no-trial", "--ranks", "2")
PATIENT = DRIVER.replace(
    "from flatout.__main__",
    "import functools\n"
    "from flatout.running.ranks import started\n"
    "started.RankLimits = functools.partial(started.RankLimits, stacks_s=60.0, interrupt_s=60.0)\n"
    "from flatout.__main__",
)
"""It waits for the stacks of ranks, and for their ends, however busy the machine is."""


@pytest.fixture
def flatout(flatout: Flatout) -> Flatout:
    flatout.prefix[2] = PATIENT
    return flatout


def lines(done: subprocess.CompletedProcess[bytes]) -> list[str]:
    return done.stderr.decode().splitlines()


def test_each_rank_has_its_orders_and_rank_0_alone_is_heard(flatout: Flatout) -> None:
    flatout.script(
        program("""
own = {k: v for k, v in os.environ.items() if k.startswith(("FLATOUT_RANK", "PYTHONHASH", "OMP"))}
others = [k for k in os.environ if k in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR")]
print(json.dumps([orders["ranks"], own, others, sys.stdin.read()]), flush=True)
train(1, 3)
""")
    )
    env = {k: v for k, v in os.environ.items() if not k.startswith(("OMP", "PYTHONHASH"))}
    env |= {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "3", "MASTER_ADDR": "here"}
    done = flatout.run(*RANKS, "train.py", input=b"typed", env=env)
    assert done.returncode == 0, done.stderr
    (run,) = flatout.runs()
    first = json.loads(done.stdout)
    second = json.loads((run / "rank1.log").read_text())
    for rank, (orders, variables, others, _) in enumerate((first, second)):
        assert others == []
        assert variables["FLATOUT_RANK"] == str(rank) == str(orders["rank"])
        assert variables["FLATOUT_RANKS"] == "2"
        assert variables["OMP_NUM_THREADS"] == str(orders["threads"])
        assert variables["PYTHONHASHSEED"] == str(orders["seed"])
        assert orders["size"] == 2
    assert first[0]["store"] == second[0]["store"]
    assert first[0]["seed"] == second[0]["seed"]
    assert first[0]["scratch"] == ""
    assert second[0]["scratch"] == str(run / "rank1" / "scratch")
    assert (first[3], second[3]) == ("typed", "")


def test_the_output_of_rank_0_is_untouched_and_that_of_others_is_in_their_logs(
    flatout: Flatout,
) -> None:
    flatout.script(
        program("""
block = bytes(range(256)) * 4096
for number in range(8):
    sys.stdout.buffer.write(block)
    step(number + 1)
sys.stdout.flush()
print(f"rank {rank}")
""")
    )
    done = flatout.run(*RANKS, "--quiet", "train.py")
    block = bytes(range(256)) * 4096
    assert done.stdout == block * 8 + b"rank 0\n"
    assert (flatout.runs()[0] / "rank1.log").read_bytes() == block * 8 + b"rank 1\n"
    assert done.stderr == b""


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("then", "code", "error"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", -9, "killed by SIGKILL"),
        ("sys.exit(0)", 1, "it ended normally while the others still trained"),
        ("raise ValueError('no such label')", 1, "ValueError: no such label"),
        ("print('bad shard'); sys.exit(7)", 7, "bad shard (exit code 7)"),
    ],
)
def test_the_rank_that_ended_first_is_named_and_the_other_ended(
    flatout: Flatout, then: str, code: int, error: str
) -> None:
    script = program(f"train(1, 4)\nif rank == 1:\n    {then}\nprint('on', flush=True)\n")
    flatout.script(script + "train(5, 9)\n")
    process = flatout.start(*RANKS, "train.py")
    assert process.stdout is not None
    assert process.stdout.readline() == b"on\n"
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == code
    told = stderr.decode().splitlines()
    (first,) = [line for line in told if "ended first" in line]
    assert re.match(rf"flatout: error: rank 1 of 2 ended first: {re.escape(error)}, step 4", first)
    if "raise" in then:
        number = script.splitlines().index(f"    {then}") + 1
        assert first.endswith(f", train.py:{number}")
    assert any("the other waited in the exchange between ranks and was ended" in x for x in told)
    (run,) = flatout.runs()
    assert any(line.endswith(str(run / "rank1.log")) for line in told)
    assert "rank 0, process" in (run / "stacks.txt").read_text()
    assert under_orders(str(run)) == []


def test_a_rank_that_only_lost_another_is_not_to_blame(flatout: Flatout) -> None:
    flatout.script(
        program("""
train(1, 2)
if rank == 1:  # its interpreter takes its time to end
    while not os.path.exists("lost") or os.path.exists(f"/proc/{open('lost').read()}/task"):
        time.sleep(0.05)
    os._exit(3)
with open("losing", "w") as file:
    file.write(str(os.getpid()))
os.rename("losing", "lost")
raise RuntimeError("another rank has ended: Connection closed by peer")
""")
    )
    done = flatout.run(*RANKS, "train.py")
    assert done.returncode == 3, done.stderr.decode()
    (first,) = [line for line in lines(done) if "ended first" in line]
    assert "rank 1 of 2 ended first: exit code 3, step 2" in first


def test_the_error_of_the_first_rank_is_explained(flatout: Flatout) -> None:
    flatout.script(
        program("""
if rank == 1:
    raise RuntimeError("CUDA error: device-side assert triggered")
train(1, 2)
""")
    )
    done = flatout.run(*RANKS, "--json", "train.py", env={**os.environ, "LC_ALL": "C.UTF-8"})
    assert done.returncode == 1
    document = json.loads(done.stdout)
    assert "device-side" in document["matches"][0]["evidence"]
    failure = document["ranks"]["failure"]
    assert (failure["rank"], failure["ending"], failure["returncode"]) == (1, "error", 1)
    assert b"flatout: what this means" in done.stderr


def test_a_rank_may_go_on_alone_at_its_end(flatout: Flatout) -> None:
    """It saves, or evaluates; the others have nothing to save."""
    flatout.script(program("train(1, 3)\nif rank == 0:\n    time.sleep(3)\nprint('saved')\n"))
    done = flatout.run(*RANKS, "--quiet", "train.py")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"saved\n", b"")


def test_a_refusal_is_told_and_nothing_is_trained_twice(flatout: Flatout) -> None:
    flatout.script(
        program("""
print("begun", flush=True)
if rank == 1:
    sys.flatout_record(kind="refused", reason="batches differ", next_step="seed the loader")
sys.exit(78)
""")
    )
    done = flatout.run(*RANKS, "train.py")
    assert done.returncode == 1
    assert done.stdout == b"begun\n"
    told = lines(done)
    assert "the ranks cannot train this script together: batches differ" in told[-2]
    assert told[-1].strip() == "next: seed the loader"
    assert not any("ended first" in line for line in told)


WAIT = """
print("ready", flush=True)
quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], **quiet)
open(f"ready-{rank}", "w").close()
train(1, 3)
time.sleep(600)
"""


def started(flatout: Flatout, text: str = WAIT) -> subprocess.Popen[bytes]:
    flatout.script(program(text))
    process = flatout.start(*RANKS, "train.py", start_new_session=True)
    until(lambda: all((flatout.folder / f"ready-{rank}").exists() for rank in (0, 1)))
    return process


@pytest.mark.parametrize(("name", "group"), [("SIGINT", True), ("SIGTERM", False)])
def test_a_signal_ends_all_ranks(flatout: Flatout, name: str, group: bool) -> None:
    process = started(flatout)
    number = getattr(signal, name)
    os.killpg(process.pid, number) if group else process.send_signal(number)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == -number
    assert b"ended first" not in stderr
    log = flatout.runs()[0] / "rank1.log"
    assert ("KeyboardInterrupt" in log.read_text()) == (name == "SIGINT")
    if not group:  # what rank 0 leaves running is left running, as without ranks
        for left in under_orders(str(flatout.folder)):
            assert left.environ()["FLATOUT_RANK"] == "0"
            left.kill()
    until(lambda: not under_orders(str(flatout.folder)))


def test_a_program_that_handles_ctrl_c_does_so_in_all_ranks(flatout: Flatout) -> None:
    process = started(
        flatout,
        """
try:
    open(f"ready-{rank}", "w").close()
    time.sleep(600)
except KeyboardInterrupt:
    open(f"saved-{rank}", "w").close()
""",
    )
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=120)
    assert process.returncode == 0
    assert all((flatout.folder / f"saved-{rank}").exists() for rank in (0, 1))


def test_no_rank_outlives_flatout(flatout: Flatout) -> None:
    process = started(flatout)
    until(lambda: len(under_orders(str(flatout.folder))) >= 4)  # two ranks and their children
    process.kill()
    process.communicate(timeout=120)
    until(lambda: not under_orders(str(flatout.folder)))


def run_here(
    flatout: Flatout, text: str, inject: Path, monkeypatch: pytest.MonkeyPatch, limits: RankLimits
) -> tuple[foreground.Finished, RankFailure | None]:
    """In this process, with limits that a test can wait for."""
    monkeypatch.setattr("flatout.running.one.environment.INJECT", inject)
    monkeypatch.chdir(flatout.folder)
    flatout.script(program(text))
    told: list[RankFailure] = []
    command = resolve(["train.py"], python=sys.executable)
    group = StartedRanks(command, RankLayout(2, 1, 1), told.append, limits)

    class Watch:
        def prepare(self, run_folder: Path) -> str:
            folder = run_folder.absolute() / "rings"
            folder.mkdir()
            return str(folder)

        def begin(self, pid: int) -> None: ...

        def end(self, shell_code: int) -> None: ...

    ended = foreground.run(command, (), {}, pytest.fail, watch=Watch(), ranks=group)
    assert told == ([group.failure] if group.failure is not None else [])
    return ended, group.failure


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "how", ["threading.Event().wait()", "os.kill(os.getpid(), signal.SIGSTOP)"]
)
def test_a_rank_that_hangs_is_named(
    flatout: Flatout, inject: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    text = f"""
import threading
train(1, 5)
if rank == 1:
    open("hangs", "w").close()
    {how}
train(6, 9)
"""
    look, hangs = HangSearch.look, flatout.folder / "hangs"

    def looks_then(search: HangSearch, *given: Any) -> RankHang | None:
        """A rank that a busy machine stops before that is none of this test's."""
        return look(search, *given) if hangs.exists() else None

    monkeypatch.setattr(HangSearch, "look", looks_then)
    if "Event" in how:  # else it writes no stacks
        monkeypatch.setattr(hang, "WAIT_S", 60.0)
    ended, failure = run_here(
        flatout, text, inject, monkeypatch, RankLimits(still_s=1.0, look_s=0.5)
    )
    assert failure is not None
    assert (failure.rank, failure.ending, failure.step) == (1, "hang", 5)
    assert (failure.ended, failure.waiting) == (1, 1)
    assert ended.returncode == 1
    number = program(text).splitlines().index(f"    {how}") + 1
    if "Event" in how:
        assert failure.place == f"train.py:{number}"
        assert failure.stacks is not None
        assert f'train.py", line {number}' in Path(failure.stacks).read_text()
    assert under_orders(str(flatout.folder)) == []


@pytest.mark.parametrize(("pid", "expected"), [(20, [20, 20]), (19, [20, 20, 21])])
def test_the_records_of_a_rank_are_found_behind_a_launcher(pid: int, expected: list[int]) -> None:
    """The python.exe of an environment on Windows (19) starts the Python that records (20)."""
    records: list[tuple[int, wire.Record]] = [
        (process, wire.Started(process, ("train.py",), "3.12", "python.exe", rank))
        for process, rank in ((10, 0), (20, 1), (21, 1))
    ]
    records.insert(2, (20, wire.Crashed("ValueError: of rank 1")))
    ranks: Any = SimpleNamespace(
        failure=SimpleNamespace(rank=1),
        layout=SimpleNamespace(first=0),
        _members=[None, SimpleNamespace(rank=1, process=SimpleNamespace(pid=pid), log=None)],
    )
    own, _ = StartedRanks.last_words(ranks, records, b"")
    assert [process for process, _ in own] == expected


def test_a_signal_for_a_rank_that_has_ended_is_no_error() -> None:
    process: Any = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    member = _Member(1, process, None)
    process.communicate(b"\n")
    member.signal(signal.SIGTERM)
