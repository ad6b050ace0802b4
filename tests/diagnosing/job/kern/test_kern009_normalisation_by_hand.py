from __future__ import annotations

import pytest

from diagnosing.job.kern.jobs import of, operator
from diagnosing.job.made import changes, findings, only, profile, saved_ms
from flatout.nouns.anatomy import Kind
from flatout.nouns.profile import Operator, Place, Profile
from machines.healthy import changed

CHECK = "normalisation-by-hand"
WHOLE, ROWS = "8x512x1024", "8x512x1"
FORWARD = {
    "aten::pow": WHOLE,
    "aten::mean": WHOLE,
    "aten::rsqrt": ROWS,
    "aten::mul": f"{WHOLE}, {ROWS}",
}
BACKWARD = ("MeanBackward1", "RsqrtBackward0")


def by_hand(
    forward: dict[str, str] = FORWARD, backward: tuple[str, ...] = BACKWARD, line: int = 12
) -> tuple[Operator, ...]:
    """Operators with the shapes of their inputs, 5 ms each, and autograd's for them."""
    place = Place("norm.py", line, "forward", "return x * torch.rsqrt(x.pow(2).mean(-1) + eps)")
    return (
        *(
            operator(name, Kind.ELEMENTWISE, 5.0, where=place, shapes=(shapes,))
            for name, shapes in forward.items()
        ),
        *(
            operator(name, Kind.PYTHON, 0.1, where=place, shapes=(), backward=True)
            for name in backward
        ),
    )


def job(*operators: Operator) -> Profile:
    return of(profile(job__models__0__compiled=False), *operators)


def test_normalisation_by_hand() -> None:
    rms = job(*by_hand())
    finding = only(CHECK, rms)
    assert (finding.code, finding.where) == ("KERN009", "norm.py:12")
    assert "F.rms_norm" in changes(finding)
    assert saved_ms(finding, rms) == pytest.approx(12.0, rel=0.01)
    assert findings(CHECK, changed(rms, job__models__0__compiled=True)) == ()


def test_where_a_mean_is_subtracted_it_is_a_layer_norm() -> None:
    layer = job(*by_hand({**FORWARD, "aten::sub": f"{WHOLE}, {ROWS}"}))
    assert "F.layer_norm" in changes(only(CHECK, layer))


def test_channels_divided_by_their_deviation() -> None:
    forward = {"aten::std": "64x256", "aten::div": "64x256, 256"}
    finding = only(CHECK, job(*by_hand(forward, ("MeanBackward1", "StdBackward0"))))
    assert finding.where == "norm.py:12"


@pytest.mark.parametrize(
    ("forward", "backward"),
    [
        pytest.param(FORWARD, (), id="an update of weights, data that is prepared"),
        pytest.param(FORWARD, ("MeanBackward0", "RsqrtBackward0"), id="the mean is a loss"),
        pytest.param(FORWARD, ("MeanBackward1",), id="roots of numbers that nothing trains"),
        pytest.param(
            {**FORWARD, "aten::mul": f"{WHOLE}, {WHOLE}"}, BACKWARD, id="no number for each row"
        ),
        pytest.param({**FORWARD, "aten::mul": f"{WHOLE}, "}, BACKWARD, id="one number for all"),
        pytest.param({**FORWARD, "aten::rms_norm": WHOLE}, BACKWARD, id="torch's own"),
        pytest.param(
            {"aten::mean": WHOLE, "aten::mul": f"{WHOLE}, {ROWS}"}, BACKWARD, id="no root"
        ),
    ],
)
def test_what_is_no_normalisation_by_hand(
    forward: dict[str, str], backward: tuple[str, ...]
) -> None:
    assert findings(CHECK, job(*by_hand(forward, backward))) == ()


def test_other_operators_of_the_function_do_not_count() -> None:
    rms = by_hand()
    far = by_hand({"aten::mul": f"{WHOLE}, {WHOLE}"}, (), line=40)
    dropout = by_hand({"aten::mul": "8x512x4096, 8x512x4096"}, (), line=13)
    other = job(*rms, *far, *dropout)
    assert saved_ms(only(CHECK, other), other) == pytest.approx(12.0, rel=0.01)


def test_the_optimizers_own_square_roots_in_the_same_function() -> None:
    step = Place("norm.py", 14, "forward", "optimizer.step()")
    adam = [
        operator(name, Kind.OPTIMIZER, 9.0, where=step, shapes=(shapes,))
        for name, shapes in (("aten::sqrt", "512x1024"), ("aten::div", "512x1024"))
    ]
    loss = by_hand({"aten::mean": "512x1024"}, ("MeanBackward1",))
    assert findings(CHECK, job(*loss, *adam)) == ()
    normalising = job(*by_hand(), *adam)
    assert saved_ms(only(CHECK, normalising), normalising) == pytest.approx(12.0, rel=0.01)
