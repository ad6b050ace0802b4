"""The right PyTorch build for a Target, why, and the commands that install it."""

from __future__ import annotations

from dataclasses import replace

from packaging.version import Version

from flatout.installing import conda_packages, python_packages, shell, wheels
from flatout.installing.choice import Choice
from flatout.installing.target import Target
from flatout.installing.wheels import Wheel
from flatout.knowledge import gpus
from flatout.knowledge.compat import cuda, pytorch
from flatout.nouns.errors import UserError

ROCM_ON_WINDOWS = "https://rocm.docs.amd.com/projects/radeon-ryzen/en/latest/"
XPU_NAMES = ("arc", "data center gpu", "flex", "ponte vecchio", "battlemage", "alchemist")
"""Of Intel's GPUs PyTorch drives those with matrix engines; older integrated ones it does not."""


def choose(target: Target) -> Choice:
    """The newest release and its best build that runs on this driver, GPU, Python and system.

    A newer driver is only asked for where no release with a kernel for this GPU runs on the present
    one. With `target.release`, a build of that release where one runs here as it is: a program that
    was written for it goes on to work. Raises UserError where nothing fits, with the reason.
    """
    found = wheels.suitable(target)
    return _same_release(target, found) or _chosen(target, found)


def _same_release(target: Target, found: list[Wheel]) -> Choice | None:
    release = pytorch.release(target.release) if target.release else None
    kept = [wheel for wheel in found if wheel.release == release]
    if not kept:
        return None
    try:
        choice = _chosen(target, kept)
    except UserError:
        return None
    if choice.driver_needed is not None or release is None:
        return None
    return replace(choice, why=(f"It stays PyTorch {release.version}.", *choice.why))


def _chosen(target: Target, found: list[Wheel]) -> Choice:
    if target.vendor == "nvidia" and target.system != "Darwin":
        return _nvidia(target, found)
    if target.vendor == "amd" and target.system != "Darwin":
        return _amd(target, found)
    if target.vendor == "intel" and target.system != "Darwin" and _has_xpu(target):
        return _plain(target, found, "xpu", f"{_gpu(target)} is driven by the XPU build.")
    return _plain(target, found, "cpu", _why_plain(target))


def commands(target: Target, mirror: str | None = None) -> tuple[str, ...]:
    """The lines that install `choose(target)`, with the Target's manager and shell.

    They act on the Target's own interpreter, replace a wrong build (uninstall first where pip would
    think it satisfied), and end with a line that checks the result.
    """
    choice = choose(target)
    first, here = python_packages.environment(target)
    if target.manager == "conda":
        return (*first, *conda_packages.lines(here, choice), check_line(here, choice))
    remove: tuple[str, ...] = ()
    if _another_build(here, choice):
        remove = ("torch", "torchvision", *python_packages.other_triton(here, choice.build))
    options = _options(here, choice, mirror)
    lines = python_packages.lines(here, requirements(choice), remove, options)
    return (*first, *lines, check_line(here, choice))


