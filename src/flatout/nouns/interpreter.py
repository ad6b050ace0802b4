"""Interpreter: the Python that runs the training, and what is installed in it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Package:
    """One Python package installed in the interpreter that runs the training."""

    name: str
    """Normalised: lower case, hyphens."""
    version: str | None = None
    location: str | None = None
    """Folder that holds it."""
    installer: str | None = None
    """pip, conda or uv (the INSTALLER file), or None if unknown."""


@dataclass(frozen=True)
class Torch:
    """torch in that interpreter, from its files; with `imported` also what it reports itself."""

    version: str | None = None
    """2.7.1, without the build."""
    build: str | None = None
    """cpu, cu128, rocm6.3, xpu, or None if not part of the version (macOS, conda)."""
    cuda: str | None = None
    """The CUDA version it was built with, "12.8", or None if it has none."""
    hip: str | None = None
    xpu: str | None = None
    location: str | None = None
    installer: str | None = None
    requires: tuple[str, ...] = ()
    """Its requirements on nvidia-* and triton*, as in its metadata: nvidia-cudnn-cu12==9.5.1.17"""
    imported: bool | None = None
    """Whether the import succeeded, or None if not tried (or not in time)."""
    import_error: str | None = None
    """Last line of the error."""
    cuda_available: bool | None = None
    cuda_error: str | None = None
    """The error of CUDA's initialisation, as torch words it."""
    device_count: int | None = None
    """CUDA or ROCm devices."""
    arch_list: tuple[str, ...] | None = None
    """sm_80, compute_90, gfx942."""
    cudnn: str | None = None
    """The version loaded: "9.1.0"."""
    nccl: str | None = None
    mps_built: bool | None = None
    mps_available: bool | None = None
    xpu_available: bool | None = None
    compile_works: bool | None = None
    """Whether a compiled function ran (only with --deep)."""
    compile_error: str | None = None


@dataclass(frozen=True)
class Interpreter:
    """The Python that runs the user's training, and what is installed in it."""

    executable: str | None = None
    version: str | None = None
    """3.11.7."""
    bits: int | None = None
    free_threaded: bool | None = None
    virtual_environment: bool | None = None
    conda: bool | None = None
    """Whether it is a conda environment."""
    managed_by: str | None = None
    """uv, conda, pip, poetry or system (externally managed: PEP 668)."""
    user_site: bool | None = None
    """Whether it sees packages in the user's own site folder."""
    headers: bool | None = None
    """Whether Python.h exists, which torch.compile on CPU and extensions need."""
    compiler: str | None = None
    """Path of the C++ compiler that torch.compile would use, or None if not found."""
    compiler_searched: bool = False
    """Whether a compiler was searched; None in `compiler` then means that there is none."""
    packages: tuple[Package, ...] | None = None
    """Relevant packages: torch*, nvidia-*, triton*, tensorflow*, jax*, cuda-*, xformers, ..."""
    duplicates: tuple[Package, ...] = ()
    """Each copy of a package that is found more than once, or in two managers."""
    torch: Torch | None = None
    """torch, or None if not installed (if `packages` is None: unknown)."""
    error: str | None = None
    """Why the interpreter could not be queried."""
    timed_out: bool = False
    """Whether that error is the time limit; with more time it may answer."""
