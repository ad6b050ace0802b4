"""From sampled stacks to lines: whose code it is, by frames, operators and imports."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from flatout.nouns.anatomy import Anatomy, Kind, Part
from flatout.nouns.host_time import HostKind, HostTime
from flatout.nouns.place import Place
from flatout.nouns.profile import Operator
from flatout.profiling import host_lines, host_parts
from flatout_agent import wire

SOURCES = {
    8: "for x, y in loader:",
    9: "loss = step(x)",
    14: "    total = sum(values)",
    15: "    order = np.sort(a)",
    12: "    ranked = sorted(rows, key=lambda row: row[0])",
    13: "    x = mm(a, b)",
    16: "    x = a @ b",
    17: "    f1 = f1_score(y, p)",
    18: "    time.sleep(0.01)",
}


def user(line: int, function: str = "step") -> wire.FrameSeen:
    text = SOURCES.get(line, "")
    begin = text.find("= ") + 2 if "= " in text else len(text) - len(text.lstrip())
    return wire.FrameSeen("train.py", line, function, "", begin, line, len(text))


def library(package: str, function: str) -> wire.FrameSeen:
    return wire.FrameSeen(f"{package}.py", 1, function, package)


MAIN = user(9, "<module>")


def host(*stacks: tuple[Sequence[wire.FrameSeen], float, float]) -> wire.HostSeen:
    """Stacks with their milliseconds, and how many of them were idle."""
    frames = list(dict.fromkeys(frame for stack, _, _ in stacks for frame in stack))
    return wire.HostSeen(
        steps=10,
        step_s=0.1,
        frames=tuple(frames),
        stacks=tuple(
            wire.StackSeen(tuple(map(frames.index, stack)), 20, ms / 1000, idle_ms / 1000)
            for stack, ms, idle_ms in stacks
        ),
        idle_known=True,
    )


def lines_of(
    *stacks: tuple[Sequence[wire.FrameSeen], float, float], operators: Sequence[Operator] = ()
) -> HostTime:
    return host_lines.host_time(
        host(*stacks),
        operators or [Operator("aten::mm", Kind.MATMUL, 1.0, 1.0, where=Place("train.py", 99))],
        lambda _, line: SOURCES.get(line, ""),
        lambda _: {"np": "numpy", "time": "time", "torch": "torch"},
    )


def test_the_deepest_line_of_the_users_with_the_chain_that_led_there() -> None:
    (line,) = lines_of(([MAIN, user(14)], 12.0, 0.0)).lines
    assert (line.where.file, line.where.line, line.kind) == ("train.py", 14, HostKind.PYTHON)
    assert line.callee == "sum(values)"
    assert [place.line for place in line.chain] == [9]
    assert line.ms == pytest.approx(12.0)


def test_a_line_that_calls_an_operator_is_torchs_as_far_as_the_operators_go() -> None:
    place = Place("train.py", 13)
    operators = [Operator("aten::mm", Kind.MATMUL, 1.0, 4.0, where=place)]
    host_time = lines_of(([MAIN, user(13)], 12.0, 0.0), operators=operators)
    shares = {line.kind: line.ms for line in host_time.lines}
    assert shares[HostKind.TORCH] == pytest.approx(4.0, abs=0.1)
    assert shares[HostKind.PYTHON] == pytest.approx(8.0, abs=0.1)


def multiplied(ms: float, line: int, backward: bool = False) -> Operator:
    place = Place("train.py", line) if line else None
    return Operator("aten::mm", Kind.MATMUL, 1.0, ms, where=place, backward=backward)


@pytest.mark.parametrize(
    ("line", "operators", "kind"),
    [
        (13, [multiplied(9.0, 13)], HostKind.TORCH),  # the rest is calling them
        (16, [multiplied(9.0, 99), multiplied(9.0, 16, backward=True)], HostKind.PYTHON),
        (16, [multiplied(9.0, 0)], HostKind.TORCH),  # without any lines nothing is claimed
        (16, [multiplied(2.0, 16)], HostKind.TORCH),  # slow while others take the cores
    ],
)
def test_whose_a_line_with_operators_is(
    line: int, operators: list[Operator], kind: HostKind
) -> None:
    (found,) = lines_of(([MAIN, user(line)], 12.0, 0.0), operators=operators).lines
    assert (found.kind, found.ms) == (kind, pytest.approx(12.0))


@pytest.mark.parametrize(
    ("callees", "package"),
    [
        ([library("sklearn", "f1_score"), library("numpy", "unique")], "sklearn"),
        ([library("torch", "Tensor.__repr__"), library("numpy", "array2string")], "numpy"),
    ],
)
def test_a_packages_time_is_that_of_the_first_one_below_the_user_and_torch(
    callees: list[wire.FrameSeen], package: str
) -> None:
    (line,) = lines_of(([MAIN, user(17), *callees], 5.0, 0.0)).lines
    assert (line.kind, line.package) == (HostKind.LIBRARY, package)


def test_a_package_is_known_by_its_imported_name() -> None:
    (line,) = lines_of(([MAIN, user(15)], 5.0, 0.0)).lines
    assert (line.kind, line.package, line.callee) == (HostKind.LIBRARY, "numpy", "np.sort(a)")


def test_what_a_name_held_is_freed_by_torch() -> None:
    freed = wire.FrameSeen("train.py", 9, "step", "", 0, 9, 4)
    (line,) = lines_of(([MAIN, freed], 5.0, 0.0)).lines
    assert (line.kind, line.callee) == (HostKind.TORCH, "loss")


def test_what_a_function_of_the_users_leaves_behind_is_freed_by_torch() -> None:
    called, builtin = user(14), user(12)
    key = wire.FrameSeen("train.py", 12, "step.<lambda>", "")
    host_time = lines_of(
        ([MAIN, called], 5.0, 0.0),
        ([MAIN], 2.0, 0.0),
        ([MAIN, builtin, key], 1.0, 0.0),
        ([MAIN, builtin], 3.0, 0.0),
    )
    kinds = {(line.where.line, line.ms): line.kind for line in host_time.lines}
    assert kinds[9, 2.0] is HostKind.TORCH
    assert kinds[12, 3.0] is HostKind.PYTHON


def test_code_of_a_model_that_torch_has_called_is_torchs() -> None:
    module = library("torch", "Module._call_impl")
    (line,) = lines_of(([MAIN, module, library("transformers", "forward")], 5.0, 0.0)).lines
    assert line.kind is HostKind.TORCH


def test_time_without_cpu_is_waiting() -> None:
    sleeping = lines_of(([MAIN, user(18)], 10.0, 9.5)).lines
    assert (sleeping[0].kind, sleeping[0].ms) == (HostKind.WAITING, pytest.approx(9.5))
    now_and_then = lines_of(([MAIN, user(14)], 10.0, 2.0)).lines
    assert [line.kind for line in now_and_then] == [HostKind.PYTHON]


def test_flags_of_loader_model_and_optimizer() -> None:
    fetching = library("torch", "_BaseDataLoaderIter.__next__")
    module = library("torch", "Module._call_impl")
    update = library("torch", "Optimizer.profile_hook_step.wrapper")
    host_time = lines_of(
        ([MAIN, fetching, user(14, "__getitem__")], 1.0, 0.0),
        ([user(8, "<module>"), fetching], 4.0, 0.0),
        ([MAIN, module, user(14, "forward")], 2.0, 0.0),
        ([MAIN, update, user(14, "step")], 3.0, 0.0),
    )
    flags = {
        line.ms: (line.loading, line.collating, line.modelling, line.updating)
        for line in host_time.lines
    }
    assert flags == {
        1.0: (True, False, False, False),
        2.0: (False, False, True, False),
        3.0: (False, False, False, True),
        4.0: (True, True, False, False),
    }
    assert host_time.total_ms(HostKind.PYTHON) == pytest.approx(5.0)
    assert host_time.total_ms(HostKind.PYTHON, loading=True) == pytest.approx(1.0)


def test_a_hook_is_told_from_the_forward_pass_around_it() -> None:
    module = library("torch", "Module._call_impl")
    host_time = lines_of(
        ([MAIN, module, user(13, "Net.forward"), module, user(14, "Stats.make.hook")], 1.0, 0.0),
        ([MAIN, module, user(13, "Net.forward"), user(14, "embed")], 2.0, 0.0),
        ([MAIN, user(14, "metric")], 3.0, 0.0),
    )
    assert {line.ms: line.hooked for line in host_time.lines} == {1.0: True, 2.0: False, 3.0: False}


def test_torchs_part_of_tensorboard_is_tensorboards() -> None:
    file = "/lib/torch/utils/tensorboard/writer.py"
    writer = wire.FrameSeen(file, 9, "SummaryWriter.add_histogram", "torch")
    counting = library("numpy", "histogram")
    host_time = lines_of(([MAIN, writer], 2.0, 0.0), ([MAIN, writer, counting], 5.0, 0.0))
    kinds = {(line.kind, line.package) for line in host_time.lines}
    assert kinds == {(HostKind.LIBRARY, "tensorboard")}


def test_other_threads_are_apart() -> None:
    seen = host(([MAIN, user(14)], 12.0, 0.0))
    stacks = (*seen.stacks, wire.StackSeen((1,), 5, 0.03, thread="watcher"))
    host_time = host_lines.host_time(
        wire.HostSeen(10, 0.1, seen.frames, stacks), (), lambda *_: "", lambda _: {}
    )
    (thread,) = host_time.threads
    assert (thread.name, str(thread.where)) == ("watcher", "train.py:14")
    assert thread.cpu_ms == pytest.approx(30.0)
    assert len(host_time.lines) == 1


def test_what_is_between_operators_is_divided_up_and_still_the_whole() -> None:
    anatomy = Anatomy("cpu", 100.0, (Part(Kind.MATMUL, 60.0), Part(Kind.PYTHON, 40.0)), 6)
    host_time = lines_of(
        ([MAIN, user(14)], 20.0, 0.0), ([MAIN, user(15)], 5.0, 0.0), ([MAIN, user(18)], 4.0, 4.0)
    )
    parts = {part.kind: part.ms for part in host_parts.divided(anatomy, host_time).parts}
    assert sum(parts.values()) == pytest.approx(100.0)
    assert parts[Kind.USER] == pytest.approx(20.0)
    assert parts[Kind.LIBRARY] == pytest.approx(5.0)
    assert parts[Kind.BLOCKED] == pytest.approx(4.0)
    assert parts[Kind.DISPATCH] == pytest.approx(11.0)


def test_operators_give_way_to_what_the_stacks_show() -> None:
    anatomy = Anatomy(
        "cpu",
        100.0,
        (Part(Kind.MATMUL, 70.0), Part(Kind.PYTHON, 10.0), Part(Kind.WAIT_DATA, 20.0)),
        6,
    )
    divided = host_parts.divided(anatomy, lines_of(([MAIN, user(14)], 45.0, 0.0)))
    assert {part.kind: part.ms for part in divided.parts} == {
        Kind.MATMUL: pytest.approx(35.0),
        Kind.USER: pytest.approx(45.0),
        Kind.WAIT_DATA: pytest.approx(20.0),
    }


def test_the_host_never_takes_more_than_the_step() -> None:
    anatomy = Anatomy("cpu", 100.0, (Part(Kind.MATMUL, 90.0), Part(Kind.PYTHON, 10.0)), 6)
    divided = host_parts.divided(anatomy, lines_of(([MAIN, user(14)], 500.0, 0.0)))
    assert sum(part.ms for part in divided.parts) == pytest.approx(100.0)


WRAPPER = library("torch", "Optimizer.profile_hook_step.wrapper")
ADAM = library("torch", "Adam.step")
LOOP = library("lightning", "Precision._wrap_closure")
OWN_STEP = wire.FrameSeen("sam.py", 30, "SAM.step", "", 8, 30, 17)


@pytest.mark.parametrize(
    ("frames", "updating"),
    [
        ([WRAPPER, ADAM], True),
        ([WRAPPER, ADAM, library("torch", "_single_tensor_adam")], True),
        ([WRAPPER, ADAM, library("contextlib", "inner"), library("torch", "adam")], True),
        ([WRAPPER, ADAM, LOOP, user(14, "Net.on_before_optimizer_step")], False),
        ([WRAPPER, ADAM, LOOP, library("torch", "Tensor.backward")], False),
        ([WRAPPER, library("torch", "decorate_context"), ADAM, user(14, "train.closure")], False),
        ([WRAPPER, ADAM, LOOP, WRAPPER, ADAM], True),
        ([WRAPPER, ADAM, user(14, "Own.__torch_dispatch__")], True),
        ([WRAPPER, user(14, "report_after")], False),
        ([WRAPPER, user(14, "Muon.step"), user(13, "orthogonal")], True),
        ([WRAPPER, OWN_STEP, user(13, "train.gradients")], False),
        ([WRAPPER, OWN_STEP], True),
        ([WRAPPER, library("bnb", "Adam8.step"), library("triton", "run")], True),
        ([WRAPPER, library("bnb", "Adam8.step"), LOOP, user(14, "hook")], False),
        ([user(14, "Own.step")], False),
    ],
)
def test_only_the_optimizers_own_step_updates(
    frames: Sequence[wire.FrameSeen], updating: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SOURCES, 30, "        closure()")
    lines = lines_of(([MAIN, *frames], 5.0, 0.0)).lines
    assert {line.updating for line in lines} == {updating}


def test_generated_code_belongs_to_what_the_line_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SOURCES, 17, "    f1 = np.f1_score(y, p)")
    generated, inner = library("python", "argmap_1"), library("_strptime", "_strptime")
    for callee in (generated, inner):
        (line,) = lines_of(([MAIN, user(17), callee], 5.0, 0.0)).lines
        assert (line.kind, line.package) == (HostKind.LIBRARY, "numpy")
    monkeypatch.setitem(SOURCES, 17, "    f1 = self.score(y, p)")
    (line,) = lines_of(([MAIN, user(17), generated, library("networkx", "f")], 5.0, 0.0)).lines
    assert line.package == "networkx"


def test_a_call_of_torchs_by_name_is_torchs_though_its_operators_have_no_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(SOURCES, 13, "    x = torch.sparse.mm(a, b)")
    (line,) = lines_of(([MAIN, user(13, "forward")], 5.0, 0.0)).lines
    assert line.kind is HostKind.TORCH


def seen_in(steps: tuple[int, ...] | None, *stack: wire.FrameSeen) -> HostTime:
    """Two stacks of one line, the first one in step 0."""
    sampled = host((stack, 5.0, 0.0))
    (first,) = sampled.stacks
    both = (
        dataclasses.replace(first, steps=(0,)),
        dataclasses.replace(first, steps=steps),
    )
    return host_lines.host_time(
        dataclasses.replace(sampled, stacks=both),
        [],
        lambda _, line: SOURCES.get(line, ""),
        lambda _: {},
    )


@pytest.mark.parametrize(("steps", "together"), [((0, 4), (0, 4)), ((7,), (0, 7)), (None, None)])
def test_a_line_knows_the_steps_of_all_its_stacks(
    steps: tuple[int, ...] | None, together: tuple[int, ...] | None
) -> None:
    (line,) = seen_in(steps, MAIN, user(17), library("sklearn", "f1_score")).lines
    assert line.steps == together


@pytest.mark.parametrize(
    ("file", "formats"),
    [("/env/torch/_tensor_str.py", True), ("C:\\env\\torch\\_tensor_str.py", True),
     ("/env/torch/_tensor.py", False)],
)  # fmt: skip
def test_text_of_tensors_is_known_by_where_torch_makes_it(file: str, formats: bool) -> None:
    inner = wire.FrameSeen(file, 1, "_str_intern", "torch")
    (line,) = lines_of(([MAIN, user(17), inner], 5.0, 0.0)).lines
    assert (line.kind, line.formats) == (HostKind.TORCH, formats)
