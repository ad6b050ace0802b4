"""flatout memory."""

from __future__ import annotations

from typing import Annotated

import typer

from flatout.commands import (
    SCRIPT_CONTEXT,
    _options,
    duration,
    look_here,
    print_document,
    user_command,
)
from flatout.nouns.errors import UserError

PLACE = ("Understand", 6)
CONTEXT = SCRIPT_CONTEXT

Gpus = Annotated[
    int | None,
    typer.Option(
        "--gpus", metavar="N", min=1, help="GPUs in each node.  [default: those of this machine]"
    ),
]
Nodes = Annotated[int, typer.Option("--nodes", metavar="N", min=1, help="Number of nodes.")]
PerGpu = Annotated[
    str | None,
    typer.Option(
        "--memory",
        metavar="SIZE",
        help="Memory of each GPU: 80GB.  [default: that of this machine's GPU, or its RAM]",
    ),
]
Limit = Annotated[str, typer.Option("--limit", metavar="TIME", help="Time for the script's steps.")]


def command(
    ctx: typer.Context,
    gpus: Gpus = None,
    nodes: Nodes = 1,
    memory: PerGpu = None,
    limit: Limit = "10m",
    python: _options.Python = None,
    as_json: _options.Json = False,
) -> int:
    """Say whether a training script fits into the memory of its devices.

    Runs four steps of the script on a quarter and on half of its batch, on the device that it uses
    here, and counts parameters, gradients, optimizer state and activations. From these it computes
    what each GPU needs with the whole batch divided among them. Files that the script saves are
    discarded.

    Examples:
      flatout memory train.py
      flatout memory --gpus 8 --memory 80GB train.py --batch-size 512
      flatout memory --gpus 8 --nodes 2 --memory 80GB train.py

    Exit code: 0 if it fits, 1 if it does not, 2 if nothing could be measured.
    """
    from flatout.measuring import memory as measuring
    from flatout.reporting import memory as report
    from flatout.running.one import folder

    resolved = user_command("memory", ctx.args, python)
    limit_s = duration("--limit", limit)
    count, size = _devices(gpus, memory, nodes, python)
    devices = measuring.devices(count, nodes, size)
    fit = measuring.fit(resolved, devices, limit_s, folder.fresh("memory"))
    if as_json:
        print_document(report.document(fit))
    else:
        report.show_fit(fit)
    return 0 if fit.chosen is not None else 1


def _devices(
    gpus: int | None, memory: str | None, nodes: int, python: str | None
) -> tuple[int, int]:
    """GPUs per node and bytes of each; those of this machine if they are not given."""
    from flatout.nouns import units

    size = None
    if memory is not None:
        size = int(units.size_bytes(memory) or 0)
        if not size:
            raise UserError(f"--memory {memory!r} is not a size", "write it as --memory 80GB")
    if gpus is not None and size is not None:
        return gpus, size
    machine = look_here(python)
    sizes = [gpu.memory_bytes for gpu in machine.gpus or () if gpu.memory_bytes]
    if gpus is None and not sizes and machine.memory.total_bytes:
        return 1, size or machine.memory.total_bytes
    if size is None and not sizes:
        raise UserError(
            "flatout sees no GPU here, so the memory of each GPU is not known",
            f"give it: flatout memory --gpus {gpus or 8} --memory 80GB train.py",
        )
    return gpus or max(1, len(sizes)), size or min(sizes)
