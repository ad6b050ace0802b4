"""The right PyTorch build for a Target, why, and the commands that install it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from packaging.version import Version

from flatout.installing import python_packages, shell, wheels
from flatout.installing.choice import Choice
from flatout.installing.target import Target
from flatout.installing.wheels import Wheel
from flatout.knowledge import gpus
from flatout.knowledge.compat import cuda, pytorch
from flatout.nouns.errors import UserError

ROCM_ON_WINDOWS = "https://rocm.docs.amd.com/projects/radeon-ryzen/en/latest/"
XPU_NAMES = ("arc", "data center gpu", "flex", "ponte vecchio", "battlemage", "alchemist")
"""Names of Intel's GPUs with matrix engines; PyTorch does not support older integrated ones."""


def choose(target: Target) -> Choice:
    """The newest release and its best build that runs on this driver, GPU, Python and system.

    A newer driver is required only if no release with kernels for this GPU runs on the present one.
    With `target.release`, a build of that release if one runs without changes: a program written
    for it keeps working. Raises UserError, with the reason, if nothing fits.
    """
    candidates = wheels.suitable(target)
    release = pytorch.release(target.release) if target.release else None
    same_release = [wheel for wheel in candidates if wheel.release == release]
    if release is not None and same_release:
        with suppress(UserError):
            choice = _choice_for_vendor(target, same_release)
            if choice.driver_needed is None:
                return replace(choice, why=(f"PyTorch stays at {release.version}.", *choice.why))
    return _choice_for_vendor(target, candidates)


def _choice_for_vendor(target: Target, candidates: list[Wheel]) -> Choice:
    if target.vendor == "nvidia" and target.system != "Darwin":
        return _nvidia(target, candidates)
    if target.vendor == "amd" and target.system != "Darwin":
        return _amd(target, candidates)
    name = (target.gpu or "intel").lower()
    has_xpu = name == "intel" or any(word in name for word in XPU_NAMES)
    is_intel = target.vendor == "intel" and target.system != "Darwin"
    if is_intel and (has_xpu or gpus.find(name) is not None):
        return _first_of_build(target, candidates, "xpu", f"{_gpu(target)} runs on the XPU build.")
    return _first_of_build(target, candidates, "cpu", _why_cpu(target))


def commands(target: Target, mirror: str | None = None) -> tuple[str, ...]:
    """The lines that install `choose(target)`, with the Target's manager and shell.

    They act on the Target's own interpreter, replace a wrong build (uninstalling it if pip would
    consider it sufficient), and end with a line that checks the result.
    """
    choice = choose(target)
    setup, target_environment = python_packages.environment(target)
    if target.manager == "conda":
        return (
            *setup,
            *python_packages.conda_pytorch(target_environment, choice),
            check_line(target_environment, choice),
        )
    remove: tuple[str, ...] = ()
    # pip keeps another build, or its torchvision, if the versions match.
    _, separator, build = (target_environment.user_has_torch or "").partition("+")
    if separator and build != choice.build:
        remove = (
            "torch",
            "torchvision",
            *python_packages.other_triton(target_environment, choice.build),
        )
    options: tuple[str, ...] = ()
    if target.system != "Darwin" or mirror is not None:  # macOS has one build, in every index
        index = shell.quote(target_environment, pytorch.index_url(choice.build, mirror))
        options = (f"--index-url {index}",)
    lines = python_packages.lines(target_environment, requirements(choice), remove, options)
    return (*setup, *lines, check_line(target_environment, choice))


