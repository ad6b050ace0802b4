"""Signals, sent to real processes: one program imports torch once and forks each of them."""

import json
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from flatout_train.checkpoint import termination
from flatout_train.checkpoint.termination import END, LEAVE, SAVE, Watch

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals and forks")


@pytest.fixture
def handlers():
    numbers = signal.SIGTERM, signal.SIGUSR1
    before = [signal.getsignal(number) for number in numbers]
    yield
    assert [signal.getsignal(number) for number in numbers] == before


@pytest.fixture
def called():
    """The calls of a handler of the program's own for SIGTERM and SIGUSR1."""
    calls = []
    numbers = signal.SIGTERM, signal.SIGUSR1
    before = {n: signal.signal(n, lambda number, frame: calls.append(number)) for n in numbers}
    yield calls
    for number, handler in before.items():
        signal.signal(number, handler)


def test_the_signal_only_asks_and_the_end_comes_when_it_is_safe(handlers):
    watch = Watch(30)
    signal.raise_signal(signal.SIGTERM)
    assert watch.request == END
    with pytest.raises(SystemExit) as caught:
        watch.done()
    assert caught.value.code == 143
    watch.close()


def test_the_programs_own_handler_is_called_after_the_save(called):
    watch = Watch(30)
    signal.raise_signal(signal.SIGTERM)
    assert (watch.request, called) == (END, [])
    watch.done()
    assert (watch.request, called) == (0, [signal.SIGTERM])
    watch.close()


def test_a_second_signal_does_what_it_did_before(called, monkeypatch):
    watch = Watch(30)
    signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGTERM)  # torchrun passes on what Slurm has sent already
    assert called == []
    monkeypatch.setattr(termination, "REPEAT_S", 0.0)
    signal.raise_signal(signal.SIGTERM)
    assert called == [signal.SIGTERM]
    watch.close()


def test_the_end_waits_for_all_checkpoints(handlers):
    one, other = Watch(30), Watch(30)
    signal.raise_signal(signal.SIGTERM)
    one.done()
    assert other.request == END
    with pytest.raises(SystemExit):
        other.done()
    one.close()
    other.close()


def test_handlers_stay_until_the_last_is_closed_or_dropped(handlers):
    before = signal.getsignal(signal.SIGTERM)
    one, other, dropped = Watch(30), Watch(30), Watch(30)
    del dropped
    one.close()
    assert signal.getsignal(signal.SIGTERM) != before
    signal.raise_signal(signal.SIGTERM)
    assert (one.request, other.request) == (0, END)
    with pytest.raises(SystemExit):
        other.done()
    other.close()
    other.close()
    assert signal.getsignal(signal.SIGTERM) == before


def test_an_ignored_signal_stays_ignored():
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    watch = Watch(30)
    signal.raise_signal(signal.SIGTERM)
    assert watch.request == 0
    watch.close()
    assert signal.signal(signal.SIGTERM, before) == signal.SIG_IGN


def test_a_handler_put_on_top_stays(handlers):
    before = signal.getsignal(signal.SIGTERM)
    called = []
    watch = Watch(30)
    ours = signal.getsignal(signal.SIGTERM)

    def on_top(number, frame):
        called.append(number)
        ours(number, frame)

    signal.signal(signal.SIGTERM, on_top)
    signal.raise_signal(signal.SIGTERM)
    assert (called, watch.request) == ([signal.SIGTERM], END)
    watch.close()
    assert signal.getsignal(signal.SIGTERM) == on_top
    signal.signal(signal.SIGTERM, before)
    termination._signals._before.clear()


