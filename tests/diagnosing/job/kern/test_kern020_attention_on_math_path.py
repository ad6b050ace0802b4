from __future__ import annotations

import dataclasses

from diagnosing.job.kern.jobs import attention, of, operator
from diagnosing.job.made import findings, only, profile, saved_ms
from flatout.nouns.anatomy import Kind
from flatout.nouns.profile import Place


def test_attention_on_the_math_path() -> None:
    line = Place("attention.py", 9, "forward", "y = F.scaled_dot_product_attention(q, k, v, mask)")
    fallback = operator("aten::_scaled_dot_product_attention_math", Kind.ATTENTION, 1.0, where=line)
    job = of(profile(), fallback, *attention(where=line))
    finding = only("attention-on-math-path", job)
    assert (finding.code, finding.where) == ("KERN020", "attention.py:9")
    assert "float32" in finding.cure.text
    flash = dataclasses.replace(fallback, name="aten::_scaled_dot_product_flash_attention")
    assert findings("attention-on-math-path", of(profile(), flash, *attention())) == ()


def test_other_dropouts_of_the_layer_do_not_count() -> None:
    line = Place("model.py", 39, "forward", "h = self.body(h)")
    fallback = operator("aten::_scaled_dot_product_attention_math", Kind.ATTENTION, 1.0, where=line)
    parts = (fallback, *attention(where=line))
    alone = of(profile(), *parts)
    dropout = operator(
        "aten::mul", Kind.ELEMENTWISE, 30.0, where=line, shapes=("4x512x512, 4x512x512",)
    )
    layer = of(profile(), *parts, dropout)
    told = only("attention-on-math-path", layer), only("attention-on-math-path", alone)
    assert saved_ms(told[0], layer) == saved_ms(told[1], alone)
