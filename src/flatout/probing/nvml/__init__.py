"""NVIDIA's own management library (NVML), which only this package calls.

No library, driver or device is an ordinary state: there are no GPUs then. A fact that the driver
refuses is None.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from flatout.nouns.identity import GpuIdentity

if TYPE_CHECKING:
    from flatout.nouns.gpu import Driver, Gpu, GpuPair
    from flatout.probing.nvml.questions import Questions

NOT_FOUND = "NVML Shared Library Not Found"
"""The reason if there is no trace of NVIDIA's driver."""

VERSION_MISMATCH = 18
"""NVML_ERROR_LIB_RM_VERSION_MISMATCH, which pynvml and nvidia-smi word differently."""


def gpus(library: Any = None) -> tuple[GpuIdentity, ...]:
    """The GPUs that the NVIDIA driver knows of. library: pynvml, or a fake of it."""
    with session(library) as ask:
        if ask is None:
            return ()
        driver = ask.driver_version()
        named = [
            (ask.text("nvmlDeviceGetName", handle), handle) for handle in ask.handles().values()
        ]
        return tuple(
            GpuIdentity(name, ask.field("total", "nvmlDeviceGetMemoryInfo", handle), driver)
            for name, handle in named
            if name
        )


def facts(
    library: Any = None,
) -> tuple[tuple[Gpu, ...] | None, tuple[GpuPair, ...] | None, Driver]:
    """Everything that the library reports: the GPUs, how they are connected, and the driver.

    GPUs and pairs are None if it could not be queried; the driver then says why.
    """
    # Imported here because `run` needs only the identity, and quickly.
    from flatout.nouns.gpu import Driver
    from flatout.probing.nvml import links
    from flatout.probing.nvml.gpu import read_gpu
    from flatout.probing.nvml.questions import Questions

    library = _library(library)
    try:
        library.nvmlInit()
    except Exception as error:  # also from a broken library or one far older than pynvml
        reason = " ".join(str(error).split()) or type(error).__name__
        if getattr(error, "value", None) == VERSION_MISMATCH:
            reason = "Driver/library version mismatch"
        return None, None, Driver(vendor="nvidia", nvml_error=reason)
    ask = Questions(library)
    try:
        handles = ask.handles()
        connections = {index: links.links(ask, handle) for index, handle in handles.items()}
        devices = tuple(
            read_gpu(ask, index, handle, connections[index]) for index, handle in handles.items()
        )
        has_count = ask.count is not None
        pairs = links.pairs(ask, handles, devices, connections) if has_count else None
        driver = Driver(vendor="nvidia", version=ask.driver_version(), cuda=ask.cuda_version())
        return (devices if has_count else None), pairs, driver
    finally:
        ask("nvmlShutdown")


@contextmanager
def session(library: Any = None) -> Iterator[Questions | None]:
    """The library, initialised for many questions, or None if it cannot be used."""
    from flatout.probing.nvml.questions import Questions

    library = _library(library)
    try:
        library.nvmlInit()
    except Exception:
        yield None
        return
    ask = Questions(library)
    try:
        yield ask
    finally:
        ask("nvmlShutdown")


def _library(library: Any) -> Any:
    if library is None:
        import pynvml

        library = pynvml
    return library