def package_commands(
    target: Target, install: tuple[str, ...] = (), remove: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """Lines that remove and then install Python packages in the Target's interpreter."""
    return python_packages.lines(target, install, remove)


def requirements(choice: Choice) -> tuple[str, ...]:
    """What pip and uv are asked for."""
    release = pytorch.release(choice.version)
    vision = release.torchvision if release else None
    return (f"torch=={choice.version}", *((f"torchvision=={vision}.*",) if vision else ()))


def python_for(choice: Choice) -> str:
    """A Python for the choice where it is free: the newest but one has all other packages too."""
    release = pytorch.release(choice.version) or pytorch.newest()
    plain = [name for name in release.pythons if not name.endswith("t")]
    return plain[-2] if len(plain) > 1 else plain[-1]


def check_line(target: Target, choice: Choice) -> str:
    """The line that shows whether the installation works."""
    return shell.python_code(target, check_code(target, choice))


def check_code(target: Target, choice: Choice) -> str:
    """The same in Python, without double quotes."""
    seen = "torch.__version__"
    if choice.vendor in ("nvidia", "amd"):
        seen += ", torch.cuda.is_available()"
    elif choice.vendor == "intel":
        seen += ", torch.xpu.is_available()"
    elif target.system == "Darwin":
        seen += ", torch.backends.mps.is_available()"
    return f"import torch; print({seen})"


def _options(target: Target, choice: Choice, mirror: str | None) -> tuple[str, ...]:
    """Where the wheels come from: macOS has only one build, which every index holds."""
    if target.system == "Darwin" and mirror is None:
        return ()
    return (f"--index-url {shell.quote(target, pytorch.index_url(choice.build, mirror))}",)


def _another_build(target: Target, choice: Choice) -> bool:
    """Another build is installed: pip would leave it, or its torchvision, where versions agree."""
    _, separator, build = (target.user_has_torch or "").partition("+")
    return bool(separator) and build != choice.build


def _nvidia(target: Target, found: list[Wheel]) -> Choice:
    fitting = wheels.with_kernels(target, found)
    if not fitting:
        raise _no_kernels(target)
    runs = [item for item in fitting if _runs(target, item)]
    if runs:
        last = _dropped(target)
        reasons = (*_why_older_driver(target, last), *_why_nvidia(target, runs, found))
        return _choice(target, _best(target, runs), reasons, last)
    chosen = _newest_for_new_driver(target, fitting)
    needed = wheels.minimum_driver(target, chosen)
    if target.driver is None:
        why = f"No driver is known here: {chosen.build.name} needs {needed} or newer."
    else:
        why = (
            f"Driver {target.driver} is too old for every release with kernels for {_gpu(target)}: "
            f"{needed} or newer is needed."
        )
    return _choice(target, chosen, (_kernels(target, chosen), why), needed)


def _runs(target: Target, wheel: Wheel) -> bool:
    return wheels.at_least(target.driver, wheels.minimum_driver(target, wheel))


def _best(target: Target, runs: list[Wheel]) -> Wheel:
    """Of the newest release: what the driver supports in full, PyTorch's standard build before
    newer ones; else the build nearest to the driver.
    """
    newest = [item for item in runs if item.release == runs[0].release]
    full = [item for item in newest if _full(target, item)]
    standard = [item for item in full if item.build.default_on]
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


def _dropped(target: Target) -> str | None:
    """The last driver branch for this GPU, where the driver is newer and does not know it."""
    branch, major = _last_branch(target), (target.driver or "").partition(".")[0]
    return branch if branch and major.isdecimal() and int(major) > int(branch) else None


def _why_older_driver(target: Target, branch: str | None) -> tuple[str, ...]:
    if branch is None:
        return ()
    return (f"Driver {target.driver} no longer knows {_gpu(target)}: branch {branch} is the last.",)


def _newest_for_new_driver(target: Target, fitting: list[Wheel]) -> Wheel:
    """The build for a driver that is still to be installed: one that this GPU can have."""
    branch, possible = _last_branch(target), fitting
    if branch is not None:
        minima = {item: wheels.minimum_driver(target, item) for item in fitting}
        possible = [item for item in fitting if wheels.at_least(branch, minima[item])] or fitting
    newest = [item for item in possible if item.release == possible[0].release]
    standard = [item for item in newest if item.build.default_on]
    return standard[0] if standard else min(newest, key=_cuda_version)


def _why_nvidia(target: Target, runs: list[Wheel], found: list[Wheel]) -> tuple[str, ...]:
    chosen = _best(target, runs)
    driver = f"Driver {target.driver}"
    if _full(target, chosen):
        first = f"{driver} supports all of CUDA {chosen.build.cuda}."
    else:
        needed = wheels.full_driver(target, chosen)
        supports = _newest_full(target)
        first = (
            f"{driver} supports CUDA {supports or 'older than 11.0'} in full; {chosen.build.name} "
            f"runs on it by minor-version compatibility (in full from {needed} on)."
        )
    return (first, _kernels(target, chosen), *_why_not_newer(target, chosen, found))


def _newest_full(target: Target) -> str | None:
    """The newest CUDA that the driver supports in full."""
    system = wheels.driver_system(target)
    versions = [
        item.version
        for item in cuda.releases()
        if wheels.at_least(target.driver, cuda.full_driver(item.version, system))
    ]
    return versions[-1] if versions else None


def _kernels(target: Target, wheel: Wheel) -> str:
    listed = ", ".join(wheel.arch_list(target.platform))
    if wheel.inferred(target.platform):
        listed += f" (as the Linux x86-64 wheel; that for {target.platform} is not recorded)"
    if target.compute_capability is None:
        return f"The compute capability of {_gpu(target)} is not known: see that it is in {listed}."
    number = ".".join(map(str, target.compute_capability))
    return f"{wheel.name} holds kernels for {_gpu(target)} (compute capability {number}): {listed}."


def _why_not_newer(target: Target, chosen: Wheel, found: list[Wheel]) -> tuple[str, ...]:
    """What kept newer releases and builds out."""
    newer = [
        item
        for item in found
        if item.build.cuda
        and (Version(item.release.version), _cuda_version(item))
        > (Version(chosen.release.version), _cuda_version(chosen))
    ]
    reasons: dict[str, list[str]] = {}
    for item in newer:
        reasons.setdefault(_against(target, chosen, item), []).append(item.name)
    return tuple(
        f"Not {', '.join(names[:4])}{' ...' if len(names) > 4 else ''}: {reason}."
        for reason, names in reasons.items()
    )


def _against(target: Target, chosen: Wheel, wheel: Wheel) -> str:
    if not wheel.arch_list(target.platform):
        return "which GPUs it holds kernels for is not known yet"
    if not wheels.with_kernels(target, [wheel]):
        return "no kernel for this GPU"
    if not _runs(target, wheel):
        return f"driver {wheels.minimum_driver(target, wheel)} or newer needed"
    if _full(target, wheel):
        return f"it runs too, but {chosen.build.name} is PyTorch's standard build"
    return f"it runs too, but {chosen.build.name} is nearer to what the driver supports"


def _no_kernels(target: Target) -> UserError:
    """Why no wheel for this Python and system holds a kernel for the GPU."""
    capability = target.compute_capability or (0, 0)
    here = wheels.with_kernels(target, list(wheels.all_wheels()))
    elsewhere = [w for w in wheels.all_wheels() if pytorch.supports(w.build.arch_list, capability)]
    number = ".".join(map(str, target.compute_capability or ("?",)))
    gpu = f"{_gpu(target)} (compute capability {number})"
    if not here:
        where = f" on {target.platform}" if elsewhere else ""
        message = f"no PyTorch release in the table has kernels for {gpu}{where}"
        return UserError(message, "build PyTorch from source, or use the CPU: gpu=none", 1)
    newest, oldest = here[0].release, here[-1].release
    releases = newest.version if newest == oldest else f"{oldest.version} to {newest.version}"
    libc = f" on {target.libc}" if target.libc else ""
    message = (
        f"no PyTorch for Python {target.python_minor or '?'}{libc} has kernels for {gpu}: "
        f"those are in PyTorch {releases}"
    )
    plain = [name for name in newest.pythons if not name.endswith("t")]
    middle = plain[-2] if len(plain) > 1 else plain[-1]  # the newest Python lacks other packages
    return UserError(message, wheels.ANOTHER_PYTHON.format(middle), 1)


def _amd(target: Target, found: list[Wheel]) -> Choice:
    rocm = [item for item in found if item.build.rocm and not target.wsl]
    if not rocm:
        where = "WSL" if target.wsl else target.platform
        why = f"PyTorch's own ROCm builds are not for {where}; AMD's are: {ROCM_ON_WINDOWS}"
        return _plain(target, found, "cpu", why)
    if target.gfx:
        known = [item for item in rocm if item.build.arch_list]
        fitting = [item for item in rocm if _gfx_fits(target.gfx, item)]
        if known and not fitting:
            why = f"No ROCm build is known to hold kernels for {_gpu(target)} ({target.gfx})."
            return _plain(target, found, "cpu", why)
        rocm = fitting or rocm
    have = target.rocm
    same = [item for item in rocm if have and _not_newer(item.build.rocm or "", have)]
    newest = [item for item in (same or rocm) if item.release == (same or rocm)[0].release]
    chosen = max(newest, key=lambda item: Version(item.build.rocm or "0"))
    if have is None:
        why = f"No ROCm release was found here: the newest build, {chosen.build.name}."
    elif same:
        why = f"ROCm {have} is installed: {chosen.build.name} is the newest build for it."
    else:
        why = f"ROCm {have} is older than every build: {chosen.build.name} needs a newer driver."
    return _choice(target, chosen, (why,))


def _gfx_fits(gfx: str, wheel: Wheel) -> bool:
    return not wheel.build.arch_list or gfx in wheel.build.arch_list


def _not_newer(build: str, have: str) -> bool:
    """By major and minor: patches of ROCm go together."""
    return Version(build).release[:2] <= Version(have).release[:2]


def _plain(target: Target, found: list[Wheel], name: str, why: str) -> Choice:
    builds = [item for item in found if item.build.name == name]
    if not builds:
        return _plain(target, found, "cpu", f"No {name} build fits this Python and system.")
    return _choice(target, builds[0], (why,))


def _why_plain(target: Target) -> str:
    if target.system == "Darwin":
        if target.vendor == "nvidia":
            return f"macOS has no driver for {_gpu(target)}: it is not used."
        if target.architecture == "arm64":
            return "macOS has one build; it drives Apple's GPU (MPS)."
        return "macOS on Intel: the CPU build; PyTorch 2.2 was the last for it."
    if target.vendor is None:
        return "No GPU is known here: the CPU build, without gigabytes of CUDA libraries."
    return f"{_gpu(target)} is not one that PyTorch drives: the CPU build."


def _choice(
    target: Target, wheel: Wheel, why: tuple[str, ...], needed: str | None = None
) -> Choice:
    newest = pytorch.newest()
    reasons = list(why)
    if wheel.release != newest and target.python_minor not in (None, *newest.pythons):
        fits = [item for item in pytorch.releases() if target.python_minor in item.pythons]
        last = (fits or [wheel.release])[-1].version
        reasons.append(
            f"Python {target.python}: {last} is the newest release that fits it; "
            f"PyTorch {newest.version} needs Python {newest.pythons[0]} or newer."
        )
    if target.python is None:
        pythons = wheel.release.pythons
        reasons.append(f"The Python is not known: {', '.join(pythons)} have wheels of it.")
    return Choice(wheel.release.newest_patch, wheel.build.name, tuple(reasons), needed)


def _has_xpu(target: Target) -> bool:
    name = (target.gpu or "intel").lower()
    if name == "intel":
        return True
    return gpus.find(name) is not None or any(word in name for word in XPU_NAMES)


def _gpu(target: Target) -> str:
    return target.gpu or f"the {(target.vendor or '').upper()} GPU"
