"""Packages as installers leave them in a folder, and interpreters that see nothing else."""

from __future__ import annotations

import os
import sys
import time
import venv
from pathlib import Path

import psutil


def install(
    folder: Path,
    name: str,
    version: str,
    installer: str | None = "pip",
    requires: tuple[str, ...] = (),
    /,
    **modules: str,
) -> None:
    """Metadata of a package, and its modules: `version="..."` is <name>/version.py."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {item}" for item in requires]
    (info / "METADATA").write_text("\n".join([*lines, "", "Version: in the description", ""]))
    if installer is not None:
        (info / "INSTALLER").write_text(f"{installer}\n")
    for module, text in modules.items():
        package = folder / name
        package.mkdir(exist_ok=True)
        (package / f"{module}.py").write_text(text)


def bare(folder: Path) -> str:
    """A virtual environment with nothing in it; its interpreter."""
    venv.create(folder, symlinks=os.name != "nt")
    return str(folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python"))


def site(python: str) -> Path:
    """The folder into which this environment's packages go."""
    root = Path(python).parent.parent
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    return root / "Lib/site-packages" if os.name == "nt" else root / f"lib/{version}/site-packages"


def gone(pid: int) -> bool:
    """The process has ended, or does within moments."""
    until = time.monotonic() + 120
    while time.monotonic() < until:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return False


CUDA_VERSION = (
    "from typing import Optional\n"
    "__version__ = '2.7.1+cu128'\ndebug = False\ncuda: Optional[str] = '12.8'\n"
    "git_version = 'e2d141d'\nhip: Optional[str] = None\nxpu: Optional[str] = None\n"
)
"""torch/version.py as the wheel for CUDA 12.8 holds it."""
CUDA_TORCH = """
import types, warnings
from torch import version
from torch.version import __version__
class Cuda(types.SimpleNamespace):
    def is_available(self):
        warnings.warn("CUDA initialization: The NVIDIA driver on your system is too old "
                      "(found version 11040).")
        return False
    def device_count(self):
        return 0
    def init(self):
        raise RuntimeError("not reached")
cuda = Cuda(nccl=types.SimpleNamespace(version=lambda: (2, 26, 2)))
_C = types.SimpleNamespace(_cuda_getArchFlags=lambda: "sm_75 sm_80 compute_90")
backends = types.SimpleNamespace(
    cudnn=types.SimpleNamespace(version=lambda: 90701),
    mps=types.SimpleNamespace(is_built=lambda: False, is_available=lambda: False),
)
xpu = types.SimpleNamespace(is_available=lambda: False)
"""
"""As much of a torch for CUDA as is asked, on a machine whose driver is too old for it."""
