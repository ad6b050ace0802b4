"""Batches are padded far beyond their longest row.

## What it sees

An input of the model in which the last (or first) quarter of the length or more, on average over
the watched batches, is the same whole number in all rows: numbers of words (batch x length), or
frames of features (batch x length x ...; also with the length last if lengths are given). A mask of
rows and length, the rows' lengths among the inputs, the `padding_idx` of an embedding, or rows of
different lengths that never contain the number show that it is padding. A model with weights for
this very length is left alone. The line named is the one that fixes the length: in the loader if
that makes the batch.

## Why it matters

Almost all operators treat the padding like words: their time grows with the length of the batch,
that of attention with its square.

## Cure

Pad each batch to its longest row, in `collate_fn` (`torch.nn.utils.rnn.pad_sequence`,
`DataCollatorWithPadding`); rows of similar length in a batch (sorted, or in buckets) leave even
less. Cut an input that is already padded: `ids[:, :longest]`. The gain: that share of the length,
of the time of all operators that work on the whole length, though attention saves more.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.rnn.pad_sequence.html
- https://huggingface.co/docs/transformers/pad_truncation
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_time, flow, savings
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile
from flatout_agent.wire import PaddingSeen

CHECK = Check(code="DATA011", severity=Severity.WARNING, since="0.2.0")
LEAST = 0.25
"""Share of the length beyond the longest row."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for the input."""
    seen = flow.of(profile)
    row = seen.padding if seen is not None else None
    if seen is None or row is None or row.padded < LEAST:
        return
    took, words = flow.unread_ms(profile, seen, row)
    saving = device_time.of_device(
        profile,
        took * row.padded,
        f"operators on the whole length take {words}; {units.share(row.padded)} of the length is "
        f"padding in all rows of a batch: {units.milliseconds(took * row.padded)}",
    )
    if not saving.worth:
        return
    length = row.length
    yield Diagnosis(
        title=f"batches are padded to {length}, though the longest row seen has {row.longest}",
        evidence=f"an input {row.shape} {'begins' if row.left else 'ends'} with {row.constant} in "
        f"all rows for {units.share(row.padded)} of its length{_mask(row)}; "
        f"{units.share(row.filled)} of the input is no padding",
        cure=Cure(
            "Pad each batch to its own longest row, in collate_fn; put rows of similar length "
            "into one batch.",
            savings.lines(_where(profile, row), *_change(row)),
        ),
        severity=saving.severity,
        where=_where(profile, row),
        saves_ms=saving.ms,
        reason=saving.reason,
    )


def _mask(row: PaddingSeen) -> str:
    return ", which a mask or lengths leave out" if row.masked else ""


def _change(row: PaddingSeen) -> tuple[str, str] | tuple[str, str, str]:
    """The line before and the lines after; each kind of frame needs its own code."""
    sizes = row.shape.split("x")
    if len(sizes) < 3:
        return (
            f"ids = torch.full((len(rows), {row.length}), {row.constant})",
            f"ids = pad_sequence(rows, batch_first=True, padding_value={row.constant}{_side(row)})",
        )
    second = sizes[1] == str(row.length)
    longest, before, after = ("len(row)", "", ", ...") if second else ("row.shape[-1]", "..., ", "")
    return (
        f"batch = torch.full((len(rows), {before}{row.length}{after}), {row.constant})",
        f"longest = max({longest} for row in rows)",
        f"batch = torch.full((len(rows), {before}longest{after}), {row.constant})",
    )


def _side(row: PaddingSeen) -> str:
    return ', padding_side="left"' if row.left else ""


def _where(profile: Profile, row: PaddingSeen) -> str | None:
    """Where the batch is made, else taken from a loader, else given to the model."""
    watched = profile.seen
    if row.where is not None or watched is None:
        return row.where
    return watched.loader_where or watched.model_where
