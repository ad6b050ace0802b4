"""The figures of one finished run, from the records of its processes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flatout.nouns.run_end import RunEnd
from flatout.running.one.records import (
    TOOK_HOLD,
    Process,
    Processes,
    backwards_and_children,
    without_steps,
)
from flatout_agent import wire

NO_AGENT = (
    "no Python process under this command loaded flatout's agent "
    "(python -I, -E and -S ignore PYTHONPATH): it ran as written"
)
NO_TORCH = "the program never imported torch: there was nothing to speed up or to measure"
NO_STEP = "no training step was seen: no optimizer of the program took a step"
NOT_FOLLOWED = "flatout found no folder that it can write to: the program ran as written"
DATA_PARALLEL = (
    "nn.DataParallel drives {} GPUs from one process; flatout run --gpus all tries a process on "
    "each, with the same batch"
)
CUT_SHORT = "the program ended before the agent could report (killed, or os._exit): no figures"


def run_end(
    records: Iterable[tuple[int, wire.Record]], ordered: Sequence[str], followed: bool = True
) -> RunEnd:
    """The figures of a run with the boosts `ordered`. followed: whether it had orders."""
    if not followed:
        return RunEnd(steps=0, notes=(NOT_FOLLOWED,))
    processes = Processes(records)
    everyone = processes.all
    trained = [process for process in everyone if process.ended is not None and process.ended.steps]
    endings = [process.ended for process in trained if process.ended is not None]
    peaks = [ending.peak_bytes for ending in endings if ending.peak_bytes is not None]
    waits = [ending.wait_s / ending.train_s for ending in endings if ending.train_s > 0]
    engaged, not_engaged = _boosts(trained or everyone, ordered)
    ranks = _by_rank(trained)
    return RunEnd(
        steps=sum(part.steps for part in ranks[min(ranks)]) if ranks else 0,
        samples_per_s=_samples_per_s(trained),
        peak_bytes=max(peaks, default=None),
        wait_share=sum(waits) / len(waits) if waits else None,
        engaged=engaged,
        not_engaged=not_engaged if trained else {},
        faults=processes.faults,
        notes=_notes(everyone, trained),
    )


def _by_rank(trained: Iterable[Process]) -> dict[int, list[wire.Ended]]:
    """The endings of each rank, whose processes ran one after the other (several trainings)."""
    ranks: dict[int, list[wire.Ended]] = {}
    for process in trained:
        if process.ended is not None:
            ranks.setdefault(process.rank, []).append(process.ended)
    return ranks


def _samples_per_s(trained: Sequence[Process]) -> float | None:
    """Ranks work at the same time, so their rates add up.

    Ranks whose rows flatout cuts all count the samples of the whole batch, so one of them counts.
    """
    total = 0.0
    ranks = _by_rank(trained)
    if any(process.ranks is not None and not process.ranks.native for process in trained):
        ranks = {rank: ranks[rank] for rank in sorted(ranks)[:1]}
    for parts in ranks.values():
        seconds = sum(part.train_s for part in parts)
        samples = sum(part.samples for part in parts)
        if seconds > 0:
            total += samples / seconds
    return total or None


def _boosts(
    processes: Sequence[Process], ordered: Sequence[str]
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Which boosts took hold in some process, and why the others did not."""
    engaged: list[str] = []
    reasons: dict[str, str] = {}
    for boost in ordered:
        notes = [process.notes[boost] for process in processes if boost in process.notes]
        if any(note.state in TOOK_HOLD for note in notes):
            engaged.append(boost)
        else:
            messages = (f"{note.state}: {note.reason}".rstrip(": ") for note in notes)
            reasons[boost] = "; ".join(dict.fromkeys(messages)) or "the agent did not get to it"
    return tuple(engaged), reasons


def _notes(everyone: Sequence[Process], trained: Sequence[Process]) -> tuple[str, ...]:
    if trained:
        devices = max(process.ended.data_parallel for process in trained if process.ended)
        return (DATA_PARALLEL.format(devices),) if devices > 1 else ()
    if not everyone:
        return (NO_AGENT,)
    if not any(process.torch for process in everyone):
        return (NO_TORCH,)
    if any(process.torch and process.ended is None for process in everyone):
        return (CUT_SHORT,)
    backwards, children = backwards_and_children(everyone)
    if backwards or children:
        activity, _ = without_steps(True, backwards, children)
        return (f"no training step was seen: the program {activity}",)
    return (NO_STEP,)
