"""The number of steps of a run, if an earlier run of the same program shows it."""

from __future__ import annotations

from pathlib import Path

from flatout.watching.recording import last_frame

MOST_RUNS = 20


def steps_before(run_folder: Path, program: str) -> int | None:
    """Steps that this program, with these arguments, took when it last ended without an error.

    run_folder: that of the run that begins now; folders of earlier runs are beside it.
    """
    try:
        folders = sorted(path for path in run_folder.parent.iterdir() if path != run_folder)
    except OSError:
        return None
    for folder in folders[: -MOST_RUNS - 1 : -1]:
        frame = last_frame(folder)
        for job in frame.jobs if frame is not None else ():
            if job.program == program and job.exit_code == 0 and job.step:
                return job.step
    return None
