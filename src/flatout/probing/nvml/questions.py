"""NVML asked one question at a time: a question that is refused, or not known to it, is None."""

from __future__ import annotations

import functools
from typing import Any

NOT_SUPPORTED = frozenset({2, 3})
"""NVML_ERROR_INVALID_ARGUMENT and _NOT_SUPPORTED: the GPU has no such part."""


class Questions:
    """The library (pynvml or a fake of it) after its initialisation."""

    def __init__(self, library: Any) -> None:
        self.library = library

    def __call__(self, question: str, *arguments: Any) -> Any:
        """What the function named `question` answers; None where it refuses."""
        try:
            return getattr(self.library, question)(*arguments)
        except Exception:  # NVMLError; no such function in an older library; names in no encoding
            return None

    def has_no_such_part(self, question: str, *arguments: Any) -> bool:
        """The GPU answers that it has no such part, which is not the same as refusing to tell."""
        try:
            getattr(self.library, question)(*arguments)
        except Exception as error:
            return getattr(error, "value", None) in NOT_SUPPORTED
        return False

    def text(self, question: str, *arguments: Any) -> str | None:
        """The answer as text; an empty one is none."""
        answer = self(question, *arguments)
        if isinstance(answer, bytes):
            answer = answer.decode(errors="replace")
        return (answer.strip() or None) if isinstance(answer, str) else None

    def number(self, question: str, *arguments: Any) -> int | None:
        """The answer as a whole number."""
        answer = self(question, *arguments)
        return answer if isinstance(answer, int) else None

    def flag(self, question: str, *arguments: Any) -> bool | None:
        """The answer as yes or no. Of a pair (now, after the next restart) the first counts."""
        answer = self(question, *arguments)
        if isinstance(answer, list | tuple) and answer:
            answer = answer[0]
        return bool(answer) if isinstance(answer, int) else None

    def field(self, name: str, question: str, *arguments: Any) -> Any:
        """One field of the answer."""
        return getattr(self(question, *arguments), name, None)

    @functools.cached_property
    def count(self) -> int | None:
        """How many GPUs the driver knows of."""
        return self.number("nvmlDeviceGetCount")

    def handles(self) -> dict[int, Any]:
        """The GPUs that can be asked, by index: one that is lost cannot."""
        asked = {
            index: self("nvmlDeviceGetHandleByIndex", index) for index in range(self.count or 0)
        }
        return {index: handle for index, handle in asked.items() if handle is not None}

    def driver_version(self) -> str | None:
        """The version of the driver's user side."""
        return self.text("nvmlSystemGetDriverVersion")

    def cuda_version(self) -> str | None:
        """The newest CUDA that the driver supports: 12080 is 12.8."""
        number = self.number("nvmlSystemGetCudaDriverVersion_v2")
        return f"{number // 1000}.{number % 1000 // 10}" if number else None

    def pci(self, question: str, *arguments: Any) -> tuple[str | None, str | None]:
        """Bus address (0000:3b:00.0) and vendor:device (10de:2330) in such an answer."""
        info = self(question, *arguments)
        domain, bus, device, both = (
            getattr(info, name, None) for name in ("domain", "bus", "device", "pciDeviceId")
        )
        address = identity = None
        if isinstance(domain, int) and isinstance(bus, int) and isinstance(device, int):
            address = f"{domain:04x}:{bus:02x}:{device:02x}.0"
        if isinstance(both, int) and both:
            identity = f"{both & 0xFFFF:04x}:{both >> 16:04x}"
        return address, identity
