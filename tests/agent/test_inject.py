"""The agent starts in every Python process of the program and leaves no trace in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from agent_paths import INJECT
from flatout_agent import wire

SHOW = """
import json, os, sys
ours = [p for p in sys.path if "inject" in p or "flatout" in p]
print(json.dumps({"path": ours, "modules": sorted(m for m in sys.modules if "flatout" in m),
                  "torch": "torch" in sys.modules, "custom": sys.modules["sitecustomize"].__file__,
                  "argv": sys.argv}))
"""


def test_starts_and_leaves_no_trace_on_the_path(run_agent, script):
    run = run_agent([script(SHOW), "--lr", "3"])
    seen = json.loads(run.stdout)
    assert run.one(wire.Started).argv[-2:] == ("--lr", "3")
    assert seen["path"] == []
    assert not seen["torch"]
    assert set(seen["modules"]) <= {
        "flatout_agent",
        "flatout_agent.attach",
        "flatout_agent.attach.importing",
        "flatout_agent.process",
        "flatout_agent.process.start",
        "flatout_agent.tell",
        "flatout_agent.tell.recorder",
        "flatout_agent.wire",
        "flatout_agent.wire.crash",
        "flatout_agent.wire.export",
        "flatout_agent.wire.flow",
        "flatout_agent.wire.host",
        "flatout_agent.wire.live",
        "flatout_agent.wire.memory",
        "flatout_agent.wire.plain",
        "flatout_agent.wire.profile",
        "flatout_agent.wire.ranks",
    }


def test_the_users_own_sitecustomize_still_runs(run_agent, script, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import builtins; builtins.MINE = 41 + 1")
    both = os.pathsep.join([str(INJECT), str(own)])
    run = run_agent([script("print(MINE, __import__('sitecustomize').__file__)")],
                    env={"PYTHONPATH": both})  # fmt: skip
    assert run.stdout.split() == ["42", str(own / "sitecustomize.py")]
    assert run.of(wire.Started)


def test_an_error_in_the_users_sitecustomize_is_shown_as_python_shows_it(
    run_agent, script, tmp_path
):
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("raise RuntimeError('mine')")
    path = os.pathsep.join([str(INJECT), str(own)])
    run = run_agent([script("print('ran')")], env={"PYTHONPATH": path})
    assert run.stdout == "ran\n"
    assert "RuntimeError: mine" in run.stderr


def test_children_start_the_agent_too(run_agent, script):
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1)'], check=True)"
    run = run_agent([script(child)])
    assert len(run.of(wire.Started)) == 2


@pytest.mark.parametrize("flag", ["-I", "-E", "-S"])
def test_an_interpreter_that_ignores_the_folder_runs_as_ever(run_agent, script, flag):
    run = run_agent([flag, script("print('ran')")])
    assert (run.returncode, run.stdout, run.stderr) == (0, "ran\n", "")
    assert run.records() == []


@pytest.mark.parametrize(
    "orders", ["{", '{"version": 999, "records": "x"}', '{"records": "/nowhere/at/all"}']
)
def test_bad_orders_never_stop_the_program(tmp_path, orders):
    path = tmp_path / "orders.json"
    path.write_text(orders)
    env = {**os.environ, "PYTHONPATH": str(INJECT), wire.ORDERS_ENV: str(path)}
    done = subprocess.run(
        [sys.executable, "-c", "print('ran')"], env=env, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "ran\n", "")


def test_import_hook_leaves_the_modules_loader_as_it_was(run_agent, script, tmp_path):
    (tmp_path / "torch.py").write_text(
        "import inspect, sys\nLOADER = type(__loader__).__name__\n"
        "SPEC = type(__spec__.loader).__name__\nSOURCE = inspect.getsource(sys.modules[__name__])\n"
    )
    run = run_agent(
        [script("import torch; print(torch.LOADER, torch.SPEC, len(torch.SOURCE) > 10)")],
        env={"FLATOUT_DEBUG": "1"},
    )
    assert run.stdout == "SourceFileLoader SourceFileLoader True\n"
    # A module that calls itself torch and is not costs a fault in the records, nothing else.
    assert run.returncode == 0
    assert run.of(wire.Fault)


def test_loader_workers_by_spawn_start_clean(run_agent, script):
    run = run_agent(
        [
            script("""
import multiprocessing as mp, sys
def work(queue): queue.put(sorted(m for m in sys.modules if m.startswith("flatout_agent")))
if __name__ == "__main__":
    context = mp.get_context("spawn")
    queue = context.Queue()
    child = context.Process(target=work, args=(queue,))
    child.start(); print(queue.get()); child.join()
""")
        ]
    )
    assert len(run.of(wire.Started)) == 1, run.stderr
    assert "session" not in run.stdout
    assert "recorder'" in run.stdout or "start'" in run.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("own", [False, True])
def test_a_clusters_warning_does_not_end_who_knows_nothing_of_it(
    run_agent, script, monkeypatch, own
):
    monkeypatch.setenv(wire.WARNING_ENV, "SIGUSR1")
    text = "import os, signal\n"
    if own:
        text += "signal.signal(signal.SIGUSR1, lambda number, frame: print('heeded'))\n"
    run = run_agent([script(text + "os.kill(os.getpid(), signal.SIGUSR1)\nprint('on')\n")])
    assert (run.returncode, run.stdout.split()) == (0, ["heeded", "on"] if own else ["on"])
