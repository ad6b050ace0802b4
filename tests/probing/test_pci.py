"""GPUs on the bus, from trees as kernels show them and from lists as Windows keeps them."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.nouns.gpu import Gpu
from flatout.probing import pci
from probing.planted import GARBAGE, plant

GIB = 2**30


class Bus:
    """/sys/devices and /sys/bus/pci/devices in a test's folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "bus").mkdir(parents=True)

    def add(self, place: str, driver: str | None = None, **files: str) -> None:
        """A device below others: "pci0000:00/0000:00:01.0/0000:01:00.0"."""
        renamed = {"kind": "class", "number": "device"}
        content = {renamed.get(name, name): f"{text}\n" for name, text in files.items()}
        plant(self.root, {f"devices/{place}/{name}": text for name, text in content.items()})
        (self.root / "bus" / place.rpartition("/")[2]).symlink_to(self.root / "devices" / place)
        if driver:
            (self.root / "devices" / place / "driver").symlink_to(self.root / "drivers" / driver)

    def gpus(self) -> tuple[Gpu, ...] | None:
        return pci.from_sysfs(self.root / "bus", self.root / "nvidia")


def link(now: str, most: str, width: int, width_max: int = 16) -> dict[str, str]:
    return {
        "current_link_speed": f"{now} GT/s PCIe",
        "max_link_speed": f"{most} GT/s PCIe",
        "current_link_width": str(width),
        "max_link_width": str(width_max),
    }


PORT = {"kind": "0x060400", "vendor": "0x1022"}
RTX_4090 = {"kind": "0x030000", "vendor": "0x10de", "number": "0x2684", "numa_node": "-1"}


def test_a_desktop_with_nouveau(tmp_path: Path) -> None:
    bus = Bus(tmp_path)
    bus.add("pci0000:00/0000:00:01.1", **PORT, **link("2.5", "8.0", 16))
    place = "pci0000:00/0000:00:01.1/0000:01:00.0"
    bus.add(place, "nouveau", **RTX_4090, **link("2.5", "16.0", 8))
    bus.add("pci0000:00/0000:00:01.1/0000:01:00.1", kind="0x040300", vendor="0x10de")
    assert bus.gpus() == (
        Gpu(
            vendor="nvidia",
            pci_address="0000:01:00.0",
            pci_id="10de:2684",
            driver_sees=False,
            kernel_driver="nouveau",
            pcie_generation=1,
            pcie_generation_max=3,
            pcie_generation_card=4,
            pcie_width=8,
            pcie_width_max=16,
        ),
    )


def test_a_node_of_mi300x(tmp_path: Path) -> None:
    bus = Bus(tmp_path)
    for index in range(8):
        root = f"pci0000:{index:02x}/0000:{index:02x}:01.1"
        bus.add(root, **PORT, **link("32.0", "32.0", 16))
        card = {"kind": "0x120000", "vendor": "0x1002", "number": "0x74a1", "numa_node": "0"}
        card["product_name"] = "AMD Instinct MI300X OAM"
        bus.add(
            f"{root}/0000:{index + 0x80:02x}:00.0", "amdgpu", **card, **link("32.0", "32.0", 16)
        )
    gpus = bus.gpus()
    assert gpus is not None
    assert len(gpus) == 8
    assert {gpu.name for gpu in gpus} == {"AMD Instinct MI300X OAM"}
    assert {(gpu.pcie_generation, gpu.pcie_generation_max) for gpu in gpus} == {(5, 5)}
    assert gpus[7].pci_address == "0000:87:00.0"


def test_intel_arc_tells_the_link_of_its_slot(tmp_path: Path) -> None:
    bus = Bus(tmp_path)
    bridge = {"kind": "0x060400", "vendor": "0x8086"}
    bus.add("pci0000:00/0000:00:01.0", **bridge, **link("16.0", "32.0", 16))
    upstream = "pci0000:00/0000:00:01.0/0000:01:00.0"
    bus.add(upstream, **bridge, **link("16.0", "16.0", 16))
    bus.add(f"{upstream}/0000:02:01.0", **bridge, **link("2.5", "2.5", 1, 1))
    arc = {"kind": "0x030000", "vendor": "0x8086", "number": "0x56a0"}
    bus.add(f"{upstream}/0000:02:01.0/0000:03:00.0", "i915", **arc, **link("2.5", "2.5", 1, 1))
    gpus = bus.gpus()
    assert (gpus[0].pcie_generation, gpus[0].pcie_generation_card) == (4, 4)
    assert (gpus[0].pcie_width, gpus[0].pcie_width_max) == (16, 16)


LOST = dict(zip(link("", "", 63), ("Unknown", "Unknown", "63", "255"), strict=True))


