from __future__ import annotations

import dataclasses

import pytest

from diagnosing.job import made
from diagnosing.job.host import sampled
from flatout.nouns.anatomy import Kind
from flatout.nouns.host_time import HostKind
from flatout.nouns.place import Place
from flatout.nouns.profile import Operator


def test_python_between_operators() -> None:
    profile = made.cpu_profile({Kind.PYTHON: 120.0}, seen__main_cpu_s=0.5)
    slow = made.changed(profile, job__models__0__compiled=False)
    finding = made.only("python-between-operators", slow)
    assert (finding.code, finding.boost) == ("HOST008", "compile")
    assert "1.2 cores busy of 8" in finding.evidence
    assert made.saved_ms(finding, slow) == pytest.approx(60, abs=0.5)
    assert made.findings("python-between-operators", made.cpu_profile()) == ()
    collected = made.changed(slow, seen__gc_s=0.118)
    assert made.findings("python-between-operators", collected) == ()


def test_an_operators_call_takes_some_microseconds_whatever_the_machine_does_beside() -> None:
    busy = dataclasses.replace(
        made.cpu_profile({Kind.DISPATCH: 120.0}, seen__main_cpu_s=0.5),
        host=sampled.profile().host,
    )
    calls = sum(part.launches for part in busy.anatomy.parts)
    for finding in made.findings("python-between-operators", busy):
        assert made.saved_ms(finding, busy) <= 0.5 * 0.03 * calls


def test_the_loop_that_calls_most_of_them_is_the_place_and_is_vectorised_first() -> None:
    profile = made.cpu_profile({Kind.PYTHON: 120.0})
    loop = Place("model.py", 40, "forward", "h = torch.tanh(self.a(x[:, t]) + self.b(h))")
    operators = tuple(
        Operator(name, Kind.OTHER, 3000.0, 3.0, where=loop)
        for name in ("aten::addmm", "aten::tanh")
    )
    slow = dataclasses.replace(profile, operators=(*profile.operators, *operators))
    finding = made.only("python-between-operators", slow)
    assert finding.where == "model.py:40"
    assert "6,000 of them in a Python loop at model.py:40 in forward()" in finding.evidence
    assert finding.cure.text.startswith("Vectorise the loop")
    assert "+ model.compile()" in finding.cure.commands


@pytest.mark.parametrize(("trained", "informs"), [(False, True), (True, False)])
def test_a_loop_in_no_module_is_not_compiled(trained: bool, informs: bool) -> None:
    profile = made.cpu_profile({Kind.DISPATCH: 120.0})
    loop = Place("train.py", 14, "sheet", "tile = (s.clamp(0, 1) * 255).numpy()")
    operators = [
        Operator(name, Kind.OTHER, 3000.0, 3.0, where=loop) for name in ("aten::clamp", "aten::mul")
    ]
    if trained:
        operators.append(Operator("MulBackward0", Kind.OTHER, 1.0, 0.1, where=loop, backward=True))
    parts = [dataclasses.replace(part, launches=3000.0) for part in profile.anatomy.parts]
    slow = dataclasses.replace(
        profile,
        anatomy=dataclasses.replace(profile.anatomy, parts=tuple(parts)),
        operators=(*profile.operators, *operators),
        host=sampled.profile().host,
    )
    finding = made.only("python-between-operators", slow)
    assert (finding.where, finding.boost) == ("train.py:14", None)
    assert finding.cure.text.startswith("Call them once for all")
    assert ("less often" in finding.cure.text) is informs
    assert "compile" not in " ".join((finding.cure.text, *finding.cure.commands))


def of_line(source: str, kind: Kind, *names: str, layer: str = "") -> tuple[Operator, ...]:
    """Operators that one line of a model calls 3,000 times each; layer: called once."""
    line = Place("model.py", 31, "forward", source)
    operators = [Operator(name, kind, 3000.0, 3.0, where=line) for name in names]
    if layer:
        operators.append(Operator(layer, Kind.REDUCTION, 1.0, 0.1, where=line))
    return tuple(operators)


def test_the_optimizers_own_loop_is_no_loop_of_the_scripts() -> None:
    profile = made.cpu_profile({Kind.PYTHON: 120.0})
    update = of_line("optimizer.step()", Kind.OPTIMIZER, "aten::mul_", "aten::addcdiv_")
    slow = dataclasses.replace(profile, operators=update)
    finding = made.only("python-between-operators", slow)
    assert finding.where != "model.py:31"
    assert "in a Python loop" not in finding.evidence


@pytest.mark.parametrize(
    ("layer", "often", "told"),
    [("aten::gru", 1.0, False), ("aten::gru", 6.0, True), ("aten::gru_cell", 1.0, True)],
)
def test_time_steps_that_torch_goes_through_are_not_called_from_python(
    layer: str, often: float, told: bool
) -> None:
    profile = made.cpu_profile({Kind.PYTHON: 120.0})
    steps = of_line("h, _ = self.gru(x)", Kind.OTHER, "aten::addmm", "aten::tanh", layer=layer)
    steps = (*steps[:-1], dataclasses.replace(steps[-1], calls=often))
    slow = dataclasses.replace(profile, operators=steps)
    assert bool(made.findings("python-between-operators", slow)) is told


def test_operators_for_texts_of_tensors_are_no_dispatch_of_the_models() -> None:
    profile = made.cpu_profile({Kind.DISPATCH: 120.0}, seen__main_cpu_s=0.5)
    profile = dataclasses.replace(
        profile,
        anatomy=dataclasses.replace(
            profile.anatomy,
            parts=tuple(dataclasses.replace(p, launches=3000.0) for p in profile.anatomy.parts),
        ),
        operators=of_line('log.debug(f"{x}")', Kind.OTHER, "aten::select", "aten::item"),
    )
    line = sampled.line(31, HostKind.TORCH, 120.0, formats=True, modelling=True)
    line = dataclasses.replace(line, where=Place("model.py", 31, "forward", 'log.debug(f"{x}")'))
    host = sampled.profile(line).host
    texts = dataclasses.replace(profile, host=host)
    plain = sampled.profile(dataclasses.replace(line, formats=False)).host
    assert made.findings("python-between-operators", texts) == ()
    assert made.findings("python-between-operators", dataclasses.replace(profile, host=plain))
