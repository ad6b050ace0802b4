from __future__ import annotations

import dataclasses

import pytest

from diagnosing.job import made
from diagnosing.job.host import sampled
from flatout.nouns.anatomy import Kind
from flatout.nouns.finding import Severity
from flatout.nouns.host_time import HostKind
from flatout.nouns.profile import Operator

CHECK = "library-called-in-step"


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
    step_ms = made.cpu_profile().anatomy.step_ms
    profile = sampled.profile(
        sampled.line(20, HostKind.LIBRARY, 0.4 * step_ms, package=package, callee="f1_score(y, p)")
    )
    finding = made.only(CHECK, profile)
    assert (finding.code, finding.where, finding.boost) == ("HOST010", "train.py:20", None)
    assert title in finding.title
    assert cure in finding.cure.text
    assert made.saved_ms(finding, profile) == pytest.approx(0.36 * step_ms, rel=0.01)


def test_a_framework_that_runs_the_loop_is_not_a_call_to_leave_out() -> None:
    profile = sampled.profile(sampled.line(20, HostKind.LIBRARY, 60.0, package="lightning"))
    assert made.findings(CHECK, profile) == ()


@pytest.mark.parametrize(
    ("callee", "title"),
    [
        ("writer.add_histogram(...)", "writing histograms in tensorboard"),
        ("writer.add_image(...)", "reporting whole tensors in tensorboard"),
        ("writer.add_scalar(...)", "logging in tensorboard"),
    ],
)
def test_the_same_calls_of_one_function_are_one_finding(callee: str, title: str) -> None:
    step_ms = made.cpu_profile().anatomy.step_ms
    calls = [
        sampled.line(number, HostKind.LIBRARY, share * step_ms, package="tensorboard",
                     callee=callee)
        for number, share in ((20, 0.1), (21, 0.2))
    ]  # fmt: skip
    profile = sampled.profile(*calls)
    finding = made.only(CHECK, profile)
    assert finding.title.startswith(title)
    assert finding.where == "train.py:21"
    assert made.saved_ms(finding, profile) == pytest.approx(0.27 * step_ms, rel=0.01)


@pytest.mark.parametrize(
    ("package", "callee", "title", "cure"),
    [
        ("zlib", "zlib.compress(blob, 9)", "compressing in zlib.compress()", "lower level"),
        ("zlib", "zlib.decompress(blob)", "decompressing in zlib", "once, before training"),
        ("zlib", "zlib.crc32(blob)", "hashing in zlib", "checkpoint"),
        ("networkx", "nx.pagerank(G)", "analysing graphs in networkx, nx.pagerank(),", "once"),
        ("sympy", "F.subs(X, v)", "computing with symbols in sympy", "lambdify"),
        ("datetime", "dt.datetime.strptime(t)", "parsing or computing dates", "whole columns"),
        ("_strptime", "parse(t)", "parsing or computing dates", "whole columns"),
        ("psutil", "p.memory_full_info()", "asking for the state of the system", "memory_info()"),
        ("tracemalloc", "tracemalloc.take_snapshot()", "tracing memory", "Switch it off"),
        ("inspect", "inspect.stack()", "inspecting code", "_getframe"),
        ("rich", "console.print(table)", "drawing on the terminal", "less often"),
        ("pydantic", "Row(**fields)", "validating in pydantic", "before training"),
        ("yaml", "yaml.dump(state)", "reading or writing YAML", "CSafeDumper"),
        ("pickle", "pickle.dumps(all)", "serialising objects", "append what is new"),
        ("sklearn", "KMeans(8).fit_predict(x)", "fitting an estimator in sklearn", "less often"),
        ("scipy", "optimize.minimize(f, x0)", "solving equations", "last solution"),
        ("scipy", "stats.mstats.winsorize(g)", "computing statistics", "tensors"),
        ("PIL", "page.save(path)", "writing pictures in PIL", "less often"),
        ("pandas", "pd.to_datetime(text)", "parsing or computing dates", "once"),
        ("math", "math.sin(a)", "computing number by number in math.sin()", "torch.sin"),
        ("urllib", "opener.open(request)", "talking over the network", "background"),
    ],
)
def test_what_packages_are_called_for(package: str, callee: str, title: str, cure: str) -> None:
    step_ms = made.cpu_profile().anatomy.step_ms
    line = sampled.line(20, HostKind.LIBRARY, 0.4 * step_ms, package=package, callee=callee)
    finding = made.only(CHECK, sampled.profile(line))
    assert finding.title.startswith(title)
    assert cure in finding.cure.text


def test_of_a_package_that_runs_the_loop_what_logs_is_told() -> None:
    step_ms = made.cpu_profile().anatomy.step_ms
    calls = [
        sampled.line(20, HostKind.LIBRARY, 0.3 * step_ms, package="lightning", callee=callee)
        for callee in ("self.log(name, value)", "trainer.fit(model)")
    ]
    finding = made.only(CHECK, sampled.profile(*calls))
    assert finding.title.startswith("logging in lightning, self.log(),")
    assert "_foreach_norm" in finding.cure.text
    assert made.saved_ms(finding, sampled.profile(*calls)) == pytest.approx(0.27 * step_ms)


@pytest.mark.parametrize(
    ("calls", "share", "told"), [(2.0, 0.4, False), (80.0, 0.1, True), (0.0, 0.1, False)]
)
def test_a_few_values_logged_by_what_runs_the_loop_are_its_way_to_report(
    calls: float, share: float, told: bool
) -> None:
    step_ms = made.cpu_profile().anatomy.step_ms
    line = sampled.line(
        20, HostKind.LIBRARY, share * step_ms, package="lightning", callee="self.log(name, value)"
    )
    names = ("aten::clone", "aten::squeeze", "aten::to") if calls else ()
    operators = [
        Operator(name, Kind.CONVERSION, 5 * calls if name == "aten::to" else calls, 0.01,
                 where=line.where)
        for name in names
    ]  # fmt: skip
    logging = dataclasses.replace(sampled.profile(line), operators=tuple(operators))
    assert bool(made.findings(CHECK, logging)) is told


def test_an_evaluation_between_two_epochs_is_a_note() -> None:
    step_ms = made.cpu_profile().anatomy.step_ms
    line = sampled.line(
        69, HostKind.LIBRARY, 0.8 * step_ms, package="sklearn", callee="LogisticRegression(...)",
        steps=(17,),
    )  # fmt: skip
    profile = sampled.profile(line)
    finding = made.only(CHECK, profile)
    assert finding.severity is Severity.NOTE
    assert finding.title.endswith("in 1 of 20 steps")
    assert "in 1 of 20 steps" in finding.evidence
    assert made.saved_ms(finding, profile) < 0.1 * step_ms
