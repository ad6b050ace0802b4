"""What tells whose machine it is goes; what the checks need stays."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.diagnosing.diagnose import diagnose
from flatout.nouns.interpreter import Package
from flatout.nouns.machine import Machine
from flatout.probing.redacted import redacted
from machines.healthy import HEALTHY, changed, workstation

USER = "jane"
WORDS = [USER, "gpu-box-7"]
HOME = f"/home/{USER}"


def text(machine: Machine) -> str:
    return json.dumps(dataclasses.asdict(machine))


def with_error(message: str) -> str:
    machine = changed(workstation(), interpreter__torch__import_error=message)
    torch = redacted(machine, WORDS).torch
    assert torch is not None
    return torch.import_error or ""


def test_names_paths_and_hosts_are_left_out() -> None:
    machine = changed(
        workstation(),
        interpreter__executable=f"{HOME}/secret-project/venv/bin/python",
        interpreter__error="jane@gpu-box-7: cannot start",
        disks__0__path="/data/acme/jane",
        environment={
            "LD_LIBRARY_PATH": f"{HOME}/lib:/usr/local/cuda/lib64",
            "MASTER_ADDR": "trainer-0.acme.internal",
            "NCCL_SOCKET_IFNAME": "eth0",
        },
    )
    found = redacted(machine, WORDS)
    for word in ("jane", "secret", "gpu-box-7", "acme", "trainer"):
        assert word not in text(found)
    assert found.environment is not None
    assert found.environment["LD_LIBRARY_PATH"].endswith(":/usr/local/cuda/lib64")
    assert found.environment["NCCL_SOCKET_IFNAME"] == "eth0"
    assert found.interpreter is not None
    assert (found.interpreter.executable or "").endswith("/python")


def test_equal_stays_equal_and_different_stays_different() -> None:
    first, second = f"{HOME}/a/site-packages", f"{HOME}/b/site-packages"
    packages = tuple(Package("torch", "2.9.1", place) for place in (first, second, first))
    found = redacted(changed(workstation(), interpreter__packages=packages), WORDS)
    assert found.interpreter is not None
    places = [package.location for package in found.interpreter.packages or ()]
    assert places[0] == places[2] != places[1]


@pytest.mark.parametrize(
    ("message", "hidden"),
    [
        ("cannot open /srv/jobs/x/libc10.so", "/path-N/libc10.so"),
        ("DLL load failed: C:\\Users\\" + USER + r"\venv\c10.dll", r"\path-N\c10.dll"),
        ("see ~/notes/todo.txt for 10.1.2.3", "see /path-N for address-N"),
        ("in /usr/lib/x.so and /opt/rocm/lib/y.so", "in /usr/lib/x.so and /opt/rocm/lib/y.so"),
        ("/tmp holds /tmp/of-mine/x", "/tmp holds /path-N"),
        (r"C:\Users\Jo Doe\my venv\python.exe", r"\path-N\python.exe"),
        (r"C:\Program Files\NVIDIA\x.exe runs", r"C:\Program Files\NVIDIA\x.exe runs"),
        (f"{HOME}/my own project/bin/python", "/path-N/python"),
        ("see /data/acme-project, it is full", "see /path-N, it is full"),
        ("/data/acme-project is full", "/path-N"),
        ("GPU-12345678-aaaa-bbbb-cccc-1234567890ab lost", "GPU-N lost"),
    ],
)
def test_text(message: str, hidden: str) -> None:
    assert hidden in re.sub(r"(?<=-)\d+", "N", with_error(message))


@pytest.mark.parametrize("name", HEALTHY)
def test_the_diagnosis_is_the_same(name: str) -> None:
    machine = HEALTHY[name]()
    assert diagnose(redacted(machine, WORDS)) == diagnose(machine)


@given(st.text(min_size=4, max_size=12, alphabet=st.characters(categories=["Ll", "Lu"])), st.text())
def test_a_name_is_nowhere(name: str, around: str) -> None:
    message = f"{around} {name} {around}"
    machine = changed(workstation(), interpreter__torch__import_error=message)
    hidden = redacted(machine, [name]).torch
    assert hidden is not None
    assert name not in (hidden.import_error or "").replace("redacted", "").split()
