"""flatout.toml: what is written reads back, what people edit is understood or refused clearly."""

from __future__ import annotations

import dataclasses
import errno
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.knowledge import boosts
from flatout.nouns.errors import UserError
from flatout.nouns.identity import GpuIdentity, Identity
from flatout.nouns.plan import Plan, PlannedBoost
from flatout.tuning import plan_file
from flatout_agent.wire import JobFacts, LoaderFacts

MACHINE = Identity(
    "Linux",
    "AMD EPYC 9B45",
    8,
    2**35,
    (GpuIdentity("NVIDIA L4", 2**34, "570.86"),),
    "3.12.1",
    "2.13.0",
)
JOB = JobFacts(
    torch="2.13.0",
    python="3.12.1",
    system="linux",
    device="cuda",
    capability=(8, 9),
    loaders=(LoaderFacts("Photos", False, 32, None, 0, False, False, "fork", None),),
)
PLAN = Plan(
    boosts=(
        PlannedBoost("bf16-autocast", {}, 1.9, "rounding"),
        PlannedBoost("channels-last", {}, 1.5, "exact"),
    ),
    command=("train.py", "--lr", "0.1"),
    script_sha256="ab" * 32,
    machine=MACHINE,
    speedup=3.67,
    speedup_interval=(3.5, 3.8),
    pairs=5,
    created="2026-01-02T03:04:05+00:00",
    pays_after_steps=300,
    compile_s=12.5,
    job=JOB,
)
HAND = """\
# my own
version = 1
[boosts]
channels-last = {}   # nothing else is needed
[boosts.bf16-autocast]
gain = 2
"""

words = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=20)
figures = st.none() | st.floats(0, 1e6).map(lambda value: round(value, plan_file.DIGITS))
counts = st.none() | st.integers(0, 2**53)


@st.composite
def planned(draw: st.DrawFn) -> tuple[PlannedBoost, ...]:
    chosen = draw(st.permutations(boosts.every()))[: draw(st.integers(0, 5))]
    return tuple(
        PlannedBoost(
            boost.id,
            {name: draw(st.sampled_from(values)) for name, values in boost.params.items()},
            draw(figures),
            draw(st.sampled_from([None, boost.risk.value])),
        )
        for boost in chosen
    )


PLANS = st.builds(
    Plan,
    boosts=planned(),
    command=st.lists(words, max_size=4).map(tuple),
    script_sha256=st.none() | words,
    machine=st.none()
    | st.builds(
        Identity,
        system=words,
        cpu=st.none() | words,
        cores=counts,
        memory_bytes=counts,
        gpus=st.lists(
            st.builds(GpuIdentity, name=words, memory_bytes=counts, driver=st.none() | words),
            max_size=2,
        ).map(tuple),
        python=st.none() | words,
        torch=st.none() | words,
    ),
    speedup=figures,
    speedup_interval=st.none() | st.tuples(st.just(1.25), st.just(2.5)),
    pairs=counts,
    created=st.none() | words,
    pays_after_steps=counts,
    compile_s=figures,
    job=st.sampled_from([None, JOB]),
)


@pytest.mark.slow
@given(PLANS)
def test_what_is_written_reads_back(tmp_path_factory: pytest.TempPathFactory, plan: Plan) -> None:
    path = tmp_path_factory.getbasetemp() / "flatout.toml"
    plan_file.write(plan, path)
    assert plan_file.read(path) == plan
    assert plan_file.render(plan_file.read(path)) == path.read_text(encoding="utf-8")


def read(text: str, tmp_path: Path) -> Plan:
    path = tmp_path / "flatout.toml"
    path.write_text(text, encoding="utf-8")
    return plan_file.read(path)


@pytest.mark.parametrize("text", [HAND, "\ufeff" + HAND.replace("\n", "\r\n")])
def test_a_file_written_by_hand(text: str, tmp_path: Path) -> None:
    """The second has a byte order mark and the lines of Windows."""
    assert read(text, tmp_path) == Plan(
        boosts=(PlannedBoost("channels-last"), PlannedBoost("bf16-autocast", gain=2.0))
    )


