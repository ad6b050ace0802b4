from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from diagnosing.job import made
from diagnosing.job.host import sampled
from flatout.nouns.anatomy import Kind
from flatout.nouns.host_time import HostKind
from flatout.nouns.place import Place
from flatout.nouns.profile import Operator, Profile

CHECK = "operators-in-python-loop"


def profile(source: str, *operators: tuple[str, float, float], **fields: Any) -> Profile:
    """Line 30 calls these operators: name, calls, milliseconds of all."""
    place = Place("train.py", 30, "clip", source)
    step_ms = made.cpu_profile().anatomy.step_ms
    line = dataclasses.replace(
        sampled.line(30, HostKind.TORCH, 0.3 * step_ms, **fields), where=place
    )
    base = sampled.profile(line)
    added = [Operator(name, Kind.OTHER, calls, ms, where=place) for name, calls, ms in operators]
    return dataclasses.replace(base, operators=(*base.operators, *added))


def test_item_for_each_parameter() -> None:
    clipping = profile(
        "total += p.grad.norm().item() ** 2",
        ("aten::linalg_vector_norm", 120.0, 1.0),
        ("aten::item", 120.0, 0.1),
        ("aten::_local_scalar_dense", 120.0, 0.1),
    )
    finding = made.only(CHECK, clipping)
    assert (finding.code, finding.where, finding.boost) == ("HOST011", "train.py:30", None)
    assert finding.title.startswith("values are read from tensors one by one")
    assert any("clip_grad_norm_" in command for command in finding.cure.commands)
    assert "aten::item 120 times" in finding.evidence


def test_a_mask_filled_by_elements() -> None:
    filling = profile(
        "mask[i, j] = 1.0", ("aten::select", 4096.0, 4.0), ("aten::fill_", 2048.0, 2.0)
    )
    finding = made.only(CHECK, filling)
    assert "elements are accessed" in finding.title
    assert "whole tensor" in finding.cure.text


def test_few_large_operators_or_those_of_the_model_are_no_loop() -> None:
    assert made.findings(CHECK, profile("y = a @ b", ("aten::mm", 2.0, 20.0))) == ()
    assert made.findings(CHECK, profile("y = a @ b", ("aten::mm", 100.0, 80.0))) == ()
    repeated = ("aten::as_strided", 24.0, 0.1), ("aten::repeat", 1.0, 0.3), ("aten::view", 4.0, 0.1)
    assert made.findings(CHECK, profile("wide = x.repeat(400, 1)", *repeated)) == ()
    model = profile("h = cell(x[:, t], h)", ("aten::addmm", 120.0, 1.0), modelling=True)
    assert made.findings(CHECK, model) == ()


AVERAGING = (("aten::detach", 96.0, 0.4), ("aten::mul", 64.0, 0.3), ("aten::copy_", 32.0, 0.3))


@pytest.mark.parametrize(
    ("source", "once", "told"),
    [
        ("average.update_parameters(model)", ("aten::add_", 1.0, 0.01), False),
        ("nn.utils.clip_grad_norm_(net.parameters(), 1.0)", ("aten::stack", 1.0, 0.01), False),
        ("nn.utils.clip_grad_norm_(p, 1.0)", ("aten::stack", 32.0, 0.1), True),
        ("update(average, model)", ("aten::add_", 1.0, 0.01), True),
    ],
)
def test_functions_of_torch_that_go_through_all_weights(
    source: str, once: tuple[str, float, float], told: bool
) -> None:
    assert bool(made.findings(CHECK, profile(source, *AVERAGING, once))) is told
