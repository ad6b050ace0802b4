"""HOST008 to HOST010, HOST018: Python, packages and texts that take time in a step."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from diagnosing.job import made
from diagnosing.job.host import sampled
from diagnosing.job.host.sampled import STEP_MS
from flatout.nouns.anatomy import Kind
from flatout.nouns.finding import Severity
from flatout.nouns.host_time import HostKind, HostLine
from flatout.nouns.place import Place
from flatout.nouns.profile import Operator

BETWEEN, OWN = "python-between-operators", "own-python-in-step"
LIBRARY, TEXT = "library-called-in-step", "tensors-turned-into-text"


def test_python_between_operators() -> None:
    profile = made.cpu_profile({Kind.PYTHON: 120.0}, seen__main_cpu_s=0.5)
    slow = made.changed(profile, job__models__0__compiled=False)
    finding = made.only(BETWEEN, slow)
    assert (finding.code, finding.boost) == ("HOST008", "compile")
    assert "1.2 cores busy of 8" in finding.evidence
    assert made.saved_ms(finding, slow) == pytest.approx(60, abs=0.5)
    collected = made.changed(slow, seen__gc_s=0.118)
    assert made.findings(BETWEEN, collected) == ()


def test_an_operators_call_takes_some_microseconds_whatever_the_machine_does_beside() -> None:
    busy = dataclasses.replace(
        made.cpu_profile({Kind.DISPATCH: 120.0}, seen__main_cpu_s=0.5),
        host=sampled.profile().host,
    )
    calls = sum(part.launches for part in busy.anatomy.parts)
    for finding in made.findings(BETWEEN, busy):
        assert made.saved_ms(finding, busy) <= 0.5 * 0.03 * calls


def test_the_loop_that_calls_most_of_them_is_the_place_and_is_vectorised_first() -> None:
    profile = made.cpu_profile({Kind.PYTHON: 120.0})
    loop = Place("model.py", 40, "forward", "h = torch.tanh(self.a(x[:, t]) + self.b(h))")
    operators = tuple(
        Operator(name, Kind.OTHER, 3000.0, 3.0, where=loop)
        for name in ("aten::addmm", "aten::tanh")
    )
    slow = dataclasses.replace(profile, operators=(*profile.operators, *operators))
    finding = made.only(BETWEEN, slow)
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
    finding = made.only(BETWEEN, slow)
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
    finding = made.only(BETWEEN, slow)
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
    assert bool(made.findings(BETWEEN, slow)) is told


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
    assert made.findings(BETWEEN, texts) == ()
    assert made.findings(BETWEEN, dataclasses.replace(profile, host=plain))


def test_the_function_with_its_costliest_line() -> None:
    profile = sampled.profile(
        sampled.line(14, HostKind.PYTHON, 0.2 * STEP_MS, function="mask", callee="mask[i][j]"),
        sampled.line(13, HostKind.PYTHON, 0.1 * STEP_MS, function="mask", callee="range(n)"),
        sampled.line(10, HostKind.TORCH, 0.5 * STEP_MS),
    )
    finding = made.only(OWN, profile)
    assert (finding.code, finding.where, finding.boost) == ("HOST009", "train.py:14", None)
    assert "mask()" in finding.title and "30%" in finding.title
    assert "train.py:14 mask[i][j]" in finding.evidence
    assert made.saved_ms(finding, profile) == pytest.approx(0.27 * STEP_MS, rel=0.01)


def test_what_slows_other_programs_is_not_the_scripts() -> None:
    """Time without a core is in no line, and the lines are those of a step without it."""
    profile = sampled.profile(
        sampled.line(14, HostKind.PYTHON, 0.5 * STEP_MS), step_ms=4 * STEP_MS, queued_ms=STEP_MS * 2
    )
    (finding,) = made.findings(OWN, profile)
    assert made.saved_ms(finding, profile) == pytest.approx(0.9 * 0.25 * STEP_MS, rel=0.01)


@pytest.mark.parametrize(
    ("share", "callee", "severity"),
    [
        (0.06, "self.own(x)", Severity.NOTE),
        (0.06, "sorted(rows)", Severity.WARNING),
        (0.12, "self.own(x)", Severity.WARNING),
    ],
)
def test_little_python_without_a_loop_is_a_note(
    share: float, callee: str, severity: Severity
) -> None:
    line = sampled.line(30, HostKind.PYTHON, share * STEP_MS, callee=callee, modelling=True)
    assert made.only(OWN, sampled.profile(line)).severity is severity


@pytest.mark.parametrize(
    "source", ["for env, action in zip(envs, actions):", "state, reward = env.step(action)"]
)
def test_environments_one_by_one(source: str) -> None:
    line = sampled.line(
        30, HostKind.PYTHON, 0.3 * STEP_MS, function="CartPole.step",
        chain=(Place("train.py", 5, "train", "rollout()"), Place("train.py", 20, "roll", source)),
    )  # fmt: skip
    finding = made.only(OWN, sampled.profile(line))
    assert finding.cure.text.startswith("Vectorise the environments that train.py:20 steps")


@pytest.mark.parametrize(
    ("steps", "few", "severity"),
    [
        ((3,), True, Severity.NOTE),
        ((3, 9), True, Severity.NOTE),
        ((3, 8, 13), True, Severity.WARNING),
        (tuple(range(20)), False, Severity.WARNING),
        (None, False, Severity.WARNING),
    ],
)
def test_what_was_seen_in_few_steps_promises_little_unless_it_comes_again(
    steps: tuple[int, ...] | None, few: bool, severity: Severity
) -> None:
    line = sampled.line(14, HostKind.PYTHON, 0.5 * STEP_MS, callee="sorted(rows)", steps=steps)
    profile = sampled.profile(line)
    finding = made.only(OWN, profile)
    assert finding.severity is severity
    assert (f"in {len(steps or ())} of 20 steps" in finding.title) is few
    much = made.saved_ms(finding, profile) > 0.1 * STEP_MS
    assert much is (severity is Severity.WARNING)


def test_few_stacks_in_few_short_steps_are_chance() -> None:
    line = sampled.line(14, HostKind.PYTHON, 0.5 * STEP_MS, samples=6, steps=(3, 9))
    assert "of 20 steps" not in made.only(OWN, sampled.profile(line)).title


@pytest.mark.parametrize(
    ("package", "title", "cure"),
    [
        ("sklearn", "computing metrics in sklearn", "once an epoch"),
        ("logging", "logging in logging", "Log less often"),
        ("torchmetrics", "computing metrics in torchmetrics", "validate_args=False"),
        ("copy", "copying objects in copy", "AveragedModel"),
        ("unheard_of", "f1_score() of unheard_of", "every 50 steps"),
    ],
)
def test_the_line_the_package_and_its_cure(package: str, title: str, cure: str) -> None:
    profile = sampled.profile(
        sampled.line(20, HostKind.LIBRARY, 0.4 * STEP_MS, package=package, callee="f1_score(y, p)")
    )
    finding = made.only(LIBRARY, profile)
    assert (finding.code, finding.where, finding.boost) == ("HOST010", "train.py:20", None)
    assert title in finding.title
    assert cure in finding.cure.text
    assert made.saved_ms(finding, profile) == pytest.approx(0.36 * STEP_MS, rel=0.01)


@pytest.mark.parametrize(
    ("callee", "told"),
    [("gc.collect()", False), ("gc.get_objects()", True)],
)
def test_collections_are_another_check_s(callee: str, told: bool) -> None:
    called = sampled.line(20, HostKind.LIBRARY, 0.4 * STEP_MS, package="gc", callee=callee)
    assert ("HOST010" in made.codes(sampled.profile(called))) == told


@pytest.mark.parametrize(
    ("callee", "title"),
    [
        ("writer.add_histogram(...)", "reporting whole tensors in tensorboard"),
        ("writer.add_image(...)", "reporting whole tensors in tensorboard"),
        ("writer.add_scalar(...)", "logging in tensorboard"),
    ],
)
def test_the_same_calls_of_one_function_are_one_finding(callee: str, title: str) -> None:
    calls = [
        sampled.line(number, HostKind.LIBRARY, share * STEP_MS, package="tensorboard",
                     callee=callee)
        for number, share in ((20, 0.1), (21, 0.2))
    ]  # fmt: skip
    profile = sampled.profile(*calls)
    finding = made.only(LIBRARY, profile)
    assert finding.title.startswith(title)
    assert finding.where == "train.py:21"
    assert made.saved_ms(finding, profile) == pytest.approx(0.27 * STEP_MS, rel=0.01)


@pytest.mark.parametrize(
    ("package", "callee", "title", "cure"),
    [
        ("zlib", "zlib.compress(blob, 9)", "compressing, encoding or hashing in zlib.compress()",
         "lower level"),
        ("zlib", "zlib.decompress(blob)", "decompressing in zlib", "once, before training"),
        ("networkx", "nx.pagerank(G)", "analysing graphs in networkx, nx.pagerank(),", "once"),
        ("sympy", "F.subs(X, v)", "computing with symbols in sympy", "lambdify"),
        ("_strptime", "parse(t)", "handling text or dates", "whole columns"),
        ("psutil", "p.memory_full_info()", "asking for the state of the system", "memory_info()"),
        ("tracemalloc", "tracemalloc.take_snapshot()", "inspecting or tracing", "stop()"),
        ("inspect", "inspect.stack()", "inspecting or tracing", "_getframe"),
        ("rich", "console.print(table)", "drawing on the terminal", "less often"),
        ("pydantic", "Row(**fields)", "validating in pydantic", "before training"),
        ("yaml", "yaml.dump(state)", "reading or writing YAML", "CSafeDumper"),
        ("pickle", "pickle.dumps(all)", "reading, writing or serialising", "what is new"),
        ("sklearn", "KMeans(8).fit_predict(x)", "fitting an estimator in sklearn", "less often"),
        ("scipy", "optimize.minimize(f, x0)", "solving equations", "last solution"),
        ("scipy", "stats.mstats.winsorize(g)", "computing statistics", "tensors"),
        ("PIL", "page.save(path)", "drawing or writing pictures", "less often"),
        ("pandas", "pd.to_datetime(text)", "handling text or dates", "once"),
        ("math", "math.sin(a)", "computing in Python, item by item in math.sin()", "torch.sin"),
        ("urllib", "opener.open(request)", "talking over the network", "background"),
    ],
)  # fmt: skip
def test_what_packages_are_called_for(package: str, callee: str, title: str, cure: str) -> None:
    line = sampled.line(20, HostKind.LIBRARY, 0.4 * STEP_MS, package=package, callee=callee)
    finding = made.only(LIBRARY, sampled.profile(line))
    assert finding.title.startswith(title)
    assert cure in finding.cure.text


def test_of_a_package_that_runs_the_loop_what_logs_is_told() -> None:
    calls = [
        sampled.line(20, HostKind.LIBRARY, 0.3 * STEP_MS, package="lightning", callee=callee)
        for callee in ("self.log(name, value)", "trainer.fit(model)")
    ]
    finding = made.only(LIBRARY, sampled.profile(*calls))
    assert finding.title.startswith("logging in lightning, self.log(),")
    assert "_foreach_norm" in finding.cure.text
    assert made.saved_ms(finding, sampled.profile(*calls)) == pytest.approx(0.27 * STEP_MS)


@pytest.mark.parametrize(
    ("calls", "share", "told"), [(2.0, 0.4, False), (80.0, 0.1, True), (0.0, 0.1, False)]
)
def test_a_few_values_logged_by_what_runs_the_loop_are_its_way_to_report(
    calls: float, share: float, told: bool
) -> None:
    line = sampled.line(
        20, HostKind.LIBRARY, share * STEP_MS, package="lightning", callee="self.log(name, value)"
    )
    names = ("aten::clone", "aten::squeeze", "aten::to") if calls else ()
    operators = [
        Operator(name, Kind.CONVERSION, 5 * calls if name == "aten::to" else calls, 0.01,
                 where=line.where)
        for name in names
    ]  # fmt: skip
    logging = dataclasses.replace(sampled.profile(line), operators=tuple(operators))
    assert bool(made.findings(LIBRARY, logging)) is told


def test_an_evaluation_between_two_epochs_is_a_note() -> None:
    line = sampled.line(
        69, HostKind.LIBRARY, 0.8 * STEP_MS, package="sklearn", callee="LogisticRegression(...)",
        steps=(17,),
    )  # fmt: skip
    profile = sampled.profile(line)
    finding = made.only(LIBRARY, profile)
    assert finding.severity is Severity.NOTE
    assert finding.title.endswith("in 1 of 20 steps")
    assert "in 1 of 20 steps" in finding.evidence
    assert made.saved_ms(finding, profile) < 0.1 * STEP_MS


def text(source: str, share: float = 0.5, **fields: Any) -> HostLine:
    """A line of the model's below which torch formats tensors."""
    fields.setdefault("formats", True)
    line = sampled.line(51, HostKind.TORCH, share * STEP_MS, modelling=True, **fields)
    return dataclasses.replace(line, where=Place("model.py", 51, "forward", source))


