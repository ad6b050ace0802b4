from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from diagnosing.job import made
from diagnosing.job.host import sampled
from flatout.diagnosing.diagnose import diagnose_profile
from flatout.nouns.host_time import HostKind, HostLine
from flatout.nouns.place import Place
from flatout.nouns.profile import Profile
from flatout_agent import wire

CHECK = "work-beside-training"
STEP_MS = made.cpu_profile().anatomy.step_ms
LOOP = Place("train.py", 30, "train", "update(average, model)")
SOURCES = {
    40: "fresh = copy.deepcopy(model)",
    41: "new.data = decay * old.data + (1 - decay) * new.data",
    42: "values = torch.linalg.svdvals(p)",
    43: "average.load_state_dict(state)",
    44: "old.lerp_(new, 0.1)",
    45: "table[name] = o.quantile(0.99).item()",
    46: "g = p.grad.clone()",
    51: "average.update_parameters(model)",
    52: "self.log('loss', loss)",
}


def line(number: int, share: float, function: str = "update", **fields: Any) -> HostLine:
    place = Place("train.py", number, function, SOURCES.get(number, ""))
    fields.setdefault("chain", (LOOP,))
    fields.setdefault("callee", place.source)
    kind = fields.pop("kind", HostKind.TORCH)
    return HostLine(place, kind, share * STEP_MS, samples=round(share * 1000), **fields)


def row(number: int, *operators: str, source: str = "weights", **fields: Any) -> wire.BesideSeen:
    return wire.BesideSeen(f"train.py:{number}", source, 0.01, operators, **fields)


def profile(*lines: HostLine, rows: tuple[wire.BesideSeen, ...] = ()) -> Profile:
    backward = sampled.line(10, HostKind.TORCH, 0.3 * STEP_MS, callee="loss.backward()")
    base = sampled.profile(backward, *lines)
    flow = wire.FlowSeen(2, 500, 0.2, beside=rows, training=("train.py:10", "train.py:29"))
    assert base.seen is not None
    return dataclasses.replace(base, seen=dataclasses.replace(base.seen, flow=flow))


COPY = row(40, "aten.clone")
AVERAGE = row(41, "aten.mul", "aten.add")


def test_all_that_a_function_does_is_one_work_with_its_cure() -> None:
    job = profile(
        line(40, 0.15),
        line(41, 0.2),
        line(50, 0.05, kind=HostKind.PYTHON),
        rows=(COPY, AVERAGE),
    )
    finding = made.only(CHECK, job)
    assert (finding.code, finding.where) == ("HOST017", "train.py:41")
    assert finding.title.startswith("averaging the weights with copy.deepcopy in update() takes")
    assert "40%" in finding.title
    assert "AveragedModel" in finding.cure.text
    assert made.saved_ms(finding, job) == pytest.approx(0.7 * 0.4 * STEP_MS, rel=0.01)


@pytest.mark.parametrize(
    ("number", "known", "fields", "title", "cure"),
    [
        (40, row(40, "aten.clone", "aten.copy_"), {}, "copying the weights with copy.deep", "only"),
        (43, row(43, "aten.mul", "aten.copy_"), {}, "averaging the weights through state", "lerp_"),
        (42, row(42, "aten._linalg_svd"), {}, "computing singular values", "every 50 steps"),
        (45, row(45, "aten.sort", source="values", steers=True), {"hooked": True},
         "computing statistics in forward hooks", "Remove the hooks"),
        (46, row(46, "aten.clone", source="accumulated"), {"function": "train"},
         "cloning gradients", "adds to .grad"),
        (51, row(51, "aten.detach", "aten.mul", "aten.add", "aten.copy_", "aten.gt"), {},
         "averaging the weights one by one", "multi_avg_fn"),
        (47, row(47, "aten.mean", source="gradients"), {}, "computing statistics of gradients",
         "every 50 steps"),
    ],
)  # fmt: skip
def test_what_it_does(
    number: int, known: wire.BesideSeen, fields: dict[str, Any], title: str, cure: str
) -> None:
    finding = made.only(CHECK, profile(line(number, 0.3, **fields), rows=(known,)))
    assert finding.title.startswith(title)
    assert cure in finding.cure.text
    assert finding.where == f"train.py:{number}"


@pytest.mark.parametrize(
    "job",
    [
        profile(line(40, 0.3)),
        profile(line(40, 0.09), rows=(COPY,)),
        profile(line(45, 0.3), rows=(row(45, "aten.sort", source="values", steers=True),)),
        profile(line(44, 0.3), rows=(row(44, "aten.lerp_"),)),
        profile(line(51, 0.3), rows=(row(51, "aten._foreach_lerp_", "aten.add", "aten.gt"),)),
        profile(
            line(52, 0.2, kind=HostKind.LIBRARY, package="lightning"),
            rows=(row(52, "aten.clone", source="values"),),
        ),
        profile(line(40, 0.1), line(50, 0.3), rows=(COPY,)),
        profile(line(40, 0.3, loading=True), rows=(COPY,)),
    ],
    ids=[
        "unknown",
        "little",
        "may steer",
        "in place",
        "at once",
        "logged",
        "mostly something else",
        "loader",
    ],
)
def test_nothing_is_told(job: Profile) -> None:
    assert made.findings(CHECK, job) == ()


def test_of_a_function_that_serves_the_training_only_its_own_lines_count() -> None:
    job = profile(line(40, 0.2, "train", chain=()), line(12, 0.3, "train"), rows=(COPY,))
    finding = made.only(CHECK, job)
    assert made.saved_ms(finding, job) == pytest.approx(0.95 * 0.2 * STEP_MS, rel=0.01)


def test_giving_back_what_the_lines_have_made_is_part_of_the_work() -> None:
    known = row(46, "aten.clone", source="accumulated")
    lines = [
        line(46, 0.2, "train", chain=()),
        line(48, 0.1, "train", chain=(), callee="g"),
        line(49, 0.1, "train", chain=(), callee="other"),
    ]
    job = profile(*lines, rows=(known,))
    assert made.saved_ms(made.only(CHECK, job), job) == pytest.approx(0.27 * STEP_MS, rel=0.01)


def test_a_call_with_a_finding_of_its_own_is_not_told_twice() -> None:
    job = profile(line(40, 0.3), rows=(COPY,))
    assert job.seen is not None
    call = wire.CallSeen("torch.save", 1.0, 0.25 * STEP_MS / 1000, "train.py:40")
    seen = dataclasses.replace(job.seen, calls=(call,))
    assert made.findings(CHECK, dataclasses.replace(job, seen=seen)) == ()


def test_findings_about_the_same_lines_are_left_out() -> None:
    job = profile(
        line(40, 0.2), line(50, 0.12, kind=HostKind.LIBRARY, package="copy"), rows=(COPY,)
    )
    codes = [finding.code for finding in diagnose_profile(job)]
    assert "HOST017" in codes
    assert "HOST010" not in codes
