"""Wrong usage of every command is told with the next step, before anything is run or written."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from commands.called import Flatout
from flatout.probing import machine, nvml
from machines.healthy import workstation

THERE = "--for gpu=rtx4090,driver=535,os=windows,python=3.11"
A100 = Path(__file__).parents[1] / "traces/a100_train.json.gz"
TOLD = [
    ("ejct", "there is no command 'ejct'; did you mean 'eject'?\n  next: flatout --help\n"),
    ("zzz", "flatout: there is no command 'zzz'\n  next: flatout --help\n"),
    ("--zzz", "flatout: No such option: --zzz\n  next: flatout --help\n"),
    ("eject --jsn", "--jsn (Possible options: --json)\n  next: flatout eject --help\n"),
    ("eject --plan", "Option '--plan' requires an argument"),
    ("eject rest", "Got unexpected extra argument"),
    ("env docker --jsn", "No such option: --jsn"),
    ("bench --expect h1000", "did you mean h100"),
    ("bench --python /no/python", "no Python interpreter"),
    ("doctor --machine absent.json", "absent.json"),
    ("doctor --machine absent.json --deep", "--deep"),
    ("doctor --python no-such-python", "no-such-python"),
    ("doctor --frobnicate", "--frobnicate"),
    ("doctor --fail-on note", "'note' is not one of 'error', 'warning'"),
    ("env shoes", "No such command 'shoes'"),
    ("env dockr", "No such command 'dockr'. Did you mean 'docker'?"),
    ("env docker --apply", "No such option: --apply\n  next: flatout env docker --help"),
    ("env install --for gpu=foo", "no GPU is known"),
    ("env install --manager poetry", "--manager poetry"),
    ("env install --python /no/such/python", "no Python interpreter"),
    (f"env install {THERE} --mirror 'not a url'", "is not an address"),
    (f"env install {THERE} --mirror ftp:/x", "is not an address"),
    (f"env install {THERE} --mirror mirror.example.org", "is not an address"),
    ("export", "export needs a script"),
    ("export --for beauty train.py", "--for 'beauty' is not a goal"),
    ("export --only onxruntime train.py", "there is no backend 'onxruntime'"),
    ("export --allow int1 train.py", "--allow 'int1' is not known"),
    ("export --limit soon train.py", "--limit 'soon' is not a time"),
    ("export --capture nowhere", "nowhere is not a captured model"),
    ("export --capture nowhere train.py", "--capture runs no script"),
    ("export --out train.py --capture nowhere", "train.py exists and is no folder"),
    ("launch", "no engine is named; there are"),
    ("launch --nodes 2 train.py", "no engine is named"),
    ("launch slurm --gpus none train.py", "--gpus 'none' is neither all nor a number"),
    ("launch slurm --gpus 0 train.py", "--gpus '0' is neither all nor a number"),
    ("launch slurm --env NOT_SET_HERE train.py", "it is not set here"),
    ("launch slurm --env 'A=1\n2' train.py", "a value of several lines"),
    ("launch slurm --set qos train.py", "--set 'qos' has no value"),
    ("launch slurm --time soon train.py", "--time 'soon' is not a time"),
    ("launch slurm --plan none.toml train.py", "there is no plan none.toml"),
    ("launch ssh --hosts a,b --nodes 3 train.py", "--nodes is 3, but --hosts names 2"),
    ("launch slurm train.py", "sbatch is not installed here"),
    ("launch --follow 7", "no job '7' was launched from"),
    ("launch --follow 7 --cancel 7", "cannot be combined"),
    ("memory --memory much --gpus 1 train.py", "--memory 'much' is not a size"),
    ("memory --limit soon train.py", "--limit 'soon' is not a time"),
    ("monitor --follow", "--follow goes with --json"),
    ("profile absent.json.gz", "there is no trace absent.json.gz"),
    ("profile --fail-above 10 train.py", "is neither a percentage nor a ratio below 1"),
    (f"profile {A100} train.py", "is a trace, train.py is not"),
    (f"profile {A100} --stop", "--stop needs a script"),
    (f"profile --steps 3 {A100}", "--steps needs a script"),
    (f"profile {A100} --jsn", "No such option: --jsn"),
    ("profile --skip soon train.py", "is not a time"),
    ("profile missing.py", "no such script"),
    ("profile", "no script is named"),
    ("run none.py", "no such script: none.py"),
    ("run --plan none.toml train.py", "there is no plan at none.toml"),
    ("run --only nonsense train.py", "no boost 'nonsense'"),
    ("run --skip nonsense train.py", "no boost 'nonsense'"),
    ("run --live --only bf16-autocas train.py", "no boost 'bf16-autocas'"),
    ("run --python none/python train.py", "none/python"),
    ("run --wrong train.py", "--wrong"),
    ("run no-such-command", "no-such-command"),
    ("run -m", "-m"),
    ("run", "no script is named"),
    ("run --ranks 2 --gpus all train.py", "number of ranks"),
    ("run --ranks 2 --live train.py", "--live tunes one process"),
    ("run --ranks 100000 train.py", "needs 100000 CPU cores"),
    ("run --gpus all train.py", "no NVIDIA GPU"),
    ("run --ranks 1 train.py", "--ranks"),
    ("run --ranks 2 -- torchrun train.py", "starts the ranks itself"),
    ("tune none.py", "no such script: none.py"),
    ("tune --only bf16-autocas train.py", "no boost 'bf16-autocas'"),
    ("tune --budget 10x train.py", "'10x' is not a time"),
    ("tune", "no script is named"),
    ("tune --skip tf-32 train.py", "no boost 'tf-32'"),
    ("tune --only tf32 --skip tf32 train.py", "tf32 is named by"),
    ("tune --budget 0 train.py", "'0' is not a time"),
    ("tune --steps 1 train.py", "--steps"),
    ("tune --python none/python train.py", "none/python"),
    ("tune --plan none/plan.toml train.py", "no folder none"),
    ("tune --plan . train.py", "is a folder"),
]


@pytest.mark.parametrize(("line", "told"), TOLD)
def test_wrong_usage(
    flat: Flatout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, told: str
) -> None:
    (tmp_path / "train.py").write_text("open('started', 'w')")
    launcher = tmp_path / "torchrun"
    launcher.write_text("#!/bin/sh\n")
    launcher.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))  # no engine is installed
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(nvml, "gpus", lambda library=None: ())
    monkeypatch.setattr(machine, "look", lambda python, **options: workstation())
    done = flat(*shlex.split(line), folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
    assert "next: " in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["torchrun", "train.py"]
