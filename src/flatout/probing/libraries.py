"""CUDA's shared libraries that the loader itself finds, before or besides those in wheels."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from flatout.nouns.machine import Library
from flatout.probing import conversation, reading

NAMES = {
    "libcudnn": "cudnn",
    "libnccl": "nccl",
    "libcublas": "cublas",
    "libcudart": "cudart",
    "libcuda": "cuda",
}
LINUX = re.compile(r"(lib(?:cudnn|nccl|cublas|cudart|cuda))\.so(?:\.(\d+(?:\.\d+)*))?")
WINDOWS = re.compile(r"(cudnn|cublas|cudart)64_(\d+)\.dll", re.IGNORECASE)
CACHE = ("/sbin/ldconfig", "-p")
CACHE_S = 1.0
FOLDERS = (
    "/usr/lib/wsl/lib",
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
    "/usr/local/lib",
)
"""Where a loader without a cache searches."""


def libraries(
    environ: Mapping[str, str] | None = None,
    system: str = sys.platform,
    cached: Callable[[Mapping[str, str]], str | None] | None = None,
    folders: Iterable[str] = FOLDERS,
) -> tuple[Library, ...]:
    """The libraries in search order. cached: the output of `ldconfig -p`."""
    environ = os.environ if environ is None else environ
    if system == "win32":
        return _distinct(_in_folders(reading.folders(environ.get("PATH")), "library_path", WINDOWS))
    if system != "linux":
        return ()
    configured = _in_folders(reading.folders(environ.get("LD_LIBRARY_PATH")), "library_path", LINUX)
    text = (cached or _cache)(environ)
    if text is None:
        return _distinct([*configured, *_in_folders(folders, "loader", LINUX)])
    # Lines like `libcudnn.so.9 (libc6,x86-64) => /usr/lib/.../libcudnn.so.9`
    entries = re.findall(r"^\s*(\S+) \(([^)]*)\) => (\S.*?)\s*$", text, flags=re.MULTILINE)
    has_64_bit = any("," in flags for _, flags, _ in entries)
    cached_libraries = [
        library
        for _, flags, path in entries
        if ("," in flags or not has_64_bit)  # not the 32-bit library of a 64-bit system
        and (library := _library(Path(path), "loader", LINUX)) is not None
    ]
    return _distinct([*configured, *cached_libraries])


def _cache(environ: Mapping[str, str]) -> str | None:
    # musl's loader has no cache; its ldconfig, if any, prints nothing useful.
    output = conversation.output(CACHE, environ, CACHE_S)
    return output if output and "=>" in output else None


def _in_folders(folders: Iterable[str], source: str, shape: re.Pattern[str]) -> Iterator[Library]:
    for folder in folders:
        for path in reading.entries(Path(folder)) or []:
            if (library := _library(path, source, shape)) is not None:
                yield library


def _library(path: Path, source: str, shape: re.Pattern[str]) -> Library | None:
    """The library in this file; the name of the link's target has its version."""
    if shape.fullmatch(path.name) is None:
        return None
    try:
        real = path.resolve(strict=True)
    except (OSError, RuntimeError):
        return None  # a link to nothing
    match = shape.fullmatch(real.name) or shape.fullmatch(path.name)
    if match is None:
        return None
    version = match[2]
    if shape is WINDOWS:  # 12 in cudart64_12, 10.2 in cudart64_102, any 11 in cudart64_110
        is_major = len(version) < 3 or version == "110"
        version = version[:2] if is_major else f"{version[:-1]}.{version[-1]}"
    # `libcuda.so` and `libcuda.so.1` name the interface's version, not the driver's.
    is_interface = match[1] == "libcuda" and "." not in (version or "")
    return Library(
        name=NAMES.get(match[1].lower(), match[1].lower()),
        path=str(real),
        version=None if is_interface else version,
        source=source,
    )


def _distinct(libraries_in_order: Iterable[Library]) -> tuple[Library, ...]:
    """Each file once, at its first place."""
    first: dict[str, Library] = {}
    for library in libraries_in_order:
        first.setdefault(library.path, library)
    return tuple(first.values())
