"""flatout compare."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flatout.commands import _options, print_document, threshold
from flatout.nouns.errors import UserError
from flatout.nouns.profile import Profiled

PLACE = ("Understand", 2)
USAGE = "[OPTIONS] BEFORE AFTER"

Before = Annotated[Path, typer.Argument(metavar="BEFORE", hidden=True)]
After = Annotated[Path, typer.Argument(metavar="AFTER", hidden=True)]
FailAbove = Annotated[
    str | None,
    typer.Option(
        metavar="SHARE",
        help="Exit with 1 if AFTER is slower by more than this share: 10% or 0.1.",
    ),
]


def command(
    before: Before,
    after: After,
    fail_above: FailAbove = None,
    as_json: _options.Json = False,
) -> int:
    """Show what changed between two profiles.

    BEFORE and AFTER are profiles in JSON, folders of profiled runs, or traces of torch.profiler. A
    step is compared part by part, then by kernels, lines, settings and findings, and its time per
    sample if both batch sizes are known.

    Examples:
      flatout profile --json train.py > before.json
      flatout compare before.json after.json
      flatout compare before.pt.trace.json.gz after.pt.trace.json.gz
      flatout compare --fail-above 10% main.json branch.json
    """
    from flatout.reporting.profile import compare, compare_screen

    limit = threshold("--fail-above", fail_above) if fail_above is not None else None
    comparison = compare.compare(_profile(before), _profile(after))
    if as_json:
        print_document(compare.document(comparison))
    else:
        compare_screen.compared(comparison, (str(before), str(after)))
    if limit is None:
        return 0
    if comparison.ratio is None:
        raise UserError("the profiles have no step times to compare", "record them again")
    return int(1 / comparison.ratio - 1 > limit)


def _profile(path: Path) -> Profiled:
    """The profile at `path`; a trace is analysed first."""
    from flatout.profiling.trace import recognising
    from flatout.reporting.profile import document

    if path.is_dir() and (path / "profile.json").exists():
        path = path / "profile.json"
    if recognising.holds_trace(path):
        from flatout.diagnosing.diagnose import diagnose_profile
        from flatout.profiling import recording

        recorded = recording.from_traces([path])
        findings = diagnose_profile(recorded.profile)
        return Profiled(recorded.profile, findings, recorded.notes)
    return document.load(path)
