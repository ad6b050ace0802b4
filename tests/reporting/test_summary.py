import dataclasses
import io
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from rich.console import Console

from flatout.nouns.trial import Guard, Trial, Verdict
from flatout.nouns.tuned import Tuned
from flatout.reporting import outcome
from flatout.reporting.summary import summary
from reporting import tuned_examples
from reporting.strategies import TUNED

EXAMPLES = pytest.mark.parametrize("example", tuned_examples.ALL.values(), ids=tuned_examples.ALL)


def printed(tuned: Tuned, width: int = 80, why: bool = False) -> str:
    file = io.StringIO()
    summary(tuned, Console(file=file, width=width), why)
    return file.getvalue()


def flat(text: str) -> str:
    return " ".join(text.split())


@EXAMPLES
@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("why", [False, True])
def test_no_line_is_wider_than_the_terminal(
    example: Callable[[], Tuned], width: int, why: bool
) -> None:
    """But for what is there to be copied: a path or a command is never broken."""
    for line in printed(example(), width, why).splitlines():
        copied = line.startswith(("plan: ", "report: ", "next: "))
        assert len(line) <= width or copied, line
        assert line.isprintable()


def test_a_good_case_answers_in_its_first_lines() -> None:
    lines = printed(tuned_examples.good(), 120).splitlines()
    assert re.fullmatch(r"as written +1514 ms/step +21 samples/s", lines[0])
    assert re.fullmatch(
        r"with the plan +412 ms/step +78 samples/s +3\.67x faster  "
        r"\(95% interval 3\.52-3\.79, A/B x 5\)",
        lines[1],
    )
    assert lines[2:4] == [
        "loss curve: the same (gradient error 0.9% of batch noise)",
        "may change: rounding (bf16-autocast)",
    ]


def test_a_single_pair_of_runs_is_told_with_what_it_showed() -> None:
    tuned = tuned_examples.good()
    assert tuned.confirmation is not None
    single = dataclasses.replace(tuned.confirmation, pairs=1, interval=None, speedup=1.97)
    lines = printed(dataclasses.replace(tuned, confirmation=single), 120).splitlines()
    assert lines[1].endswith("(in one run; one A/B pair: 1.97x)")


@EXAMPLES
def test_the_screen_has_at_most_12_lines(example: Callable[[], Tuned]) -> None:
    """Warnings included. What was not kept is one line each, without reasons."""
    lines = printed(example()).splitlines()
    assert len(lines) <= 12
    assert sum(line.startswith("left out: ") for line in lines) <= 1


def test_what_has_no_place_on_the_screen_is_counted_and_with_why_printed() -> None:
    tuned = tuned_examples.crowded()
    lines = printed(tuned).splitlines()
    labels = [line.partition(":")[0] for line in lines]
    told = ["loss curve", "may change", "kept", "pays off", "left out", "interrupted", "plan"]
    assert labels[-9:] == [*told, "report", "next"]
    assert "interrupted: boosts not tried by then are missing above (and 11 more: --why)" in lines
    assert next(line for line in lines if line.startswith("kept:")).endswith(" more (--why)")
    assert "left out: 8 tried and dropped, 4 failed, 4 had no time, 4 do not apply (--why)" in lines
    every = flat(printed(tuned, why=True))
    for text in ("note 3", "no iterator 4", "out/result-4.csv", "boost-number-9", "interrupted:"):
        assert text in every


def test_of_the_warnings_as_many_are_told_as_have_a_place() -> None:
    lines = printed(tuned_examples.with_notes("first", "second", "third", "fourth")).splitlines()
    assert len(lines) == 12
    assert "note: first (and 3 more: --why)" in lines
    lines = printed(tuned_examples.with_notes("a long one " * 20), 120).splitlines()
    assert len(lines) == 12
    assert sum(line.startswith("note: a long one ") for line in lines) == 1


