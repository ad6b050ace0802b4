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


def docker(root: Path, files: dict[str, str | bytes] | None = None) -> Path:
    own: dict[str, str | bytes] = {".dockerenv": "", "proc/self/mountinfo": OVERLAY}
    own |= {"proc/1/cgroup": "0::/\n", "proc/self/cgroup": "0::/\n"}
    return machine(root, {**own, **(files or {})}, pid=4026532201, uts=4026532199)


def test_an_image_that_runs_as_a_virtual_machine_is_no_container(tmp_path: Path) -> None:
    root = machine(tmp_path, {".dockerenv": "", "run/.containerenv": ""})
    assert container.container({}, root).kind is None


def test_docker_with_and_without_gpu(tmp_path: Path) -> None:
    without = container.container({}, docker(tmp_path / "a"))
    assert without == Container(kind="docker", gpu_passed_through=False)
    gpu: dict[str, str | bytes] = {"dev/nvidia0": "", "dev/nvidiactl": "", "dev/nvidia-uvm": ""}
    assert container.container({}, docker(tmp_path / "b", gpu)).gpu_passed_through is True
    only_control: dict[str, str | bytes] = {"dev/nvidiactl": "", "dev/nvidia-uvm": ""}
    found = container.container({}, docker(tmp_path / "c", only_control))
    assert found.gpu_passed_through is False
    assert container.container({}, docker(tmp_path / "d", {"dev/kfd": ""})).gpu_passed_through


def test_docker_that_shares_all_but_one_namespace(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {".dockerenv": "", "proc/self/mountinfo": OVERLAY}
    root = machine(tmp_path, files, cgroup=4026532300)
    assert container.container({}, root).kind == "docker"


def test_docker_with_version_1_groups_of_the_machine(tmp_path: Path) -> None:
    groups = f"12:memory:/docker/{ID}\n1:name=systemd:/docker/{ID}\n"
    root = machine(tmp_path, {"proc/self/cgroup": groups, "proc/1/cgroup": groups})
    assert container.container({}, root).kind == "docker"


@pytest.mark.parametrize(
    "groups",
    [
        f"0::/kubepods.slice/kubepods-burstable.slice/cri-containerd-{ID}.scope\n",
        f"11:memory:/kubepods/burstable/pod1234/{ID}\n10:cpu,cpuacct:/kubepods/burstable/pod1234\n",
    ],
)
def test_kubernetes_by_its_groups(groups: str, tmp_path: Path) -> None:
    root = machine(tmp_path, {"proc/self/cgroup": groups}, pid=4026532201)
    assert container.container({}, root).kind == "kubernetes"


def test_kubernetes_by_its_variable(tmp_path: Path) -> None:
    found = container.container({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, docker(tmp_path))
    assert found.kind == "kubernetes"


def test_podman(tmp_path: Path) -> None:
    root = machine(tmp_path, {"run/.containerenv": 'engine="podman"\n'}, pid=4026532201)
    assert container.container({}, root).kind == "podman"


def test_lxc(tmp_path: Path) -> None:
    root = machine(tmp_path / "a", {"run/systemd/container": "lxc\n"}, pid=4026532201)
    assert container.container({}, root).kind == "lxc"
    root = machine(tmp_path / "b", {"proc/1/cgroup": "0::/lxc.payload.web/init.scope"}, pid=1)
    assert container.container({}, root).kind == "lxc"


def test_apptainer_shares_the_namespaces_of_the_machine(tmp_path: Path) -> None:
    found = container.container({"APPTAINER_CONTAINER": "/x.sif"}, machine(tmp_path, {}))
    assert found == Container(kind="singularity", gpu_passed_through=False)


def test_wsl(tmp_path: Path) -> None:
    root = machine(tmp_path / "a", {"proc/version": WSL2, "dev/dxg": ""}, pid=4026532201)
    expected = Container(wsl=2, gpu_passed_through=True, virtual_machine="microsoft")
    assert container.container({}, root) == expected
    root = machine(tmp_path / "b", {"proc/version": WSL2}, pid=4026532201)
    assert container.container({}, root).gpu_passed_through is False
    root = machine(tmp_path / "c", {"proc/version": WSL1})
    assert container.container({}, root).wsl == 1
    assert container.container({}, root).virtual_machine is None


def test_wsl_from_a_docker_image_and_docker_in_wsl(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {"proc/version": WSL2, ".dockerenv": ""}
    assert container.container({}, machine(tmp_path / "a", files, pid=5)).kind is None
    found = container.container({}, docker(tmp_path / "b", {"proc/version": WSL2, "dev/dxg": ""}))
    assert (found.kind, found.wsl, found.gpu_passed_through) == ("docker", 2, True)


def test_wsl_with_a_kernel_of_ones_own(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {"proc/sys/fs/binfmt_misc/WSLInterop": "enabled\n"}
    assert container.container({}, machine(tmp_path, files)).wsl == 2


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