def package_commands(
    target: Target, install: tuple[str, ...] = (), remove: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """Lines that remove and then install Python packages in the Target's interpreter."""
    return python_packages.lines(target, install, remove)


def requirements(choice: Choice) -> tuple[str, ...]:
    """The requirements to pass to pip or uv."""
    release = pytorch.release(choice.version)
    vision = release.torchvision if release else None
    return (f"torch=={choice.version}", *((f"torchvision=={vision}.*",) if vision else ()))


def python_for(choice: Choice) -> str:
    """A Python for the choice if any will do: the second newest has all other packages too."""
    release = pytorch.release(choice.version) or pytorch.newest()
    pythons = [name for name in release.pythons if not name.endswith("t")]
    return pythons[-2] if len(pythons) > 1 else pythons[-1]


def check_line(target: Target, choice: Choice) -> str:
    """The line that shows whether the installation works."""
    return shell.python_code(target, check_code(target, choice))


def check_code(target: Target, choice: Choice) -> str:
    """The same in Python, without double quotes."""
    expressions = "torch.__version__"
    if choice.vendor in ("nvidia", "amd"):
        expressions += ", torch.cuda.is_available()"
    elif choice.vendor == "intel":
        expressions += ", torch.xpu.is_available()"
    elif target.system == "Darwin":
        expressions += ", torch.backends.mps.is_available()"
    return f"import torch; print({expressions})"


def _nvidia(target: Target, candidates: list[Wheel]) -> Choice:
    fitting = wheels.with_kernels(target, candidates)
    if not fitting:
        raise _no_kernels(target)
    runnable = [wheel for wheel in fitting if _runs(target, wheel)]
    if runnable:
        reasons = _why_nvidia(target, runnable, candidates)
        branch, major = _last_branch(target), (target.driver or "").partition(".")[0]
        outgrown = branch if branch and major.isdecimal() and int(major) > int(branch) else None
        if outgrown:
            gone = f"Driver {target.driver} no longer supports {_gpu(target)}"
            reasons = (f"{gone}: branch {outgrown} is the last.", *reasons)
        return _choice(target, _best(target, runnable), reasons, outgrown)
    # A driver is still to be installed, one that supports this GPU.
    last, possible = _last_branch(target), fitting
    if last is not None:
        minima = {wheel: wheels.minimum_driver(target, wheel) for wheel in fitting}
        possible = [wheel for wheel in fitting if wheels.at_least(last, minima[wheel])] or fitting
    newest = [wheel for wheel in possible if wheel.release == possible[0].release]
    standard = [wheel for wheel in newest if wheel.build.default_on]
    wheel = standard[0] if standard else min(newest, key=_cuda_version)
    needed = wheels.minimum_driver(target, wheel)
    if target.driver is None:
        why = f"No driver was found: {wheel.build.name} needs {needed} or newer."
    else:
        why = (
            f"Driver {target.driver} is too old for every release with kernels for {_gpu(target)}: "
            f"{needed} or newer is needed."
        )
    return _choice(target, wheel, (_kernels(target, wheel), why), needed)


def _runs(target: Target, wheel: Wheel) -> bool:
    return wheels.at_least(target.driver, wheels.minimum_driver(target, wheel))


def _best(target: Target, runnable: list[Wheel]) -> Wheel:
    """From the newest release: a build that the driver supports in full, PyTorch's standard build
    first; else the build closest to the driver.
    """
    newest = [wheel for wheel in runnable if wheel.release == runnable[0].release]
    full = [wheel for wheel in newest if _full(target, wheel)]
    standard = [wheel for wheel in full if wheel.build.default_on]
    if standard:
        return standard[0]
    return max(full, key=_cuda_version) if full else min(newest, key=_cuda_version)


def _full(target: Target, wheel: Wheel) -> bool:
    return wheels.at_least(target.driver, wheels.full_driver(target, wheel))


def _cuda_version(wheel: Wheel) -> Version:
    return Version(wheel.build.cuda or "0")


def _last_branch(target: Target) -> str | None:
    capability = target.compute_capability
    return cuda.last_driver_branch(capability) if capability else None


def _why_nvidia(target: Target, runnable: list[Wheel], candidates: list[Wheel]) -> tuple[str, ...]:
    chosen = _best(target, runnable)
    driver = f"Driver {target.driver}"
    if _full(target, chosen):
        first = f"{driver} supports all of CUDA {chosen.build.cuda}."
    else:
        needed = wheels.full_driver(target, chosen)
        system = wheels.driver_system(target)
        supported = [
            entry.version
            for entry in cuda.releases()
            if wheels.at_least(target.driver, cuda.full_driver(entry.version, system))
        ]
        newest = supported[-1] if supported else "older than 11.0"
        first = (
            f"{driver} supports CUDA {newest} in full; {chosen.build.name} "
            f"runs on it by minor-version compatibility (in full from {needed} on)."
        )
    version = Version(chosen.release.version), _cuda_version(chosen)
    why_not_newer: dict[str, list[str]] = {}
    for wheel in candidates:
        newer = (Version(wheel.release.version), _cuda_version(wheel)) > version
        if wheel.build.cuda and newer:
            why_not_newer.setdefault(_why_not(target, chosen, wheel), []).append(wheel.name)
    return (
        first,
        _kernels(target, chosen),
        *(
            f"Not {', '.join(names[:4])}{' ...' if len(names) > 4 else ''}: {reason}."
            for reason, names in why_not_newer.items()
        ),
    )


def _kernels(target: Target, wheel: Wheel) -> str:
    architectures = ", ".join(wheel.arch_list(target.platform))
    if wheel.inferred(target.platform):
        architectures += f" (as the Linux x86-64 wheel; that for {target.platform} is not recorded)"
    if target.compute_capability is None:
        gpu = _gpu(target)
        return f"The compute capability of {gpu} is not known: check that it is in {architectures}."
    number = ".".join(map(str, target.compute_capability))
    gpu = f"{_gpu(target)} (compute capability {number})"
    return f"{wheel.name} has kernels for {gpu}: {architectures}."


def _why_not(target: Target, chosen: Wheel, wheel: Wheel) -> str:
    if not wheel.arch_list(target.platform):
        return "it is not yet known which GPUs it has kernels for"
    if not wheels.with_kernels(target, [wheel]):
        return "no kernel for this GPU"
    if not _runs(target, wheel):
        return f"driver {wheels.minimum_driver(target, wheel)} or newer needed"
    if _full(target, wheel):
        return f"it runs too, but {chosen.build.name} is PyTorch's standard build"
    return f"it runs too, but {chosen.build.name} is closer to what the driver supports"


def _no_kernels(target: Target) -> UserError:
    """Why no wheel for this Python and system holds a kernel for the GPU."""
    capability = target.compute_capability or (0, 0)
    on_platform = wheels.with_kernels(target, list(wheels.all_wheels()))
    on_any_platform = [
        w for w in wheels.all_wheels() if pytorch.supports(w.build.arch_list, capability)
    ]
    number = ".".join(map(str, target.compute_capability or ("?",)))
    gpu = f"{_gpu(target)} (compute capability {number})"
    if not on_platform:
        where = f" on {target.platform}" if on_any_platform else ""
        message = f"no PyTorch release in the table has kernels for {gpu}{where}"
        return UserError(message, "build PyTorch from source, or use the CPU: gpu=none", 1)
    newest, oldest = on_platform[0].release, on_platform[-1].release
    releases = newest.version if newest == oldest else f"{oldest.version} to {newest.version}"
    libc = f" on {target.libc}" if target.libc else ""
    message = (
        f"no PyTorch for Python {target.python_minor or '?'}{libc} has kernels for {gpu}: "
        f"those are in PyTorch {releases}"
    )
    pythons = [name for name in newest.pythons if not name.endswith("t")]
    middle = (
        pythons[-2] if len(pythons) > 1 else pythons[-1]
    )  # the newest Python lacks other packages
    return UserError(message, wheels.ANOTHER_PYTHON.format(middle), 1)


def _amd(target: Target, candidates: list[Wheel]) -> Choice:
    rocm = [wheel for wheel in candidates if wheel.build.rocm and not target.wsl]
    if not rocm:
        where = "WSL" if target.wsl else target.platform
        why = f"PyTorch's own ROCm builds are not for {where}; AMD's are: {ROCM_ON_WINDOWS}"
        return _first_of_build(target, candidates, "cpu", why)
    if target.gfx:
        documented = [wheel for wheel in rocm if wheel.build.arch_list]
        fitting = [
            wheel
            for wheel in rocm
            if not wheel.build.arch_list or target.gfx in wheel.build.arch_list
        ]
        if documented and not fitting:
            why = f"No ROCm build is known to hold kernels for {_gpu(target)} ({target.gfx})."
            return _first_of_build(target, candidates, "cpu", why)
        rocm = fitting or rocm
    installed = target.rocm
    not_newer = [  # by major and minor version: patch releases are compatible
        wheel
        for wheel in rocm
        if installed
        and Version(wheel.build.rocm or "").release[:2] <= Version(installed).release[:2]
    ]
    newest = [
        wheel for wheel in (not_newer or rocm) if wheel.release == (not_newer or rocm)[0].release
    ]
    chosen = max(newest, key=lambda wheel: Version(wheel.build.rocm or "0"))
    if installed is None:
        why = f"No ROCm release was found: the newest build is {chosen.build.name}."
    elif not_newer:
        why = f"ROCm {installed} is installed: {chosen.build.name} is the newest build for it."
    else:
        why = (
            f"ROCm {installed} is older than every build: {chosen.build.name} needs a newer driver."
        )
    return _choice(target, chosen, (why,))


def _first_of_build(target: Target, candidates: list[Wheel], name: str, why: str) -> Choice:
    builds = [wheel for wheel in candidates if wheel.build.name == name]
    if not builds:
        return _first_of_build(
            target, candidates, "cpu", f"No {name} build fits this Python and system."
        )
    return _choice(target, builds[0], (why,))


def _why_cpu(target: Target) -> str:
    if target.system == "Darwin":
        if target.vendor == "nvidia":
            return f"macOS has no driver for {_gpu(target)}: it is not used."
        if target.architecture == "arm64":
            return "macOS has one build; it supports Apple's GPU (MPS)."
        return "macOS on Intel: the CPU build; PyTorch 2.2 was the last for it."
    if target.vendor is None:
        return "No GPU was found: the CPU build, without gigabytes of CUDA libraries."
    return f"{_gpu(target)} is not supported by PyTorch: the CPU build."


def _choice(
    target: Target, wheel: Wheel, why: tuple[str, ...], driver: str | None = None
) -> Choice:
    newest = pytorch.newest()
    reasons = list(why)
    if wheel.release != newest and target.python_minor not in (None, *newest.pythons):
        fits = [entry for entry in pytorch.releases() if target.python_minor in entry.pythons]
        last = (fits or [wheel.release])[-1].version
        reasons.append(
            f"Python {target.python}: {last} is the newest release for it; "
            f"PyTorch {newest.version} needs Python {newest.pythons[0]} or newer."
        )
    if target.python is None:
        pythons = wheel.release.pythons
        reasons.append(
            f"The Python version is not known: there are wheels for {', '.join(pythons)}."
        )
    return Choice(wheel.release.newest_patch, wheel.build.name, tuple(reasons), driver)


def _gpu(target: Target) -> str:
    return target.gpu or f"the {(target.vendor or '').upper()} GPU"
