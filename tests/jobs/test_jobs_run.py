"""Each script runs on its own and ends as its docstring says.

That each trains, and repeats itself to the last bit, is seen in tests/agent/test_transparency.py,
which runs all of them twice, once with the agent.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import forked
from job_steps import STEP, assert_steps

pytestmark = pytest.mark.slow

HERE = Path(__file__).resolve().parent
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def start(arguments: list[str], folder: Path) -> subprocess.Popen[str]:
    folder.mkdir(exist_ok=True)
    # One thread each: several run at a time, and threads that wait for each other take longer.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE)}
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(arguments: list[str], folder: Path) -> tuple[int, str, str]:
    if arguments[0].endswith(".py"):
        done = forked.bare(arguments, folder, folder.parent)
        return done.returncode, done.stdout, done.stderr
    with start(arguments, folder) as process:
        out, err = process.communicate(timeout=240)
    return process.returncode, out, err


@pytest.mark.thorough
def test_prints_trains(tmp_path: Path) -> None:
    code, out, err = run([str(HERE / "prints.py"), "--steps", "3"], tmp_path)
    assert code == 0, err
    assert_steps(out, 3)


@pytest.mark.thorough
def test_package_runs_as_a_module(tmp_path: Path) -> None:
    code, out, err = run(["-m", "pkg_module.train", "--steps", "6"], tmp_path)
    assert code == 0, err
    assert_steps(out, 6)


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform == "win32", reason="torchrun needs libuv, which Windows lacks")
def test_two_ranks(tmp_path: Path) -> None:
    # One after the other: two that start at once may choose the same free port.
    arguments = [*TORCHRUN, str(HERE / "ddp.py"), "--steps", "6"]
    told = []
    for name in ("a", "b"):
        code, out, err = run(arguments, tmp_path / name)
        if "terminate called without an active exception" in err:
            # gloo ended with a thread of its own alive: rare, under load, nothing of ours runs here
            code, out, err = run(arguments, tmp_path / f"{name}-again")
        assert code == 0, err
        assert_steps(out, 6)
        told.append(STEP.findall(out))
    assert told[0] == told[1]


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform == "win32", reason="no sh")
def test_shell_script_starts_training(tmp_path: Path) -> None:
    folder = str(Path(sys.executable).parent)
    environment = {**os.environ, "PATH": folder + os.pathsep + os.environ["PATH"]}
    done = subprocess.run(
        ["sh", str(HERE / "shell.sh"), "--steps", "3"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert_steps(done.stdout, 3)
    assert done.stdout.startswith("starting\n")
    assert done.stdout.endswith("done\n")


def test_every_script_is_listed() -> None:
    listed = (HERE / "README.md").read_text(encoding="utf-8")
    scripts = {path.name for path in HERE.glob("*.py")} - {Path(__file__).name}
    assert scripts
    for name in scripts | {"pkg_module", "shell.sh"}:
        assert f"`{name}`" in listed
