"""With no boost, a program under the agent does exactly what it does without."""

from __future__ import annotations

import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import forked
from agent.conftest import bare
from flatout_agent import wire
from job_steps import assert_steps

pytestmark = pytest.mark.slow

JOBS = Path(__file__).parent.parent / "jobs"
TRAINING = ["plain", "workers", "closure", "checkpointing", "unguarded"]
ALIKE = [
    "gan", "no_loader", "scaler", "accumulation", "custom_optimizer", "dynamic_shapes",
    "several_losses", "methods", "iterable", "dropout", "eval_with_grad", "augment", "sched",
    "frozen", "ema_copy", "float64", "rnn", "saves", "by_hand",
]  # fmt: skip
ENDING = ["few_steps", "no_train", "no_torch", "eager_exit", "raises"]
FRAMEWORKS = ["hf_trainer"]
FRAMEWORKS_ALIKE = ["lightning_fit", "fabric_loop", "accelerate_loop", "own_compile"]


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    """Two programs run at a time: threads that wait for each other's cores take twice as long."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def both(run_agent, argv, tmp_path, light=True):
    """The same program without and with the agent, each in its own folder: both in a fork (see
    `forked`), or, side by side, in processes of their own."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir(), there.mkdir()
    if light:
        return forked.bare(argv, here, tmp_path), run_agent(argv, cwd=there, light=True)
    with ThreadPoolExecutor(2) as pool:
        plain = pool.submit(bare, argv, here)
        run = pool.submit(run_agent, argv, cwd=there)
        return plain.result(), run.result()


def assert_same(without, run):
    assert run.stdout == without.stdout
    assert run.stderr == without.stderr
    assert run.returncode == without.returncode
    assert run.of(wire.Fault) == []


@pytest.mark.parametrize(
    "name",
    [*TRAINING, *(pytest.param(name, marks=pytest.mark.thorough) for name in ALIKE)],
)
def test_same_output_and_losses(run_agent, tmp_path, name):
    argv = [str(JOBS / f"{name}.py"), "--steps", "12"]
    without, run = both(run_agent, argv, tmp_path)
    assert_same(without, run)
    assert_steps(without.stdout, 12)
    assert without.returncode == 0


@pytest.mark.parametrize("name", ENDING)
def test_same_ending(run_agent, tmp_path, name):
    own = name in ("raises", "no_torch")  # the most to compare: steps, a traceback, an exit code
    assert_same(*both(run_agent, [str(JOBS / f"{name}.py")], tmp_path, light=not own))


@pytest.mark.parametrize(
    "name",
    [*FRAMEWORKS, *(pytest.param(name, marks=pytest.mark.thorough) for name in FRAMEWORKS_ALIKE)],
)
def test_same_losses_under_a_framework(run_agent, tmp_path, name):
    argv = [str(JOBS / f"{name}.py"), "--steps", "6"]
    without, run = both(run_agent, argv, tmp_path)
    assert_steps(without.stdout, 6)
    losses = [line for line in run.stdout.splitlines() if line.startswith("step ")]
    assert losses == [line for line in without.stdout.splitlines() if line.startswith("step ")]
    assert run.returncode == without.returncode == 0
    assert run.of(wire.Fault) == []


def test_a_module_run_by_name(run_agent, tmp_path):
    argv = ["-m", "pkg_module.train", "--steps", "5"]
    without = forked.bare(argv, JOBS, tmp_path)
    run = run_agent(argv, cwd=JOBS, light=True)
    assert (run.returncode, run.stdout, run.stderr) == (0, without.stdout, without.stderr)


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
@pytest.mark.parametrize(
    "number", ["SIGINT", "SIGTERM", pytest.param("SIGKILL", marks=pytest.mark.thorough)]
)
def test_a_signal_ends_it_as_ever(run_agent, script, tmp_path, number):
    argv = [
        script(f"""
import os, signal, torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for i in range(9):
    model(torch.ones(1, 2)).sum().backward(); optimizer.step(); print(i, flush=True)
    if i == 5: os.kill(os.getpid(), signal.{number})
""")
    ]
    without, run = both(run_agent, argv, tmp_path)
    assert run.returncode == without.returncode == -getattr(signal, number)
    assert (run.stdout, run.stderr) == (without.stdout, without.stderr)


def test_hooks_that_cost_time_are_taken_out(run_agent, script):
    run = run_agent(
        [
            script("""
import torch
call, backward = torch.nn.Module.__call__, torch.autograd.backward
model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for i in range(4):
    model(torch.ones(1, 2)).sum().backward(); optimizer.step()
    original = torch.nn.Module.__call__ is torch.nn.Module._wrapped_call_impl
    print(i, original, torch.autograd.backward.__module__, "_compiled_call_impl" in vars(model))
""")
        ],
        light=True,
    )
    assert run.stdout.splitlines() == [
        "0 False flatout_agent.discover.discovery False",
        "1 True torch.autograd False",
        "2 True torch.autograd False",
        "3 True torch.autograd False",
    ]


def test_models_that_the_program_drops_are_freed(run_agent, script):
    """K-fold training: each fold's model must go when the program lets go of it."""
    run = run_agent(
        [
            script("""
import gc, torch, weakref
gone = []
for fold in range(3):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)
    for i in range(40):
        optimizer.zero_grad(); model(torch.ones(2, 4)).sum().backward(); optimizer.step()
    gone.append(weakref.ref(model)); del model, optimizer; gc.collect()
print([ref() is None for ref in gone])
""")
        ],
        boosts=("fused-optimizer", "bf16-autocast"),
        light=True,
    )
    # The last optimizer that led is still known; all models before it are gone.
    assert run.stdout.strip().startswith("[True, True"), run.stdout
    assert run.one(wire.Ended).steps > 40