def test_a_large_error_stands_beside_what_other_random_numbers_do() -> None:
    guard = Guard(True, "", gradient_error=0.9, batch_noise=1.0, own_noise=1.1)
    told = "the same (gradient error 90% of batch noise, 110% between two runs as written)"
    assert outcome.learning_words(guard) == told
    small = dataclasses.replace(guard, gradient_error=0.1)
    assert outcome.learning_words(small) == "the same (gradient error 10% of batch noise)"


def test_what_is_left_out_is_counted_and_with_why_explained() -> None:
    tuned = tuned_examples.good()
    late = [
        dataclasses.replace(trial, why_untried="no_time")
        if trial.verdict is Verdict.SKIPPED and trial.tried == "cuda-graphs"
        else trial
        for trial in tuned.trials
    ]
    tuned = dataclasses.replace(tuned, trials=tuple(late))
    line = "left out: 1 failed, 1 had no time (a longer --budget), 2 do not apply (--why)"
    assert line in printed(tuned).splitlines()
    fine = tuple(trial for trial in tuned.trials if trial.verdict is not Verdict.FAILED)
    line = "left out: no time for cuda-graphs (a longer --budget), 2 do not apply (--why)"
    assert line in printed(dataclasses.replace(tuned, trials=fine)).splitlines()
    why = flat(printed(tuned, why=True))
    assert "failed: compile mode=max-autotune: torch.OutOfMemoryError: CUDA" in why
    assert "left out" not in why


def test_a_wide_interval_is_called_neither_slower_nor_faster() -> None:
    """Beside an interval like 0.06-146 "2.97x slower" would say what nobody knows."""
    trial = Trial(("tf32",), "tf32", verdict=Verdict.SLOWER, gain=0.34)
    assert outcome.why_dropped(trial, 0.02) == "slower here: 0.34x"
    wide = dataclasses.replace(trial, interval=(0.06, 146.0))
    assert outcome.why_dropped(wide, 0.02) == "no clear answer: 0.34x"


def test_nothing_faster_says_so_and_proposes_no_run() -> None:
    text = flat(printed(tuned_examples.nothing()))
    assert "nothing was faster beyond the noise (2.1%); no plan was written" in text
    assert "next:" not in text and "with the plan" not in text


def test_the_next_command_runs_the_plan_that_was_written() -> None:
    tuned = tuned_examples.good()
    assert "\nnext: flatout run " in printed(tuned)
    elsewhere = printed(dataclasses.replace(tuned, plan_path="plans/new one.toml"))
    assert "\nnext: flatout run --plan 'plans/new one.toml' " in elsewhere
    here = printed(dataclasses.replace(tuned, plan_path="flatout.toml"))
    assert "--plan" not in here


def test_no_plan_has_its_true_reason() -> None:
    text = flat(printed(tuned_examples.unlike()))
    assert "the fastest candidate learns differently (A/B runs: 3.67x" in text
    assert "loss curve: NOT the same: loss 4.8 sigma above the untouched program's" in text
    text = flat(printed(tuned_examples.unproven()))
    assert "what looked faster at first was not, when it was measured again" in text
    assert "beyond the noise (2.1%)" not in text


def test_faults_and_leaked_files_are_told_without_a_flood() -> None:
    lines = printed(tuned_examples.faulty(), why=True).splitlines()
    assert sum("error inside flatout" in line for line in lines) == 1
    text = flat("\n".join(lines))
    assert "files changed while trials ran: out/result-0.csv" in text and "and 3 more" in text


@given(TUNED)
def test_any_tuned_can_be_told_in_12_lines(tuned: Tuned) -> None:
    assert len(printed(tuned).splitlines()) <= 12


def test_an_old_code_page_gets_question_marks_not_a_crash() -> None:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="cp1252", errors="strict")
    summary(tuned_examples.with_notes("→ 速い"), Console(file=file, width=80))
    file.flush()
    assert b"note: ? ??" in raw.getvalue()


def test_goes_to_stdout_and_leaves_stderr_alone(capsys: pytest.CaptureFixture[str]) -> None:
    summary(tuned_examples.good())
    captured = capsys.readouterr()
    assert "3.67x faster" in captured.out
    assert captured.err == ""
    assert "\x1b" not in captured.out
