"""AMD's GPUs from trees as amdgpu and the compute driver show them."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.nouns.gpu import Driver, Gpu
from flatout.probing import amd
from probing.planted import GARBAGE, plant

GIB = 2**30
IDS = """# List of AMDGPU IDs
1.0.0
744C,\tC8,\tAMD Radeon RX 7900 XTX
744C,\tCC,\tAMD Radeon RX 7900 XT
"""


def card(root: Path, index: int, address: str, device: str, **files: str) -> None:
    place = f"devices/{address}"
    plain = {"vendor": "0x1002\n", "device": f"{device}\n", "revision": "0x00\n"}
    content = {**plain, **{name.replace("__", "/"): text for name, text in files.items()}}
    plant(root, {f"{place}/{name}": text for name, text in content.items()})
    drm = f"sys/class/drm/card{index}"
    links = {f"{drm}/device": place, f"{place}/driver": "drivers/amdgpu"}
    plant(root, {f"{drm}-DP-1/status": "connected\n"}, links)


def node(root: Path, index: int, **facts: int) -> None:
    lines = "".join(f"{name} {value}\n" for name, value in facts.items())
    plant(root, {f"sys/class/kfd/kfd/topology/nodes/{index}/properties": lines})


def instinct(root: Path) -> Path:
    """A node of eight MI300X; the nodes of the compute driver in another order than the cards."""
    node(root, 0, cpu_cores_count=96, simd_count=0, location_id=0)
    for index in range(8):
        bus = 0x05 + 0x20 * index
        card(
            root,
            index + 1,
            f"0000:{bus:02x}:00.0",
            "0x74a1",
            product_name="AMD Instinct MI300X OAM\n",
            unique_id=f"{index:016x}\n",
            mem_info_vram_total=f"{192 * GIB}\n",
            mem_info_vram_used=f"{300 * 2**20}\n",
            gpu_busy_percent="7\n",
            power__runtime_status="active\n",
            hwmon__hwmon5__temp2_label="junction\n",
            hwmon__hwmon5__temp2_input="38000\n",
            hwmon__hwmon5__temp2_crit="100000\n",
            hwmon__hwmon5__temp3_label="mem\n",
            hwmon__hwmon5__temp3_input="31000\n",
            hwmon__hwmon5__power1_input="140000000\n",
            hwmon__hwmon5__power1_cap="750000000\n",
            hwmon__hwmon5__power1_cap_max="750000000\n",
            pp_dpm_sclk="0: 500Mhz\n1: 131Mhz *\n2: 2100Mhz\n",
            pp_dpm_mclk="0: 900Mhz *\n1: 1300Mhz\n",
        )
        facts = {"gfx_target_version": 90402, "simd_count": 1216, "domain": 0}
        node(root, 10 - index, **facts, location_id=bus << 8)
    return root


def test_a_node_of_mi300x(tmp_path: Path) -> None:
    gpus = amd.from_sysfs(instinct(tmp_path))
    assert [gpu.index for gpu in gpus] == [7, 6, 5, 4, 3, 2, 1, 0]
    assert gpus[0] == Gpu(
        vendor="amd",
        name="AMD Instinct MI300X OAM",
        index=7,
        uuid="0000000000000000",
        pci_address="0000:05:00.0",
        pci_id="1002:74a1",
        driver_sees=True,
        kernel_driver="amdgpu",
        gfx="gfx942",
        memory_bytes=192 * GIB,
        memory_used_bytes=300 * 2**20,
        utilization=0.07,
        temperature_c=38,
        temperature_slowdown_c=100,
        power_w=140.0,
        power_limit_w=750.0,
        power_limit_max_w=750.0,
        clock_sm_mhz=131,
        clock_sm_max_mhz=2100,
        clock_memory_mhz=900,
        clock_memory_max_mhz=1300,
    )


def test_a_sleeping_card_is_left_asleep_and_a_node_that_cannot_be_read_is_unknown(
    tmp_path: Path,
) -> None:
    facts = {"mem_info_vram_total": f"{24 * GIB}\n", "gpu_busy_percent": "0\n"}
    card(tmp_path, 0, "0000:03:00.0", "0x744c", **facts, power__runtime_status="suspended\n")
    (gpu,) = amd.from_sysfs(tmp_path)
    assert (gpu.memory_bytes, gpu.utilization) == (24 * GIB, None)
    assert (gpu.index, gpu.gfx) == (None, None)


def test_the_name_that_libdrm_knows(tmp_path: Path) -> None:
    card(tmp_path, 0, "0000:03:00.0", "0x744c", revision="0xcc\n")
    plant(tmp_path, {"usr/share/libdrm/amdgpu.ids": IDS})
    (gpu,) = amd.from_sysfs(tmp_path)
    assert gpu.name == "AMD Radeon RX 7900 XT"
    assert amd.from_list(IDS, "744c", "ff") is None
    assert amd.from_list(IDS, "", "") is None


@pytest.mark.parametrize(
    ("version", "gfx"),
    [
        (90402, "gfx942"),
        (90010, "gfx90a"),
        (90500, "gfx950"),
        (100300, "gfx1030"),
        (110000, "gfx1100"),
        (115001, None),
        (110501, "gfx1151"),
        (120001, "gfx1201"),
        (0, None),
        (None, None),
    ],
)
def test_gfx(version: int | None, gfx: str | None) -> None:
    assert amd.gfx(version) == gfx


FILES = (
    "device",
    "revision",
    "unique_id",
    "mem_info_vram_total",
    "mem_info_vram_used",
    "gpu_busy_percent",
    "pp_dpm_sclk",
    "hwmon/hwmon1/temp1_input",
    "hwmon/hwmon1/power1_average",
    "hwmon/hwmon1/power1_cap",
)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(FILES, GARBAGE)), GARBAGE)
def test_garbage_is_no_fact(files: dict[str, bytes], properties: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        device = "sys/class/drm/card0/device"
        plant(root, {f"{device}/{name}": content for name, content in files.items()})
        plant(root, {f"{device}/vendor": "0x1002\n"}, {f"{device}/driver": "drivers/amdgpu"})
        plant(root, {"sys/class/kfd/kfd/topology/nodes/1/properties": properties})
        found = amd.from_sysfs(root)
    gpu = found[0]
    told = (gpu.pci_address, gpu.pci_id, gpu.gfx, gpu.index, gpu.clock_sm_mhz)
    assert told == (None,) * 5
    assert gpu.temperature_c in (None, 0)
    assert gpu.memory_bytes is None
    assert gpu.power_limit_w is None
    assert gpu.utilization in (None, 0.0)
    assert gpu.power_w in (None, 0.0)


def test_driver(tmp_path: Path) -> None:
    assert amd.driver_in(tmp_path, {}) is None
    plant(tmp_path, {"sys/module/amdgpu/refcnt": "1\n"})
    assert amd.driver_in(tmp_path, {}) == Driver(vendor="amd")
    plant(tmp_path, {"sys/module/amdgpu/version": "6.12.12\n"})
    plant(tmp_path, {"opt/rocm/.info/version": "6.4.1-83\n"})
    found = amd.driver_in(tmp_path, {})
    assert found == Driver(vendor="amd", version="6.12.12", kernel_version="6.12.12", rocm="6.4.1")


def test_which_rocm(tmp_path: Path) -> None:
    releases = ("6.4.1", "6.10.0", "7.0.0-beta")
    plant(tmp_path, {f"opt/rocm-{name}/.info/version": f"{name}\n" for name in releases})
    assert amd.rocm(tmp_path, {}) == "6.10.0"
    assert amd.rocm(tmp_path, {"ROCM_PATH": "/opt/rocm-6.4.1"}) == "6.4.1"
    plant(tmp_path, {"opt/rocm/.info/version": "what\n"})
    assert amd.rocm(tmp_path, {}) == "6.10.0"
    assert amd.rocm(tmp_path / "absent", {}) is None
