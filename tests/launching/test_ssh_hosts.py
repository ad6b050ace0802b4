"""Calls of ssh, with a program that behaves as it does; for real: engines/test_ssh.py."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from flatout.launching import ssh_hosts
from flatout.launching.ssh_hosts import RemoteHost
from running.waiting import until

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="ssh shares no connection there")
FAKE = """#!/bin/sh
case "$*" in
  *deaf*) echo "root@deaf: Permission denied (publickey)." >&2; exit 255 ;;
esac
# What stays for the next call keeps the errors open, for two minutes or until it is told to end.
left=1200
while [ ! -e {over} ] && [ $left -gt 0 ]; do left=$((left - 1)); sleep 0.1; done >/dev/null &
echo $! >{over}.pid
echo answered
"""


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The program on the path; what it leaves running ends with the test."""
    program, over = tmp_path / "ssh", tmp_path / "over"
    program.write_text(FAKE.format(over=over))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    yield
    over.touch()
    pids = [int(file.read_text()) for file in tmp_path.glob("*.pid")]
    until(lambda: not any(map(psutil.pid_exists, pids)))


@pytest.mark.usefixtures("ssh")
def test_an_answer_does_not_wait_for_the_connection_that_stays() -> None:
    answer = RemoteHost("box").ask("true", limit_s=60)
    assert (answer.returncode, answer.stdout) == (0, "answered\n")
    first, again = (RemoteHost("box").command(["true"]) for _ in range(2))
    assert first == again
    assert "ControlMaster=auto" in first


@pytest.mark.usefixtures("ssh")
def test_a_machine_that_lets_nobody_in_is_explained() -> None:
    host = RemoteHost("deaf")
    answer = host.ask("true")
    assert answer.returncode == ssh_hosts.UNREACHED
    assert "it accepts none of your keys" in host.trouble(answer).message
