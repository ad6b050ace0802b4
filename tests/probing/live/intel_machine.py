"""A fake machine with Intel's GPUs: cards as i915 and xe show them, and programs that use them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from probing.planted import plant

GIB = 2**30
ARC, OWN = "0000:03:00.0", "0000:00:02.0"
XE = """\
pos:\t0
flags:\t02400002
mnt_id:\t26
ino:\t685
drm-driver:\txe
drm-client-id:\t{number}
drm-pdev:\t{address}
drm-total-system:\t0
drm-resident-system:\t0
drm-total-gtt:\t192 KiB
drm-shared-gtt:\t0
drm-active-gtt:\t0
drm-resident-gtt:\t192 KiB
drm-total-vram0:\t{memory}
drm-shared-vram0:\t16 MiB
drm-active-vram0:\t0
drm-resident-vram0:\t{memory}
drm-cycles-rcs:\t{drawn}
drm-total-cycles-rcs:\t{passed}
drm-cycles-bcs:\t999999999
drm-total-cycles-bcs:\t{passed}
drm-engine-capacity-bcs:\t9
drm-cycles-ccs:\t{computed}
drm-total-cycles-ccs:\t{passed}
drm-engine-capacity-ccs:\t{capacity}
"""
I915 = """\
pos:\t0
drm-driver:\ti915
drm-pdev:\t{address}
drm-client-id:\t{number}
drm-total-system0:\t80 MiB
drm-resident-system0:\t{memory}
drm-resident-stolen-system0:\t8 MiB
drm-engine-render:\t{drawn} ns
drm-engine-copy:\t999999999999 ns
drm-engine-video:\t0 ns
drm-engine-capacity-video:\t2
drm-engine-compute:\t{computed} ns
"""


def xe(
    number: int = 3,
    *,
    address: str = ARC,
    memory: str = "512 MiB",
    drawn: int = 0,
    computed: int = 0,
    passed: int = 10**6,
    capacity: int = 1,
) -> str:
    """What xe tells of a client; cycles."""
    facts = {"memory": memory, "drawn": drawn, "computed": computed, "passed": passed}
    return XE.format(number=number, address=address, capacity=capacity, **facts)


def i915(
    number: int = 3,
    *,
    address: str = OWN,
    memory: str = "64 MiB",
    drawn: int = 0,
    computed: int = 0,
) -> str:
    """What i915 tells of a client; nanoseconds."""
    facts = {"memory": memory, "drawn": drawn, "computed": computed}
    return I915.format(number=number, address=address, **facts)


class IntelMachine:
    """Its /proc and /sys below `root`."""

    def __init__(self, root: Path) -> None:
        if sys.platform == "win32":
            pytest.skip("Linux' names hold colons, which Windows does not allow")
        self.root = root

    def card(self, number: int, address: str, driver: str, **files: str) -> Path:
        """A card with files by their places in its folder; the folder."""
        place, name = f"sys/devices/{address}", f"sys/class/drm/card{number}"
        plant(self.root, {f"{place}/vendor": "0x8086\n", f"{place}/device": "0xe20b\n"})
        links = {f"{name}/device": place, f"{place}/driver": f"sys/bus/pci/drivers/{driver}"}
        plant(self.root, {}, links)
        card = self.root / name
        self.write(card, files)
        return card

    def write(self, card: Path, files: dict[str, str]) -> None:
        for place, text in files.items():
            path = card / place
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n")

    def battlemage(self, number: int = 1, address: str = ARC) -> Path:
        """A card that xe drives."""
        gt = "device/tile0/gt0"
        monitor = "device/hwmon/hwmon4"
        files = {
            "device/tile0/physical_vram_size_bytes": f"{12 * GIB}",
            "device/power/runtime_status": "active",
            f"{gt}/freq0/act_freq": "2400",
            f"{gt}/freq0/cur_freq": "2450",
            f"{gt}/freq0/max_freq": "2700",
            f"{gt}/freq0/rp0_freq": "2850",
            f"{gt}/freq0/throttle/status": "1",
            f"{gt}/freq0/throttle/reason_pl1": "1",
            f"{gt}/freq0/throttle/reason_pl2": "1",
            f"{gt}/freq0/throttle/reason_thermal": "0",
            f"{gt}/freq0/throttle/reason_vr_thermalert": "1",
            f"{gt}/gtidle/idle_residency_ms": "5000",
            "device/tile0/gt1/freq0/act_freq": "900",  # for video
            f"{monitor}/name": "xe",
            f"{monitor}/energy1_input": "1000000000",
            f"{monitor}/energy2_input": "7",
            f"{monitor}/power1_max": "190000000",
            f"{monitor}/power1_rated_max": "200000000",
            f"{monitor}/temp2_input": "61000",
            f"{monitor}/temp2_label": "pkg",
            f"{monitor}/temp3_input": "70000",
            f"{monitor}/temp3_label": "vram",
        }
        return self.card(number, address, "xe", **files)

    def laptop(self, number: int = 0) -> Path:
        """A processor's own GPU that i915 drives."""
        files = {
            "device/power/runtime_status": "active",
            "gt/gt0/rps_act_freq_mhz": "1100",
            "gt/gt0/rps_cur_freq_mhz": "1200",
            "gt/gt0/rps_RP0_freq_mhz": "1400",
            "gt/gt0/throttle_reason_status": "0",
            "gt/gt0/rc6_residency_ms": "0",
            "gt/gt1/rps_act_freq_mhz": "1300",  # for video
        }
        return self.card(number, OWN, "i915", **files)

    def process(self, pid: int, began: int, files: dict[str, str], other: int = 2) -> Path:
        """A process with what its open files of a GPU tell, beside some that are none; its folder.

        began: the kernel's ticks.
        """
        folder = self.root / f"proc/{pid}"
        for name in ("fd", "fdinfo"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        words = " ".join(["S", "1", *["0"] * 17, f"{began}", "0"])
        (folder / "stat").write_text(f"{pid} (python (x) y) {words}\n")
        for name in range(other):
            self._open(folder, f"{name}", f"pipe:[{pid}{name}]", "pos:\t0\n")
        for name, text in files.items():
            self._open(folder, name, "/dev/dri/renderD128", text)
        return folder

    def _open(self, folder: Path, name: str, target: str, text: str) -> None:
        link = folder / "fd" / name
        if not link.is_symlink():
            link.symlink_to(target)
        (folder / "fdinfo" / name).write_text(text)
