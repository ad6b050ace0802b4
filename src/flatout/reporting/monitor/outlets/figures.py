"""The table of all figures that leave a monitor: their names, units and places in a frame.

Names are those of OpenTelemetry's conventions for hardware (`hw.*`) and systems (`system.*`) if
the meaning is the same; a rate never gets the name of the convention's counter. Steps are under
`flatout.train`, other figures of our own under `flatout`. A job's label is `flatout.job`, since
Prometheus keeps `job` for itself. Unknown figures are left out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from flatout.nouns.alert import Alert
from flatout.nouns.job_sample import JobSample, RankSample
from flatout.nouns.machine_sample import DiskSample, GpuSample, MachineSample, ProcessSample

Kind = Literal["gauge", "counter"]
"""A counter never falls."""
Labels = tuple[tuple[str, str], ...]
Noun = MachineSample | DiskSample | ProcessSample | GpuSample | JobSample | RankSample | Alert

UNITS = {
    "s": "seconds",
    "By": "bytes",
    "W": "watts",
    "Cel": "celsius",
    "Hz": "hertz",
    "By/s": "bytes_per_second",
    "{sample}/s": "per_second",
}
"""UCUM units in the words of Prometheus; one in braces has none."""
HOST = "host.name"
JOB = "flatout.job"
GPU = "flatout.gpu"
STATE = "state"
LOSS = "loss"


@dataclass(frozen=True)
class FigurePart:
    """One field of a noun that a figure reads."""

    field: str
    labels: Labels = ()
    scale: float = 1.0
    each: str | None = None
    """The label that tells words or numbers apart, if the field holds several to be counted."""
    prefix: str = ""
    """Prefix of that label's values."""


@dataclass(frozen=True)
class Figure:
    """One figure of all nouns of a kind."""

    name: str
    unit: str
    kind: Kind
    help: str
    noun: type[Noun]
    parts: tuple[FigurePart, ...]

    @property
    def prometheus(self) -> str:
        """Its name in Prometheus, by OpenTelemetry's rules; a counter ends in `_total`."""
        name = re.sub(r"[^a-zA-Z0-9]+", "_", self.name)
        unit = UNITS.get(self.unit, "")
        if self.unit == "1":
            unit = "ratio"
        if unit and not name.endswith(f"_{unit}"):
            name = f"{name}_{unit}"
        return f"{name}_total" if self.kind == "counter" else name


def _one(
    noun: type[Noun], name: str, unit: str, help_text: str, field: str, kind: Kind = "gauge"
) -> Figure:
    return Figure(name, unit, kind, help_text, noun, (FigurePart(field),))


def _two(
    noun: type[Noun], name: str, unit: str, help_text: str, label: str, fields: dict[str, str]
) -> Figure:
    parts = tuple(FigurePart(field, ((label, value),)) for value, field in fields.items())
    return Figure(name, unit, "gauge", help_text, noun, parts)


