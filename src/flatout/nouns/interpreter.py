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
    """torch in that interpreter. From its files; with `imported` also what it says itself."""

    version: str | None = None
    """2.7.1, without the build."""
    build: str | None = None
    """cpu, cu128, rocm6.3, xpu, or None if not part of the version (macOS, conda)."""
    cuda: str | None = None
    """The CUDA version it was built with, "12.8", or None if it has none."""
    hip: str | None = None
    xpu: str | None = None
    debug: bool | None = None
    location: str | None = None
    installer: str | None = None
    requires: tuple[str, ...] = ()
    """Its own requirements on nvidia-*, triton*, as in its metadata: nvidia-cudnn-cu12==9.5.1.17"""
    imported: bool | None = None
    """Whether the import succeeded, or None if not tried (or not in time)."""
    import_error: str | None = None
    """Last line of the error."""
    import_s: float | None = None
    cuda_available: bool | None = None
    cuda_error: str | None = None
    """What CUDA's initialisation said, as torch words it."""
    device_count: int | None = None
    """CUDA or ROCm devices."""
    arch_list: tuple[str, ...] | None = None
    """sm_80, compute_90, gfx942."""
    cudnn: str | None = None
    """Loaded: "9.1.0"."""
    nccl: str | None = None
    mps_built: bool | None = None
    mps_available: bool | None = None
    xpu_available: bool | None = None
    bf16_supported: bool | None = None
    """On device 0."""
    num_threads: int | None = None
    compile_works: bool | None = None
    """A compiled function was run (only with --deep)."""
    compile_error: str | None = None


@dataclass(frozen=True)
class Tensorflow:
    """TensorFlow in that interpreter, from its files; never imported (slow, takes memory)."""

    version: str | None = None
    package: str | None = None
    """tensorflow, tensorflow-cpu, tensorflow-gpu, tensorflow-macos, intel-tensorflow."""
    cuda: str | None = None
    """From its build information file, "12.5.1"."""
    cudnn: str | None = None
    cuda_build: bool | None = None
    cuda_libraries: bool | None = None
    """The nvidia-* wheels of its `and-cuda` extra are installed."""
    gpus_seen: int | None = None
    """Only with --deep."""
    import_error: str | None = None


@dataclass(frozen=True)
class Jax:
    """JAX in that interpreter, from its files."""

    version: str | None = None
    jaxlib: str | None = None
    cuda_plugin: str | None = None
    """Version of jax-cuda12-plugin or jax-cuda13-plugin, or None if not installed."""
    rocm_plugin: str | None = None


@dataclass(frozen=True)
class Interpreter:
    """The Python that runs the user's training, and what is installed in it."""

    executable: str | None = None
    version: str | None = None
    """3.11.7."""
    implementation: str | None = None
    bits: int | None = None
    free_threaded: bool | None = None
    virtual_environment: bool | None = None
    conda: bool | None = None
    """It is a conda environment."""
    managed_by: str | None = None
    """uv, conda, pip, poetry, system (externally managed: PEP 668)."""
    user_site: bool | None = None
    """Packages in the user's own site folder are visible to it."""
    headers: bool | None = None
    """Python.h is there: torch.compile on CPU and extensions need it."""
    compiler: str | None = None
    """Path of the C++ compiler that torch.compile would use, or None if not found."""
    compiler_searched: bool = False
    """A compiler was looked for, so that None in `compiler` means there is none."""
    packages: tuple[Package, ...] | None = None
    """Those that matter: torch*, nvidia-*, triton*, tensorflow*, jax*, cuda-*, xformers, ..."""
    duplicates: tuple[Package, ...] = ()
    """Packages that are found more than once, or in two managers: each copy."""
    torch: Torch | None = None
    """None: not installed (when `packages` is not None)."""
    tensorflow: Tensorflow | None = None
    jax: Jax | None = None
    error: str | None = None
    """Why the interpreter could not be queried."""
    timed_out: bool = False
    """That error is the time limit: asked again, with more time, it may answer."""


@dataclass(frozen=True)
class OtherPython:
    """One more Python in play."""

    executable: str
    version: str | None = None
    kind: str | None = None
    """system, venv, conda, pyenv, uv, user."""
    first_on_path: bool = False
    torch: str | None = None
    """Version of the torch in it, with its build: 2.7.1+cu128, or None without torch."""
