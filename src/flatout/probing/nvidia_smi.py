"""NVIDIA's own program: the facts if its library cannot be used, or why the program fails.

Its XML output (`nvidia-smi -q -x`) is read, the only format with names stable for years.
Anything that cannot be understood, "N/A", "ERR!" and the like are None.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from flatout.nouns.gpu import Driver, Gpu, GpuProcess
from flatout.probing import program_answer
from flatout.probing.nvml.gpu import COMPUTE_MODES, DRIVER_MODELS, FABRIC_STATES, THROTTLES

LIMIT_S = 5.0
NOT_ON_PATH = "not found on PATH"
NO_DEVICES = "No devices were found"
LONGEST_REASON = 300
OTHER_PLACES: tuple[str, ...] = ("/usr/lib/wsl/lib",)
if sys.platform == "win32":
    OTHER_PLACES = (
        os.path.expandvars(r"%SystemRoot%\System32"),
        os.path.expandvars(r"%ProgramFiles%\NVIDIA Corporation\NVSMI"),
    )

REFUSED = re.compile(
    r"\[.*\]|n/?a|none|err!|.*unknown error.*|.*not supported.*|.*requires reset.*|.*is lost.*"
    r"|.*deprecated.*|.*not available.*|.*insufficient permissions.*",
    re.IGNORECASE | re.DOTALL,
)
ANSWERS = {"Enabled": True, "Disabled": False, "Yes": True, "No": False}
MIB = 2**20


def find(path: str | None = None, places: Sequence[str] = OTHER_PLACES) -> str | None:
    """The program, or None if not found. path: folders as in PATH, or None for PATH itself."""
    folders = [path if path is not None else os.environ.get("PATH", os.defpath), *places]
    # An empty name would be the current folder.
    return shutil.which("nvidia-smi", path=os.pathsep.join(filter(None, folders)))


def facts(
    program: str, ask: program_answer.Ask = program_answer.ask, limit_s: float = LIMIT_S
) -> tuple[tuple[Gpu, ...] | None, Driver]:
    """The GPUs (None if it does not list them), and the driver with the reason why not.

    limit_s: for each of at most two runs.
    """
    answer = ask([program, "-q", "-x"], limit_s)
    log = _parsed(answer.text)
    if log is None or (answer.code != 0 and log.find("gpu") is None):
        no_gpus = () if answer.text.strip().startswith(NO_DEVICES) else None
        return no_gpus, Driver(vendor="nvidia", smi_error=_reason(answer))
    gpus = tuple(parsed_gpu(part, index) for index, part in enumerate(log.findall("gpu")))
    if any(gpu.mig for gpu in gpus):
        gpus = with_slices(gpus, ask([program, "-L"], limit_s).text)
    driver = Driver(
        vendor="nvidia",
        version=_version(log.findtext("driver_version")),
        cuda=_version(log.findtext("cuda_version")),
        smi_error=None if answer.code == 0 else _reason(answer),
    )
    return gpus, driver


def _parsed(text: str) -> ElementTree.Element | None:
    """The log, or None if the text is not one."""
    # It contains the unescaped names of other programs, which may hold any characters.
    clean = re.sub(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "", text)
    start = clean.find("<?xml")
    try:
        log = ElementTree.fromstring(clean[max(start, 0) :])
    except (ElementTree.ParseError, ValueError):
        return None
    return log if log.tag == "nvidia_smi_log" else None


def _version(text: str | None) -> str | None:
    match = re.fullmatch(r"\s*(\d{1,4}(?:\.\d{1,4}){1,3})\s*", text or "")
    return match[1] if match else None


def _reason(answer: program_answer.ProgramAnswer) -> str:
    """Why there are no facts, in one line."""
    if answer.problem is not None:
        return answer.problem
    output = "" if answer.text.lstrip().startswith("<") else answer.text
    words = " ".join((output.strip() or answer.errors).split())
    if answer.code:
        words = words or f"ended with exit code {answer.code}"
    else:
        failure = (
            "its answer could not be understood" if answer.text.strip() else "answered nothing"
        )
        words = f"{failure}: {words}" if words else failure
    return words[:LONGEST_REASON]


def parsed_gpu(part: Element, index: int) -> Gpu:
    """The facts of one <gpu>."""
    return Gpu(
        vendor="nvidia",
        name=_text(part, "product_name"),
        index=index,
        uuid=_matching(part, "uuid", r"GPU-[0-9a-fA-F-]{8,}"),
        driver_sees=True,
        utilization=_scaled(_number(part, "utilization/gpu_util", " ?%"), 0.01),
        throttles=_throttles(part),
        processes=_processes(part.find("processes")),
        **_bus(part),
        **_memory(part),
        **_power_and_heat(part),
        **_clocks(part),
        **_errors(part),
        **_modes(part),
    )


def with_slices(gpus: Iterable[Gpu], listing: str) -> tuple[Gpu, ...]:
    """The GPUs with the MIG slices that `nvidia-smi -L` lists below each."""
    slices: dict[int, list[str]] = {}
    index = -1
    for line in listing.splitlines():
        if heading := re.match(r"GPU (\d{1,4}): ", line):
            index = int(heading[1])
        elif entry := re.match(r"\s+MIG (\d\S{0,30})\s+Device\s+\d+: ", line):
            slices.setdefault(index, []).append(entry[1])
    return tuple(
        dataclasses.replace(gpu, mig_slices=tuple(slices.get(gpu.index, ())))
        if gpu.mig and gpu.index is not None
        else gpu
        for gpu in gpus
    )


def _text(part: Element, path: str) -> str | None:
    """The text at the path, or None if there is none or a refusal."""
    text = (part.findtext(path) or "").strip()
    return None if not text or REFUSED.fullmatch(text) else text


def _matching(part: Element, path: str, pattern: str) -> str | None:
    text = _text(part, path)
    return text if text is not None and re.fullmatch(pattern, text) else None


def _number(part: Element, path: str, unit: str = "") -> float | None:
    """A number followed by that unit (a pattern), else None."""
    match = re.fullmatch(rf"([0-9]{{1,12}}(?:\.[0-9]{{1,6}})?){unit}", _text(part, path) or "")
    return float(match[1]) if match else None


def _whole(part: Element, path: str, unit: str = "") -> int | None:
    number = _number(part, path, unit)
    return int(number) if number is not None and number.is_integer() else None


def _scaled(number: float | None, factor: float) -> float | None:
    return None if number is None else round(number * factor, 6)


def _flag(part: Element, path: str) -> bool | None:
    return ANSWERS.get(_text(part, path) or "")


def _bus(part: Element) -> dict[str, Any]:
    address = re.fullmatch(
        r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])",
        (_text(part, "pci/pci_bus_id") or "").lower(),
    )
    device_vendor = (_matching(part, "pci/pci_device_id", r"(?:0x)?[0-9a-fA-F]{8}") or "").lower()[
        -8:
    ]
    generation, width = "pci/pci_gpu_link_info/pcie_gen/", "pci/pci_gpu_link_info/link_widths/"
    return {
        "pci_address": f"{int(address[1], 16):04x}:{address[2]}:{address[3]}.{address[4]}"
        if address
        else None,
        "pci_id": f"{device_vendor[4:]}:{device_vendor[:4]}" if device_vendor else None,
        "pcie_generation": _whole(part, f"{generation}current_link_gen"),
        "pcie_generation_max": _whole(part, f"{generation}max_link_gen"),
        "pcie_generation_card": _whole(part, f"{generation}max_device_link_gen"),
        "pcie_width": _whole(part, f"{width}current_link_width", "x"),
        "pcie_width_max": _whole(part, f"{width}max_link_width", "x"),
    }


def _memory(part: Element) -> dict[str, Any]:
    total, used = (_whole(part, f"fb_memory_usage/{name}", " ?MiB") for name in ("total", "used"))
    return {
        "memory_bytes": None if total is None else total * MIB,
        "memory_used_bytes": None if used is None else used * MIB,
    }


def _power_and_heat(part: Element) -> dict[str, Any]:
    def watts(*names: str) -> float | None:
        """The first of the names with a value; section and names changed between releases."""
        paths = [f"{section}/{name}" for section in sections for name in names]
        readings = [_number(part, path, " ?W") for path in paths]
        return next((number for number in readings if number is not None), None)

    sections = ("gpu_power_readings", "power_readings")
    return {
        "temperature_c": _whole(part, "temperature/gpu_temp", " ?C"),
        "temperature_slowdown_c": _whole(part, "temperature/gpu_temp_slow_threshold", " ?C"),
        "power_w": watts("power_draw", "average_power_draw", "instant_power_draw"),
        "power_limit_w": watts("enforced_power_limit", "current_power_limit", "power_limit"),
        "power_limit_default_w": watts("default_power_limit"),
        "power_limit_max_w": watts("max_power_limit"),
    }


def _clocks(part: Element) -> dict[str, Any]:
    return {
        "clock_sm_mhz": _whole(part, "clocks/sm_clock", " ?MHz"),
        "clock_sm_max_mhz": _whole(part, "max_clocks/sm_clock", " ?MHz"),
        "clock_memory_mhz": _whole(part, "clocks/mem_clock", " ?MHz"),
        "clock_memory_max_mhz": _whole(part, "max_clocks/mem_clock", " ?MHz"),
    }


def _throttles(part: Element) -> tuple[str, ...] | None:
    active: dict[str, bool] = {}
    for kind in ("throttle", "event"):
        for name in THROTTLES.values():
            state = part.findtext(f"clocks_{kind}_reasons/clocks_{kind}_reason_{name}", "").strip()
            if state in ("Active", "Not Active"):
                active[name] = state == "Active"
    return tuple(name for name, now in active.items() if now) if active else None


def _errors(part: Element) -> dict[str, Any]:
    pages = [
        _whole(part, f"retired_pages/{cause}/retired_count")
        for cause in ("multiple_single_bit_retirement", "double_bit_retirement")
    ]
    pending = [
        _flag(part, path)
        for path in (
            "retired_pages/pending_retirement",
            "retired_pages/pending_blacklist",
            "remapped_rows/remapped_row_pending",
        )
    ]
    answers = [answer for answer in pending if answer is not None]
    return {
        "ecc": _flag(part, "ecc_mode/current_ecc"),
        "ecc_uncorrected": _uncorrected(part.find("ecc_errors/volatile")),
        "ecc_uncorrected_lifetime": _uncorrected(part.find("ecc_errors/aggregate")),
        "retired_pages": _sum(pages),
        "retirement_pending": any(answers) if answers else None,
        "row_remap_failed": _flag(part, "remapped_rows/remapped_row_failure"),
    }


def _uncorrected(counters: Element | None) -> int | None:
    """All uncorrected errors: one total in old logs, one number per memory in newer ones."""
    if counters is None:
        return None
    if counters.find("double_bit") is not None:
        return _whole(counters, "double_bit/total")
    tags = [counter.tag for counter in counters if "_uncorrectable" in counter.tag]
    return _sum([_whole(counters, tag) for tag in tags]) if tags else None


def _sum(numbers: list[int | None]) -> int | None:
    """Their sum, or None if a number is missing."""
    values = [number for number in numbers if number is not None]
    return sum(values) if len(values) == len(numbers) else None


def _modes(part: Element) -> dict[str, Any]:
    compute = (_text(part, "compute_mode") or "").lower().replace(" ", "_")
    fabric = (part.findtext("fabric/state") or "").strip().lower().replace(" ", "_")
    model = _text(part, "driver_model/current_dm")
    return {
        "persistence_mode": _flag(part, "persistence_mode"),
        "compute_mode": compute if compute in COMPUTE_MODES.values() else None,
        "mig": _flag(part, "mig_mode/current_mig"),
        "display": _flag(part, "display_active"),
        "driver_model": model if model in DRIVER_MODELS.values() else None,
        "nvlink_fabric": fabric if fabric in FABRIC_STATES.values() else None,
    }


def _processes(section: Element | None) -> tuple[GpuProcess, ...] | None:
    if section is None or (section.text or "").strip():
        return None  # text instead of a list: N/A
    processes = []
    for entry in section.findall("process_info"):
        pid = _whole(entry, "pid")
        if pid is not None:
            memory = _whole(entry, "used_memory", " ?MiB")
            used = None if memory is None else memory * MIB
            computes = _text(entry, "type") != "G"
            processes.append(GpuProcess(pid, _text(entry, "process_name"), used, computes))
    return tuple(processes)
