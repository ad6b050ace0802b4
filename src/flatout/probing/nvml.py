"""NVIDIA's own management library: the only place that talks to it.

No library, no driver or no device is an ordinary state: there are no GPUs then. A fact that the
driver refuses is None.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from flatout.nouns.machine import Gpu

T = TypeVar("T")


def gpus(library: Any = None) -> tuple[Gpu, ...]:
    """The GPUs that the NVIDIA driver knows of. library: pynvml, or a fake of it."""
    if library is None:
        import pynvml

        library = pynvml
    try:
        library.nvmlInit()
    except library.NVMLError:
        return ()
    try:
        driver = _ask(library, lambda: _text(library.nvmlSystemGetDriverVersion()))
        count = _ask(library, library.nvmlDeviceGetCount) or 0
        asked = [_ask(library, partial(_gpu, library, index, driver)) for index in range(count)]
        return tuple(gpu for gpu in asked if gpu is not None)
    finally:
        _ask(library, library.nvmlShutdown)


def _gpu(library: Any, index: int, driver: str | None) -> Gpu:
    handle = library.nvmlDeviceGetHandleByIndex(index)
    return Gpu(
        name=_text(library.nvmlDeviceGetName(handle)),
        memory_bytes=_ask(library, lambda: int(library.nvmlDeviceGetMemoryInfo(handle).total)),
        driver=driver,
    )


def _ask(library: Any, question: Callable[[], T]) -> T | None:
    """The driver's answer; None where it refuses."""
    try:
        return question()
    except library.NVMLError:
        return None


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
