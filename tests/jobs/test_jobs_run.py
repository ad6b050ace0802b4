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


@pytest.mark.thorough
def test_closure_also_with_sgd(tmp_path: Path) -> None:
    script = str(HERE / "closure.py")
    _, lbfgs, _ = run([script, "--steps", "4"], tmp_path)
    code, sgd, _ = run([script, "--steps", "4", "--optimizer", "sgd"], tmp_path)
    assert code == 0
    assert STEP.findall(sgd)[0] == STEP.findall(lbfgs)[0]
    assert STEP.findall(sgd)[1] != STEP.findall(lbfgs)[1]


@pytest.mark.thorough
def test_seed_decides_and_without_one_each_run_differs(tmp_path: Path) -> None:
    script = str(HERE / "plain.py")
    losses = {
        run([script, "--steps", "1", *more], tmp_path)[1]
        for more in ([], ["--seed", "1"], ["--no-seed"], ["--no-seed"])
    }
    assert len(losses) == 4


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "code", "steps", "says"),
    [("eager_exit", 3, 4, "enough"), ("raises", 1, 4, "ValueError: step 4 went wrong")],
)
def test_ends_early(name: str, code: int, steps: int, says: str, tmp_path: Path) -> None:
    script = str(HERE / f"{name}.py")
    found, out, err = run([script, "--steps", "8", "--after", str(steps)], tmp_path)
    assert found == code
    assert says in err
    assert_steps(out, steps)


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "steps"), [("few_steps", 2), ("no_train", 0), ("no_torch", 0)])
def test_takes_few_steps_or_none(name: str, steps: int, tmp_path: Path) -> None:
    code, out, err = run([str(HERE / f"{name}.py")], tmp_path)
    assert (code, err) == (0, "")
    assert len(STEP.findall(out)) == steps
    assert out


@pytest.mark.thorough
def test_hangs_after_five_steps(tmp_path: Path) -> None:
    process = start([str(HERE / "hangs.py")], tmp_path)
    assert process.stdout is not None
    steps = [STEP.match(process.stdout.readline()) for _ in range(5)]
    assert all(steps)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=1)
    process.kill()
    out, _ = process.communicate()
    assert out == ""


@pytest.mark.thorough
def test_saves_keeps_two_checkpoints(tmp_path: Path) -> None:
    script = str(HERE / "saves.py")
    code, out, _ = run([script, "--steps", "8", "--save-every", "2"], tmp_path)
    assert code == 0
    assert out.endswith("kept checkpoint-00006.pt checkpoint-00008.pt\n")
    files = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert files == ["best.pt", "checkpoint-00006.pt", "checkpoint-00008.pt", "log.txt"]
    assert len((tmp_path / "out" / "log.txt").read_text().splitlines()) == 8


@pytest.mark.thorough
def test_copy_of_the_model_can_be_loaded_whole(tmp_path: Path) -> None:
    _, out, _ = run([str(HERE / "ema_copy.py"), "--steps", "3"], tmp_path)
    assert out.endswith("same True\n")


@pytest.mark.thorough
def test_scaler_skips_steps_when_asked(tmp_path: Path) -> None:
    script = str(HERE / "scaler.py")
    _, out, _ = run([script, "--steps", "4", "--init-scale", "2e38"], tmp_path)
    assert float(out.split()[-1]) < 2e38, "the scale never went down: no step was skipped"


def test_every_script_is_listed_and_tested() -> None:
    listed = (HERE / "README.md").read_text(encoding="utf-8")
    files = (Path(__file__), HERE.parent / "agent/test_transparency.py")
    tested = "".join(path.read_text(encoding="utf-8") for path in files)
    scripts = {path.name for path in HERE.glob("*.py")} - {Path(__file__).name}
    assert scripts
    for name in scripts | {"pkg_module", "shell.sh"}:
        assert f"`{name}`" in listed
        stem = name.removesuffix(".py")
        assert f'"{stem}"' in tested or name in tested or f'"{stem}.train' in tested
