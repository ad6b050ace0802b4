"""Macs' GPUs, from what sysctl and system_profiler say."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from flatout.nouns.gpu import Gpu
from flatout.probing import apple

GIB = 2**30
MACBOOK_2019 = {
    "SPDisplaysDataType": [
        {
            "_name": "kHW_IntelUHDGraphics630Item",
            "_spdisplays_vram": "1536 MB",
            "spdisplays_device-id": "0x3e9b",
            "spdisplays_vendor": "Intel",
            "spdisplays_vram_shared": "1536 MB",
            "sppci_model": "Intel UHD Graphics 630",
        },
        {
            "_name": "kHW_AMDRadeonPro5300MItem",
            "_spdisplays_vram": "4096 MB",
            "spdisplays_vendor": "sppci_vendor_amd",
            "spdisplays_vram": "4 GB",
            "sppci_model": "AMD Radeon Pro 5300M",
        },
        {"spdisplays_vendor": "AMD (0x1002)", "sppci_model": "Radeon Pro Vega 64"},
        {"sppci_model": "Virtual Display"},
    ]
}


def test_apple_silicon() -> None:
    assert apple.from_sysctl("Apple M3 Max\n", "68719476736\n") == (
        Gpu(
            vendor="apple",
            name="Apple M3 Max",
            index=0,
            driver_sees=True,
            memory_bytes=64 * GIB,
            shared_memory=True,
        ),
    )
    assert apple.from_sysctl("Apple M1", "")[0].memory_bytes is None


def test_an_older_macbook() -> None:
    found = apple.from_profiler(json.dumps(MACBOOK_2019))
    assert found is not None
    assert [(gpu.vendor, gpu.name) for gpu in found] == [
        ("intel", "Intel UHD Graphics 630"),
        ("amd", "AMD Radeon Pro 5300M"),
        ("amd", "Radeon Pro Vega 64"),
    ]
    assert [gpu.memory_bytes for gpu in found] == [1536 * 2**20, 4 * GIB, None]
    assert [gpu.shared_memory for gpu in found] == [True, False, None]


def test_under_rosetta_system_profiler_tells_the_chip() -> None:
    entry = {"sppci_model": "Apple M1 Pro", "spdisplays_vendor": "sppci_vendor_Apple"}
    found = apple.from_profiler(json.dumps({"SPDisplaysDataType": [entry]}))
    expected = Gpu(vendor="apple", name="Apple M1 Pro", driver_sees=True, shared_memory=True)
    assert found == (expected,)


KEYS = st.sampled_from(["SPDisplaysDataType", "sppci_model", "spdisplays_vram"])
VALUES = st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@given(VALUES.map(json.dumps) | st.text(), st.text(), st.text())
def test_garbage_is_no_fact(profiler: str, brand: str, memory: str) -> None:
    assert apple.from_profiler(profiler) in (None, ())
    assert apple.from_sysctl(brand, memory) == ()
