"""`flatout doctor` as a real process: this machine, recorded ones, and wrong arguments."""

from __future__ import annotations

import getpass
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from commands.called import Ended, Flatout
from flatout.__main__ import outcome
from flatout.nouns.errors import INTERRUPTED
from flatout.probing import machine
from flatout.reporting.moving_line import SelfTestView
from machines import composed

PATIENT = """
from flatout.probing import interpreter, machine
interpreter.QUICK_S = machine.QUICK_S = 100.0
from flatout.__main__ import main
main()
"""
"""`flatout`, which waits for all facts however busy the machine is."""


def process(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PATIENT, *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def document(done: Ended | subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode in (0, 1), done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_this_machine() -> None:
    """What it says here is compared with what Python and torch say themselves."""
    options = ["--json", "--python", sys.executable]
    found = document(process("doctor", *options, CUDA_VISIBLE_DEVICES=""))
    assert found["schema"] == "flatout.doctor/1"
    assert found["checks"] >= 40
    machine = found["machine"]
    assert machine["unread"] == []
    assert machine["interpreter"]["version"] == sys.version.split()[0]
    assert machine["environment"]["CUDA_VISIBLE_DEVICES"] == ""
    assert [item for item in found["findings"] if item["severity"] == "unchecked"] == []
    if sys.platform == "linux":
        assert machine["cpu"]["affinity_cores"] == len(os.sched_getaffinity(0))
        assert machine["memory"]["total_bytes"] > 2**28


def test_deep_says_at_once_that_it_takes_a_minute(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Importing torch alone may take as long as all that is tried afterwards."""
    said: list[str] = []

    def look(*_: object) -> None:
        said.append(capsys.readouterr().err)
        raise KeyboardInterrupt

    monkeypatch.setattr(machine, "look", look)
    assert outcome(["doctor", "--deep"]) == INTERRUPTED
    assert said == [f"{SelfTestView.first}\n"]


@pytest.mark.thorough
@pytest.mark.slow
def test_deep_tries_the_devices() -> None:
    """All that --deep does in the user's Python, on this machine's own torch, and once.

    What it tried is told with the same stand-ins as the machine.
    """
    import torch

    options = ["--json", "--redact", "--python", sys.executable, "--deep"]
    found = document(process("doctor", *options))
    said = found["machine"]["interpreter"]["torch"]
    assert said["imported"] is True
    assert torch.__version__.startswith(said["version"])
    assert said["cuda"] == torch.version.cuda
    assert said["cuda_available"] == torch.cuda.is_available()
    assert said["device_count"] == torch.cuda.device_count()
    assert (said["compile_works"], said["compile_error"]) == (True, None)
    tests = found["selftests"]
    assert [test for test in tests if test["passed"] is False] == []
    names = [test["name"] for test in tests]
    assert names[:2] == ["import torch", "find devices"]
    assert {"matrix product float32, cpu", "training step, cpu", "torch.compile, cpu"} <= set(names)
    assert all(test["figure"] for test in tests if test["passed"])
    assert str(Path(sys.executable).parent) not in json.dumps(found)


@pytest.mark.slow
def test_a_recording_is_read_again(flat: Flatout, tmp_path: Path) -> None:
    recording = tmp_path / "machine.json"
    here = document(flat("doctor", "--json"))
    recording.write_text(json.dumps(here))
    again = document(flat("doctor", "--json", "--machine", str(recording)))
    assert again["machine"] == here["machine"]
    assert again["findings"] == here["findings"]


@pytest.mark.slow
def test_redacted(flat: Flatout) -> None:
    environment = {"LD_LIBRARY_PATH": "/data/of-mine/lib", "MASTER_ADDR": "secret.example"}
    text = json.dumps(document(flat("doctor", "--json", "--redact", variables=environment)))
    for secret in ("of-mine", "secret.example", str(Path.cwd())):
        assert secret not in text
    for name in (getpass.getuser(), socket.gethostname()):
        if name != "root" and len(name) > 3:
            assert name not in text


@pytest.mark.parametrize(
    ("machine", "options", "code"),
    [
        ("workstation", ["--fail-on", "warning"], 0),
        ("nouveau", ["--fail-on", "error"], 1),
        ("container-small", [], 1),
        ("container-small", ["--fail-on", "warning"], 1),
        ("container-small", ["--fail-on", "error", "--json"], 0),
    ],
)
def test_fail_on(
    flat: Flatout, machine: str, options: list[str], code: int, tmp_path: Path
) -> None:
    done = flat("doctor", "--machine", str(composed.write(machine, tmp_path)), *options)
    assert done.returncode == code, done.stdout


def test_its_guide_shows_what_it_prints(flat: Flatout, root: Path, tmp_path: Path) -> None:
    done = flat("doctor", "--machine", str(composed.write("kernel-updated", tmp_path)))
    guide = (root / "docs/guide-doctor.md").read_text(encoding="utf-8")
    assert f"```\n{done.stdout.rstrip()}\n```" in guide


def test_a_broken_interpreter_is_told(flat: Flatout, tmp_path: Path) -> None:
    broken = tmp_path / "python3"
    broken.write_text("#!/bin/sh\nexit 127\n")
    broken.chmod(0o755)
    found = document(flat("doctor", "--json", "--python", str(broken)))
    assert found["machine"]["interpreter"]["error"]
    assert found["machine"]["cpu"]["cores"] >= 1
