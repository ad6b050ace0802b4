"""The right TensorFlow for a Target, why, and the commands that install it."""

from __future__ import annotations

from dataclasses import replace

from flatout.installing import python_packages, shell, wheels
from flatout.installing.script import Script, with_driver
from flatout.installing.target import Target
from flatout.knowledge.compat import cuda, tensorflow
from flatout.knowledge.compat.tensorflow import TensorflowRelease
from flatout.nouns.errors import UserError

GUIDE = "https://www.tensorflow.org/install/pip"
ROCM_GUIDE = "https://rocm.docs.amd.com/projects/install-on-linux/en/latest/install/3rd-party/"
LAST_ON_INTEL_MACS = "2.16"
CHECK = "import tensorflow as tf; print(tf.__version__, tf.config.list_physical_devices('GPU'))"


def script(target: Target, mirror: str | None = None) -> Script:
    """What installs TensorFlow. Raises UserError where nothing fits, with the reason."""
    found = _suitable(target)
    if target.system == "Darwin":
        return _mac(target, found[0], mirror)
    if target.vendor != "nvidia":
        return _cpu(target, found[0], mirror, _why_cpu(target))
    if target.system == "Windows":
        return _windows(target, found, mirror)
    if target.architecture == "arm64":
        why = (
            "On ARM, TensorFlow's wheels are for the CPU alone; with the GPU: NVIDIA's container "
            "nvcr.io/nvidia/tensorflow."
        )
        return _cpu(target, found[0], mirror, why)
    return _linux_gpu(target, found, mirror)


def _suitable(target: Target) -> list[TensorflowRelease]:
    """Releases for the Target's Python and system, the newest first."""
    if (target.libc or "").startswith("musl"):
        raise UserError(f"TensorFlow has no wheels for {target.libc}", "use a system with glibc", 1)
    if target.platform == "windows-arm64":
        message = "TensorFlow has no wheels for Windows on ARM"
        raise UserError(message, "use an x86-64 Python, then --for arch=x86_64", 1)
    python = target.python_minor
    everything = tuple(reversed(tensorflow.releases()))
    found = [item for item in everything if python is None or python in item.pythons]
    if target.platform == "macos-x86_64":
        last = wheels.number(f"{LAST_ON_INTEL_MACS}.0")
        found = [
            item for item in found if last and (wheels.number(f"{item.version}.0") or last) <= last
        ]
    if not found:
        known = everything[0].pythons
        raise UserError(
            f"no TensorFlow release in the table has wheels for Python {python}: "
            f"{everything[0].version} is for {', '.join(known)}",
            wheels.ANOTHER_PYTHON.format(known[-1]),
            1,
        )
    return found


def _linux_gpu(target: Target, found: list[TensorflowRelease], mirror: str | None) -> Script:
    fitting = [item for item in found if item.cuda and _gpu_known(target, item)] or found
    runs = [item for item in fitting if item.cuda and _runs(target, item.cuda)]
    release = runs[0] if runs else fitting[0]
    needed = None if runs else _minimum(target, release)
    why = [f"TensorFlow {release.version} is built for CUDA {release.cuda}, cuDNN {release.cudnn}."]
    if needed:
        present = (
            f"driver {target.driver} is too old" if target.driver else "no driver is known here"
        )
        why.append(f"It needs driver {needed} or newer: {present}.")
    else:
        why.append(f"Driver {target.driver} runs it.")
    if release.extra is None:
        why.append("This release does not bring them: install that CUDA toolkit and cuDNN too.")
    extra = f"[{release.extra}]" if release.extra else ""
    names = (f"tensorflow{extra}=={release.version}.*",)
    return _script(target, release, release.extra or "gpu", names, why, mirror, needed)


def _windows(target: Target, found: list[TensorflowRelease], mirror: str | None) -> Script:
    native = next((item for item in found if item.gpu_on_windows), None)
    last = next(
        (item.version for item in reversed(tensorflow.releases()) if item.gpu_on_windows), ""
    )
    hint = (
        "For a newer one with the GPU use WSL 2: wsl --install, and there: flatout env tensorflow."
    )
    rule = f"On Windows itself TensorFlow uses the GPU only up to {last}."
    if native is None:
        why = (
            f"{rule} Python {target.python or '?'} has newer releases alone: this is for the CPU. "
        )
        return _cpu(target, found[0], mirror, why + hint)
    libraries = f"Install CUDA {native.cuda} and cuDNN {native.cudnn}, which it does not bring."
    names = (f"tensorflow=={native.version}.*", "numpy<2")
    return _script(target, native, "gpu", names, [rule, libraries, hint], mirror)


def _mac(target: Target, release: TensorflowRelease, mirror: str | None) -> Script:
    names = [f"tensorflow=={release.version}.*"]
    if target.architecture != "arm64":
        why = f"TensorFlow {LAST_ON_INTEL_MACS} was the last for Macs with an Intel processor."
        return _script(target, release, "cpu", tuple(names), [why], mirror)
    why = (
        "tensorflow-metal drives Apple's GPU; it follows TensorFlow late: should the import fail, "
        "remove it."
    )
    return _script(target, release, "metal", (*names, "tensorflow-metal"), [why], mirror)


def _cpu(target: Target, release: TensorflowRelease, mirror: str | None, why: str) -> Script:
    # On ARM there is no package of that name: the ordinary one is for the CPU there.
    name = "tensorflow" if target.architecture == "arm64" else "tensorflow-cpu"
    return _script(target, release, "cpu", (f"{name}=={release.version}.*",), [why], mirror)


def _why_cpu(target: Target) -> str:
    if target.vendor == "amd":
        return f"TensorFlow's own wheels do not drive AMD's GPUs; AMD's are told in {ROCM_GUIDE}"
    if target.vendor is None:
        return "No GPU is known here: the build without CUDA libraries."
    return f"TensorFlow's own wheels do not drive {target.gpu or 'this GPU'}."


def _script(
    target: Target,
    release: TensorflowRelease,
    build: str,
    names: tuple[str, ...],
    why: list[str],
    mirror: str | None,
    needed: str | None = None,
) -> Script:
    if target.manager == "conda":
        why = [*why, "The wheels come by pip: conda-forge's TensorFlow follows late."]
    first, here = python_packages.environment(replace(target, manager=_installer(target)))
    options = (f"--index-url {shell.quote(target, mirror)}",) if mirror else ()
    lines = python_packages.lines(here, names, (), options)
    check = shell.python_code(here, CHECK)
    commands = with_driver(target, needed, (*first, *lines, check))
    return Script(release.version, build, tuple(why), commands, needed)


def _installer(target: Target) -> str:
    return "pip" if target.manager == "conda" else target.manager


def _runs(target: Target, version: str) -> bool:
    return wheels.at_least(
        target.driver, cuda.minimum_driver(version, wheels.driver_system(target))
    )


def _minimum(target: Target, release: TensorflowRelease) -> str | None:
    return cuda.minimum_driver(release.cuda or "", wheels.driver_system(target))


def _gpu_known(target: Target, release: TensorflowRelease) -> bool:
    """Whether it holds kernels for the GPU; newer GPUs run from portable code (PTX)."""
    capability = target.compute_capability
    return capability is None or capability >= release.oldest_capability
