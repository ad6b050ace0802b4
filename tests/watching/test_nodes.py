"""Other machines through ssh, which is a program of the test's here: it runs what it is given."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest

from flatout.nouns import frame_json
from flatout.nouns.errors import UserError
from flatout.watching.nodes import Nodes, slurm_hosts
from reporting.monitor import frames

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="programs by their first line")
SSH = """#!{python}
import os, sys, time
host, command = sys.argv[-2:]
assert sys.argv[-3] == "--", sys.argv
assert command == "flatout monitor --json --follow", command
with open(os.path.join({folder!r}, "started"), "a") as file:
    print(host, os.getpid(), file=file)
if host == "dead":
    sys.exit("ssh: connect to host dead port 22: No route to host")
if host == "without":
    print("sh: flatout: not found", file=sys.stderr)
    sys.exit(127)
print("Welcome to " + host)
line = open(os.path.join({folder!r}, "newer" if host == "newer" else "frame")).read()
while True:
    print(line.replace("node1", host), flush=True)
    if host == "ends":
        sys.exit(0)
    time.sleep(0.1)
"""


@pytest.fixture
def network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "bin/ssh"
    program.parent.mkdir()
    program.write_text(SSH.format(python=sys.executable, folder=str(tmp_path)))
    program.chmod(0o755)
    document = frame_json.dump(frames.eight_gpus())
    (tmp_path / "frame").write_text(json.dumps(document))
    (tmp_path / "newer").write_text(json.dumps({**document, "schema": "flatout.monitor/99"}))
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def processes(folder: Path) -> list[tuple[str, int]]:
    lines = (folder / "started").read_text().splitlines()
    return [(host, int(pid)) for host, pid in (line.split() for line in lines)]


@pytest.mark.slow
def test_several_nodes_in_one_frame(network: Path) -> None:
    frame = Nodes(["one", "two", "dead", "without", "newer"]).once(limit_s=120)
    assert [machine.hostname for machine in frame.machines] == ["one", "two"]
    assert {job.hostname for job in frame.jobs} == {"one", "two"}
    assert len({job.id for job in frame.jobs}) == len(frame.jobs) == 12
    has_ended = [job.state == "ended" for job in frame.jobs]
    assert True in has_ended
    assert has_ended == sorted(has_ended)  # those of every node below those that run on any
    notes = "\n".join(frame.notes)
    assert "dead: ssh: connect to host dead port 22: No route to host" in notes
    assert "without: flatout is not there" in notes
    assert "newer: it is written in flatout.monitor/99" in notes
    deadline = time.monotonic() + 120
    while any(alive(pid) for _, pid in processes(network)):  # none is left behind
        assert time.monotonic() < deadline
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
def test_a_node_that_ends_is_tried_again(network: Path) -> None:
    nodes = Nodes(["ends"])
    source = nodes.frames(0.2)
    deadline = time.monotonic() + 120
    while len(processes(network) if (network / "started").exists() else ()) < 2:
        assert time.monotonic() < deadline
        next(source)
    source.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("host", ["-oProxyCommand=x", "", "a b"])
def test_an_option_is_no_host(host: str) -> None:
    with pytest.raises(UserError, match="is no host"):
        Nodes([host])


SLURM = """#!/bin/sh
case "$0 $*" in
  *squeue*12*) echo 'node[1-2]' ;;
  *squeue*13*) echo '' ;;
  *squeue*) echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1 ;;
  *scontrol*) printf 'node1\\nnode2\\n' ;;
esac
"""


def test_the_nodes_of_a_slurm_job(network: Path) -> None:
    for name in ("squeue", "scontrol"):
        (network / "bin" / name).write_text(SLURM)
        (network / "bin" / name).chmod(0o755)
    assert slurm_hosts("12") == ["node1", "node2"]
    with pytest.raises(UserError, match="is not running"):
        slurm_hosts("13")
    with pytest.raises(UserError, match="Invalid job id"):
        slurm_hosts("99")
