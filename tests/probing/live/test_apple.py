"""The GPU of a Mac, with programs that say what macOS says."""

from __future__ import annotations

from collections.abc import Sequence

from flatout.probing.live.apple import IOREG, AppleSampler, statistics
from flatout.probing.program_answer import ProgramAnswer

GIB = 2**30
STATISTICS = (
    '{"In use system memory (driver)"=0,"Alloc system memory"=7178698752,"Tiler Utilization %"=74,'
    '"recoveryCount"=0,"Renderer Utilization %"=73,"Device Utilization %"=40,'
    '"In use system memory"=2704703488}'
)
M4 = f"""\
+-o AGXAcceleratorG16G  <class AGXAcceleratorG16G, id 0x10000039c, registered, matched, active>
    {{
      "IOReportLegend" = ({{"IOReportChannels"=((1,2,"In use system memory"))}})
      "PerformanceStatistics" = {STATISTICS}
      "model" = "Apple M4"
      "gpu-core-count" = 10
    }}

"""
RADEON = """\
+-o AMDRadeonX6000_AMDNavi14GraphicsAccelerator  <class IOAccelerator, id 0x100000abc>
    {
      "PerformanceStatistics" = {"vramUsedBytes"=1073741824,"Device Utilization %"=7}
    }

"""


class Mac:
    """Answers as macOS does; counts how often ioreg is asked."""

    def __init__(self, brand: str = "Apple M4", ioreg: str = M4) -> None:
        self.brand, self.ioreg = brand, ioreg
        self.asked = 0

    def __call__(self, command: Sequence[str], limit_s: float) -> ProgramAnswer:
        assert limit_s <= 1.0
        if command == IOREG:
            self.asked += 1
            return ProgramAnswer(self.ioreg, 0 if self.ioreg else None)
        text = {"machdep.cpu.brand_string": self.brand, "hw.memsize": f"{16 * GIB}"}[command[-1]]
        return ProgramAnswer(f"{text}\n", 0)


def test_the_gpu_now() -> None:
    mac = Mac()
    sampler = AppleSampler(mac)
    (gpu,) = sampler.samples(100.0, 1)
    assert (gpu.index, gpu.vendor, gpu.name) == (1, "apple", "Apple M4")
    assert (gpu.memory_used_bytes, gpu.memory_bytes) == (2704703488, 16 * GIB)
    assert gpu.utilization == 0.4
    assert gpu.processes is None
    mac.ioreg = M4.replace("=40,", "=90,")
    assert [sampler.samples(101.0)[0].utilization, mac.asked] == [0.4, 1]  # every two seconds
    assert [sampler.samples(102.0)[0].utilization, mac.asked] == [0.9, 2]


def test_ioreg_that_does_not_answer_is_left_for_a_minute() -> None:
    mac = Mac(ioreg="")
    sampler = AppleSampler(mac)
    asked = []
    for now_s in (0.0, 2.0, 59.0, 60.0):
        (gpu,) = sampler.samples(now_s)
        assert (gpu.utilization, gpu.memory_used_bytes) == (None, None)
        asked.append(mac.asked)
    assert asked == [1, 1, 1, 2]


def test_a_mac_without_an_apple_chip() -> None:
    mac = Mac(brand="Intel(R) Core(TM) i9-9980HK CPU @ 2.40GHz")
    sampler = AppleSampler(mac)
    assert sampler.samples(0.0) == ()
    assert mac.asked == 0


def test_statistics() -> None:
    assert statistics(RADEON) == {}
    assert statistics(RADEON + M4) == statistics(M4)
    assert statistics(M4)["In use system memory"] == 2704703488
    assert "In use system memory" not in statistics(M4.replace("=2704703488", f"={2**64 - 5}"))
    assert statistics("") == {}
    assert statistics(M4.replace(STATISTICS, "{}")) == {}


def test_more_than_all_is_not_known() -> None:
    sampler = AppleSampler(Mac(ioreg=M4.replace("=40,", "=140,")))
    assert sampler.samples(0.0)[0].utilization is None
