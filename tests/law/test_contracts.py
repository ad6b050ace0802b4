"""Each import contract can fail. That they hold on the real tree is checked by `make lint`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
import tomllib
from pathlib import Path

import pytest

PLANTED = {
    "Dependencies only go down": ("flatout/nouns/plan.py", "import flatout.commands"),
    "Several nodes know ranks, ranks know one process, never the reverse": (
        "flatout/running/one/foreground.py",
        "import flatout.running.ranks.stacks",
    ),
    "The agent is the bottom of the packages, the host the top": (
        "flatout_agent/speedups/nests.py",
        "import flatout_train.errors",
    ),
    "Within the agent dependencies only go down": (
        "flatout_agent/speedups/nests.py",
        "import flatout_agent.apply.booster",
    ),
    "Within the library dependencies only go down": (
        "flatout_train/loader/loader.py",
        "import flatout_train.step.train_step",
    ),
    "The agent, the programs and the library stand alone": (
        "flatout_agent/wire/__init__.py",
        "import numpy",
    ),
    "The host never imports torch": ("flatout/running/__init__.py", "def f():\n    import torch"),
    "Of the agent the host knows the contract, and the boosts through knowledge": (
        "flatout/running/__init__.py",
        "import flatout_agent.job",
    ),
    "The contract is read where programs are started, measured and tuned": (
        "flatout/commands/__init__.py",
        "import flatout_agent.wire",
    ),
    "Reports are drawn from nouns alone": (
        "flatout/reporting/__init__.py",
        "import flatout.knowledge.boosts",
    ),
    "Boosts do not know each other": (
        "flatout_agent/boosts/channels_last.py",
        "import flatout_agent.boosts.bf16_autocast",
    ),
    "Backends of an export do not know each other": (
        "flatout_programs/backends/aoti.py",
        "import flatout_programs.backends.eager",
    ),
    "Engines of a launch do not know each other": (
        "flatout/launching/engines/ssh.py",
        "import flatout.launching.engines.slurm",
    ),
    "Checks do not know each other": (
        "flatout/diagnosing/job/data/data001_loader_without_workers.py",
        "import flatout.diagnosing.job.data.data002_loader_workers_too_slow",
    ),
    "Rules of alerts do not know each other": (
        "flatout/watching/alerts/wait001_waits_for_data.py",
        "import flatout.watching.alerts.slow001_slower_than_before",
    ),
    "Rules look at nothing: what was seen comes as their argument": (
        "flatout/watching/alerts/wait001_waits_for_data.py",
        "import psutil",
    ),
    "Checks of a kind know what is one level up, never another kind": (
        "flatout/diagnosing/ceilings/hw/shortfalls.py",
        "import flatout.diagnosing.job.savings",
    ),
    "What families of checks of jobs share knows none of them": (
        "flatout/diagnosing/job/operators.py",
        "import flatout.diagnosing.job.kern.clocks",
    ),
    "Diagnosing and installing look at nothing: facts come as arguments": (
        "flatout/diagnosing/diagnose.py",
        "import flatout.probing.cpu",
    ),
    "Of the host only the public names need the library": (
        "flatout/running/__init__.py",
        "import flatout_train.errors",
    ),
    "The library shares engines with the boosts, and loads boosts for a plan alone": (
        "flatout_train/step/precision.py",
        "import flatout_agent.boosts.tf32",
    ),
    "Commands do not know each other": (
        "flatout/commands/eject.py",
        "import flatout.commands.tune",
    ),
    "One door for what draws: reporting": ("flatout/tuning/__init__.py", "import rich"),
    "One door for what searches logs: explaining/patterns.py": (
        "flatout/diagnosing/diagnose.py",
        "import re2",
    ),
    "One door for what Prometheus reads: reporting/monitor/outlets/prometheus.py": (
        "flatout/reporting/monitor/screen.py",
        "import prometheus_client",
    ),
    "One door for the driver: probing/nvml": ("flatout/probing/memory.py", "import pynvml"),
    "One door for TOML that people edit: tuning/plan_file.py": (
        "flatout/tuning/planning.py",
        "import tomlkit",
    ),
    "One door for what reads traces: profiling/trace": (
        "flatout/measuring/duel.py",
        "import msgspec",
    ),
    "One door for the command line: commands": ("flatout/running/__init__.py", "import typer"),
}


def verdicts(folder: Path) -> dict[str, str]:
    program = Path(sysconfig.get_path("scripts")) / "lint-imports"
    done = subprocess.run(
        [str(program), "--no-logo", "--no-cache"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder / "src"), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    return dict(re.findall(r"^(.+) (KEPT|BROKEN)", done.stdout, flags=re.MULTILINE))


@pytest.fixture(scope="module")
def copy(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("planted")
    shutil.copy(root / "pyproject.toml", folder)
    shutil.copytree(root / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def test_every_contract_can_fail(root: Path, copy: Path) -> None:
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    names = [contract["name"] for contract in settings["tool"]["importlinter"]["contracts"]]
    assert sorted(PLANTED) == sorted(names)
    for path, line in PLANTED.values():
        with (copy / "src" / path).open("a", encoding="utf-8") as file:
            file.write(f"\n{line}\n")
    assert {name: verdict for name, verdict in verdicts(copy).items() if verdict == "KEPT"} == {}


def test_a_stray_room_breaks_the_build(copy: Path) -> None:
    stray = copy / "src/flatout/utils"
    stray.mkdir()
    (stray / "__init__.py").write_text('"""Odds and ends."""\n', encoding="utf-8")
    assert verdicts(copy).get("Dependencies only go down") != "KEPT"
