"""Containers, WSL and virtual machines, from what each leaves in /proc, /sys and /dev."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.nouns.machine import Container
from flatout.probing import container
from probing.planted import GARBAGE, namespaces, plant

LINUX = "Linux version 6.8.0-45-generic (buildd@lcy02) (x86_64-linux-gnu-gcc-13) #45-Ubuntu SMP\n"
WSL2 = "Linux version 5.15.167.4-microsoft-standard-WSL2 (root@f9c826d3017f) (gcc) #1 SMP\n"
WSL1 = "Linux version 4.4.0-22621-Microsoft (Microsoft@Microsoft.com) (gcc version 5.4.0) #1\n"
AZURE = "Linux version 6.5.0-1025-azure (buildd@microsoft) (gcc) #26 SMP\n"
OVERLAY = (
    "612 590 0:52 / / rw,relatime - overlay overlay rw,lowerdir=/var/lib/docker/overlay2/l/A\n"
)
DISK = "27 1 8:2 / / rw,relatime shared:1 - ext4 /dev/sda2 rw\n"
ID = "d8f0e5f1a2b34c5d6e7f8091a2b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4d5"


def machine(root: Path, files: dict[str, str | bytes], **changed: int) -> Path:
    plain: dict[str, str | bytes] = {"proc/version": LINUX, "dev/null": ""}
    plant(root, {**plain, "proc/self/mountinfo": DISK, **files})
    return namespaces(root, **changed)


GROUPS = f"12:memory:/docker/{ID}\n1:name=systemd:/docker/{ID}\n"
SCOPE = f"0::/kubepods.slice/kubepods-burstable.slice/cri-containerd-{ID}.scope\n"
PODS = f"11:memory:/kubepods/burstable/pod1234/{ID}\n10:cpu,cpuacct:/kubepods/burstable/pod1234\n"
PID = 4026532201
"""Of a namespace that is not the machine's."""
DOCKER = {
    ".dockerenv": "",
    "proc/self/mountinfo": OVERLAY,
    "proc/1/cgroup": "0::/\n",
    "proc/self/cgroup": "0::/\n",
}
APPTAINER = {"APPTAINER_CONTAINER": "/x.sif"}
POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}


@pytest.mark.parametrize(
    ("variables", "files", "changed", "kind"),
    [
        # an image that runs as a virtual machine
        ({}, {".dockerenv": "", "run/.containerenv": ""}, {}, None),
        # docker that shares all but one namespace, and with version 1 groups of the machine
        ({}, {".dockerenv": "", "proc/self/mountinfo": OVERLAY}, {"cgroup": 4026532300}, "docker"),
        ({}, {"proc/self/cgroup": GROUPS, "proc/1/cgroup": GROUPS}, {}, "docker"),
        ({}, {"proc/self/cgroup": SCOPE}, {"pid": PID}, "kubernetes"),
        ({}, {"proc/self/cgroup": PODS}, {"pid": PID}, "kubernetes"),
        (POD, DOCKER, {"pid": PID}, "kubernetes"),
        ({}, {"run/.containerenv": 'engine="podman"\n'}, {"pid": PID}, "podman"),
        ({}, {"run/systemd/container": "lxc\n"}, {"pid": PID}, "lxc"),
        ({}, {"proc/1/cgroup": "0::/lxc.payload.web/init.scope"}, {"pid": 1}, "lxc"),
        (APPTAINER, {}, {}, "singularity"),  # it shares the namespaces of the machine
        # a WSL distribution that was made from a docker image
        ({}, {"proc/version": WSL2, ".dockerenv": ""}, {"pid": PID}, None),
        ({}, {**DOCKER, "proc/version": WSL2}, {"pid": PID, "uts": 4026532199}, "docker"),
    ],
)
def test_which_engine(
    variables: dict[str, str],
    files: dict[str, str | bytes],
    changed: dict[str, int],
    kind: str | None,
    tmp_path: Path,
) -> None:
    assert container.container(variables, machine(tmp_path, files, **changed)).kind == kind


@pytest.mark.parametrize(
    ("devices", "passed"),
    [
        ((), False),
        (("nvidia0", "nvidiactl", "nvidia-uvm"), True),
        (("nvidiactl", "nvidia-uvm"), False),
        (("kfd",), True),
    ],
)
def test_docker_with_and_without_gpu(
    devices: tuple[str, ...], passed: bool, tmp_path: Path
) -> None:
    files = {**DOCKER, **{f"dev/{name}": "" for name in devices}}
    found = container.container({}, machine(tmp_path, files, pid=PID, uts=4026532199))
    assert found == Container(kind="docker", gpu_passed_through=passed)


