"""Lines that install and remove Python packages in a Target's interpreter, by its manager."""

from __future__ import annotations

from dataclasses import replace

from flatout.installing import shell
from flatout.installing.choice import Choice
from flatout.installing.target import Target
from flatout.nouns.errors import UserError

SYSTEM_FOLDERS = ("/usr/bin/", "/bin/")
"""Interpreters in these folders belong to the distribution, which forbids pip there (PEP 668)."""
OWN_ENVIRONMENT = ".venv"
TRITONS = {
    "cu": ("triton",),
    "rocm": ("pytorch-triton-rocm", "triton-rocm"),
    "xpu": ("pytorch-triton-xpu", "triton-xpu"),
}
"""Prefix of a build's name -> its Triton packages."""


def lines(
    target: Target,
    install: tuple[str, ...] = (),
    remove: tuple[str, ...] = (),
    options: tuple[str, ...] = (),
) -> tuple[str, ...]:
    """Lines that first remove, then install; `options` apply to the installation."""
    if target.manager == "conda":
        return _conda(target, install, remove, options)
    commands = []
    if remove:
        commands.append(f"{_tool(target, 'uninstall')} {' '.join(remove)}")
    if install:
        words = [*(shell.quote(target, word) for word in install), *options]
        commands.append(f"{_tool(target, 'install')} {' '.join(words)}")
    return tuple(commands)


def other_triton(target: Target, build: str) -> tuple[str, ...]:
    """Triton of another vendor's torch: both install a folder `triton` and break each other."""
    installed_build = (target.user_has_torch or "").partition("+")[2]
    packages = (
        names
        for kind, names in TRITONS.items()
        if installed_build.startswith(kind) and kind not in build
    )
    return () if build == "cpu" else next(packages, ())


def environment(target: Target) -> tuple[tuple[str, ...], Target]:
    """Lines that create a virtual environment if the interpreter must be left alone, and the
    Target with that environment.
    """
    belongs_to_system = (
        target.system == "Linux"
        and (target.executable or "").startswith(SYSTEM_FOLDERS)
        and target.virtual_environment is False
        and not target.container
        and target.manager != "conda"
    )
    if not belongs_to_system:
        return (), target
    new_target = replace(
        target,
        executable=f"{OWN_ENVIRONMENT}/bin/python",
        virtual_environment=True,
        user_has_torch=None,
    )
    if target.manager == "uv":
        creation = f"uv venv --python {shell.quote(target, target.executable or 'python3')}"
        creation = f"{creation} {OWN_ENVIRONMENT}"
    else:
        creation = f"{shell.python(target)} -m venv {OWN_ENVIRONMENT}"
    why = "this Python belongs to the system, which forbids installing into it"
    return (shell.why(why), creation), new_target


def conda_pytorch(target: Target, choice: Choice) -> tuple[str, ...]:
    """Lines that install from conda-forge: PyTorch's own channel ended with 2.5."""
    reason = shell.why("PyTorch's own conda channel ended with 2.5; conda-forge builds it now")
    install = lines(target, _conda_names(target, choice))
    if choice.cuda and target.driver is None:
        # conda refuses GPU builds if it finds no driver
        name = "CONDA_OVERRIDE_CUDA"
        if shell.is_powershell(target):
            install = (f"$env:{name} = '{choice.cuda}'", *install)
        else:
            install = tuple(f"{name}={choice.cuda} {line}" for line in install)
    return (reason, *install)


def _conda_names(target: Target, choice: Choice) -> tuple[str, ...]:
    """The packages to ask conda for. conda-forge lags PyTorch by weeks, so no exact version is
    named; its builds for one CUDA major run on every driver of that major.
    """
    major = choice.cuda_major
    if major is not None:
        bound = f"pytorch-gpu<={choice.version}" if major == "11" else "pytorch-gpu"
        return (bound, f"cuda-version={major}", "torchvision")
    if choice.build == "cpu":
        return ("pytorch" if target.system == "Darwin" else "pytorch-cpu", "torchvision")
    raise UserError(
        f"conda-forge has no PyTorch for {choice.build}",
        "use pip in the conda environment: --manager pip",
        1,
    )


def _tool(target: Target, verb: str) -> str:
    """The start of a pip or uv line; pip asks before it removes, uv does not."""
    if target.manager == "uv":
        python = target.executable
        return f"uv pip {verb}" + (f" --python {shell.quote(target, python)}" if python else "")
    return f"{shell.python(target)} -m pip {verb}" + (" -y" if verb == "uninstall" else "")


def _conda(
    target: Target, install: tuple[str, ...], remove: tuple[str, ...], options: tuple[str, ...]
) -> tuple[str, ...]:
    """Lines for conda, on the interpreter's environment if that is known."""
    # Python is in the environment's bin on Linux and macOS, at its top on Windows.
    path = target.executable or ""
    if target.system == "Windows":
        prefix = path.replace("/", "\\").rpartition("\\")[0]
    else:
        prefix = path.rpartition("/bin/")[0]
    where = f"-p {shell.quote(target, prefix)} " if prefix else ""
    commands = []
    if remove:
        commands.append(f"conda remove -y {where}{' '.join(remove)}")
    if install:
        quoted = [
            f'"{word}"' if set(word) & set("<>*|, ") else shell.quote(target, word)
            for word in install
        ]
        words = [*quoted, *options]
        commands.append(f"conda install -y {where}-c conda-forge {' '.join(words)}")
    return tuple(commands)
