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
from flatout.nouns.machine import DeviceFile, Machine
from flatout.nouns.selftest import SelfTest
from flatout.probing.redacted import redacted, with_tests
from machines.healthy import HEALTHY, changed, workstation

USER = "jane"
WORDS = [USER, "gpu-box-7"]
HOME = f"/home/{USER}"


def text(machine: Machine) -> str:
    return json.dumps(dataclasses.asdict(machine))


def with_error(message: str) -> str:
    machine = changed(workstation(), interpreter__torch__import_error=message)
    torch = redacted(machine, WORDS).torch
    return torch.import_error or ""


def test_names_paths_and_hosts_are_left_out() -> None:
    machine = changed(
        workstation(),
        interpreter__executable=f"{HOME}/secret-project/venv/bin/python",
        interpreter__error="jane@gpu-box-7: cannot start",
        disks__0__path="/data/acme/jane",
        environment={
            "LD_LIBRARY_PATH": f"{HOME}/lib:/usr/local/cuda/lib64",
            "PYTHONPATH": f"/data/acme/src:{HOME}/secret/src:~/acme",
            "MASTER_ADDR": "trainer-0.acme.internal",
            "NCCL_SOCKET_IFNAME": "eth0",
        },
    )
    found = redacted(machine, WORDS)
    for word in ("jane", "secret", "gpu-box-7", "acme", "trainer"):
        assert word not in text(found)
    assert found.environment["LD_LIBRARY_PATH"].endswith(":/usr/local/cuda/lib64")
    assert found.environment["NCCL_SOCKET_IFNAME"] == "eth0"
    assert (found.interpreter.executable or "").endswith("/python")


def test_equal_stays_equal_and_different_stays_different() -> None:
    first, second = f"{HOME}/a/site-packages", f"{HOME}/b/site-packages"
    packages = tuple(Package("torch", "2.9.1", place) for place in (first, second, first))
    found = redacted(changed(workstation(), interpreter__packages=packages), WORDS)
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
        ("GPU-8932f937 and MIG-8932f937-aa lost", "GPU-N and MIG-N lost"),
        ("id 12345678-AAAA-bbbb-cccc-1234567890ab", "id serial-N"),
        ("link 00:1A:2b:3c:4d:5e is down", "link address-N is down"),
        ("port 0c:42:a1:03:00:79:7a:b0 is down", "port address-N is down"),
        (
            "to fe80::42:acff:fe11:2%eth0 or [2001:db8::1]:29500",
            "to address-N or [address-N]:29500",
        ),
        ("c10::Error at 12:34:56 on 0000:3b:00.0", "c10::Error at 12:34:56 on 0000:3b:00.0"),
        ("torch::jit, fa::b, std::ffff", "torch::jit, fa::b, std::ffff"),
    ],
)
def test_text(message: str, hidden: str) -> None:
    assert hidden in re.sub(r"(?<=-)\d+", "N", with_error(message))


def test_serial_numbers_and_groups_of_their_own() -> None:
    files = tuple(DeviceFile(f"/dev/{name}", True, group=name) for name in ("render", "acme-lab"))
    machine = changed(
        workstation(),
        gpus__0__uuid="0x1f2e3d4c5b6a7988",
        kernel__user_groups=("video", "acme-lab", USER),
        kernel__device_files=files,
    )
    found = redacted(machine, WORDS)
    assert found.gpus is not None and (found.gpus[0].uuid or "").startswith("serial-")
    groups, shown = found.kernel.user_groups, found.kernel.device_files
    assert groups is not None and shown is not None
    assert groups[0] == "video" and groups[1] == shown[1].group
    assert shown[0].group == "render"
    assert "acme" not in text(found).replace("/dev/acme-lab", "") and USER not in groups


def test_what_was_tried_has_the_same_stand_ins() -> None:
    machine = changed(workstation(), interpreter__executable="/srv/acme/venv/bin/python")
    tests = (SelfTest("import torch", False, message="/srv/acme/venv/bin/python: no torch"),)
    shown, tried = with_tests(machine, tests)
    assert tried[0].message == f"{shown.interpreter.executable}: no torch"
    assert "acme" not in text(shown)


@pytest.mark.parametrize("name", HEALTHY)
def test_the_diagnosis_is_the_same(name: str) -> None:
    machine = HEALTHY[name]()
    assert diagnose(redacted(machine, WORDS)) == diagnose(machine)


@given(st.text(min_size=4, max_size=12, alphabet=st.characters(categories=["Ll", "Lu"])), st.text())
def test_a_name_is_nowhere(name: str, around: str) -> None:
    message = f"{around} {name} {around}"
    machine = changed(workstation(), interpreter__torch__import_error=message)
    hidden = redacted(machine, [name]).torch
    assert name not in (hidden.import_error or "").replace("redacted", "").split()