@pytest.mark.parametrize(
    ("files", "changed", "expected"),
    [
        (
            {"proc/version": WSL2, "dev/dxg": ""},
            {"pid": PID},
            Container(wsl=2, gpu_passed_through=True, virtual_machine="microsoft"),
        ),
        (
            {"proc/version": WSL2},
            {"pid": PID},
            Container(wsl=2, gpu_passed_through=False, virtual_machine="microsoft"),
        ),
        ({"proc/version": WSL1}, {}, Container(wsl=1, gpu_passed_through=False)),
        (  # a kernel of the user's own
            {"proc/sys/fs/binfmt_misc/WSLInterop": "enabled\n"},
            {},
            Container(wsl=2, gpu_passed_through=False, virtual_machine="microsoft"),
        ),
        (
            {**DOCKER, "proc/version": WSL2, "dev/dxg": ""},
            {"pid": PID, "uts": 4026532199},
            Container("docker", wsl=2, gpu_passed_through=True, virtual_machine="microsoft"),
        ),
    ],
)
def test_wsl(
    files: dict[str, str | bytes], changed: dict[str, int], expected: Container, tmp_path: Path
) -> None:
    assert container.container({}, machine(tmp_path, files, **changed)) == expected


def test_azure_is_no_wsl(tmp_path: Path) -> None:
    maker: dict[str, str | bytes] = {
        "proc/version": AZURE,
        "sys/class/dmi/id/sys_vendor": "Microsoft Corporation\n",
        "sys/class/dmi/id/product_name": "Virtual Machine\n",
    }
    found = container.container({}, machine(tmp_path, maker))
    assert found == Container(virtual_machine="microsoft")


CLOCKS = "sys/devices/system/clocksource/clocksource0/available_clocksource"
FLAGS = "processor\t: 0\nflags\t\t: fpu vme hypervisor avx2\n"


@pytest.mark.parametrize(
    ("vendor", "product", "cpuinfo", "expected"),
    [
        ("QEMU", "Standard PC (Q35 + ICH9, 2009)", FLAGS, "kvm"),
        ("VMware, Inc.", "VMware20,1", FLAGS, "vmware"),
        ("innotek GmbH", "VirtualBox", FLAGS, "virtualbox"),
        ("Xen", "HVM domU", FLAGS, "xen"),
        ("Google", "Google Compute Engine", FLAGS, "kvm"),
        ("Google", "Google Compute Engine", "flags\t: fpu\n", None),
        ("Amazon EC2", "p5.48xlarge", FLAGS, "kvm"),
        ("Amazon EC2", "c7g.metal", "Features\t: fp\n", None),
        ("Microsoft Corporation", "Surface Laptop 4", "flags\t: fpu\n", None),
        ("Dell Inc.", "PowerEdge XE9680", "flags\t: fpu\n", None),
        ("Hetzner", "vServer", FLAGS, None),
    ],
)
def test_virtual_machines(
    vendor: str, product: str, cpuinfo: str, expected: str | None, tmp_path: Path
) -> None:
    files: dict[str, str | bytes] = {
        "sys/class/dmi/id/sys_vendor": f"{vendor}\n",
        "sys/class/dmi/id/product_name": f"{product}\n",
        "proc/cpuinfo": cpuinfo,
        CLOCKS: "kvm-clock tsc\n" if vendor == "Google" else "tsc\n",
    }
    assert container.container({}, machine(tmp_path, files)).virtual_machine == expected


READ = (
    "proc/version",
    "proc/1/cgroup",
    "proc/self/cgroup",
    "proc/self/mountinfo",
    "proc/cpuinfo",
    "run/systemd/container",
    "sys/class/dmi/id/sys_vendor",
    "sys/class/dmi/id/product_name",
)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(READ, GARBAGE)))
def test_garbage_is_no_fact(files: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = container.container({}, plant(Path(folder), files))
    assert found == Container()


@pytest.mark.skipif(sys.platform != "linux", reason="Linux' namespaces")
def test_here() -> None:
    found = container.container()
    groups = Path("/proc/1/cgroup").read_text() + Path("/proc/self/cgroup").read_text()
    if found.kind in (None, "singularity"):
        assert "kubepods" not in groups
    else:
        assert container.isolated() is not False or found.kind in groups
    if found.kind is None and found.wsl is None:
        assert found.gpu_passed_through is None
