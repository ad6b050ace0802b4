"""The driver's lines on every distribution; shells read them all."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from every import for_every
from flatout.installing import description, driver
from flatout.installing.target import Target
from installing import grammar

SYSTEMS = [
    "ubuntu22.04", "ubuntu24.04", "ubuntu20.04", "debian11", "debian12", "debian13", "mint22",
    "fedora41", "rhel8", "rhel9", "rhel10", "rocky9", "alma9", "oracle9", "amzn2", "amzn2023",
    "sles15", "opensuse-leap15.6", "opensuse-tumbleweed", "arch", "manjaro", "linux", "windows",
    "macos", "wsl",
]  # fmt: skip
GPUS = ["rtx4090", "h100", "rtx5090", "gtx1080", "v100", "mi300x", "arc-b580", "none"]


def lines(text: str, at_least: str | None = None, **facts: object) -> tuple[str, ...]:
    return driver.commands(replace(description.read(text), **facts), at_least)  # type: ignore[arg-type]


@pytest.mark.slow
@for_every(SYSTEMS)
def test_a_shell_reads_every_line(system: str) -> None:
    every: list[str] = []
    for gpu in GPUS:
        here = description.read(f"gpu={gpu},os={system}")
        for wanted in (None, "535.54.03", "590.44.01"):
            every += driver.commands(here, wanted)
        every += driver.reload_commands(here)
        every += driver.container_toolkit_commands(here)
        every += driver.boot_image_commands(here)
        as_root = driver.commands(replace(here, root=True))
        assert not any(line.startswith("sudo") for line in as_root), gpu
    (grammar.powershell if here.system == "Windows" else grammar.bash)(dict.fromkeys(every))


@pytest.mark.parametrize(
    ("text", "at_least", "expected"),
    [
        ("gpu=rtx4090,os=ubuntu22.04", None, "nvidia-driver-580-open"),
        ("gpu=rtx4090,os=ubuntu22.04", "535.54.03", "nvidia-driver-580-open"),
        ("gpu=rtx4090,os=ubuntu22.04", "550.54.14", "nvidia-driver-580-open"),
        ("gpu=h100,os=ubuntu22.04", "580.65.06", "nvidia-driver-580-server-open"),
        ("gpu=gtx1080,os=ubuntu24.04", None, "nvidia-driver-580"),
        ("gpu=v100,os=ubuntu22.04", None, "nvidia-driver-580-server"),
        ("gpu=rtx4090,os=ubuntu24.04", "595.45.04", "nvidia-open"),
        ("gpu=rtx4090,os=ubuntu20.04", None, "ubuntu-drivers install"),
        ("gpu=rtx4090,os=mint22", None, "nvidia-driver-580-open"),
        ("gpu=rtx4090,os=debian12", None, "nvidia-driver firmware-misc-nonfree"),
        ("gpu=rtx4090,os=debian12", "570.26", "nvidia-open"),
        ("gpu=gtx1080,os=debian12", "570.26", "cuda-drivers-580"),
        ("gpu=rtx5090,os=debian13", None, "nvidia-open"),
        ("gpu=rtx4090,os=fedora41", None, "akmod-nvidia xorg-x11-drv-nvidia-cuda"),
        ("gpu=gtx1080,os=fedora41", None, "akmod-nvidia-580xx"),
        ("gpu=a100,os=rocky9", None, "dnf module enable -y nvidia-driver:open-dkms"),
        ("gpu=v100,os=rocky9", None, "dnf module enable -y nvidia-driver:580-dkms"),
        ("gpu=a100,os=rhel10", None, "dnf install -y nvidia-open"),
        ("gpu=a100,os=amzn2023", None, "cuda-amzn2023.repo"),
        ("gpu=a100,os=sles15", None, "cuda-sles15.repo"),
        ("gpu=rtx4090,os=arch", None, "nvidia-open-dkms"),
        ("gpu=gtx1080,os=arch", None, "nvidia-580xx-utils"),
        ("gpu=nvidia,capability=3.7,os=ubuntu22.04", None, "nvidia-driver-470"),
        ("gpu=rtx4090,os=windows", None, "Start-Process 'https://www.nvidia.com/drivers'"),
        ("gpu=rx7900xtx,os=windows", None, "amd.com"),
        ("gpu=arc-b580,os=ubuntu24.04", None, "libze-intel-gpu1"),
        ("gpu=mi300x,os=ubuntu22.04", None, "modprobe amdgpu"),
        ("gpu=jetson-orin,os=ubuntu22.04", None, "nvidia-jetpack"),
    ],
)
def test_the_package(text: str, at_least: str | None, expected: str) -> None:
    whole = re.compile(re.escape(expected) + r"(?![\w-])")  # not the beginning of a longer name
    assert any(whole.search(line) for line in lines(text, at_least)), lines(text, at_least)


def test_old_gpus_never_get_the_open_modules() -> None:
    for system in SYSTEMS:
        for gpu in ("gtx1080", "v100"):
            run = [line for line in lines(f"gpu={gpu},os={system}") if line[0] != "#"]
            assert not any(re.search(r"nvidia-open|[a-z\d]-open\b", line) for line in run), run


@pytest.mark.parametrize("facts", [{"wsl": True}, {"container": True}])
def test_nothing_is_installed_inside_wsl_or_a_container(facts: dict[str, object]) -> None:
    found = lines("gpu=rtx4090,os=ubuntu22.04", "570.26", **facts)
    assert found and all(line.startswith("# ") for line in found)
    assert "570.26" in found[0]
    here = replace(description.read("gpu=rtx4090,os=ubuntu22.04"), **facts)  # type: ignore[arg-type]
    assert all(line.startswith("# ") for line in driver.reload_commands(here))


def test_a_restart_is_the_last_line_that_runs() -> None:
    for system in ("ubuntu22.04", "debian12", "fedora41", "rhel9", "sles15", "arch"):
        run = [line for line in lines(f"gpu=rtx4090,os={system}") if not line.startswith("#")]
        assert run[-1] == "sudo reboot"
        assert sum("reboot" in line for line in run) == 1


def test_the_container_toolkit_ends_with_its_proof() -> None:
    for system in ("ubuntu22.04", "rocky9", "sles15", "arch"):
        found = driver.container_toolkit_commands(description.read(f"os={system}"))
        assert any("nvidia-container-toolkit" in line for line in found)
        assert found[-1] == "sudo docker run --rm --gpus all ubuntu nvidia-smi"
    inside = driver.container_toolkit_commands(Target(container=True))
    assert all(line.startswith("# ") for line in inside)


@pytest.mark.parametrize("name", ["NVIDIA A40-24Q", "GRID T4-16Q", "GRID A100-4-20C"])
def test_a_virtual_gpu_keeps_to_its_host(name: str) -> None:
    found = lines("gpu=t4,os=ubuntu22.04", gpu=name)
    assert all(line.startswith("#") for line in found)
    assert "vGPU guest driver" in " ".join(found)


def test_nixos_is_changed_in_its_configuration() -> None:
    found = lines("gpu=rtx4090,os=nixos")
    assert "# hardware.nvidia.open = true;" in found
    assert "sudo nixos-rebuild boot" in found
    assert "# hardware.nvidia.open = false;" in lines("gpu=gtx1080,os=nixos")
