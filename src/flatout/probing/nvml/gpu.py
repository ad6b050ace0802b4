"""All facts about one GPU from NVML. The numbers are NVML's own, the same in all versions."""

from __future__ import annotations

import ctypes
import re
from typing import Any

from flatout.nouns.gpu import Gpu, GpuProcess
from flatout.probing.nvml.links import Links
from flatout.probing.nvml.questions import Questions

CLOCK_SM = 1
CLOCK_MEMORY = 2
TEMPERATURE_GPU = 0
THRESHOLD_SLOWDOWN = 1
MEMORY_V2 = 0x02000028
UNCORRECTED = 1
VOLATILE = 0
AGGREGATE = 1
RETIREMENT_CAUSES = (0, 1)
AFFINITY_OF_NODE = 0

THROTTLES = {
    0x001: "gpu_idle",
    0x002: "applications_clocks_setting",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake_slowdown",
    0x100: "display_clocks_setting",
}
COMPUTE_MODES = {0: "default", 2: "prohibited", 3: "exclusive_process"}
FABRIC_STATES = {0: "not_supported", 1: "not_started", 2: "in_progress", 3: "completed"}


def read_gpu(ask: Questions, index: int, handle: Any, links: Links) -> Gpu:
    """One GPU, with the NVLink connections that were read before."""
    mode = ask.number("nvmlDeviceGetComputeMode", handle)
    mig = ask.flag("nvmlDeviceGetMigMode", handle)
    capability = ask("nvmlDeviceGetCudaComputeCapability", handle)
    return Gpu(
        vendor="nvidia",
        name=ask.text("nvmlDeviceGetName", handle),
        index=index,
        uuid=ask.text("nvmlDeviceGetUUID", handle),
        driver_sees=True,
        compute_capability=(int(capability[0]), int(capability[1])) if capability else None,
        utilization=utilization(ask, handle),
        throttles=throttles(ask, handle),
        nvlinks=None if links.up is None else len(links.up),
        nvlinks_down=None if links.down is None else len(links.down),
        nvlink_fabric=_fabric(ask, handle),
        processes=processes(ask, handle),
        **_bus(ask, handle),
        **memory(ask, handle),
        **power_and_heat(ask, handle),
        clock_sm_mhz=ask.number("nvmlDeviceGetClockInfo", handle, CLOCK_SM),
        clock_sm_max_mhz=ask.number("nvmlDeviceGetMaxClockInfo", handle, CLOCK_SM),
        clock_memory_mhz=ask.number("nvmlDeviceGetClockInfo", handle, CLOCK_MEMORY),
        clock_memory_max_mhz=ask.number("nvmlDeviceGetMaxClockInfo", handle, CLOCK_MEMORY),
        **errors(ask, handle),
        persistence_mode=ask.flag("nvmlDeviceGetPersistenceMode", handle),
        compute_mode=None if mode is None else COMPUTE_MODES.get(mode),
        mig=mig,
        mig_slices=_slices(ask, handle) if mig else (),
        display=ask.flag("nvmlDeviceGetDisplayActive", handle),
    )


def utilization(ask: Questions, handle: Any) -> float | None:
    percent = ask.field("gpu", "nvmlDeviceGetUtilizationRates", handle)
    return None if percent is None else percent / 100


def _bus(ask: Questions, handle: Any) -> dict[str, Any]:
    address, identity = ask.pci("nvmlDeviceGetPciInfo", handle)
    # The nearest nodes; nvmlDeviceGetNumaNodeId is for GPUs that are nodes themselves.
    words = ask("nvmlDeviceGetMemoryAffinity", handle, 16, AFFINITY_OF_NODE)
    nodes = [
        64 * position + bit
        for position, word in enumerate(words or ())
        for bit in range(64)
        if int(word) >> bit & 1
    ]
    return {
        "pci_address": address,
        "pci_id": identity,
        "pcie_generation": ask.number("nvmlDeviceGetCurrPcieLinkGeneration", handle),
        "pcie_generation_max": ask.number("nvmlDeviceGetMaxPcieLinkGeneration", handle),
        "pcie_generation_card": ask.number("nvmlDeviceGetGpuMaxPcieLinkGeneration", handle),
        "pcie_width": ask.number("nvmlDeviceGetCurrPcieLinkWidth", handle),
        "pcie_width_max": ask.number("nvmlDeviceGetMaxPcieLinkWidth", handle),
        "numa_node": nodes[0] if len(nodes) == 1 else None,
    }


