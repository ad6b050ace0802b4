"""The right TensorFlow for a Target, why, and the commands that install it."""

from __future__ import annotations

from dataclasses import replace

from flatout.installing import python_packages, shell, wheels
from flatout.installing.script import Script, with_driver
from flatout.installing.target import Target
from flatout.knowledge.compat import cuda, tensorflow
from flatout.knowledge.compat.tensorflow import TensorflowRelease
from flatout.nouns.errors import UserError

ROCM_GUIDE = "https://rocm.docs.amd.com/projects/install-on-linux/en/latest/install/3rd-party/"
LAST_ON_INTEL_MACS = "2.16"
CHECK = "import tensorflow as tf; print(tf.__version__, tf.config.list_physical_devices('GPU'))"


def script(target: Target, mirror: str | None = None) -> Script:
    """The script that installs TensorFlow. Raises UserError, with the reason, if nothing fits."""
    candidates = _suitable(target)
    if target.system == "Darwin":
        return _mac(target, candidates[0], mirror)
    if target.vendor != "nvidia":
        return _cpu(target, candidates[0], mirror, _why_cpu(target))
    if target.system == "Windows":
        return _windows(target, candidates, mirror)
    if target.architecture == "arm64":
        why = (
            "On ARM, TensorFlow's wheels are for the CPU only; for the GPU use NVIDIA's container "
            "nvcr.io/nvidia/tensorflow."
        )
        return _cpu(target, candidates[0], mirror, why)
    return _linux_gpu(target, candidates, mirror)


def _suitable(target: Target) -> list[TensorflowRelease]:
    """Releases for the Target's Python and system, the newest first."""
    if (target.libc or "").startswith("musl"):
        raise UserError(f"TensorFlow has no wheels for {target.libc}", "use a system with glibc", 1)
    if target.platform == "windows-arm64":
        message = "TensorFlow has no wheels for Windows on ARM"
        raise UserError(message, "use an x86-64 Python, then --for arch=x86_64", 1)
    python = target.python_minor
    newest_first = tuple(reversed(tensorflow.releases()))
    candidates = [entry for entry in newest_first if python is None or python in entry.pythons]
    if target.platform == "macos-x86_64":
        last = wheels.number(f"{LAST_ON_INTEL_MACS}.0")
        candidates = [
            entry
            for entry in candidates
            if last and (wheels.number(f"{entry.version}.0") or last) <= last
        ]
    if not candidates:
        pythons = newest_first[0].pythons
        raise UserError(
            f"no TensorFlow release in the table has wheels for Python {python}: "
            f"{newest_first[0].version} is for {', '.join(pythons)}",
            wheels.ANOTHER_PYTHON.format(pythons[-1]),
            1,
        )
    return candidates


def _linux_gpu(target: Target, candidates: list[TensorflowRelease], mirror: str | None) -> Script:
    fitting = [
        entry for entry in candidates if entry.cuda and _has_kernels(target, entry)
    ] or candidates
    runnable = [entry for entry in fitting if entry.cuda and _runs(target, entry.cuda)]
    release = runnable[0] if runnable else fitting[0]
    driver = None if runnable else _minimum_driver(target, release)
    why = [f"TensorFlow {release.version} is built for CUDA {release.cuda}, cuDNN {release.cudnn}."]
    if driver:
        present = f"driver {target.driver} is too old" if target.driver else "no driver was found"
        why.append(f"It needs driver {driver} or newer: {present}.")
    else:
        why.append(f"Driver {target.driver} runs it.")
    if release.extra is None:
        why.append("This release does not bring them: install that CUDA toolkit and cuDNN too.")
    extra = f"[{release.extra}]" if release.extra else ""
    names = (f"tensorflow{extra}=={release.version}.*",)
    return _script(target, release, release.extra or "gpu", names, why, mirror, driver)


def _windows(target: Target, candidates: list[TensorflowRelease], mirror: str | None) -> Script:
    native = next((release for release in candidates if release.gpu_on_windows), None)
    last = next(
        (release.version for release in reversed(tensorflow.releases()) if release.gpu_on_windows),
        "",
    )
    hint = (
        "For a newer one with the GPU use WSL 2: wsl --install, and there: flatout env tensorflow."
    )
    rule = f"On Windows itself TensorFlow uses the GPU only up to {last}."
    if native is None:
        why = f"{rule} Python {target.python or '?'} has only newer releases: this is for the CPU. "
        return _cpu(target, candidates[0], mirror, why + hint)
    libraries = f"Install CUDA {native.cuda} and cuDNN {native.cudnn}, which it does not bring."
    names = (f"tensorflow=={native.version}.*", "numpy<2")
    return _script(target, native, "gpu", names, [rule, libraries, hint], mirror)


def _mac(target: Target, release: TensorflowRelease, mirror: str | None) -> Script:
    names = [f"tensorflow=={release.version}.*"]
    if target.architecture != "arm64":
        why = f"TensorFlow {LAST_ON_INTEL_MACS} was the last for Macs with an Intel processor."
        return _script(target, release, "cpu", tuple(names), [why], mirror)
    why = (
        "tensorflow-metal supports Apple's GPU but lags behind TensorFlow: if the import fails, "
        "remove it."
    )
    return _script(target, release, "metal", (*names, "tensorflow-metal"), [why], mirror)


def _cpu(target: Target, release: TensorflowRelease, mirror: str | None, why: str) -> Script:
    # There is no such package for ARM: the ordinary one is for the CPU there.
    name = "tensorflow" if target.architecture == "arm64" else "tensorflow-cpu"
    return _script(target, release, "cpu", (f"{name}=={release.version}.*",), [why], mirror)


def _why_cpu(target: Target) -> str:
    if target.vendor == "amd":
        return (
            f"TensorFlow's own wheels do not support AMD's GPUs; for AMD's wheels see {ROCM_GUIDE}"
        )
    if target.vendor is None:
        return "No GPU was found: the build without CUDA libraries."
    return f"TensorFlow's own wheels do not support {target.gpu or 'this GPU'}."


def _script(
    target: Target,
    release: TensorflowRelease,
    build: str,
    names: tuple[str, ...],
    why: list[str],
    mirror: str | None,
    driver: str | None = None,
) -> Script:
    if target.manager == "conda":
        why = [*why, "pip installs the wheels: conda-forge's TensorFlow lags behind."]
    setup, environment = python_packages.environment(replace(target, manager=_installer(target)))
    options = (f"--index-url {shell.quote(target, mirror)}",) if mirror else ()
    lines = python_packages.lines(environment, names, (), options)
    check = shell.python_code(environment, CHECK)
    commands = with_driver(target, driver, (*setup, *lines, check))
    return Script(release.version, build, tuple(why), commands, driver)


def _installer(target: Target) -> str:
    return "pip" if target.manager == "conda" else target.manager


def _runs(target: Target, version: str) -> bool:
    return wheels.at_least(
        target.driver, cuda.minimum_driver(version, wheels.driver_system(target))
    )


def _minimum_driver(target: Target, release: TensorflowRelease) -> str | None:
    return cuda.minimum_driver(release.cuda or "", wheels.driver_system(target))


def _has_kernels(target: Target, release: TensorflowRelease) -> bool:
    """Whether it holds kernels for the GPU; newer GPUs run portable code (PTX)."""
    capability = target.compute_capability
    return capability is None or capability >= release.oldest_capability
