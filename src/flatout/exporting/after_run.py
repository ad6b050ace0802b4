"""`flatout run --export`: the export of a script that has run to its end as the user started it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from flatout.exporting import capturing
from flatout.running.one.foreground import Finished
from flatout.running.one.records import Processes

if TYPE_CHECKING:
    from flatout.nouns.exported import ExportResult

OUT = Path("exported")


def export(ended: Finished, python: str, tell: Callable[[str], None]) -> ExportResult:
    """The verified builds of the model that the run's agent has captured.

    python: the interpreter of the script. tell: called with each step. Raises
    UserError if there is no capture.
    """
    from flatout.exporting import export as building
    from flatout.nouns.exported import ExportSettings

    captured = capturing.of_run(ended)
    settings = ExportSettings(python=python, out=OUT)
    return building.run(captured.folder, settings, tell, notes=trained_with(ended))


def trained_with(ended: Finished) -> tuple[str, ...]:
    """What the plan changed in the training; it is not part of the exported model."""
    engaged = dict.fromkeys(
        boost for process in Processes(ended.records).all for boost in process.engaged
    )
    if not engaged:
        return ()
    return (
        f"it was trained with {', '.join(engaged)}; the script's own model was exported, and"
        " builds are compared with its results without these boosts: figures that the script"
        " printed may differ by rounding",
    )
