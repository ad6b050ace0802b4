"""NVML, one question at a time; the answer is None if it refuses or does not know it."""

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
        """The answer of the function named `question`, or None if it refuses."""
        try:
            return getattr(self.library, question)(*arguments)
        except Exception:  # NVMLError; no such function in an older library; undecodable names
            return None

    def has_no_such_part(self, question: str, *arguments: Any) -> bool:
        """Whether the GPU answers that it has no such part, which differs from refusing."""
        try:
            getattr(self.library, question)(*arguments)
        except Exception as error:
            return getattr(error, "value", None) in NOT_SUPPORTED
        return False

    def text(self, question: str, *arguments: Any) -> str | None:
        """The answer as text, or None if empty."""
        answer = self(question, *arguments)
        if isinstance(answer, bytes):
            answer = answer.decode(errors="replace")
        return (answer.strip() or None) if isinstance(answer, str) else None

    def number(self, question: str, *arguments: Any) -> int | None:
        """The answer as a whole number."""
        answer = self(question, *arguments)
        return answer if isinstance(answer, int) else None

    def flag(self, question: str, *arguments: Any) -> bool | None:
        """The answer as a bool; in a pair (now, after the next restart) the first counts."""
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
        """The GPUs that answer, by index; a lost GPU does not."""
        handles = {
            index: self("nvmlDeviceGetHandleByIndex", index) for index in range(self.count or 0)
        }
        return {index: handle for index, handle in handles.items() if handle is not None}

    def driver_version(self) -> str | None:
        """The version of the driver's user-space part."""
        return self.text("nvmlSystemGetDriverVersion")

    def cuda_version(self) -> str | None:
        """The newest CUDA that the driver supports: 12.8 for 12080."""
        number = self.number("nvmlSystemGetCudaDriverVersion_v2")
        return f"{number // 1000}.{number % 1000 // 10}" if number else None

    def pci(self, question: str, *arguments: Any) -> tuple[str | None, str | None]:
        """Bus address (0000:3b:00.0) and vendor:device (10de:2330) in such an answer."""
        info = self(question, *arguments)
        domain, bus, device, device_vendor = (
            getattr(info, name, None) for name in ("domain", "bus", "device", "pciDeviceId")
        )
        address = identity = None
        if isinstance(domain, int) and isinstance(bus, int) and isinstance(device, int):
            address = f"{domain:04x}:{bus:02x}:{device:02x}.0"
        if isinstance(device_vendor, int) and device_vendor:
            identity = f"{device_vendor & 0xFFFF:04x}:{device_vendor >> 16:04x}"
        return address, identity
