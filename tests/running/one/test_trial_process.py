import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from flatout.nouns.errors import UserError
from flatout.running.one import environment
from flatout.running.one.command import resolve
from flatout.running.one.trial_process import TrialProcess, end_all, log_tail, start_trial
from flatout_agent import wire
from processes import under_orders
from running.waiting import settled_size, until

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="sessions and signals of POSIX")
Start = Callable[..., TrialProcess]
COUNTS = """
import sys, time
with open("count", "w", buffering=1) as out:
    for number in range(100000):
        out.write(f"{number}\\n")
        time.sleep(0.005)
"""
FAMILY = """
# Children of every kind: plain, with a session of their own, left behind by their parent.
import os, subprocess, sys, time
sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
subprocess.Popen(sleep)
subprocess.Popen(sleep, start_new_session=True)
leaves = "import subprocess, sys; subprocess.Popen(%r, start_new_session=%s)"
subprocess.run([sys.executable, "-c", leaves % (sleep, False)])
subprocess.run([sys.executable, "-c", leaves % (sleep, True)])
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture
def start(tmp_path: Path, inject: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    monkeypatch.setattr(environment, "INJECT", inject)
    monkeypatch.chdir(tmp_path)
    programs = []

    def make(text: str, *arguments: str, **variables: str) -> TrialProcess:
        Path("train.py").write_text(text, encoding="utf-8")
        folder = tmp_path / "trial"
        orders = wire.Orders(str(folder / "records"), trial=wire.TrialOrders(seed=5))
        command = resolve(["train.py", *arguments], python=sys.executable)
        programs.append(start_trial(command, orders, folder, tmp_path / "cache", variables))
        return programs[-1]

    yield make
    for program in programs:
        program.stop()


def test_a_program_runs_to_its_end_under_its_orders(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """
import json, os, sys
print(json.dumps([sys.argv, os.getcwd(), sys.stdin.read(), dict(os.environ)]))
print("problem", file=sys.stderr)
sys.exit(7)
"""
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)  # other tests' torch sets it
    program = start(text, "--lr", "0.1", MINE="1")
    assert program.wait(120) == 7
    assert (program.returncode, program.alive) == (7, False)
    answer, problem = program.log_tail(5)
    argv, cwd, data, variables = json.loads(answer)
    assert argv == ["train.py", "--lr", "0.1"]
    assert Path(cwd).samefile(tmp_path)
    assert data == ""
    assert variables["PYTHONHASHSEED"] == "5"
    assert variables["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "cache")
    assert variables["MINE"] == "1"
    assert problem == "problem"
    orders = wire.orders(Path(variables["FLATOUT_ORDERS"]).read_text())
    assert orders.trial is not None
    assert orders.trial.seed == 5


def test_records_come_as_they_are_written(start: Start) -> None:
    text = """
import sys, time
for number in range(3):
    sys.flatout_record(kind="torch", version=str(number))
    time.sleep(0.05)
open("written", "w").close()
time.sleep(600)
"""
    program = start(text)
    seen: list[tuple[int, wire.Record]] = []
    until(lambda: seen.extend(program.records()) or len(seen) == 4)
    assert isinstance(seen[0][1], wire.Started)
    assert {pid for pid, _ in seen} == {program.pid}
    assert [record for _, record in seen[1:]] == [wire.TorchSeen(str(i)) for i in range(3)]
    assert program.alive


def test_what_no_with_statement_holds_is_ended_by_its_orders(start: Start, tmp_path: Path) -> None:
    program = start(FAMILY)
    until(lambda: "ready" in program.log_tail(1))
    orders = tmp_path / "trial" / "orders.json"
    running = under_orders(str(orders))
    assert len(running) > 1
    end_all(tmp_path / "tri")
    assert under_orders(str(orders)) == running
    end_all(tmp_path / "trial")
    assert under_orders(str(orders)) == []


@POSIX
def test_a_program_that_ignores_the_request_is_killed(start: Start) -> None:
    text = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True)"
    program = start(f"{text}; time.sleep(600)")
    until(lambda: program.log_tail(1))
    program.stop(grace_s=0.2)
    assert program.returncode == -signal.SIGKILL


@POSIX
def test_a_program_has_time_to_end_in_good_order(start: Start) -> None:
    text = """
import signal, sys, time
def end(*_):
    print("saved", flush=True); sys.exit(4)
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
time.sleep(600)
"""
    program = start(text)
    until(lambda: program.log_tail(1))
    program.stop()
    assert program.returncode == 4
    assert program.log_tail(1) == ["saved"]


def test_leaving_the_with_block_ends_all_that_it_started(start: Start, tmp_path: Path) -> None:
    program = start(FAMILY)
    until(lambda: "ready" in program.log_tail(1))
    orders = str(tmp_path / "trial" / "orders.json")
    assert len(under_orders(orders)) == 5

    def fail() -> None:
        with program:
            raise RuntimeError("in the host")

    with pytest.raises(RuntimeError, match="in the host"):
        fail()
    assert under_orders(orders) == []
    assert not program.alive
    program.stop()  # a second time changes nothing


@pytest.mark.parametrize("number", [signal.SIGTERM, getattr(signal, "SIGKILL", signal.SIGTERM)])
def test_nothing_is_left_when_flatout_itself_is_killed(
    number: signal.Signals, tmp_path: Path, inject: Path
) -> None:
    (tmp_path / "train.py").write_text(FAMILY, encoding="utf-8")
    host = f"""
