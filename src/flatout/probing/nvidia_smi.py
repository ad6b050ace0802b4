"""NVIDIA's own program: which GPUs it lists if its library cannot be used, or why it fails too."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import sys
from collections.abc import Sequence

from flatout.nouns.gpu import Driver, Gpu
from flatout.probing import program_answer

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

FIELDS = ("name", "uuid", "pci.bus_id", "memory.total", "driver_version")
QUESTION = (f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits")
REFUSED = re.compile(r"\[.*\]|n/?a|err!|.*unknown error.*", re.IGNORECASE)
MIB = 2**20


def find(path: str | None = None, places: Sequence[str] = OTHER_PLACES) -> str | None:
    """The program, or None if not found. path: folders as in PATH, or None for PATH itself."""
    folders = [path if path is not None else os.environ.get("PATH", os.defpath), *places]
    # An empty name would be the current folder.
    return shutil.which("nvidia-smi", path=os.pathsep.join(filter(None, folders)))


def facts(
    program: str, ask: program_answer.Ask = program_answer.ask, limit_s: float = LIMIT_S
) -> tuple[tuple[Gpu, ...] | None, Driver]:
    """The GPUs (None if it does not list them), and the driver with the reason why not."""
    answer = ask([program, *QUESTION], limit_s)
    rows = (line.strip().split(", ") for line in answer.text.splitlines())
    gpus = [row for row in rows if len(row) == len(FIELDS)]
    if not gpus:
        nothing = () if answer.text.strip().startswith(NO_DEVICES) else None
        return nothing, Driver(vendor="nvidia", smi_error=_reason(answer))
    version = _matching(gpus[0][4], r"\d{1,4}(\.\d{1,4}){1,3}")
    unwell = None if answer.code == 0 else _reason(dataclasses.replace(answer, text=""))
    driver = Driver("nvidia", version, smi_error=unwell)
    found = []
    for index, (name, uuid, bus, memory, _) in enumerate(gpus):
        place = re.fullmatch(r"([0-9a-f]{4,8})(:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", bus.lower())
        size = _matching(memory, r"[0-9]{1,9}")
        found.append(
            Gpu(
                vendor="nvidia",
                # What the program refuses to say is such as "[N/A]".
                name=None if not name or REFUSED.fullmatch(name) else name,
                index=index,
                uuid=_matching(uuid, r"GPU-[0-9a-fA-F-]{8,}"),
                pci_address=f"{int(place[1], 16):04x}{place[2]}" if place else None,
                driver_sees=True,
                memory_bytes=None if size is None else int(size) * MIB,
            )
        )
    return tuple(found), driver


def _matching(text: str, pattern: str) -> str | None:
    return text if re.fullmatch(pattern, text) else None


def _reason(answer: program_answer.ProgramAnswer) -> str:
    """Why there are no facts, in one line."""
    if answer.problem is not None:
        return answer.problem
    words = " ".join((answer.text.strip() or answer.errors).split())
    if answer.code:
        words = words or f"ended with exit code {answer.code}"
    else:
        words = f"its answer could not be understood: {words}" if words else "answered nothing"
    return words[:LONGEST_REASON]
