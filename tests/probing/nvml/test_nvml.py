"""The driver's answers through a fake of its library, and the real library where there is a GPU."""

from __future__ import annotations

import dataclasses
import functools
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.nouns.gpu import Driver, Gpu, GpuPair, GpuProcess
from flatout.nouns.identity import GpuIdentity
from flatout.probing import nvml
from flatout.probing.nvml import gpu as reader
from flatout.probing.nvml import links
from flatout.probing.nvml import questions as nvml_questions
from probing.nvml import fake
from probing.nvml.fake import GIB, Nvml, RefusalError, consumer, h100_node, one_of, pci, workstation


def test_no_driver() -> None:
    library = Nvml([consumer()], refused=frozenset({"nvmlInit"}))
    assert nvml.gpus(library) == ()
    assert library.calls == ["nvmlInit"]


def test_a_refused_fact_is_none() -> None:
    refused = frozenset({"nvmlDeviceGetMemoryInfo", "nvmlSystemGetDriverVersion"})
    name = "NVIDIA GeForce RTX 4090"
    assert nvml.gpus(workstation(refused=refused)) == (GpuIdentity(name, None, None),)
    assert nvml.gpus(workstation()) == (GpuIdentity(name, 24 * GIB, "570.124.06"),)


def test_a_gpu_that_fell_off_the_bus_hides_no_other() -> None:
    for lost in (None, {**consumer(), "nvmlDeviceGetName": RefusalError(15, "GPU is lost")}):
        assert len(nvml.gpus(Nvml([lost, consumer()]))) == 1
    gpus, _, _ = nvml.facts(Nvml([None, consumer()]))
    assert [gpu.index for gpu in gpus] == [1]


def test_refusing_to_count_or_to_end_is_no_error() -> None:
    countless = frozenset({"nvmlDeviceGetCount"})
    assert nvml.gpus(workstation(refused=countless)) == ()
    gpus, pairs, driver = nvml.facts(workstation(refused=countless))
    assert (gpus, pairs, driver.version) == (None, None, "570.124.06")
    assert len(nvml.gpus(workstation(refused=frozenset({"nvmlShutdown"})))) == 1


@pytest.mark.gpu
def test_the_real_library_on_a_gpu() -> None:
    import torch

    names = [gpu.name for gpu in nvml.gpus()]
    assert torch.cuda.get_device_name(0) in names
    assert all(gpu.memory_bytes and gpu.memory_bytes > 2**30 for gpu in nvml.gpus())


def only(library: Nvml) -> Gpu:
    (gpu,) = nvml.facts(library)[0] or ()
    return gpu


def test_all_facts_of_a_consumer_card() -> None:
    library = workstation()
    gpus, pairs, driver = nvml.facts(library)
    assert driver == Driver(vendor="nvidia", version="570.124.06", cuda="12.8")
    assert pairs == ()
    assert gpus == (
        Gpu(
            vendor="nvidia",
            name="NVIDIA GeForce RTX 4090",
            index=0,
            uuid="GPU-8c5e2d1a-0000-1111-2222-333344445555",
            pci_address="0000:01:00.0",
            pci_id="10de:2684",
            driver_sees=True,
            compute_capability=(8, 9),
            memory_bytes=24 * GIB,
            memory_used_bytes=GIB,
            pcie_generation=1,
            pcie_generation_max=4,
            pcie_generation_card=4,
            pcie_width=16,
            pcie_width_max=16,
            numa_node=0,
            utilization=0.37,
            temperature_c=44,
            temperature_slowdown_c=97,
            power_w=31.25,
            power_limit_w=450.0,
            power_limit_default_w=450.0,
            power_limit_max_w=600.0,
            clock_sm_mhz=210,
            clock_sm_max_mhz=3105,
            clock_memory_mhz=405,
            clock_memory_max_mhz=10501,
            throttles=("gpu_idle",),
            persistence_mode=False,
            compute_mode="default",
            display=True,
            processes=(
                GpuProcess(1802, "/usr/lib/xorg/Xorg", 150 * 2**20, computes=False),
                GpuProcess(4242, "python train.py", 800 * 2**20),
            ),
        ),
    )
    assert (library.calls.count("nvmlInit"), library.calls[-1]) == (1, "nvmlShutdown")


