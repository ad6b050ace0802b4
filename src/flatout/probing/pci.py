"""GPUs on the bus, whether or not a driver knows them; on Windows, those in the registry."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from flatout.nouns.gpu import Gpu, Vendor
from flatout.probing import reading

DEVICES = Path("/sys/bus/pci/devices")
NVIDIA = Path("/proc/driver/nvidia/gpus")

VENDORS: dict[str, Vendor] = {"0x10de": "nvidia", "0x1002": "amd", "0x8086": "intel"}
SCREENS = ("0x0300", "0x0302", "0x0380")
"""Classes VGA, 3D and display controller, which data-centre GPUs also use."""
ACCELERATORS = ("0x1200",)
"""Processing accelerator, AMD's MI300; Intel's devices of this class are NPUs and FPGAs."""
OWN_DRIVERS = {"nvidia": {"nvidia"}, "amd": {"amdgpu"}, "intel": {"i915", "xe"}}
GENERATIONS = {"2.5": 1, "5": 2, "5.0": 2, "8": 3, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}
"""Kernels before 5.10 omit the .0."""
WIDTHS = frozenset((1, 2, 4, 8, 12, 16, 32))
EMULATED = "0x1b36"
"""Red Hat's vendor number, of virtual machines' slots, whose speed is invented."""


def from_sysfs(devices: Path, nvidia: Path) -> tuple[Gpu, ...] | None:
    """The GPUs among the devices of the bus, or None if the bus cannot be listed."""
    folders = reading.entries(devices)
    if folders is None:
        return None
    candidates = (_gpu(device, nvidia) for device in folders)
    return tuple(gpu for gpu in candidates if gpu is not None)


def _gpu(device: Path, nvidia: Path) -> Gpu | None:
    kind = reading.text(device / "class") or ""
    if not kind.startswith(SCREENS + ACCELERATORS):
        return None
    vendor = VENDORS.get(reading.text(device / "vendor") or "")
    if vendor is None or (vendor == "intel" and kind.startswith(ACCELERATORS)):
        return None
    if reading.exists(device / "physfn"):  # a virtual function of a GPU that is itself listed
        return None
    driver = reading.link_name(device / "driver")
    node = reading.number(device / "numa_node")
    link = _link(device, vendor)
    name = None  # as the vendor's own driver reports it
    if vendor == "nvidia":
        information = reading.text(nvidia / device.name / "information") or ""
        match = re.search(r"^Model:[ \t]*(\S.*?)\s*$", information, re.MULTILINE)
        name = match[1] if match and match[1] != "Unknown" else None
    elif vendor == "amd":
        name = reading.text(device / "product_name") or None
    numbers = [reading.text(device / name) or "" for name in ("vendor", "device")]
    has_numbers = all(re.fullmatch(r"0x[0-9a-f]{4}", number) for number in numbers)
    return Gpu(
        vendor=vendor,
        name=name,
        pci_address=device.name.lower(),
        pci_id=":".join(number[2:] for number in numbers) if has_numbers else None,
        driver_sees=None if driver in OWN_DRIVERS[vendor] else False,
        kernel_driver=driver,
        pcie_generation=_generation(link, "current_link_speed"),
        pcie_generation_max=_generation_max(link),
        pcie_generation_card=_generation(link, "max_link_speed"),
        pcie_width=_width(link, "current_link_width"),
        pcie_width_max=_width(link, "max_link_width"),
        numa_node=node if node is not None and node >= 0 else None,
    )


def _link(device: Path, vendor: str) -> Path:
    """The end of the slot's link. Many AMD and Intel cards have their own switch, and the GPU
    behind it reports the link inside the card (Intel Arc: always 2.5 GT/s x1).
    """
    slot_end = device.resolve()
    if vendor == "nvidia":
        return slot_end
    downstream, upstream = slot_end.parent, slot_end.parent.parent
    card_vendor = reading.text(device / "vendor")
    for bridge in (downstream, upstream):
        is_bridge = (reading.text(bridge / "class") or "").startswith("0x0604")
        if not is_bridge or reading.text(bridge / "vendor") != card_vendor:
            return slot_end
    if upstream.parent.name.startswith("pci"):  # a root port: the slot's side, not the card's
        return slot_end
    return upstream


def _generation(link: Path, name: str) -> int | None:
    match = re.match(r"([0-9.]+) GT/s", reading.text(link / name) or "")
    return GENERATIONS.get(match[1]) if match else None


def _width(link: Path, name: str) -> int | None:
    width = reading.number(link / name)
    return width if width in WIDTHS else None


def _generation_max(link: Path) -> int | None:
    """The highest that card and slot both support, or None if the slot is virtual."""
    card, slot = _generation(link, "max_link_speed"), _generation(link.parent, "max_link_speed")
    if card is None or slot is None or reading.text(link.parent / "vendor") == EMULATED:
        return None
    current = _generation(link, "current_link_speed")
    highest = min(card, slot)
    return None if current is not None and current > highest else highest


def from_registry(
    entries: Iterable[Mapping[str, object]], present: Iterable[str] | None = None
) -> tuple[Gpu, ...]:
    """GPUs from Windows' list of display adapters. The registry also lists removed cards:
    `present` holds the device identifiers of present cards, or is None if unknown.
    """
    present_ids = None if present is None else {_windows_id(identifier) for identifier in present}
    gpus_found = []
    for entry in entries:
        number = _windows_id(str(entry.get("MatchingDeviceId", "")))
        vendor = VENDORS.get(f"0x{number[:4]}") if number else None
        if (
            number is None
            or vendor is None
            or (present_ids is not None and number not in present_ids)
        ):
            continue
        name = entry.get("DriverDesc")
        size = entry.get("HardwareInformation.qwMemorySize")  # a number or its bytes; 0: shared
        if isinstance(size, bytes) and len(size) == 8:
            size = int.from_bytes(size, "little")
        gpus_found.append(
            Gpu(
                vendor=vendor,
                name=name if isinstance(name, str) and name else None,
                pci_id=number,
                memory_bytes=size if isinstance(size, int) and 0 < size < 2**48 else None,
            )
        )
    # With "Microsoft Basic Display Adapter" the entry names a class of devices, not a card.
    listed_ids = {gpu.pci_id for gpu in gpus_found}
    unlisted_ids = sorted(
        number for number in present_ids or () if number and number not in listed_ids
    )
    vendors = ((VENDORS.get(f"0x{number[:4]}"), number) for number in unlisted_ids)
    gpus_found += [
        Gpu(vendor=name, pci_id=number, driver_sees=False) for name, number in vendors if name
    ]
    return tuple(gpus_found)


def _windows_id(identifier: str) -> str | None:
    match = re.search(r"VEN_([0-9A-F]{4})&DEV_([0-9A-F]{4})", identifier.upper())
    return f"{match[1]}:{match[2]}".lower() if match else None


if sys.platform == "win32":
    ADAPTERS = "{4d36e968-e325-11ce-bfc1-08002be10318}"
    """Windows' class of display adapters."""

    def gpus() -> tuple[Gpu, ...] | None:
        """GPUs among the display adapters."""
        entries = _adapters()
        return None if entries is None else from_registry(entries, _present_adapters())

    def _adapters() -> list[dict[str, object]] | None:
        import winreg

        path = rf"SYSTEM\CurrentControlSet\Control\Class\{ADAPTERS}"
        adapters = []
        try:
            with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, path) as key:
                for index in range(winreg.QueryInfoKey(key)[0]):
                    name = winreg.EnumKey(key, index)
                    if re.fullmatch(r"[0-9]{4}", name):
                        adapters.append(_values(rf"{path}\{name}"))
        except OSError:
            return None
        return adapters

    def _values(path: str) -> dict[str, object]:
        import winreg

        values: dict[str, object] = {}
        names = ("DriverDesc", "HardwareInformation.qwMemorySize", "MatchingDeviceId")
        try:
            with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, path) as key:
                for name in names:
                    try:
                        values[name] = winreg.QueryValueEx(key, name)[0]
                    except OSError:
                        continue
        except OSError:
            pass
        return values

    def _present_adapters() -> list[str] | None:
        """Identifiers of the display adapters that are present."""
        import ctypes

        of_class_and_present = 0x200 | 0x100  # CM_GETIDLIST_FILTER_CLASS, ..._PRESENT
        try:
            manager = ctypes.windll.cfgmgr32
            size = ctypes.c_ulong()
            question = (ctypes.c_wchar_p(ADAPTERS), of_class_and_present)
            if manager.CM_Get_Device_ID_List_SizeW(ctypes.byref(size), *question) != 0:
                return None
            buffer = ctypes.create_unicode_buffer(size.value)
            if manager.CM_Get_Device_ID_ListW(question[0], buffer, size, question[1]) != 0:
                return None
        except (AttributeError, OSError, ValueError):
            return None
        text = "".join(buffer[: size.value])
        return [identifier for identifier in text.split("\0") if identifier]

elif sys.platform == "darwin":

    def gpus() -> tuple[Gpu, ...] | None:
        """None: macOS has no files that list the bus; Apple's own tools list its GPUs."""
        return None

else:

    def gpus() -> tuple[Gpu, ...] | None:
        """GPUs on the bus."""
        return from_sysfs(DEVICES, NVIDIA)