@pytest.mark.parametrize(
    ("source", "cure"),
    [
        ('log.debug(f"{self.label}: in {x} out {out}")', "ask for the level first"),
        ('self.logger.info("out %s", out)', "ask for the level first"),
        ("print(out)", "Print every 50 steps"),
        ("self.history = str(out)", "shape, dtype or mean"),
    ],
)
def test_the_line_and_its_cure(source: str, cure: str) -> None:
    profile = sampled.profile(text(source))
    finding = made.only(TEXT, profile)
    assert (finding.code, finding.where, finding.boost) == ("HOST018", "model.py:51", None)
    assert "tensors are turned into text" in finding.title and "50%" in finding.title
    assert cure in finding.cure.text
    assert made.saved_ms(finding, profile) == pytest.approx(0.45 * STEP_MS, rel=0.01)


def test_a_line_that_mostly_computes_is_no_text() -> None:
    line = text("print(model(x))", 0.1)
    computing = dataclasses.replace(line, ms=0.5 * STEP_MS, formats=False)
    assert made.findings(TEXT, sampled.profile(line, computing)) == ()


SILENT = [
    # little, by chance, the loader's, torch's
    (OWN, sampled.line(14, HostKind.PYTHON, 0.2)),
    (OWN, sampled.line(14, HostKind.PYTHON, 90.0, samples=2)),
    (OWN, sampled.line(14, HostKind.PYTHON, 90.0, loading=True)),
    (OWN, sampled.line(14, HostKind.TORCH, 90.0)),
    # what runs the loop is not a call to leave out
    (LIBRARY, sampled.line(20, HostKind.LIBRARY, 60.0, package="lightning")),
    # little, no text, for what runs the loop, the loader's
    (TEXT, text("print(loss)", 0.02)),
    (TEXT, text("h = self.layers(x)", formats=False)),
    (TEXT, text("self.log('loss', loss)", framework="lightning")),
    (TEXT, text("print(x)", loading=True)),
]


@pytest.mark.parametrize(("check", "line"), SILENT)
def test_nothing_is_told(check: str, line: HostLine) -> None:
    assert made.findings(check, sampled.profile(line)) == ()