def test_under_slurm_usr1_saves_and_training_goes_on(handlers, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    watch = Watch(30)
    signal.raise_signal(signal.SIGUSR1)
    assert watch.request == SAVE
    watch.done()
    assert watch.request == 0
    signal.raise_signal(signal.SIGTERM)
    assert watch.request == END
    watch.close()


def test_elsewhere_than_in_the_main_thread_a_warning_says_so(handlers, recwarn):
    def other():
        Watch(30).close()

    thread = threading.Thread(target=other)
    with pytest.warns(UserWarning, match="not created in the main thread"):
        thread.start()
        thread.join()


@pytest.fixture(scope="module")
def ends(tmp_path_factory):
    """How each case ended: exit status, steps saved, seconds, what it printed."""
    folder = tmp_path_factory.mktemp("ends")
    import forked  # nothing of the tests is there where this file is the program

    done = forked.bare([__file__, str(folder)], folder, folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_how_trainings_end_by_a_signal(ends):
    # a training saves and ends with 143
    end = ends["plain"]
    assert end["code"] == 143
    assert end["saved"] == [end["steps"]]
    assert end["steps"] > 0
    assert "finally" in end["said"]
    # no further step ends it after the grace time as before
    end = ends["deaf"]
    assert end["signal"] == signal.SIGTERM
    assert end["seconds"] >= 0.4
    # a call that sees no signals is ended too
    assert ends["stuck"]["code"] == 143
    # a save that takes longer than the grace time is not cut short
    assert ends["slow"]["code"] == 143
    assert ends["slow"]["saved"] == [ends["slow"]["steps"]]
    assert "the grace time is over" in ends["slow"]["said"]
    # training in another thread ends the process
    assert ends["thread"]["signal"] == signal.SIGTERM
    assert ends["thread"]["saved"] == [ends["thread"]["steps"]]
    # a forked child dies by the signal
    assert f"child {signal.SIGTERM}" in ends["child"]["said"]
    # ctrl c is left alone
    assert "KeyboardInterrupt" in ends["interrupt"]["said"]
    assert ends["interrupt"]["saved"] == []


def main(folder):
    import ctypes

    import torch

    from flatout_train.checkpoint import files as checkpoint_files
    from flatout_train.checkpoint import termination
    from flatout_train.checkpoint.checkpoint import Checkpoint

    folder = Path(folder)
    model = torch.nn.Linear(2, 2)

    def train(name, say, grace=30.0):
        checkpoint = Checkpoint(folder / name, every=None, grace=grace, model=model)
        if name == "child":
            say("ready")
            told, tell = os.pipe()
            pid = os.fork()
            if not pid:
                os.write(tell, b"!")  # Python forgets signals that come while it forks
                time.sleep(600)
                os._exit(0)
            os.read(told, 1)
            os.kill(pid, signal.SIGTERM)
            say(f"child {os.WTERMSIG(os.waitpid(pid, 0)[1])}")
        while True:
            time.sleep(0.01)
            checkpoint.after_step()
            say(f"step {checkpoint.steps}")
            if checkpoint.steps == 3:
                say("ready")
                if name == "deaf":
                    while True:
                        time.sleep(0.01)
                if name == "stuck":
                    while not checkpoint._watch.request:
                        time.sleep(0.01)
                    mutex = ctypes.create_string_buffer(64)
                    for _ in range(2):  # the second time never comes back
                        ctypes.CDLL(None).pthread_mutex_lock(mutex)

    def body(name, say):
        if name == "slow":
            plain = checkpoint_files.write

            def write(*arguments):
                termination._signals._wait(0.0)
                say("the grace time is over")
                return plain(*arguments)

            checkpoint_files.write = write
        if name == "stuck":
            termination._STUCK_S = 0.5
        if name == "thread":
            made = Checkpoint(folder / name, every=None, model=model)

            def steps():
                while True:
                    time.sleep(0.01)
                    made.after_step()
                    say(f"step {made.steps}")
                    if made.steps == 3:
                        say("ready")

            threading.Thread(target=steps, daemon=True).start()
            while True:
                time.sleep(0.01)
        train(name, say, grace={"deaf": 0.5, "stuck": 3.0}.get(name, 30.0))

    def begun(name):
        """A process that trains; its number."""
        log = folder / f"{name}.log"
        log.write_text("")
        pid = os.fork()
        if not pid:
            code = 99
            with log.open("a", buffering=1) as file:

                def say(text):
                    print(text, file=file)

                try:
                    body(name, say)
                except BaseException as error:
                    say(repr(error))
                    code = error.code if isinstance(error, SystemExit) else 98
                finally:
                    say("finally")
                    os._exit(code)
        return pid

    def asked_to_end(name, pid):
        while "ready" not in (folder / f"{name}.log").read_text():
            time.sleep(0.01)
        os.kill(pid, signal.SIGINT if name == "interrupt" else signal.SIGTERM)
        return time.monotonic()

    def ended(name, pid, asked):
        status = os.waitpid(pid, 0)[1]
        said = (folder / f"{name}.log").read_text()
        seconds = time.monotonic() - asked
        saved = [int(path.name[5:]) for path in (folder / name).glob("step-*")]
        return {
            "code": os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
            "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
            "seconds": seconds,
            "steps": 1 + max(map(int, re.findall(r"step (\d+)\n", said)), default=0),
            "saved": saved,
            "said": said,
        }

    cases = ["stuck", "deaf", "slow", "plain", "thread", "child", "interrupt"]
    pids = {name: begun(name) for name in cases}  # side by side: some wait for a time
    asked = {name: asked_to_end(name, pids[name]) for name in cases}
    print(json.dumps({name: ended(name, pids[name], asked[name]) for name in cases}))


if __name__ == "__main__":
    main(sys.argv[1])


@pytest.mark.slow
def test_a_clusters_warning_saves_and_ends_with_a_code_of_its_own(handlers, monkeypatch):
    monkeypatch.setenv("FLATOUT_WARNING", "SIGUSR1")
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # as the agent leaves it
    watch = Watch(0.1)
    signal.raise_signal(signal.SIGUSR1)
    signal.raise_signal(signal.SIGUSR1)  # to the host, which passes it on, and to all processes
    assert watch.request == LEAVE
    time.sleep(0.3)  # nothing is forced where no step ends
    with pytest.raises(SystemExit) as caught:
        watch.done()
    assert caught.value.code == 75
    watch.close()
    signal.signal(signal.SIGUSR1, before)


def test_sigterm_after_a_warning_counts(handlers, monkeypatch):
    monkeypatch.setenv("FLATOUT_WARNING", "SIGUSR1")
    watch = Watch(30)
    signal.raise_signal(signal.SIGUSR1)
    monkeypatch.setattr(termination, "REPEAT_S", 0.0)
    signal.raise_signal(signal.SIGTERM)
    assert watch.request == END
    with pytest.raises(SystemExit) as caught:
        watch.done()
    assert caught.value.code == 143
    watch.close()


def test_a_program_with_a_way_of_its_own_to_be_warned_keeps_it(called, monkeypatch):
    monkeypatch.setenv("FLATOUT_WARNING", "SIGUSR1")
    watch = Watch(30)
    signal.raise_signal(signal.SIGUSR1)
    assert (watch.request, called) == (0, [signal.SIGUSR1])
    watch.close()
