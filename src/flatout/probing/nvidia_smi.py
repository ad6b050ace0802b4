"""NVIDIA's own program: the facts if its library cannot be used, or why the program fails.

Its XML output (`nvidia-smi -q -x`) is read, the only format with names stable for years.
Anything that cannot be understood is None.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence
from xml.etree import ElementTree

from flatout.nouns.gpu import Driver, Gpu
from flatout.probing import nvidia_smi_gpu, program_answer

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
    gpus = tuple(nvidia_smi_gpu.gpu(part, index) for index, part in enumerate(log.findall("gpu")))
    if any(gpu.mig for gpu in gpus):
        gpus = nvidia_smi_gpu.with_slices(gpus, ask([program, "-L"], limit_s).text)
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
