"""PyTorch as conda-forge packs it: under other names, and for a CUDA major."""

from __future__ import annotations

from flatout.installing import python_packages, shell
from flatout.installing.choice import Choice
from flatout.installing.target import Target
from flatout.nouns.errors import UserError


def lines(target: Target, choice: Choice) -> tuple[str, ...]:
    """From conda-forge: PyTorch's own channel ended with 2.5."""
    own = shell.remark("why: PyTorch's own conda channel ended with 2.5; conda-forge builds it now")
    found = python_packages.lines(target, names(target, choice))
    if choice.cuda and target.driver is None:
        # conda looks at the driver and refuses GPU builds where it sees none
        name = "CONDA_OVERRIDE_CUDA"
        if shell.is_powershell(target):
            found = (f"$env:{name} = '{choice.cuda}'", *found)
        else:
            found = tuple(f"{name}={choice.cuda} {line}" for line in found)
    return (own, *found)


def names(target: Target, choice: Choice) -> tuple[str, ...]:
    """What conda is asked for. conda-forge follows PyTorch by weeks, so that no exact version is
    asked for; its builds for one CUDA major run on every driver of that major.
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
