"""`flatout run` as a process, with a stand-in for the agent: is the program left as it was?"""

import hashlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import psutil
import pytest

from flatout.running.one import foreground
from processes import under_orders
from running.stand_in import Flatout
from running.waiting import LONG_S, settled_size, until

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
READY = "print('ready', flush=True)\n"
COUNT_SIGNALS = """
import signal, sys, time
seen = []
def take(number, frame):
    seen.append(signal.Signals(number).name)
for name in sys.argv[1:]:
    signal.signal(getattr(signal, name), take)
print("ready", flush=True)
while not seen:
    time.sleep(0.01)
print("first", flush=True)
time.sleep(0.5)  # another one of the same kind would arrive now
print(seen, flush=True)
sys.exit(5)
"""


def without(flatout: Flatout, *words: str, **options: object) -> subprocess.CompletedProcess[bytes]:
    """The same words given to Python itself."""
    options = {"capture_output": True, "timeout": 120, "cwd": flatout.folder, **options}
    return subprocess.run([sys.executable, *words], **options)


def ready(process: subprocess.Popen[bytes]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline().strip() == b"ready"


def only_ours(stderr: bytes) -> bool:
    return all(line.startswith(b"flatout: ") for line in stderr.splitlines())


def test_the_program_sees_what_it_would_have_seen(flatout: Flatout) -> None:
    flatout.script("""
import json, os, sys
told = {"argv": sys.argv, "orig": sys.orig_argv, "cwd": os.getcwd(), "env": dict(os.environ)}
if sys.platform != "win32":
    told |= {"umask": os.umask(0), "nice": os.nice(0), "uid": os.getuid()}
print(json.dumps(told))
""")
    words = ["train.py", "--lr", "0.1", "--", "-m", "", "--help", "ä b"]
    plain = json.loads(without(flatout, *words).stdout)
    ours = json.loads(flatout.run("run", *words).stdout)
    added = dict(ours["env"].items() - plain["env"].items())
    assert set(added) == {"PYTHONPATH", "FLATOUT_ORDERS"}
    assert plain["env"].keys() <= ours["env"].keys()
    for answer in (plain, ours):
        del answer["env"]
    assert ours == plain


@pytest.mark.parametrize(
    "text",
    [
        "import sys; sys.exit('a message')",
        "def f():\n    raise ValueError('of the script')\nf()\n",
        "import os; os._exit(250)",
        "print('fine')",
    ],
)
def test_exit_code_and_output_are_the_programs(flatout: Flatout, text: str) -> None:
    flatout.script(text)
    plain, ours = without(flatout, "train.py"), flatout.run("run", "--quiet", "train.py")
    assert ours.returncode == plain.returncode
    assert ours.stdout == plain.stdout
    assert ours.stderr == plain.stderr  # no frame of ours in a traceback, no line of ours


def test_a_rank_that_writes_to_a_log_prints_any_letter_on_windows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    ranks: Any = SimpleNamespace(environment=lambda env: {**env, "RANK": "1"}, log=lambda: None)
    assert foreground._of_rank({"A": "1"}, ranks) == {"A": "1", "RANK": "1"}
    ranks.log = lambda: Path("rank1.log")
    assert "PYTHONIOENCODING" in foreground._of_rank({"A": "1"}, ranks)


def test_ctrl_c_before_the_start_ends_a_program_that_cannot_be_sent_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`Popen.send_signal` on Windows sends SIGTERM alone."""
    monkeypatch.setattr(sys, "platform", "win32")
    process: Any = Mock()
    process.send_signal.side_effect = ValueError("Unsupported signal: 2")
    signals = foreground._Signals()
    signals.interrupt(signal.SIGINT, None)
    signals.reach(process, None)
    process.terminate.assert_called_once_with()


def test_output_in_bulk_is_untouched(flatout: Flatout) -> None:
    flatout.script("""
import os, sys
block = bytes(range(256)) * 4096
for _ in range(32):
    sys.stdout.buffer.write(block)
""")
    ours = flatout.run("run", "train.py").stdout
    assert len(ours) == 32 * 2**20
    assert hashlib.sha256(ours).digest() == hashlib.sha256(bytes(range(256)) * 131072).digest()


def test_input_reaches_the_program(flatout: Flatout) -> None:
    flatout.script("print(input()); import sys; print(len(sys.stdin.read()))")
    given = b"first line\n" + b"x" * 3_000_000
    done = flatout.run("run", "train.py", input=given)
    assert done.stdout.split() == [b"first", b"line", b"3000000"]


@POSIX
def test_open_files_are_inherited(flatout: Flatout) -> None:
    flatout.script("import os, sys; print(os.read(int(sys.argv[1]), 100).decode())")
    reading, writing = os.pipe()
    os.write(writing, b"through the pipe")
    os.close(writing)
    done = flatout.run("run", "train.py", str(reading), pass_fds=[reading])
    os.close(reading)
    assert done.stdout.strip() == b"through the pipe"


@POSIX
@pytest.mark.few(2)
@pytest.mark.parametrize("name", ["SIGKILL", "SIGINT", "SIGTERM", "SIGSEGV", "SIGHUP"])
def test_flatout_dies_of_what_the_program_died_of(flatout: Flatout, name: str) -> None:
    default = "" if name == "SIGKILL" else f"signal.signal(signal.{name}, signal.SIG_DFL)"
    flatout.script(f"""
import os, resource, signal
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
{default}
os.kill(os.getpid(), signal.{name})
""")
    done = flatout.run("run", "--quiet", "train.py")
    assert done.returncode == -getattr(signal, name)
    assert only_ours(done.stderr)


@POSIX
def test_a_keyboard_interrupt_ends_both_as_the_shell_expects(flatout: Flatout) -> None:
    flatout.script(f"{READY}import time; time.sleep(600)")
    process = flatout.start("run", "--quiet", "train.py", start_new_session=True)
    ready(process)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == -signal.SIGINT
    assert errors.splitlines()[-1] == b"KeyboardInterrupt"
    assert b"flatout" not in errors


@POSIX
@pytest.mark.parametrize("name", ["SIGINT", "SIGQUIT"])
def test_what_the_terminal_sends_to_all_arrives_once(flatout: Flatout, name: str) -> None:
    flatout.script(COUNT_SIGNALS)
    process = flatout.start("run", "train.py", name, start_new_session=True)
    ready(process)
    # Two of a kind that come together are one: flatout gets its own when the program has had its.
    process.send_signal(signal.SIGSTOP)
    os.killpg(process.pid, getattr(signal, name))
    assert process.stdout is not None
    assert process.stdout.readline().strip() == b"first"
    process.send_signal(signal.SIGCONT)
    output, _ = process.communicate(timeout=120)
    assert output.strip().decode() == str([name])
    assert process.returncode == 5


@POSIX
@pytest.mark.few(3)
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP", "SIGUSR2"])
def test_a_signal_for_flatout_alone_is_passed_on(flatout: Flatout, name: str) -> None:
    flatout.script(COUNT_SIGNALS)
    process = flatout.start("run", "train.py", name)
    ready(process)
    process.send_signal(getattr(signal, name))
    output, _ = process.communicate(timeout=120)
    assert output.decode().splitlines() == ["first", str([name])]
    assert process.returncode == 5


INTERRUPTIBLE = """
import sys, time
count = 0
while count < int(sys.argv[1]):
    try:
        print("ready", flush=True)
        time.sleep(60)  # only a failed test waits for so long
        sys.exit("no interrupt")
    except KeyboardInterrupt:
        count += 1
        print("interrupt", count, flush=True)
sys.exit(7)
"""


@POSIX
@pytest.mark.parametrize("started", [{}, {"start_new_session": True}], ids=["here", "session"])
def test_an_interrupt_of_flatout_alone_reaches_the_program(
    flatout: Flatout, started: dict[str, bool]
) -> None:
    """The stop button of an IDE, a supervisor, `docker stop`: the program saves and ends."""
    flatout.script(INTERRUPTIBLE)
    process = flatout.start("run", "--quiet", "train.py", "1", **started)
    ready(process)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert (output.split(), process.returncode) == ([b"interrupt", b"1"], 7)


@POSIX
def test_an_interrupt_of_flatout_alone_ends_both(flatout: Flatout) -> None:
    flatout.script(f"{READY}import time; time.sleep(600)")
    process = flatout.start("run", "--quiet", "train.py", start_new_session=True)
    ready(process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == -signal.SIGINT
    assert errors.splitlines()[-1] == b"KeyboardInterrupt"


@POSIX
def test_each_interrupt_arrives_once_whoever_it_is_sent_to(flatout: Flatout) -> None:
    """After one for the group, one for flatout alone is still told from it, and the reverse."""
    flatout.script(INTERRUPTIBLE)
    process = flatout.start("run", "--quiet", "train.py", "3", start_new_session=True)
    assert process.stdout is not None
    ready(process)
    witness = witness_of(process, other_than=None)
    process.send_signal(signal.SIGINT)
    seen = [process.stdout.readline() for _ in range(2)]
    os.killpg(process.pid, signal.SIGINT)
    seen += [process.stdout.readline() for _ in range(2)]
    witness_of(process, other_than=witness)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    told = [b"interrupt 1\n", b"ready\n", b"interrupt 2\n", b"ready\n", b"interrupt 3\n"]
    assert [*seen, output] == told
    assert process.returncode == 7


def witness_of(process: subprocess.Popen[bytes], other_than: int | None) -> int:
    """Waits until flatout has a new witness of interrupts, and waits for the program again."""
    own = psutil.Process(process.pid)

    def pids() -> list[int]:
        found = []
        for item in own.children():
            with suppress(psutil.NoSuchProcess):  # the last witness ends meanwhile
                if item.name() == "cat":
                    found.append(item.pid)
        return found

    until(lambda: pids() and other_than not in pids())
    until(lambda: own.status() == psutil.STATUS_SLEEPING)
    return pids()[0]


@POSIX
def test_what_is_ignored_already_stays_ignored(flatout: Flatout) -> None:
    """nohup, and a job that a script starts in the background."""
    flatout.script("import signal; print(signal.getsignal(signal.SIGHUP).name)")
    inner = shlex.join(flatout.argv("run", "train.py"))
    done = subprocess.run(
        ["sh", "-c", f"trap '' HUP; {inner}"], cwd=flatout.folder, capture_output=True, timeout=120
    )
    assert done.stdout.strip() == b"SIG_IGN"


@POSIX
def test_the_program_does_not_outlive_flatout(flatout: Flatout) -> None:
    flatout.script("import os, time; print('ready', flush=True); time.sleep(600)")
    process = flatout.start("run", "train.py")
    ready(process)
    assert under_orders(str(flatout.folder))
    process.kill()
    process.communicate(timeout=120)
    try:
        until(lambda: not under_orders(str(flatout.folder)))
    finally:
        for left in under_orders(str(flatout.folder)):
            with suppress(psutil.NoSuchProcess):
                left.kill()


@POSIX
def test_what_the_program_leaves_running_is_left_running(flatout: Flatout) -> None:
    flatout.script("""
import subprocess, sys
quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], **quiet).pid)
""")
    left = psutil.Process(int(flatout.run("run", "train.py").stdout))
    assert left.is_running()
    left.kill()


def test_no_agent_is_told_in_one_line(flatout: Flatout) -> None:
    flatout.script("print('done')")
    done = flatout.run("run", "--no-plan", "--", sys.executable, "-I", "train.py")
    assert (done.returncode, done.stdout.strip()) == (0, b"done")
    (line,) = done.stderr.splitlines()
    assert b"-I, -E and -S ignore PYTHONPATH" in line


@POSIX
def test_another_program_than_python(flatout: Flatout) -> None:
    flatout.script('echo "$1"; python3 -c "print(1)"; exit 9\n', "job.sh")
    done = flatout.run("run", "--no-plan", "--", "bash", "job.sh", "a b")
    assert (done.returncode, done.stdout) == (9, b"a b\n1\n")


def test_a_module_runs(flatout: Flatout) -> None:
    flatout.script("import sys; print(sys.argv[1:])", "pkg/train.py")
    done = flatout.run("run", "--no-plan", "-m", "pkg.train", "-m", "--json")
    assert done.stdout.decode().strip() == "['-m', '--json']"


def test_where_the_folder_cannot_be_written_another_is_taken(flatout: Flatout) -> None:
    (flatout.folder / ".flatout").write_text("in the way")
    flatout.script("import os; print(os.environ['FLATOUT_ORDERS'])")
    done = flatout.run("run", "--no-plan", "train.py")
    orders = Path(done.stdout.decode().strip())
    assert flatout.folder not in orders.parents
    assert orders.is_file()
    assert b"torch" in done.stderr  # its records were read all the same


@POSIX
def test_a_full_disk_costs_the_boosts_and_not_the_run(flatout: Flatout) -> None:
    flatout.script("import os, sys; print('FLATOUT_ORDERS' in os.environ); sys.exit(6)")
    inner = shlex.join(flatout.argv("run", "--no-plan", "train.py"))
    done = subprocess.run(
        ["sh", "-c", f"ulimit -f 0; {inner}"], cwd=flatout.folder, capture_output=True, timeout=120
    )
    assert (done.returncode, done.stdout.strip()) == (6, b"False")
    assert only_ours(done.stderr)
    assert b"flatout found no folder" in done.stderr


@pytest.mark.parametrize(
    ("boost", "own", "expected"),
    [("compile", None, "tuned"), ("compile", "mine", "mine"), ("gc-pause", None, "None")],
)
def test_a_plan_that_compiles_finds_what_the_tuning_compiled(
    flatout: Flatout, boost: str, own: str | None, expected: str
) -> None:
    flatout.script("import os; print(os.environ.get('TORCHINDUCTOR_CACHE_DIR'))")
    (flatout.folder / "flatout.toml").write_text(f"version = 1\n[boosts.{boost}]\n")
    cache = flatout.folder / ".flatout" / "cache" / "inductor"
    cache.mkdir(parents=True)
    variables = {k: v for k, v in os.environ.items() if k != "TORCHINDUCTOR_CACHE_DIR"}
    if own is not None:
        variables["TORCHINDUCTOR_CACHE_DIR"] = own
    done = flatout.run("run", "train.py", env=variables)
    assert done.returncode == 0, done.stderr
    wanted = str(cache.resolve()) if expected == "tuned" else expected
    assert done.stdout.decode().strip() == wanted


def test_damaged_records_cost_the_summary_and_not_the_run(flatout: Flatout) -> None:
    flatout.script("""