@pytest.mark.parametrize(
    ("slot", "card", "speeds"),
    [
        # A slot cannot be slower than the link is now.
        (link("2.5", "2.5", 1), link("16.0", "32.0", 16), (4, None, 5, 16, 16)),
        ({}, LOST, (None,) * 5),  # a card that fell off the bus
    ],
)
def test_speeds_that_cannot_be(
    slot: dict[str, str], card: dict[str, str], speeds: tuple[int | None, ...], tmp_path: Path
) -> None:
    bus = Bus(tmp_path)
    bus.add("pci0000:00/0000:00:02.0", **PORT, **slot)
    bus.add("pci0000:00/0000:00:02.0/0000:01:00.0", "nvidia", **RTX_4090, **card)
    (gpu,) = bus.gpus()
    generations = (gpu.pcie_generation, gpu.pcie_generation_max, gpu.pcie_generation_card)
    assert (*generations, gpu.pcie_width, gpu.pcie_width_max) == speeds


def test_what_is_no_gpu(tmp_path: Path) -> None:
    bus = Bus(tmp_path)
    bus.add("pci0000:00/0000:00:0b.0", "intel_vpu", kind="0x120000", vendor="0x8086")  # NPU
    bus.add("pci0000:00/0000:00:0c.0", "ast", kind="0x030000", vendor="0x1a03")  # server's screen
    bus.add("pci0000:00/0000:00:0d.0", kind="0x068000", vendor="0x10de")  # NVSwitch
    bus.add("pci0000:00/0000:00:0e.0", **RTX_4090, physfn="virtual function")
    bus.add("pci0000:00/8a1c:00:00.0", kind="0x030200", vendor="0x1414")  # WSL's
    assert bus.gpus() == ()


NAMES = ("class", "vendor", "device", "numa_node", "max_link_speed", "current_link_width")


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(NAMES, GARBAGE)), st.booleans(), GARBAGE)
def test_garbage_is_no_fact(files: dict[str, bytes], gpu: bool, information: bytes) -> None:
    content: dict[str, bytes] = files
    if gpu:
        content = {**files, "class": b"0x030200\n", "vendor": b"0x10de\n"}
    with tempfile.TemporaryDirectory() as folder:
        plant(Path(folder), {f"bus/0000:01:00.0/{name}": text for name, text in content.items()})
        plant(Path(folder), {"nvidia/0000:01:00.0/information": information})
        found = pci.from_sysfs(Path(folder) / "bus", Path(folder) / "nvidia")
    if not gpu:
        assert found in ((), None)
        return
    assert found is not None
    node = 0 if files.get("numa_node", b"").strip(b"\0 \t\r\n") == b"0" else None
    only = Gpu(vendor="nvidia", pci_address="0000:01:00.0", driver_sees=False, numa_node=node)
    assert found == (only,)


ADAPTERS = [
    {
        "DriverDesc": "NVIDIA GeForce RTX 4090",
        "HardwareInformation.qwMemorySize": 24 * GIB,
        "MatchingDeviceId": "PCI\\VEN_10DE&DEV_2684&SUBSYS_88E41043",
    },
    {
        "DriverDesc": "Intel(R) UHD Graphics 770",
        "HardwareInformation.qwMemorySize": (2**30).to_bytes(8, "little"),
        "MatchingDeviceId": "pci\\ven_8086&dev_4680",
    },
    {"DriverDesc": "NVIDIA GeForce GTX 1080", "MatchingDeviceId": "pci\\ven_10de&dev_1b80"},
    {"DriverDesc": "Microsoft Basic Display Adapter", "MatchingDeviceId": "display"},
]


def test_windows() -> None:
    found = pci.from_registry(ADAPTERS)
    assert [gpu.name for gpu in found] == [
        "NVIDIA GeForce RTX 4090",
        "Intel(R) UHD Graphics 770",
        "NVIDIA GeForce GTX 1080",
    ]
    assert [gpu.memory_bytes for gpu in found] == [24 * GIB, GIB, None]
    assert found[0].pci_id == "10de:2684"


def test_windows_remembers_cards_that_were_taken_out() -> None:
    present = ["PCI\\VEN_10DE&DEV_2684&SUBSYS_88E41043&REV_A1\\4&2A9", "ROOT\\DISPLAY\\0000"]
    assert [gpu.pci_id for gpu in pci.from_registry(ADAPTERS, present)] == ["10de:2684"]


def test_a_fresh_windows_knows_no_card_by_name() -> None:
    basic = {"DriverDesc": "Microsoft Basic Display Adapter", "MatchingDeviceId": "PCI\\CC_0300"}
    present = ["PCI\\VEN_10DE&DEV_2684&SUBSYS_88E41043&REV_A1\\4&2A9", "ROOT\\DISPLAY\\0000"]
    (found,) = pci.from_registry([basic], present)
    assert (found.vendor, found.pci_id, found.name) == ("nvidia", "10de:2684", None)
    assert found.driver_sees is False


VALUES = st.one_of(st.none(), st.integers(), st.text(max_size=20), st.binary(max_size=9))


@given(st.lists(st.dictionaries(st.sampled_from(sorted(ADAPTERS[0])), VALUES), max_size=3))
def test_a_registry_of_garbage(entries: list[dict[str, object]]) -> None:
    assert pci.from_registry(entries) == ()
