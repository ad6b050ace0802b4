from __future__ import annotations

import pytest

from diagnosing.job.kern.jobs import DOUBLE, of, operator
from diagnosing.job.made import changes, findings, only, profile, saved_ms
from flatout.nouns.anatomy import Kind
from flatout_agent import wire


def test_float64() -> None:
    job = of(
        profile(job__models__0__dtype="float64"),
        operator("aten::mm", Kind.MATMUL, 60.0, dtypes=DOUBLE),
        operator("aten::add", Kind.ELEMENTWISE, 10.0, dtypes=DOUBLE),
    )
    finding = only("float64-computed", job)
    assert (finding.code, finding.where, finding.boost) == ("KERN001", "model.py:30", None)
    assert "17.6 TFLOP/s in fp64 and 18.9 in fp32" in finding.gain.reason
    assert saved_ms(finding, job) == pytest.approx(60 * (1 - 17.6 / 18.9) + 5, rel=0.01)
    assert "model.float()" in changes(finding)


def test_float64_of_a_loss_alone_is_not_told() -> None:
    tiny = operator("aten::mul", Kind.ELEMENTWISE, 0.4, dtypes=DOUBLE)
    assert findings("float64-computed", of(profile(), tiny)) == ()
    mixed = operator("aten::mm", Kind.MATMUL, 60.0, dtypes=("long", "float"))
    assert findings("float64-computed", of(profile(), mixed)) == ()


def test_float64_of_single_numbers_is_not_told() -> None:
    numbers = operator("aten::to", Kind.CONVERSION, 20.0, dtypes=DOUBLE, shapes=("1",))
    assert findings("float64-computed", of(profile(), numbers)) == ()
    scalars = operator("aten::_to_copy", Kind.CONVERSION, 20.0, dtypes=DOUBLE, shapes=())
    assert findings("float64-computed", of(profile(), scalars)) == (), "of no dimension"
    some = operator("aten::to", Kind.CONVERSION, 20.0, dtypes=DOUBLE, shapes=("1", "64x3"))
    assert only("float64-computed", of(profile(), some)).code == "KERN001"


def test_where_float64_enters() -> None:
    flow = wire.FlowSeen(
        steps=2,
        operators=300,
        operators_s=0.01,
        doubles=(
            wire.DoubleSeen("batch", None, '["x"]', 40, 0.01),
            wire.DoubleSeen("aten.lift_fresh", "loss.py:7", "", 12, 0.001),
        ),
    )
    products = operator("aten::mm", Kind.MATMUL, 60.0, dtypes=DOUBLE)
    finding = only("float64-computed", of(profile(seen__flow=flow), products))
    assert finding.where == "train.py:80", "the line of the loader"
    assert 'the batch\'s field ["x"] is float64 at train.py:80' in finding.evidence
    assert "from Python or NumPy values at loss.py:7" in finding.evidence
    assert "# loss.py:7" in changes(finding)
    assert "astype(numpy.float32)" in changes(finding)


def test_a_default_dtype_of_float64() -> None:
    flow = wire.FlowSeen(
        steps=2,
        operators=300,
        operators_s=0.01,
        doubles=(wire.DoubleSeen("parameter", "model.py:30", "", 40, 0.01),),
        default_double=True,
    )
    products = operator("aten::mm", Kind.MATMUL, 60.0, dtypes=DOUBLE)
    job = of(profile(seen__flow=flow, seen__double_where="train.py:5"), products)
    finding = only("float64-computed", job)
    assert finding.where == "train.py:5"
    assert "default dtype is float64" in finding.evidence
