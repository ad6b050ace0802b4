"""Much of what the model is given is padding.

## What it sees

A quarter or more of the model's inputs, on average over the first batches, that need not be
computed: numbers of words (batch x length) whose rows end with the same number, as far as the batch
could be cut to its longest row (on a CPU: parted into rows of about the same length).

## Why it matters

Almost all operators treat the padding like words: their time grows with the length of the batch,
that of attention with its square.

## Cure

Pad each batch to its longest row, in `collate_fn` (`torch.nn.utils.rnn.pad_sequence`,
`DataCollatorWithPadding`); rows of similar length in a batch (sorted, or in buckets) leave even
less. Cut an input that is already padded: `ids[:, :longest]`. The boost trim-padding does so
without an edit. The gain: that share of the time of all operators but the optimizer's, though
attention saves more.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.rnn.pad_sequence.html
- https://huggingface.co/docs/transformers/pad_truncation
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_time, operators, savings
from flatout.nouns import units
from flatout.nouns.anatomy import Kind
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="DATA011", severity=Severity.WARNING, since="0.2.0")
LEAST = 0.25
"""Share of the inputs."""
UNCERTAINTY = 0.4
"""Some operators do not grow with the length, attention grows with its square."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for the model with the most padding."""
    models = profile.job.models if profile.job is not None else ()
    padded = max((model.padded for model in models), default=0.0)
    if padded < LEAST:
        return
    computing = [row for row in profile.operators if row.kind is not Kind.OPTIMIZER]
    took = operators.total(profile, computing)
    saving = device_time.of_device(
        profile,
        took * padded,
        f"{units.share(padded)} of the {units.milliseconds(took)} in operators without the "
        f"optimizer's: {units.milliseconds(took * padded)}",
    )
    if not saving.worth:
        return
    seen = profile.seen
    where = (seen.loader_where or seen.model_where) if seen is not None else None
    yield Diagnosis(
        title=f"{units.share(padded)} of the model's inputs is padding",
        evidence=f"on average over the first batches, {units.share(padded)} of the inputs need not "
        "be computed: they end with the same number in all rows",
        cure=Cure(
            "Pad each batch to its own longest row, in collate_fn; put rows of similar length "
            "into one batch.",
            savings.lines(
                where,
                "ids = torch.full((len(rows), length), 0)",
                "ids = pad_sequence(rows, batch_first=True)",
            ),
        ),
        severity=saving.severity,
        where=where,
        boost=savings.boost(profile, "trim-padding"),
        saves_ms=saving.ms,
        reason=saving.reason,
        uncertainty=UNCERTAINTY,
    )