MACHINE = (
    _one(MachineSample, "flatout.host.cpu.limit", "{core}", "Cores that may be used.", "cores"),
    _one(MachineSample, "flatout.host.cpu.usage", "{core}", "Cores at work.", "cpu_cores"),
    _one(
        MachineSample,
        "flatout.host.cpu.steal",
        "1",
        "Share of the cores' time that the hypervisor gave to others.",
        "cpu_steal",
    ),
    _one(
        MachineSample,
        "flatout.host.cpu.throttled",
        "1",
        "Share of the cgroup's periods in which its quota ran out.",
        "cpu_throttled",
    ),
    _one(
        MachineSample,
        "system.cpu.load_average.1m",
        "{thread}",
        "Runnable processes, mean of the last minute.",
        "load",
    ),
    _one(
        MachineSample,
        "system.memory.limit",
        "By",
        "Memory of the machine, or the container's limit.",
        "memory_bytes",
    ),
    Figure(
        "system.memory.usage",
        "By",
        "gauge",
        "Memory in use.",
        MachineSample,
        (FigurePart("memory_used_bytes", (("system.memory.state", "used"),)),),
    ),
    Figure(
        "system.paging.usage",
        "By",
        "gauge",
        "Swap in use.",
        MachineSample,
        (FigurePart("swap_used_bytes", (("system.paging.state", "used"),)),),
    ),
    _two(
        MachineSample,
        "flatout.host.paging.rate",
        "By/s",
        "Read back from swap.",
        "system.paging.direction",
        {"in": "swap_in_bytes_per_s"},
    ),
    _two(
        MachineSample,
        "flatout.host.disk.rate",
        "By/s",
        "Read from and written to disks.",
        "disk.io.direction",
        {"read": "disk_read_bytes_per_s", "write": "disk_written_bytes_per_s"},
    ),
    _two(
        MachineSample,
        "flatout.host.network.rate",
        "By/s",
        "Received from and sent to the network.",
        "network.io.direction",
        {"receive": "network_received_bytes_per_s", "transmit": "network_sent_bytes_per_s"},
    ),
    _one(DiskSample, "system.filesystem.limit", "By", "Size of a file system.", "bytes"),
    Figure(
        "system.filesystem.usage",
        "By",
        "gauge",
        "Room left in a file system.",
        DiskSample,
        (FigurePart("free_bytes", (("system.filesystem.state", "free"),)),),
    ),
    _one(
        ProcessSample,
        "flatout.process.cpu.usage",
        "{core}",
        "Cores that it keeps busy.",
        "cpu_cores",
    ),
    _one(
        ProcessSample,
        "flatout.process.memory.usage",
        "By",
        "Memory, proportional where that can be read.",
        "memory_bytes",
    ),
    _one(
        ProcessSample,
        "flatout.process.gpu.memory.usage",
        "By",
        "GPU memory of the process.",
        "gpu_memory_bytes",
    ),
)
GPUS = (
    Figure(
        "hw.gpu.utilization",
        "1",
        "gauge",
        "Share of the time in which any kernel ran.",
        GpuSample,
        (FigurePart("utilization", (("hw.gpu.task", "general"),)),),
    ),
    _one(
        GpuSample,
        "flatout.gpu.sm.active",
        "1",
        "Share of the multiprocessors at work.",
        "sm_active",
    ),
    _one(
        GpuSample,
        "flatout.gpu.tensor.active",
        "1",
        "Share of the tensor cores' time at work.",
        "tensor_active",
    ),
    _one(GpuSample, "hw.gpu.memory.usage", "By", "GPU memory in use.", "memory_used_bytes"),
    _one(GpuSample, "hw.gpu.memory.limit", "By", "Size of GPU memory.", "memory_bytes"),
    _one(GpuSample, "hw.power", "W", "Power drawn.", "power_w"),
    _one(GpuSample, "flatout.gpu.power.limit", "W", "Power limit now.", "power_limit_w"),
    _one(
        GpuSample,
        "flatout.gpu.power.limit.default",
        "W",
        "Power limit as delivered.",
        "power_limit_default_w",
    ),
    _one(GpuSample, "hw.temperature", "Cel", "Temperature.", "temperature_c"),
    Figure(
        "flatout.gpu.clock",
        "Hz",
        "gauge",
        "Clock of the multiprocessors.",
        GpuSample,
        (FigurePart("clock_mhz", scale=1e6),),
    ),
    Figure(
        "flatout.gpu.clock.limit",
        "Hz",
        "gauge",
        "Highest clock of the multiprocessors.",
        GpuSample,
        (FigurePart("clock_max_mhz", scale=1e6),),
    ),
    Figure(
        "flatout.gpu.throttle",
        "{reason}",
        "gauge",
        "1 for each reason that holds the clocks down now.",
        GpuSample,
        (FigurePart("throttles", each="reason"),),
    ),
    _one(GpuSample, "hw.fan.speed_ratio", "1", "Speed of the fan.", "fan"),
    _two(
        GpuSample,
        "flatout.gpu.pcie.rate",
        "By/s",
        "Received and sent over PCIe.",
        "network.io.direction",
        {"receive": "pcie_received_bytes_per_s", "transmit": "pcie_sent_bytes_per_s"},
    ),
    Figure(
        "hw.errors",
        "{error}",
        "counter",
        "Uncorrectable memory errors since the driver was loaded, and the driver's own errors "
        "(Xid) since sampling began.",
        GpuSample,
        (
            FigurePart("ecc_uncorrected", (("error.type", "ecc_uncorrected"),)),
            FigurePart("xids", each="error.type", prefix="xid_"),
        ),
    ),
    Figure(
        "hw.status",
        "{status}",
        "gauge",
        "degraded is 1 while memory waits for a reset to be repaired.",
        GpuSample,
        (FigurePart("remap_pending", (("hw.state", "degraded"),)),),
    ),
)
JOBS = (
    Figure(
        "flatout.train.state",
        "{job}",
        "gauge",
        "1 for the state that the job is in.",
        JobSample,
        (FigurePart("state", each=STATE),),
    ),
    Figure(
        "flatout.train.info",
        "{job}",
        "gauge",
        "1; what the user typed to start the job.",
        JobSample,
        (FigurePart("program", each="program"),),
    ),
    Figure(
        "flatout.train.gpu",
        "{gpu}",
        "gauge",
        "1 for each GPU that the job uses.",
        JobSample,
        (FigurePart("gpus", each=GPU),),
    ),
    _one(JobSample, "flatout.train.start_time", "s", "Unix time of its start.", "began_s"),
    _one(JobSample, "flatout.train.exit_code", "{code}", "How it ended; 0: well.", "exit_code"),
    _one(JobSample, "flatout.train.step.count", "{step}", "Steps taken.", "step", "counter"),
    _one(JobSample, "flatout.train.step.limit", "{step}", "Steps of the run.", "steps_expected"),
    _one(JobSample, "flatout.train.step.duration", "s", "Median time per step.", "step_s"),
    _one(
        JobSample,
        "flatout.train.samples",
        "{sample}/s",
        "Samples per second of all ranks together.",
        "samples_per_s",
    ),
    _one(JobSample, "flatout.train.wait", "1", "Share of a step spent waiting.", "wait_share"),
    _one(JobSample, "flatout.train.loss", "{loss}", "Loss, mean of the ranks.", LOSS),
    _one(JobSample, "flatout.train.remaining", "s", "Time to the end.", "left_s"),
    _one(JobSample, "flatout.train.cpu.usage", "{core}", "Cores that it keeps busy.", "cpu_cores"),
    _one(JobSample, "flatout.train.memory.usage", "By", "Memory.", "memory_bytes"),
    _one(JobSample, "flatout.train.gpu.memory.usage", "By", "GPU memory.", "gpu_memory_bytes"),
)
RANKS = (
    _one(RankSample, "flatout.train.rank.step.count", "{step}", "Steps taken.", "step", "counter"),
    _one(RankSample, "flatout.train.rank.step.duration", "s", "Median time per step.", "step_s"),
    _one(
        RankSample,
        "flatout.train.rank.step.time",
        "s",
        "Unix time of its last step.",
        "last_step_s",
    ),
    _one(
        RankSample, "flatout.train.rank.wait", "1", "Share of a step spent waiting.", "wait_share"
    ),
    _one(
        RankSample,
        "flatout.train.rank.samples",
        "{sample}/s",
        "Samples per second.",
        "samples_per_s",
    ),
    _one(RankSample, "flatout.train.rank.loss", "{loss}", "The last loss read.", LOSS),
    _one(
        RankSample,
        "flatout.train.rank.cpu.usage",
        "{core}",
        "Cores that it keeps busy.",
        "cpu_cores",
    ),
    _one(RankSample, "flatout.train.rank.memory.usage", "By", "Memory.", "memory_bytes"),
    _one(
        RankSample, "flatout.train.rank.gpu.memory.usage", "By", "GPU memory.", "gpu_memory_bytes"
    ),
)
ALERTS = (
    Figure(
        "flatout.alert",
        "{alert}",
        "gauge",
        "1 while the alert fires.",
        Alert,
        (FigurePart("state", each=STATE),),
    ),
)
FIGURES = (*MACHINE, *GPUS, *JOBS, *RANKS, *ALERTS)
LEFT_OUT = {
    "MachineSample.time_s": "the time of all of a frame's figures",
    "GpuSample.index": "a label",
    "ProcessSample.pid": "a label",
    "ProcessSample.start_ticks": "tells processes with the same pid apart, and measures nothing",
    "ProcessSample.parent": "the tree of processes is no figure",
    "JobSample.pid": "part of the job's id, which is a label",
    "JobSample.ended_s": "the figures of a job that has ended stop",
    "RankSample.rank": "a label",
    "RankSample.steps_lost": "of the look, not of the job",
    "RankSample.pid": "a process has figures of its own, with its pid as a label",
}
"""Number fields of the nouns that are not figures, and why."""
AFTER_THE_END = frozenset(
    {"state", "program", "exit_code", "step", "steps_expected", LOSS, "began_s"}
)
"""Figures that still hold for a job that has ended."""