def test_two_cards_with_a_bridge_and_one_without() -> None:
    def bridged(bus: int, other: int) -> dict[str, Any]:
        return {
            **consumer(),
            "nvmlDeviceGetPciInfo": pci(bus, 0x223010DE),
            "nvmlDeviceGetNvLinkState": one_of(_0=1, _1=1, _2=0, _3=0),
            "nvmlDeviceGetNvLinkRemoteDeviceType": 0,
            "nvmlDeviceGetNvLinkRemotePciInfo": pci(other),
            "nvmlDeviceGetTopologyCommonAncestor": 40,
        }

    alone = {**consumer(), "nvmlDeviceGetPciInfo": pci(0x61, 0x268410DE)}
    gpus, pairs, _ = nvml.facts(Nvml([bridged(0x21, 0x41), bridged(0x41, 0x21), alone]))
    assert [(gpu.nvlinks, gpu.nvlinks_down) for gpu in gpus] == [(2, 2), (2, 2), (None, None)]
    assert pairs == (GpuPair(0, 1, "nvlink"), GpuPair(0, 2, "node"), GpuPair(1, 2, "node"))


def test_a_pair_whose_nvlink_is_not_told_is_left_out() -> None:
    refused = frozenset({"nvmlDeviceGetNvLinkState"})
    assert nvml.facts(h100_node(refused=refused))[1] is None
    old = frozenset({"nvmlDeviceGetNvLinkRemoteDeviceType"})
    assert nvml.facts(h100_node(unknown=old))[1] is None


RETIRED = {
    "nvmlDeviceGetRetiredPages": one_of(_0=[1, 2, 3], _1=[4]),
    "nvmlDeviceGetRetiredPagesPendingStatus": 1,
}
FABRIC = {"nvmlDeviceGetGpuFabricInfo": fake.fabric(2)}


@pytest.mark.parametrize(
    ("library", "facts"),
    [
        (
            fake.mig_node(),
            {"mig": True, "mig_slices": ("3g.20gb", "1g.5gb"), "utilization": None},
        ),
        (  # an older card
            Nvml([{**consumer(), **RETIRED}]),
            {"retired_pages": 4, "retirement_pending": True, "row_remap_failed": None},
        ),
        (  # the older question about the fabric
            Nvml([{**consumer(), **FABRIC}], unknown=frozenset({"c_nvmlGpuFabricInfoV_t"})),
            {"nvlink_fabric": "in_progress"},
        ),
    ],
    ids=["slices", "retired pages", "fabric"],
)
def test_facts_of_some_cards(library: Nvml, facts: dict[str, Any]) -> None:
    gpu = only(library)
    assert {name: getattr(gpu, name) for name in facts} == facts


def test_throttles_by_either_name() -> None:
    mask = 0x4 | 0x20 | 0x8000_0000  # the last is of a newer driver
    new = {**consumer(), "nvmlDeviceGetCurrentClocksEventReasons": mask}
    old = {**consumer(), "nvmlDeviceGetCurrentClocksThrottleReasons": mask}
    del old["nvmlDeviceGetCurrentClocksEventReasons"]
    for gpu in (new, old):
        assert only(Nvml([gpu])).throttles == ("sw_power_cap", "sw_thermal_slowdown")
    assert only(Nvml([{**new, "nvmlDeviceGetCurrentClocksEventReasons": 0}])).throttles == ()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (pynvml.NVMLError(18), "Driver/library version mismatch"),
        (pynvml.NVMLError(9), "Driver Not Loaded"),
        (pynvml.NVMLError(12), "NVML Shared Library Not Found"),
        (OSError("wrong ELF class"), "wrong ELF class"),
    ],
)
def test_why_it_does_not_start(error: Exception, reason: str) -> None:
    library = Nvml([consumer()], {"nvmlInit": error})
    assert nvml.facts(library) == (None, None, Driver(vendor="nvidia", nvml_error=reason))
    assert library.calls == ["nvmlInit"]


@functools.cache
def whole(node: bool) -> tuple[Any, ...]:
    library = h100_node() if node else workstation()
    return (*nvml.facts(library), tuple(sorted(set(library.calls) - {"nvmlInit"})))