import sys, time
from pathlib import Path
from flatout.running.one import environment
from flatout.running.one.command import resolve
from flatout.running.one.trial_process import start_trial
from flatout_agent import wire
environment.INJECT = Path({str(inject)!r})
folder = Path("trial").absolute()
program = start_trial(resolve(["train.py"], python=sys.executable),
                      wire.Orders(str(folder / "records")), folder, folder)
while "ready" not in program.log_tail(1):
    time.sleep(0.01)
print("ready", flush=True)
time.sleep(600)
"""
    with subprocess.Popen(
        [sys.executable, "-c", host], cwd=tmp_path, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == b"ready"
        orders = tmp_path / "trial" / "orders.json"
        assert len(under_orders(str(orders))) == 5
        process.send_signal(number)
    try:
        until(lambda: not under_orders(str(orders)))
    finally:
        for process in under_orders(str(orders)):
            with suppress(psutil.NoSuchProcess):
                process.kill()


def test_a_suspended_program_makes_no_progress(start: Start, tmp_path: Path) -> None:
    program = start(COUNTS)
    count = tmp_path / "count"
    until(lambda: count.exists() and count.stat().st_size > 50)
    program.suspend()
    size = settled_size(count)
    assert program.alive
    program.resume()
    until(lambda: count.stat().st_size > size + 50)


def test_suspend_reaches_children_too(start: Start, tmp_path: Path) -> None:
    counter = tmp_path / "counter.py"
    counter.write_text(COUNTS, encoding="utf-8")
    program = start("import subprocess, sys; subprocess.run([sys.executable, 'counter.py'])")
    count = tmp_path / "count"
    until(lambda: count.exists() and count.stat().st_size > 50)
    program.suspend()
    settled_size(count)
    program.stop()  # also ends what is suspended
    assert not program.alive


def test_memory_counts_the_whole_family_and_remembers_the_peak(start: Start) -> None:
    text = """
import subprocess, sys, time
mine = b"x" * 60_000_000
child = "x = b'x' * 60_000_000; print(1, flush=True); import time; time.sleep(600)"
process = subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE)
process.stdout.readline()
print("ready", flush=True)
time.sleep(600)
"""
    program = start(text)
    until(lambda: program.log_tail(1))
    peak = program.memory_bytes()
    assert 120_000_000 < peak < 400_000_000
    program.stop()
    assert program.memory_bytes() == peak


def test_a_log_is_told_as_a_terminal_would_show_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(
        b"first\n\x1b[32mepoch 1\x1b[0m\r\n 10%|#   |\r100%|####|\n\n"
        b"\x1b]0;title\x07Error: \xff bad\nlast"
    )
    assert log_tail(log, 4) == ["epoch 1", "100%|####|", "Error: \ufffd bad", "last"]
    assert log_tail(log, 1) == ["last"]
    assert log_tail(log, 0) == []
    assert log_tail(tmp_path / "none", 3) == []


def test_only_the_end_of_a_long_log_is_read(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"x" * 10_000_000 + b"\nlast\n")
    assert log_tail(log, 1) == ["last"]


@POSIX
def test_what_the_system_cannot_start_is_told(tmp_path: Path) -> None:
    script = tmp_path / "job"
    script.write_text("no first line that names an interpreter\n")
    script.chmod(0o755)
    with pytest.raises(UserError) as caught:
        TrialProcess((str(script),), dict(os.environ), tmp_path, tmp_path / "log")
    assert "cannot be started" in caught.value.message
    assert "bash job" in str(caught.value.next_step)


def test_a_program_on_windows_prints_any_letter_to_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A locale of ASCII stands for Windows' code page."""
    monkeypatch.setattr(sys, "platform", "win32")
    for flag in ("CREATE_NEW_PROCESS_GROUP", "CREATE_NO_WINDOW"):
        monkeypatch.setattr(subprocess, flag, 0, raising=False)
    old = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    env = {name: os.environ[name] for name in os.environ if not name.startswith("PYTHON")} | old
    argv = (sys.executable, "-c", r"print('\u2713 \u5b8c')")
    with TrialProcess(argv, env, tmp_path / "records", tmp_path / "log") as program:
        assert program.wait(60) == 0
        assert program.log_tail(1) == ["\u2713 \u5b8c"]


def test_a_program_that_has_ended_already_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Windows nothing of it is left to be found."""

    def gone(pid: int) -> psutil.Process:
        raise psutil.NoSuchProcess(pid)

    argv = (sys.executable, "-c", "raise SystemExit('its message')")
    monkeypatch.setattr(psutil, "Process", gone)
    with TrialProcess(argv, os.environ, tmp_path / "records", tmp_path / "log") as program:
        assert program.wait(60) == 1
        assert program.memory_bytes() == 0
        assert program.log_tail(1) == ["its message"]


def test_each_run_reads_the_input_from_its_start(tmp_path: Path, inject: Path) -> None:
    given = tmp_path / "stdin"
    given.write_text("1 2 3\n")
    script = tmp_path / "train.py"
    script.write_text("import sys; print('read', sys.stdin.read().split())")
    command = resolve([str(script)], python=sys.executable)
    for number, source in enumerate((given, given, None)):
        folder = tmp_path / str(number)
        orders = wire.Orders(str(folder / "records"), trial=wire.TrialOrders(seed=5))
        of_run = dataclasses.replace(command, input=source)
        with start_trial(of_run, orders, folder, tmp_path / "cache") as program:
            assert program.wait(60) == 0
            expected = "read ['1', '2', '3']" if source else "read []"
            assert program.log_tail(1) == [expected]
