"""Gpu: one accelerator, and its vendor's driver. Facts that could not be read are None."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Vendor = Literal["nvidia", "amd", "intel", "apple"]
Link = Literal["nvlink", "internal", "single", "multiple", "hostbridge", "node", "system"]
"""single: one PCIe switch; multiple: several."""


@dataclass(frozen=True)
class GpuProcess:
    """Another program on a GPU."""

    pid: int
    name: str | None = None
    memory_bytes: int | None = None
    computes: bool = True
    """Whether the driver lists it as computing, not only as drawing. Under WDDM it lists all so."""


@dataclass(frozen=True)
class Gpu:
    """One accelerator as its driver reports it, or one that only the bus shows (`driver_sees`
    False).
    """

    vendor: Vendor
    name: str | None = None
    index: int | None = None
    """Its number in the driver."""
    uuid: str | None = None
    pci_address: str | None = None
    """domain:bus:device.function, lower case: 0000:3b:00.0."""
    pci_id: str | None = None
    """vendor:device, lower case hexadecimal: 10de:2330."""
    driver_sees: bool | None = None
    """Whether the vendor's driver lists it; False if it is only on the bus."""
    kernel_driver: str | None = None
    """The kernel module bound to it: nvidia, nouveau, amdgpu, i915, xe, vfio-pci."""
    compute_capability: tuple[int, int] | None = None
    """NVIDIA: (9, 0)."""
    gfx: str | None = None
    """AMD: gfx942."""
    memory_bytes: int | None = None
    memory_used_bytes: int | None = None
    shared_memory: bool | None = None
    """Its memory is the host's (Apple, integrated GPUs, Jetson)."""
    pcie_generation: int | None = None
    """Link now. A GPU that idles lowers it: compare only when busy, or compare the maxima."""
    pcie_generation_max: int | None = None
    """The maximum of card and slot together."""
    pcie_generation_card: int | None = None
    """The most that the card itself can do."""
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    """The most that the card itself can do."""
    numa_node: int | None = None
    utilization: float | None = None
    """0 to 1, over the driver's last sampling period."""
    temperature_c: int | None = None
    temperature_slowdown_c: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    power_limit_default_w: float | None = None
    power_limit_max_w: float | None = None
    clock_sm_mhz: int | None = None
    clock_sm_max_mhz: int | None = None
    clock_memory_mhz: int | None = None
    clock_memory_max_mhz: int | None = None
    throttles: tuple[str, ...] | None = None
    """What limits the clocks now, by NVML's names without prefix: sw_power_cap, hw_slowdown,
    sw_thermal_slowdown, hw_thermal_slowdown, hw_power_brake_slowdown, sync_boost, gpu_idle,
    applications_clocks_setting, display_clocks_setting."""
    ecc: bool | None = None
    """Whether ECC is on now."""
    ecc_uncorrected: int | None = None
    """Count since the driver was loaded."""
    ecc_uncorrected_lifetime: int | None = None
    retired_pages: int | None = None
    """Pages retired for either cause."""
    retirement_pending: bool | None = None
    """Whether pages wait for a reboot to be retired, or rows for a reset to be remapped."""
    row_remap_failed: bool | None = None
    persistence_mode: bool | None = None
    compute_mode: str | None = None
    """default, exclusive_process or prohibited."""
    mig: bool | None = None
    mig_slices: tuple[str, ...] = ()
    """Profiles of the existing slices: 1g.10gb."""
    display: bool | None = None
    """Whether a screen is connected."""
    nvlinks: int | None = None
    """NVLink connections that are up."""
    nvlinks_down: int | None = None
    """NVLink connections that the GPU has and that are down."""
    nvlink_fabric: str | None = None
    """State of the NVSwitch fabric: completed, in_progress, not_started, not_supported."""
    processes: tuple[GpuProcess, ...] | None = None


@dataclass(frozen=True)
class GpuPair:
    """How two GPUs are connected: their indices and the shortest link between them."""

    first: int
    second: int
    link: Link


@dataclass(frozen=True)
class Driver:
    """One vendor's driver, kernel and user side."""

    vendor: Vendor
    version: str | None = None
    """The user-side version from NVML or nvidia-smi; AMD: that of the amdgpu or ROCm driver."""
    kernel_version: str | None = None
    """The loaded module's version (/proc/driver/nvidia/version, /sys/module/amdgpu/version)."""
    installed_version: str | None = None
    """The module's on disk for the running kernel (modinfo); it may differ from the loaded one."""
    library_version: str | None = None
    """The version of the user-side library on disk (libcuda.so.<version>)."""
    cuda: str | None = None
    """NVIDIA: newest CUDA version that the driver supports, "12.8"."""
    open_kernel_module: bool | None = None
    nvml_error: str | None = None
    """Why NVML could not be queried, or None if it answered or was not tried."""
    smi_error: str | None = None
    """Why nvidia-smi (rocm-smi, xpu-smi) could not be queried."""
    rocm: str | None = None
    """AMD: the ROCm release installed on the system, "6.4.1"."""
