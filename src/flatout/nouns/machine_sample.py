"""MachineSample: what one machine and its devices do at one moment. What is not known is None."""

from __future__ import annotations

from dataclasses import dataclass

from flatout.nouns.gpu import Vendor


@dataclass(frozen=True)
class GpuUse:
    """What one process has of a GPU."""

    pid: int
    memory_bytes: int | None = None
    utilization: float | None = None
    """Share of the time in which a kernel of it ran, 0 to 1."""
    alive: bool | None = None
    """False: the system has no such process any more. None: the driver counts others' pids."""


@dataclass(frozen=True)
class GpuSample:
    """One accelerator now. Slow facts (processes, fan, PCIe, ECC) may be up to 10 s old."""

    index: int
    vendor: Vendor
    name: str | None = None
    uuid: str | None = None
    utilization: float | None = None
    """Share of the time in which any kernel ran, 0 to 1."""
    sm_active: float | None = None
    """Share of the multiprocessors at work, 0 to 1 (NVIDIA: GPM; only while shown)."""
    tensor_active: float | None = None
    """Share of the tensor cores' time at work, 0 to 1 (NVIDIA: GPM; only while shown)."""
    memory_used_bytes: int | None = None
    memory_bytes: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    power_limit_default_w: float | None = None
    temperature_c: float | None = None
    clock_mhz: float | None = None
    """Clock of the multiprocessors."""
    clock_max_mhz: float | None = None
    throttles: tuple[str, ...] | None = None
    """NVML's names, as in `nouns.throttles`."""
    fan: float | None = None
    """0 to 1."""
    pcie_received_bytes_per_s: float | None = None
    pcie_sent_bytes_per_s: float | None = None
    ecc_uncorrected: int | None = None
    """Since the driver was loaded."""
    remap_pending: bool | None = None
    """Rows wait for a reset to be remapped, or pages for a reboot to be retired."""
    xids: tuple[int, ...] = ()
    """The driver's errors since sampling began, in order."""
    processes: tuple[GpuUse, ...] | None = None


@dataclass(frozen=True)
class DiskSample:
    """One file system."""

    path: str
    """Where it is asked about: a job's folder, /dev/shm."""
    bytes: int
    free_bytes: int


@dataclass(frozen=True)
class ProcessSample:
    """One process that trains, or that uses a GPU."""

    pid: int
    start_ticks: int | None = None
    """With the pid it names a process for good."""
    user: str | None = None
    command: str | None = None
    cpu_cores: float | None = None
    """Cores' worth of time used since the sample before."""
    memory_bytes: int | None = None
    """Resident; proportional (PSS) where that can be read."""
    gpu_memory_bytes: int | None = None
    gpus: tuple[int, ...] = ()
    state: str | None = None
    """running, sleeping, disk-sleep, stopped, zombie."""
    parent: int | None = None


@dataclass(frozen=True)
class MachineSample:
    """One machine at one moment; rates are since the sample before."""

    time_s: float
    """Unix time."""
    hostname: str
    gpus: tuple[GpuSample, ...] = ()
    cores: float | None = None
    """That this process may use: affinity and cgroup quota."""
    cpu_cores: float | None = None
    """Cores' worth of time used, by all programs, of those cores; by the container where it has a
    quota.
    """
    cpu_steal: float | None = None
    """Share of the cores' time that the hypervisor gave to others, 0 to 1."""
    cpu_throttled: float | None = None
    """Share of the cgroup's periods in which its quota ran out, 0 to 1."""
    load: float | None = None
    """Runnable processes, mean of the last minute."""
    memory_bytes: int | None = None
    """The machine's memory, or the container's limit."""
    memory_used_bytes: int | None = None
    swap_in_bytes_per_s: float | None = None
    swap_used_bytes: int | None = None
    disk_read_bytes_per_s: float | None = None
    disk_written_bytes_per_s: float | None = None
    network_received_bytes_per_s: float | None = None
    network_sent_bytes_per_s: float | None = None
    disks: tuple[DiskSample, ...] = ()
    processes: tuple[ProcessSample, ...] = ()
    """Those of the jobs shown, and those that use a GPU."""
