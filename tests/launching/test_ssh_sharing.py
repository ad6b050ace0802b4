"""One connection for all calls to a machine, with a program that behaves as ssh does."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from flatout.launching import ssh_hosts
from flatout.launching.ssh_hosts import RemoteHost
from flatout.launching.ssh_sharing import SharedConnections

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="ssh shares no connection there")
FAKE = """#!/bin/sh
echo "$*" >>{calls}
for word; do
  case $word in
    ControlPath=*) path=${{word#ControlPath=}} ;;
    ControlMaster=yes) master=1 ;;
    deaf) echo "root@deaf: Permission denied (publickey)." >&2; exit 255 ;;
    alone) [ -z "$master" ] || {{ echo "shell request failed" >&2; exit 1; }} ;;
  esac
done
if [ -n "$master" ]; then touch "$path"; exec cat; fi
echo answered
"""


class Ssh:
    """What was called, and the connections of this test."""

    def __init__(self, folder: Path) -> None:
        self._calls = folder / "calls"
        program = folder / "ssh"
        program.write_text(FAKE.format(calls=self._calls))
        program.chmod(0o755)
        self.shared = SharedConnections()

    def calls(self) -> list[str]:
        return self._calls.read_text().splitlines()


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ssh]:
    made = Ssh(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(ssh_hosts, "SHARED", made.shared)
    yield made
    made.shared.close()


def test_the_first_call_connects_and_all_use_it(ssh: Ssh) -> None:
    host = RemoteHost("box")
    assert [host.ask("true").stdout for _ in range(3)] == ["answered\n"] * 3
    first, *others = ssh.calls()
    assert "ControlMaster=yes" in first
    assert first.endswith("-- box cat")
    path = first.partition("ControlPath=")[2].split()[0]
    assert len(others) == 3
    assert all(f"-o ControlMaster=no -o ControlPath={path} -- box" in call for call in others)
    RemoteHost("other").ask("true")
    assert sum("ControlMaster=yes" in call for call in ssh.calls()) == 2


def test_it_ends_with_all_of_it(ssh: Ssh) -> None:
    host = RemoteHost("box")
    host.ask("true")
    [connection] = ssh.shared._connections.values()
    process = connection.process
    assert process is not None
    assert psutil.pid_exists(process.pid)
    ssh.shared.close()
    assert process.returncode is not None
    assert not connection.socket.parent.exists()
    assert "ControlPath" not in " ".join(host.command(["true"]))


def test_a_machine_that_lets_nobody_in_is_asked_once(ssh: Ssh) -> None:
    host = RemoteHost("deaf")
    answer = host.ask("true")
    assert answer.returncode == ssh_hosts.UNREACHED
    assert "it accepts none of your keys" in host.trouble(answer).message
    assert len(ssh.calls()) == 1


def test_where_there_can_be_none_each_call_connects_by_itself(ssh: Ssh) -> None:
    host = RemoteHost("alone")
    assert host.ask("true").stdout == "answered\n"
    assert not any("ControlPath" in call for call in ssh.calls()[1:])
