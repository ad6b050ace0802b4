"""PyTorch as packaged by conda-forge: under other names, and for a CUDA major version."""

from __future__ import annotations

from flatout.installing import python_packages, shell
from flatout.installing.choice import Choice
from flatout.installing.target import Target
from flatout.nouns.errors import UserError


def lines(target: Target, choice: Choice) -> tuple[str, ...]:
    """Lines that install from conda-forge: PyTorch's own channel ended with 2.5."""
    reason = shell.why("PyTorch's own conda channel ended with 2.5; conda-forge builds it now")
    install = python_packages.lines(target, names(target, choice))
    if choice.cuda and target.driver is None:
        # conda refuses GPU builds if it finds no driver
        name = "CONDA_OVERRIDE_CUDA"
        if shell.is_powershell(target):
            install = (f"$env:{name} = '{choice.cuda}'", *install)
        else:
            install = tuple(f"{name}={choice.cuda} {line}" for line in install)
    return (reason, *install)


def names(target: Target, choice: Choice) -> tuple[str, ...]:
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