import sys
sys.flatout_record(kind="torch", version="9")
sys.flatout_record(kind="ended", steps="many", samples=None)
sys.flatout_record(kind="ended", reason="program", steps="many", samples=0, train_s=1, wait_s=0)
sys.exit(8)
""")
    done = flatout.run("run", "--no-plan", "train.py")
    assert done.returncode == 8
    assert only_ours(done.stderr)
    assert b"1 damaged line" in done.stderr


def test_the_folder_of_runs_is_kept_out_of_git(flatout: Flatout) -> None:
    flatout.script("")
    flatout.run("run", "train.py")
    flatout.run("run", "train.py")
    assert len(flatout.runs()) == 2
    assert all(path.name.endswith(("-run", "-run-2")) for path in flatout.runs())
    assert (flatout.folder / ".flatout" / ".gitignore").read_text() == "*\n"


TERMINAL = """
# What a shell does with a terminal: a job in the foreground, its own group, told when it stops.
import fcntl, os, signal, subprocess, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
job = subprocess.Popen(sys.argv[1:], process_group=0)
os.tcsetpgrp(0, job.pid)
while True:
    _, status = os.waitpid(job.pid, os.WUNTRACED)
    os.tcsetpgrp(0, os.getpgrp())
    if not os.WIFSTOPPED(status):
        break
    print("[stopped]", flush=True)
    input()
    os.tcsetpgrp(0, job.pid)
    os.killpg(job.pid, signal.SIGCONT)
