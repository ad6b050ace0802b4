"""Intel's GPUs from trees as i915 and xe show them."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from flatout.nouns.gpu import Driver, Gpu
from flatout.probing import intel
from probing.planted import GARBAGE, plant

GIB = 2**30


def card(root: Path, index: int, address: str, number: str, driver: str = "i915") -> str:
    place = f"devices/{address}"
    plant(root, {f"{place}/vendor": "0x8086\n", f"{place}/device": f"{number}\n"})
    drm = f"sys/class/drm/card{index}"
    plant(root, {}, {f"{drm}/device": place, f"{place}/driver": f"drivers/{driver}"})
    return place


def test_arc_beside_the_processors_own(tmp_path: Path) -> None:
    card(tmp_path, 0, "0000:00:02.0", "0x4680")
    place = card(tmp_path, 1, "0000:03:00.0", "0x56a0", "xe")
    plant(tmp_path, {f"{place}/tile0/physical_vram_size_bytes": f"{16 * GIB}\n"})
    assert intel.from_sysfs(tmp_path) == (
        Gpu(
            vendor="intel",
            pci_address="0000:00:02.0",
            pci_id="8086:4680",
            driver_sees=True,
            kernel_driver="i915",
            shared_memory=True,
        ),
        Gpu(
            vendor="intel",
            pci_address="0000:03:00.0",
            pci_id="8086:56a0",
            driver_sees=True,
            kernel_driver="xe",
            memory_bytes=16 * GIB,
            shared_memory=False,
        ),
    )


def test_cards_of_others(tmp_path: Path) -> None:
    assert intel.from_sysfs(tmp_path) is None
    plant(tmp_path, {"sys/class/net/lo/mtu": "1"})
    assert intel.from_sysfs(tmp_path) == ()
    card(tmp_path, 0, "0000:03:00.0", "0x56a0", "vfio-pci")
    assert intel.from_sysfs(tmp_path) == ()


FILES = ("device/device", "lmem_total_bytes", "device/tile0/physical_vram_size_bytes")


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(FILES, GARBAGE)))
def test_garbage_is_no_fact(files: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root, drm = Path(folder), "sys/class/drm/card0"
        plant(root, {f"{drm}/{name}": content for name, content in files.items()})
        plant(root, {f"{drm}/device/vendor": "0x8086\n"}, {f"{drm}/device/driver": "drivers/xe"})
        found = intel.from_sysfs(root)
    assert found == (Gpu(vendor="intel", driver_sees=True, kernel_driver="xe"),)


def test_driver(tmp_path: Path) -> None:
    assert intel.driver_in(tmp_path) is None
    plant(tmp_path, {"sys/module/i915/refcnt": "1\n"})
    assert intel.driver_in(tmp_path) == Driver(vendor="intel")
    plant(tmp_path, {"sys/module/i915/version": "backported-1.24\n"})
    found = intel.driver_in(tmp_path)
    assert found.version == "backported-1.24"
