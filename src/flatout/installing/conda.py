"""An environment.yml for a Target."""

from __future__ import annotations

from dataclasses import replace

from flatout.installing import conda_packages, pytorch, shell
from flatout.installing.choice import Choice
from flatout.installing.target import Target
from flatout.knowledge.compat import pytorch as releases

NAME = "training"


def environment(target: Target, mirror: str | None = None) -> tuple[str, Choice]:
    """The file's text and its choice. Raises UserError if no build fits."""
    target = replace(target, manager="conda", free_threaded=False)
    python = target.python or pytorch.python_for(pytorch.choose(target))
    target = replace(target, python=".".join(python.split(".")[:2]))
    choice = pytorch.choose(target)
    lines = [
        *(shell.why(reason) for reason in choice.why),
        *_needs(target, choice),
        f"name: {NAME}",
        "channels:",
        "  - conda-forge",
        "  - nodefaults",
        "dependencies:",
        f'  - "python={target.python}"',
        *_packages(target, choice, mirror),
    ]
    return "\n".join(lines) + "\n", choice


def _needs(target: Target, choice: Choice) -> list[str]:
    create = "conda env create -f environment.yml"
    if choice.cuda and target.driver is None:
        # conda refuses GPU builds if it finds no driver
        create = f"CONDA_OVERRIDE_CUDA={choice.cuda} {create}"
    lines = [shell.remark(f"create: {create}"), shell.remark(f"then: conda activate {NAME}")]
    if choice.driver_needed:
        text = f"driver {choice.driver_needed} or newer is needed: flatout env install"
        lines.append(shell.remark(text))
    return lines


def _packages(target: Target, choice: Choice, mirror: str | None) -> list[str]:
    if choice.build == "cpu" or choice.cuda:
        return [f'  - "{name}"' for name in conda_packages.names(target, choice)]
    index = releases.index_url(choice.build, mirror)
    return [
        shell.why(f"conda-forge has no {choice.build} build of PyTorch; pip installs it"),
        "  - pip",
        "  - pip:",
        f'      - "--extra-index-url {index}"',
        *(f'      - "{name}"' for name in _pinned(choice)),
    ]


def _pinned(choice: Choice) -> list[str]:
    """Requirements with the build in the version: the index has each release for several GPUs."""
    first, *rest = pytorch.requirements(choice)
    return [f"{first}+{choice.build}", *rest]
