"""From a capture folder to measured, verified candidates, the choice and the artefact folder."""

from __future__ import annotations

from pathlib import Path

from flatout.nouns.exported import ExportResult, ExportSettings


def run(capture: Path, settings: ExportSettings) -> ExportResult:
    """Build, verify and time the captured model with every backend; keep the best.

    Raises UserError where the folder holds no capture, or where its model does not repeat itself.
    """
    raise NotImplementedError
