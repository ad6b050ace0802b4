from __future__ import annotations

from diagnosing.machine.asking import commands, findings, only
from flatout.nouns.finding import Severity
from machines.healthy import GIB, changed, container, mac, memory, workstation

ID = "shm-too-small"
SMALL = {"memory__shm_bytes": 64 * 2**20, "memory__shm_free_bytes": 2**20}


def test_docker_gets_the_option_of_docker() -> None:
    finding = only(ID, changed(container(), **SMALL))
    assert (finding.code, finding.severity) == ("ENV060", Severity.WARNING)
    assert "64 MiB" in finding.title
    assert "1.0 MiB free" in finding.evidence
    assert "docker run --shm-size=16g" in commands(finding)


def test_podman_and_kubernetes_get_their_own() -> None:
    podman = only(ID, changed(container(), container__kind="podman", **SMALL))
    assert "podman run --shm-size" in commands(podman)
    pod = only(ID, changed(container(), container__kind="kubernetes", **SMALL))
    assert "medium: Memory" in commands(pod)


def test_on_the_metal_it_is_mounted_again() -> None:
    finding = only(ID, changed(workstation(), **SMALL))
    assert commands(finding).startswith("sudo mount -o remount,size=16G /dev/shm")
    as_root = only(ID, changed(workstation(), system__root=True, **SMALL))
    assert commands(as_root).startswith("mount ")


def test_not_more_than_half_of_the_memory_is_asked_for() -> None:
    finding = only(ID, changed(container(), memory__limit_bytes=8 * GIB, **SMALL))
    assert "--shm-size=4g" in commands(finding)


def test_silent_where_it_is_large_enough_or_does_not_exist() -> None:
    assert findings(ID, changed(workstation(), memory__shm_bytes=GIB)) == ()
    small_box = changed(workstation(), memory=memory(2), memory__shm_bytes=GIB // 2 + 1)
    assert findings(ID, small_box) == ()
    assert findings(ID, changed(mac(), memory__shm_bytes=1)) == ()
