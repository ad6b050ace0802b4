"""flatout report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flatout.commands import _options
from flatout.nouns.errors import UserError
from flatout.nouns.ranks import RANKS_TRIAL

if TYPE_CHECKING:
    from flatout.nouns.ranks import Scaling

PLACE = ("Understand", 4)
USAGE = "[OPTIONS] [RUN]"
RUNS = Path(".flatout/runs")
HISTORY = "history.jsonl"
PAGE = "history.html"


def command(
    run: Annotated[
        Path | None,
        typer.Argument(metavar="RUN", hidden=True, help="The folder of a run."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write the page here.  [default: in the run]"),
    ] = None,
    as_json: _options.Json = False,
) -> int:
    """Show the history of a run: its curves, figures and alerts, as a page.

    RUN is the folder of a run, .flatout/runs/...; without it, the last run of this folder. Every
    flatout run keeps a history.

    Examples:
      flatout report
      flatout report .flatout/runs/20261124T091500Z-run
    """
    from flatout.reporting.history import page, screen, series, words
    from flatout.watching.replay import Replay

    folder = run or _last_run()
    history = series.of(Replay(folder).frames())
    if history is None:
        raise UserError(f"{folder} holds no history of a job", "flatout run train.py makes one", 1)
    trial = ranks_trial(folder if folder.is_dir() else folder.parent)
    path = out or (folder if folder.is_dir() else folder.parent) / PAGE
    page.write(history, path, trial)
    if as_json:
        typer.echo(json.dumps(words.document(history, str(path), trial), indent=2))
    else:
        screen.shown(history, path)
    return 0


def ranks_trial(folder: Path) -> Scaling | None:
    """The trial of several ranks before this folder's run, or None if there was none."""
    from flatout.nouns.decoding import decode
    from flatout.nouns.ranks import Scaling

    try:
        raw = json.loads((folder / RANKS_TRIAL).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return decode(Scaling, raw)


def _last_run() -> Path:
    """The newest run of this folder."""
    histories = sorted(RUNS.glob(f"*/{HISTORY}"), key=lambda path: path.stat().st_mtime)
    if not histories:
        raise UserError(
            "no run of this folder has a history", "flatout run train.py, or name a run's folder", 1
        )
    return histories[-1].parent
