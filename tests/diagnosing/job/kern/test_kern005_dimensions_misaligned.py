from __future__ import annotations

import dataclasses

from diagnosing.job.kern.jobs import HALF, of, operator
from diagnosing.job.made import changes, findings, only, profile
from flatout.nouns.anatomy import Kind
from flatout.nouns.profile import Place


def test_dimension_of_the_vocabulary() -> None:
    logits = operator(
        "aten::mm",
        Kind.TENSOR_CORES,
        30.0,
        shapes=("8192x768, 768x50257",),
        dtypes=HALF,
        where=Place("gpt.py", 88, "forward", "logits = self.head(x)"),
    )
    finding = only("dimensions-misaligned", of(profile(), logits))
    assert (finding.code, finding.where) == ("KERN005", "gpt.py:88")
    assert "50257 = 8 * 6282 + 1" in finding.evidence
    assert "size = 50264" in changes(finding)
    padded = dataclasses.replace(logits, shapes=("8192x768, 768x50304",))
    assert findings("dimensions-misaligned", of(profile(), padded)) == ()
    rows = dataclasses.replace(logits, shapes=("8191x768, 768x50304",))
    assert findings("dimensions-misaligned", of(profile(), rows)) == (), "rows may be of any number"
    small = dataclasses.replace(logits, shapes=("8192x768, 768x10",))
    assert findings("dimensions-misaligned", of(profile(), small)) == ()
