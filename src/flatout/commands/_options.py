"""Options of several commands, or that would crowd a command's own file. Not a command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

PlanToRun = Annotated[
    Path | None,
    typer.Option(
        "--plan", metavar="FILE", help="Use this plan.  [default: flatout.toml, if it exists]"
    ),
]
NoPlan = Annotated[
    bool, typer.Option("--no-plan", help="Ignore flatout.toml and run the script unchanged.")
]
Live = Annotated[
    bool, typer.Option("--live", help="Tune the script while it trains, and write the plan.")
]
StepsLeft = Annotated[
    int | None,
    typer.Option(
        "--steps-left",
        metavar="N",
        min=1,
        help="Steps of the whole run. Boosts that cannot pay off in that many are not tried.",
    ),
]
Exact = Annotated[
    bool, typer.Option("--exact", help="Use only boosts that keep the numerical precision.")
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        "--only",
        metavar="BOOST",
        help="Use only this boost. Repeatable.",
    ),
]
Skip = Annotated[
    list[str] | None,
    typer.Option(
        "--skip",
        metavar="BOOST",
        help="Do not use this boost. Repeatable.",
    ),
]
Python = Annotated[
    str | None,
    typer.Option(
        "--python",
        metavar="PYTHON",
        help="Python interpreter of the training script.  [default: the active one]",
    ),
]
Ranks = Annotated[
    int | None,
    typer.Option(
        "--ranks",
        metavar="N",
        min=1,
        help="Train on N CPU cores or GPUs; each takes its rows of every batch.",
    ),
]
Nodes = Annotated[
    str | None,
    typer.Option(
        "--nodes",
        metavar="auto|N",
        help="Train on all nodes where Slurm, Kubernetes or another engine started this.",
    ),
]
NodesWait = Annotated[
    str,
    typer.Option("--nodes-wait", metavar="TIME", help="How long to wait for the other nodes."),
]
Gpus = Annotated[
    str | None,
    typer.Option(
        "--gpus",
        metavar="all|N|0,1",
        help="Train on these NVIDIA GPUs, one process on each.",
    ),
]
Restarts = Annotated[
    int,
    typer.Option(
        "--restarts",
        metavar="N",
        min=0,
        help="Restart all ranks, at most N times, when one is killed or lost.",
    ),
]
NoTrial = Annotated[
    bool,
    typer.Option(
        "--no-trial", help="Skip the trial of whether the ranks are faster and learn the same."
    ),
]
ScaleBatch = Annotated[
    bool,
    typer.Option(
        "--scale-batch",
        help="Let Accelerate, Trainer or Lightning give each rank a whole batch; training changes.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
JsonBeside = Annotated[
    bool,
    typer.Option(
        "--json", help="Print one JSON document on stdout, and the script's output on stderr."
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only warnings.")]