def parametrised() -> tuple[str, str]:
    """A boost whose first parameter is a whole number, and that parameter."""
    for boost in boosts.every():
        for name, values in boost.params.items():
            if type(values[0]) is int:
                return boost.id, name
    raise AssertionError("no boost has a whole number as parameter")


def test_values_that_tune_would_not_try_are_the_users_choice(tmp_path: Path) -> None:
    boost_id, name = parametrised()
    text = f"version = 1\n[boosts.{boost_id}]\nparams = {{ {name} = 77 }}\n"
    assert read(text, tmp_path).boosts[0].params == {name: 77}


@pytest.mark.parametrize(
    ("text", "message", "next_step"),
    [
        ("", "does not say `version`", "version = 1"),
        ("version = 2\n", "version 2, this flatout knows version 1", "update flatout"),
        ("version = '1'\n", "version = '1' is not a whole number", "make version"),
        ("version = 1\n[boost.x]\n", "boost is not known", "did you mean 'boosts'?"),
        ("version = 1\n[boosts.chanels-last]\n", "no boost 'chanels-last'", "channels-last"),
        ("version = 1\n[boosts.zzzzz]\n", "no boost 'zzzzz'", "known are: "),
        ("version = 1\nboosts = ['a']\n", "is not a table", "make boosts a table"),
        ("version = 1\n[boosts]\ntf32 = true\n", "boosts.tf32 = True is not a table", "table"),
        ("version = 1\n[boosts.tf32]\ngian = 2\n", "boosts.tf32.gian is not known", "'gain'"),
        ("version = 1\n[boosts.tf32]\ngain = 'x'\n", "boosts.tf32.gain = 'x'", "a number"),
        ("version = 1\n[boosts.tf32]\ngain = inf\n", "is not a number", "a number"),
        ("version = 1\n[boosts.tf32]\nparams = {zzz = 1}\n", "params.zzz is not", "take it out"),
        ("version = 1\n[measured]\ninterval = [1]\n", "is not two numbers", "[1.5, 1.7]"),
        ("version = 1\n[machine]\ncores = 2.5\n", "machine.cores = 2.5", "a whole number"),
        ("version = 1\n[machine]\ngpus = [1]\n", "is not a list of tables", "list"),
        ("version = 1\n[job]\ntorch = '2'\n", "[job] cannot be used", "remove the table [job]"),
        ("version = 1\ncommand = 'train.py'\n", "is not a list of texts", "list of texts"),
        ("version = 1\n[boosts\n", "line 2", "correct line 2"),
        ("version = 1\nversion = 1\n", "version", "correct"),
    ],
)
def test_refused(text: str, message: str, next_step: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused:
        read(text, tmp_path)
    assert message in refused.value.message
    assert str(tmp_path / "flatout.toml") in refused.value.message
    assert next_step in (refused.value.next_step or "")
    assert "\n" not in refused.value.message
    assert refused.value.exit_code == 2


def test_a_boost_that_is_gone_is_named_and_the_others_stay(tmp_path: Path) -> None:
    path, said = tmp_path / "flatout.toml", []
    path.write_text("version = 1\n[boosts.sdpa-attention]\nparams = {margin = 2}\n[boosts.tf32]\n")
    plan = plan_file.read(path, said.append)
    assert [boost.id for boost in plan.boosts] == ["tf32"]
    (line,) = said
    assert "no longer has the boost 'sdpa-attention'" in line
    assert "remove [boosts.sdpa-attention]; in its place, load the model with" in line
    assert plan_file.read(path) == plan


def test_a_parameter_of_the_wrong_type(tmp_path: Path) -> None:
    boost_id, name = parametrised()
    with pytest.raises(UserError, match="is not of the kind of"):
        read(f"version = 1\n[boosts.{boost_id}]\nparams = {{ {name} = 'x' }}\n", tmp_path)


def test_no_file_no_text(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no plan at") as refused:
        plan_file.read(tmp_path / "flatout.toml")
    assert "flatout tune" in (refused.value.next_step or "")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="not a text file"):
        plan_file.read(tmp_path / "binary")
    with pytest.raises(UserError, match="cannot read"):
        plan_file.read(tmp_path)


def test_a_full_disk_leaves_the_old_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "flatout.toml"
    plan_file.write(PLAN, path)
    before = path.read_bytes()
    whole = Path.write_text

    def half(self: Path, text: str, **settings: Any) -> int:
        whole(self, text[: len(text) // 2], **settings)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", half)
    with pytest.raises(UserError, match=r"cannot write the plan to .*No space left"):
        plan_file.write(dataclasses.replace(PLAN, pairs=7), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_plan_whose_file_another_program_has_open_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Windows."""
    path, folder = tmp_path / "flatout.toml", tmp_path / "run"
    folder.mkdir()
    told: list[str] = []
    assert plan_file.write_or_keep(PLAN, path, folder, told.append) == path
    before, replace = path.read_bytes(), Path.replace

    def in_use(self: Path, target: Path) -> Path:
        if target == path:
            raise PermissionError(errno.EACCES, "Access is denied")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", in_use)
    changed = dataclasses.replace(PLAN, pairs=7)
    kept = plan_file.write_or_keep(changed, path, folder, told.append)
    assert (kept, plan_file.read(kept)) == (folder / "flatout.toml", changed)
    assert path.read_bytes() == before
    (line,) = told
    assert "Access is denied" in line
    assert line.endswith(f"flatout run --plan {kept} ...")


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real.toml").write_text("version = 1\n")
    (tmp_path / "flatout.toml").symlink_to("real.toml")
    plan_file.write(PLAN, tmp_path / "flatout.toml")
    assert (tmp_path / "flatout.toml").is_symlink()
    assert plan_file.read(tmp_path / "real.toml") == PLAN


@pytest.mark.parametrize(
    ("changes", "sha256", "expected"),
    [
        ({}, "ab" * 32, []),
        ({}, "cd" * 32, ["the script has changed"]),
        ({"torch": "2.14.0"}, None, ["torch 2.14.0 instead of 2.13.0"]),
        ({"torch": None, "cpu": None, "cores": None}, None, []),
        ({"cores": 2}, None, ["2 cores instead of 8"]),
        ({"cpu": "Apple M4"}, None, ["Apple M4 instead of AMD EPYC 9B45"]),
        ({"gpus": ()}, None, ["no GPU instead of 1 x NVIDIA L4"]),
        (
            {"gpus": (GpuIdentity("NVIDIA L4"), GpuIdentity("NVIDIA L4"))},
            None,
            ["2 x NVIDIA L4 instead of 1 x"],
        ),
        ({"system": "Windows"}, None, ["Windows instead of Linux"]),
    ],
)
def test_differences(changes: dict[str, Any], sha256: str | None, expected: list[str]) -> None:
    changes_found = plan_file.differences(PLAN, dataclasses.replace(MACHINE, **changes), sha256)
    assert len(changes_found) == len(expected)
    assert all(
        change.startswith(wanted) for change, wanted in zip(changes_found, expected, strict=True)
    )


@pytest.mark.parametrize(
    ("made_for", "words", "told"),
    [
        (("other.py", "--fast"), ("train.py",), "it was made for other.py"),
        (("old/train.py",), ("new/train.py",), "the script has changed"),
        (("-m", "package.train"), ("-m", "package.other"), "it was made for package.train"),
        (("torchrun", "other.py"), ("train.py",), "it was made for other.py"),
        ((), ("train.py",), "the script has changed"),
    ],
)
def test_a_plan_of_another_script(
    made_for: tuple[str, ...], words: tuple[str, ...], told: str
) -> None:
    plan = Plan(boosts=(), command=made_for, script_sha256="cd" * 32)
    assert plan_file.differences(plan, MACHINE, "ab" * 32, words) == [told]


def test_a_plan_that_knows_nothing_differs_in_nothing() -> None:
    assert plan_file.differences(Plan(boosts=()), MACHINE, "ab" * 32) == []