def test_all_questions_are_in_the_real_library() -> None:
    libraries = [h100_node(), workstation(), fake.mig_node(), fake.wsl()]
    for library in libraries:
        nvml.facts(library)
        assert {name for name in library.calls if not hasattr(pynvml, name)} == set()


NUMBERS = {
    "nvmlMemory_v2": reader.MEMORY_V2,
    "NVML_MEMORY_ERROR_TYPE_UNCORRECTED": reader.UNCORRECTED,
    "NVML_VOLATILE_ECC": reader.VOLATILE,
    "NVML_AGGREGATE_ECC": reader.AGGREGATE,
    "NVML_CLOCK_SM": reader.CLOCK_SM,
    "NVML_CLOCK_MEM": reader.CLOCK_MEMORY,
    "NVML_TEMPERATURE_THRESHOLD_SLOWDOWN": reader.THRESHOLD_SLOWDOWN,
    "NVML_NVLINK_MAX_LINKS": links.MAX_LINKS,
    "NVML_NVLINK_DEVICE_TYPE_SWITCH": links.REMOTE_SWITCH,
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH": nvml.VERSION_MISMATCH,
    "nvmlClocksEventReasonDisplayClockSetting": 0x100,  # the library's name lacks an s
}
NUMBERS |= {
    f"nvmlClocksEventReason{name.title().replace('_', '')}": bit
    for bit, name in reader.THROTTLES.items()
    if name != "display_clocks_setting"
}


def test_the_numbers_are_those_of_the_real_library() -> None:
    assert {name: getattr(pynvml, name, None) for name in NUMBERS} == NUMBERS
    assert reader.COMPUTE_MODES[pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS] == "exclusive_process"
    assert reader.FABRIC_STATES[pynvml.NVML_GPU_FABRIC_STATE_COMPLETED] == "completed"
    assert links.WAYS[pynvml.NVML_TOPOLOGY_SYSTEM] == "system"
    refusals = {pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_INVALID_ARGUMENT}
    assert refusals == nvml_questions.NOT_SUPPORTED
    assert str(pynvml.NVMLError(12)) == nvml.NOT_FOUND


@given(st.booleans(), st.data())
def test_whatever_is_refused_is_none_and_nothing_else_changes(node: bool, data: Any) -> None:
    *before, names = whole(node)
    some = st.frozensets(st.sampled_from(names))
    refused, unknown = data.draw(some), data.draw(some)
    make = h100_node if node else workstation
    gpus, pairs, driver = nvml.facts(make(refused=refused, unknown=unknown))
    for gpu, complete in zip(gpus or (), before[0], strict=False):
        for field in dataclasses.fields(Gpu):
            told, truth = getattr(gpu, field.name), getattr(complete, field.name)
            if field.name == "processes":
                known = {process.pid for process in truth}
                assert told is None or {process.pid for process in told} <= known
            elif field.name == "memory_used_bytes":
                assert told in (None, truth)
            else:
                assert told is None or told == truth, field.name
    assert set(pairs or ()) <= set(before[1])
    for field in dataclasses.fields(Driver):
        assert getattr(driver, field.name) in (None, getattr(before[2], field.name))


def test_a_real_refusal_is_understood() -> None:
    """pynvml's own errors carry their number where has_no_such_part looks for it."""

    def answer(*_: Any) -> Any:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    questions = nvml_questions.Questions(SimpleNamespace(question=answer))
    assert questions.has_no_such_part("question", 0)
    assert questions("question") is None
    assert RefusalError(3).value == 3


def test_the_facts_of_the_real_library_here() -> None:
    gpus, _, driver = nvml.facts()
    assert (gpus is None) == (driver.nvml_error is not None)


@pytest.mark.gpu
def test_the_facts_of_the_real_library_on_a_gpu() -> None:
    import torch

    gpus, pairs, driver = nvml.facts()
    assert gpus
    seen = torch.cuda.get_device_properties(0)
    gpu = next(gpu for gpu in gpus if gpu.name == seen.name)
    assert gpu.compute_capability == (seen.major, seen.minor)
    assert gpu.memory_bytes is not None
    assert 0 <= gpu.memory_bytes - seen.total_memory < 2 * GIB
    assert gpu.uuid is not None
    assert gpu.pci_address is not None
    assert driver.version is not None
    assert driver.cuda is not None
    if len(gpus) == 1:
        assert pairs == ()
