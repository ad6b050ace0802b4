from __future__ import annotations

import dataclasses

import pytest

from diagnosing.job.kern.jobs import of, operator
from diagnosing.job.made import changes, findings, only, profile
from diagnosing.job.made_parts import BACKWARD
from flatout.nouns.anatomy import Kind
from flatout.nouns.profile import Place


def test_tensors_copied_for_layout() -> None:
    line = Place("model.py", 44, "forward", "x = x.permute(0, 2, 1).contiguous()")
    copy = operator("aten::copy_", Kind.CONVERSION, 12.0, where=line)
    finding = only("tensors-copied-for-layout", of(profile(), copy))
    assert (finding.code, finding.where) == ("KERN019", "model.py:44")
    assert "+ x = x.permute(0, 2, 1)" in changes(finding)
    moved = dataclasses.replace(copy, where=BACKWARD)
    assert findings("tensors-copied-for-layout", of(profile(), moved)) == ()
    cast = dataclasses.replace(copy, dtypes=("float", "c10::BFloat16"))
    assert findings("tensors-copied-for-layout", of(profile(), cast)) == (), "autocast's own"
    cheap = dataclasses.replace(copy, device_ms=0.5)
    assert findings("tensors-copied-for-layout", of(profile(), cheap)) == ()


@pytest.mark.parametrize(
    ("source", "told"),
    [("return self.layers(x).flatten(1)", False), ("y = self.up(x.mT.contiguous())", True)],
)
def test_copies_of_layers_on_the_same_line(source: str, told: bool) -> None:
    line = Place("model.py", 22, "forward", source)
    copy = operator("aten::copy_", Kind.CONVERSION, 12.0, where=line)
    layer = operator("aten::mm", Kind.MATMUL, 12.0, where=line)
    assert bool(findings("tensors-copied-for-layout", of(profile(), copy, layer))) is told