code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
print(f"[ended {code}]", flush=True)
"""


class Terminal:
    """A terminal with flatout as its foreground job."""

    def __init__(self, flatout: Flatout, *words: str) -> None:
        import pty

        self.ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", TERMINAL, *flatout.argv(*words)],
            cwd=flatout.folder, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        self.seen = ""

    def type(self, keys: str) -> None:
        os.write(self.ours, keys.encode())

    def expect(self, text: str) -> None:
        import select

        deadline = time.monotonic() + LONG_S
        while text not in self.seen:
            readable, _, _ = select.select([self.ours], [], [], deadline - time.monotonic())
            assert readable, self.seen
            self.seen += os.read(self.ours, 4096).decode()
        self.seen = self.seen.partition(text)[2]

    def close(self) -> None:
        os.close(self.ours)
        self.process.kill()
        self.process.wait()


@POSIX
def test_in_a_terminal_the_program_is_in_a_terminal(flatout: Flatout) -> None:
    flatout.script("""
import sys
print([stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)])
print("hello", input("name? "))
""")
    terminal = Terminal(flatout, "run", "train.py")
    terminal.expect("[True, True, True]")
    terminal.expect("name? ")
    terminal.type("you\n")
    terminal.expect("hello you")
    terminal.expect("[ended 0]")
    terminal.close()


@POSIX
def test_control_z_stops_the_job_and_fg_goes_on(flatout: Flatout) -> None:
    flatout.script("""
import time
with open("count", "w", buffering=1) as out:
    print("ready", flush=True)
    while True:
        out.write("."); out.flush(); time.sleep(0.01)
""")
    count = flatout.folder / "count"
    terminal = Terminal(flatout, "run", "train.py")
    terminal.expect("ready")
    terminal.type("\x1a")
    terminal.expect("[stopped]")
    size = settled_size(count)  # the shell hears of flatout; the program stops soon after
    terminal.type("fg\n")
    until(lambda: count.stat().st_size > size)
    terminal.type("\x03")
    terminal.expect(f"[ended -{int(signal.SIGINT)}]")
    terminal.close()