def memory(ask: Questions, handle: Any) -> dict[str, Any]:
    # The first version counts the driver's own memory as used.
    info = ask("nvmlDeviceGetMemoryInfo", handle, MEMORY_V2)
    if info is None:
        info = ask("nvmlDeviceGetMemoryInfo", handle)
    total, used = getattr(info, "total", None), getattr(info, "used", None)
    return {"memory_bytes": total, "memory_used_bytes": used if total else None}


def power_and_heat(ask: Questions, handle: Any) -> dict[str, Any]:
    limit = ask.number("nvmlDeviceGetEnforcedPowerLimit", handle)
    if limit is None:
        limit = ask.number("nvmlDeviceGetPowerManagementLimit", handle)
    bounds = ask("nvmlDeviceGetPowerManagementLimitConstraints", handle)
    return {
        "temperature_c": ask.number("nvmlDeviceGetTemperature", handle, TEMPERATURE_GPU),
        "temperature_slowdown_c": ask.number(
            "nvmlDeviceGetTemperatureThreshold", handle, THRESHOLD_SLOWDOWN
        ),
        "power_w": watts(ask.number("nvmlDeviceGetPowerUsage", handle)),
        "power_limit_w": watts(limit),
        "power_limit_default_w": watts(
            ask.number("nvmlDeviceGetPowerManagementDefaultLimit", handle)
        ),
        "power_limit_max_w": watts(bounds[1] if bounds else None),
    }


def watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def throttles(ask: Questions, handle: Any) -> tuple[str, ...] | None:
    mask = ask.number("nvmlDeviceGetCurrentClocksEventReasons", handle)
    if mask is None:  # drivers before 535 use the older name
        mask = ask.number("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    if mask is None:
        return None
    return tuple(name for bit, name in THROTTLES.items() if mask & bit)


def errors(ask: Questions, handle: Any) -> dict[str, Any]:
    pages = [ask("nvmlDeviceGetRetiredPages", handle, cause) for cause in RETIREMENT_CAUSES]
    rows = ask("nvmlDeviceGetRemappedRows", handle)
    # Older GPUs retire pages, newer ones remap rows; each refuses questions about the other.
    pending = [
        ask.flag("nvmlDeviceGetRetiredPagesPendingStatus", handle),
        bool(rows[2]) if rows else None,
    ]
    answers = [answer for answer in pending if answer is not None]
    return {
        "ecc": ask.flag("nvmlDeviceGetEccMode", handle),
        "ecc_uncorrected": ask.number("nvmlDeviceGetTotalEccErrors", handle, UNCORRECTED, VOLATILE),
        "ecc_uncorrected_lifetime": ask.number(
            "nvmlDeviceGetTotalEccErrors", handle, UNCORRECTED, AGGREGATE
        ),
        "retired_pages": None if None in pages else sum(map(len, pages)),
        "retirement_pending": any(answers) if answers else None,
        "row_remap_failed": bool(rows[3]) if rows else None,
    }


def _slices(ask: Questions, handle: Any) -> tuple[str, ...]:
    """The slices' profiles, which end their names: "NVIDIA A100-SXM4-40GB MIG 1g.5gb"."""
    count = ask.number("nvmlDeviceGetMaxMigDeviceCount", handle) or 0
    devices = [ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, index) for index in range(count)]
    names = [ask.text("nvmlDeviceGetName", device) for device in devices if device is not None]
    profiles = [re.search(r"\bMIG (\S+)$", name or "") for name in names]
    return tuple(profile[1] for profile in profiles if profile)


def _fabric(ask: Questions, handle: Any) -> str | None:
    for question, structure in (
        ("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfoV_t"),
        ("nvmlDeviceGetGpuFabricInfo", "c_nvmlGpuFabricInfo_t"),
    ):
        info = ask(structure)
        if info is not None and ask(question, handle, ctypes.byref(info)) is not None:
            return FABRIC_STATES.get(info.state)
    return None


def processes(ask: Questions, handle: Any) -> tuple[GpuProcess, ...] | None:
    lists = [
        ask("nvmlDeviceGetComputeRunningProcesses", handle),
        ask("nvmlDeviceGetGraphicsRunningProcesses", handle),
    ]
    if all(processes is None for processes in lists):
        return None
    computing = {process.pid for process in lists[0] or ()}
    memory: dict[int, int | None] = {}
    for process in [process for processes in lists for process in processes or ()]:
        # A process that computes and draws is in both lists, with the same memory.
        memory[process.pid] = process.usedGpuMemory or memory.get(process.pid)
    return tuple(
        GpuProcess(pid, ask.text("nvmlSystemGetProcessName", pid), used, pid in computing)
        for pid, used in sorted(memory.items())
    )
