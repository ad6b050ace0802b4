"""flatout env: what is printed, written and run."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from commands.called import Flatout
from flatout.nouns.interpreter import Interpreter
from flatout.nouns.machine import Machine
from machines.healthy import HEALTHY, changed, workstation

THERE = "gpu=rtx4090,driver=535,os=windows,python=3.11"


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """This machine is a workstation, and the folder is empty."""
    monkeypatch.chdir(tmp_path)
    show(monkeypatch, workstation())
    return tmp_path


def show(monkeypatch: pytest.MonkeyPatch, machine: Machine) -> None:
    probing = pytest.importorskip("flatout.probing.machine")
    monkeypatch.setattr(probing, "look", lambda python, **options: machine)


def test_install_prints_lines_to_paste(here: Path, flat: Flatout) -> None:
    done = flat("env", "install")
    text = done.stdout
    assert done == flat("env"), "the README promises them under this name"
    assert done.returncode == 0
    assert text.startswith("# why: Driver 580.95.05 supports ")
    assert "/home/user/venv/bin/python -m pip install torch==" in text
    if os.name == "posix":
        subprocess.run(["bash", "-n", "-c", text], check=True)


def test_for_another_machine(flat: Flatout) -> None:
    document = json.loads(flat.printed("env", "install", "--for", THERE, "--json"))
    assert document["schema"] == "flatout.env/1"
    assert document["choice"]["build"] == "cu126"
    assert document["choice"]["why"] and document["choice"]["driver_needed"] is None
    assert document["target"]["system"] == "Windows"
    assert document["target"]["compute_capability"] == [8, 9]
    assert any("cu126" in line for line in document["commands"])
    assert list(document["files"]) == ["install.ps1"]


@pytest.mark.parametrize("name", HEALTHY)
@pytest.mark.parametrize("what", ["install", "docker"])
def test_every_healthy_machine_has_an_answer(
    name: str,
    what: str,
    monkeypatch: pytest.MonkeyPatch,
    flat: Flatout,
) -> None:
    show(monkeypatch, HEALTHY[name]())
    document = json.loads(flat.printed("env", what, "--json"))
    assert document["choice"]["driver_needed"] is None
    assert document["files"]
    build = document["choice"]["build"]
    vendors = {"rocm-node": "rocm6.4", "mac": "cpu", "cpu-server": "cpu"}
    assert build == vendors.get(name, "cpu") or build.startswith("cu")


def test_options(here: Path, flat: Flatout) -> None:
    mirror = "https://mirror.example/wheels"
    text = flat.printed("env", "install", "--manager", "uv", "--mirror", mirror)
    assert "uv pip install --python /home/user/venv/bin/python" in text
    assert f"--index-url {mirror}/cu1" in text


def test_docker_is_printed(here: Path, flat: Flatout) -> None:
    assert flat.printed("env", "docker").startswith("# why: ")
    assert list(here.iterdir()) == []


def test_what_cannot_be_is_the_answer_no(flat: Flatout) -> None:
    done = flat("env", "install", "--for", "gpu=jetson-orin,os=ubuntu22.04")
    assert (done.returncode, done.stdout) == (1, "") and "JetPack" in done.stderr


def test_an_old_driver_is_told_first(
    here: Path, monkeypatch: pytest.MonkeyPatch, flat: Flatout
) -> None:
    old: Machine = changed(
        workstation(),
        gpus__0__name="NVIDIA GeForce RTX 5090",
        gpus__0__compute_capability=(12, 0),
        drivers__0__version="550.54.14",
    )
    show(monkeypatch, old)
    text = flat.printed("env", "install")
    assert text.index("nvidia-driver-580-open") < text.index("torch==") < text.index("sudo reboot")


def test_what_is_no_python_gets_no_lines(monkeypatch: pytest.MonkeyPatch, flat: Flatout) -> None:
    mute = Interpreter(executable="/bin/ls", error="ended with exit code 0")
    show(monkeypatch, changed(workstation(), interpreter=mute))
    done = flat("env", "install")
    assert (done.returncode, done.stdout) == (1, "")
    assert "/bin/ls did not report its facts" in done.stderr
