from __future__ import annotations

import pytest

from flatout.diagnosing import devices
from machines.healthy import changed, container, gpu, h100, mac, workstation, wsl


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("NVIDIA GeForce RTX 4090", "RTX 4090 (GPU 0)"),
        ("NVIDIA H100 80GB HBM3", "H100 80GB HBM3 (GPU 0)"),
        (None, "NVIDIA GPU (GPU 0)"),
    ],
)
def test_label(name: str | None, wanted: str) -> None:
    assert devices.label(gpu(name=name)) == wanted


def test_a_gpu_without_number_is_called_by_its_place() -> None:
    lost = gpu(name="NVIDIA L4")
    assert devices.label(changed(lost, index=None)) == "L4 (at 0000:21:00.0)"
    assert devices.label(changed(lost, index=None, pci_address=None)) == "L4 (GPU)"


def test_several_are_told_in_ranges() -> None:
    several = [gpu(index) for index in (0, 1, 2, 5, 7, 6, 9)]
    assert devices.subject(several) == "7 GPUs (0-2, 5-7, 9)"
    unnumbered = [changed(one, index=None) for one in several]
    assert devices.subject(unnumbered) == "7 GPUs"


def test_alike_gpus_are_told_together() -> None:
    several = [gpu(0), gpu(1), gpu(2, ecc=True)]
    told = devices.facts(several, lambda one: "ECC on" if one.ecc else "ECC off")
    assert told == "2 GPUs (0, 1), NVIDIA GeForce RTX 4090: ECC off; RTX 4090 (GPU 2): ECC on"


def test_the_kind_of_a_card_by_its_name() -> None:
    assert devices.data_center(gpu(name="NVIDIA L40S"))
    assert not devices.data_center(gpu(name="NVIDIA RTX A6000"))
    assert not devices.data_center(gpu(name=None))


def test_laptop() -> None:
    assert devices.laptop(gpu(name="NVIDIA GeForce RTX 4070 Laptop GPU"))
    assert devices.laptop(gpu(name="NVIDIA RTX A2000 Laptop GPU"))
    desktop = gpu(name="NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition")
    assert not devices.laptop(desktop)


def test_own_memory_by_the_name_where_the_driver_does_not_say() -> None:
    unsaid = changed(workstation(), gpus__0__shared_memory=None)
    assert len(devices.own_memory(unsaid)) == 1
    for name in ("Orin (nvgpu)", "NVIDIA Thor", "NVIDIA GB10", None):
        assert devices.own_memory(changed(unsaid, gpus__0__name=name)) == ()
    amd = changed(unsaid, gpus__0__vendor="amd", gpus__0__name="AMD Radeon RX 7900 XTX")
    assert len(devices.own_memory(amd)) == 1
    assert devices.own_memory(changed(amd, gpus__0__name="AMD Radeon 780M")) == ()
    assert devices.own_memory(mac()) == ()


def test_settings_are_made_where_the_driver_is() -> None:
    lines = ["nvidia-smi -pm 1"]
    assert devices.settings(workstation(), lines) == ("sudo nvidia-smi -pm 1",)
    assert devices.settings(changed(workstation(), system__root=True), lines) == tuple(lines)
    for inside in (container(), wsl()):
        made = devices.settings(inside, lines)
        assert all(line.startswith("#") for line in made)
        assert "nvidia-smi -pm 1" in made[-1]
        assert devices.settings(inside, []) == ()


def test_smi_names_the_gpus() -> None:
    assert devices.smi(h100().gpus_of("nvidia")[:2], "-e 1") == "nvidia-smi -i 0,1 -e 1"
    lost = changed(gpu(), index=None)
    assert devices.smi([lost], "-e 1") == "nvidia-smi -i 0000:21:00.0 -e 1"
    assert devices.smi([changed(lost, pci_address=None)], "-e 1") == "nvidia-smi -e 1"
