"""Figures of a frame as short texts. Unknown values are `-`."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence

from flatout.nouns import throttles, units
from flatout.nouns.alert import Alert
from flatout.nouns.errors import INTERRUPTED
from flatout.nouns.frame import Frame
from flatout.nouns.job_sample import JobSample
from flatout.nouns.machine_sample import GpuSample, MachineSample
from flatout.reporting import plain

UNKNOWN = "-"
SAME = 1e-6
"""Values that differ by less than this share of them are drawn as equal."""
INTERPRETER = re.compile(r"^\S*/(python[0-9.]*)(?= |$)")
BARS = "▁▂▃▄▅▆▇█"


def share(value: float | None) -> str:
    """0.42 as 42%."""
    return UNKNOWN if value is None or not math.isfinite(value) else f"{100 * value:.0f}%"


def size(value: float | None) -> str:
    """Bytes with three digits."""
    if value is None:
        return UNKNOWN
    for unit in ("B", "K", "M", "G", "T"):
        if value < 999.5 or unit == "T":
            digits = 1 if value < 10 and unit not in "BK" else 0
            return f"{value:.{digits}f}{unit}"
        value /= 1024
    return UNKNOWN


def milliseconds(seconds: float | None) -> str:
    """The time of a step."""
    if seconds is None:
        return UNKNOWN
    ms = 1000 * seconds
    if ms >= 100_000:
        return f"{seconds:.0f} s"
    return f"{ms:.0f} ms" if ms >= 100 else f"{ms:.1f} ms" if ms >= 1 else f"{ms:.2f} ms"


def number(value: float | None) -> str:
    """Four digits: 12.3, 1234, 12.3k."""
    if value is None:
        return UNKNOWN
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "inf" if value > 0 else "-inf"
    for limit, unit in ((1e4, ""), (1e7, "k"), (1e10, "M"), (1e13, "G")):
        if abs(value) < limit:
            scaled = value / {"": 1, "k": 1e3, "M": 1e6, "G": 1e9}[unit]
            return f"{scaled:.4g}{unit}"
    return f"{value:.2g}"


def cores(value: float | None) -> str:
    """A number of cores."""
    return UNKNOWN if value is None else f"{value:.1f}"


def _levels(
    values: Sequence[float | None], least: float | None = None, top: float | None = None
) -> list[float | None]:
    """Where each value lies between the smallest (0) and the largest (1)."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    least = min(known, default=0.0) if least is None else least
    top = max(known, default=0.0) if top is None else top
    span = top / 2 - least / 2  # never infinite
    flat = span <= SAME * max(abs(top), abs(least))
    return [
        None
        if value is None or not math.isfinite(value)
        else max(0.0, min(1.0, 0.5 if flat else (value / 2 - least / 2) / span))
        for value in values
    ]


def left(seconds: float | None) -> str:
    """The time left: 2h05, 12m, 40s."""
    if seconds is None:
        return UNKNOWN
    minutes, hours = int(seconds // 60), int(seconds // 3600)
    if hours >= 48:
        return f"{hours // 24}d{hours % 24:02d}h"
    if hours:
        return f"{hours}h{minutes % 60:02d}"
    return f"{minutes}m" if minutes else f"{seconds:.0f}s"


def gpus(indices: Sequence[int]) -> str:
    """Indices as ranges: 0-3,6."""
    parts: list[str] = []
    begin = last = None
    for index in [*sorted(set(indices)), None]:
        if last is not None and index == last + 1:
            last = index
            continue
        if begin is not None:
            parts.append(str(begin) if begin == last else f"{begin}-{last}")
        begin = last = index
    return ",".join(parts) or UNKNOWN


def curve(
    values: Sequence[float | None],
    width: int,
    least: float | None = None,
    top: float | None = None,
) -> str:
    """The last values as bars from `least` to `top`; None means the values' own limit."""
    levels = _levels(list(values)[-width:], least, top)
    signs = (" " if level is None else BARS[int(7 * level + 0.5)] for level in levels)
    return "".join(signs).rjust(width)


def machine(sample: MachineSample, busy: str = "") -> list[str]:
    """Its name, cores, memory, disk, network. busy: the curve of its cores in use."""
    parts = [plain.one_line(sample.hostname)]
    if sample.cores is not None:
        used = UNKNOWN if sample.cpu_cores is None else f"{sample.cpu_cores:.1f}"
        parts.append(f"CPU {used}/{sample.cores:g} cores {busy}".rstrip())
    parts.append(f"memory {size(sample.memory_used_bytes)}/{size(sample.memory_bytes)}")
    if sample.swap_used_bytes:
        parts.append(f"swap {size(sample.swap_used_bytes)}")
    parts.append(
        f"disk {rate(sample.disk_read_bytes_per_s)} read {rate(sample.disk_written_bytes_per_s)} "
        "written"
    )
    parts.append(
        f"network {rate(sample.network_received_bytes_per_s)} in "
        f"{rate(sample.network_sent_bytes_per_s)} out"
    )
    return parts


def rate(value: float | None) -> str:
    """Bytes per second."""
    return UNKNOWN if value is None else f"{size(value)}/s"


def slowed(gpu: GpuSample) -> str:
    """Why its clock is reduced."""
    return ", ".join(throttles.words(gpu.throttles or ()))


def power(gpu: GpuSample) -> str:
    """Power and limit: 300/700 W."""
    if gpu.power_w is None:
        return UNKNOWN
    limit = f"/{gpu.power_limit_w:.0f}" if gpu.power_limit_w else ""
    return f"{gpu.power_w:.0f}{limit} W"


def steps(job: JobSample) -> str:
    """Steps so far, with the total if known: 120 or 120/1000."""
    if job.step is None:
        return UNKNOWN
    return f"{job.step}/{job.steps_expected}" if job.steps_expected else str(job.step)


def program(job: JobSample) -> str:
    """As the user typed it; without Python's folder if flatout did not start the job."""
    text = plain.one_line(job.program)
    return without_folder(text) if job.state == "foreign" else text


def without_folder(command: str) -> str:
    """/opt/venv/bin/python train.py becomes python train.py."""
    return INTERPRETER.sub(r"\1", command)


def state(job: JobSample) -> str:
    """One word; for an end, with the exit code."""
    if job.state == "ended":
        if job.exit_code == INTERRUPTED:
            return "interrupted"
        return "ended" if job.exit_code in (0, None) else f"exit {job.exit_code}"
    return "not flatout" if job.state == "foreign" else job.state


def alert(shown: Alert) -> str:
    """The code, subject and title."""
    subject = f" ({shown.subject})" if shown.subject else ""
    ended = "resolved: " if shown.state == "resolved" else ""
    return plain.one_line(f"{ended}{shown.code}{subject}: {shown.title}")


def about(shown: Alert, frame: Frame) -> str:
    """The alert's job and machine, if there are several."""
    jobs = {job.id: job for job in frame.jobs}
    names = []
    if shown.job in jobs and len(jobs) > 1:
        names.append(program(jobs[shown.job]))
    if len(frame.machines) > 1:
        names.append(plain.one_line(shown.hostname))
    return ", ".join(names)


def clock(time_s: float) -> str:
    """Local time of day."""
    return time.strftime("%H:%M:%S", time.localtime(time_s))


def counts(frame: Frame) -> str:
    """For example "1 job runs, 2 alerts"."""
    running = sum(job.state != "ended" for job in frame.jobs)
    firing = sum(alert.state == "firing" for alert in frame.alerts)
    jobs = "no job runs" if not running else units.count(running, "job")
    return f"{jobs}, {units.count(firing, 'alert')}" if firing else f"{jobs}, no alerts"
