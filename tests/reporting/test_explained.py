"""The answer as people see it: the root with its cure, what follows in a line, in 80 columns."""

from __future__ import annotations

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from flatout.nouns.explained import Evidence, Explained, FilledStep, Match
from flatout.nouns.signature import BetterLog, Confidence, CureStep, Role, Signature, Wording
from flatout.reporting import explained

LONG = Wording("A sentence that goes on. " * 12, "这个句子很长，一直写下去。" * 12)


def match(name: str, role: Role = Role.ERROR, **fields: object) -> Match:
    title = Wording(f"Title of {name}", f"{name} 的标题")
    signature = Signature(name, "test", title, LONG, (CureStep(LONG),), (name,), role=role)
    given: dict[str, object] = {
        "signature": signature,
        "confidence": Confidence.HIGH,
        "evidence": Evidence("it said \x1b[31mthis\x1b[0m", 12, "train.log", 3),
        "title": title,
        "cause": LONG,
        "cure": (
            FilledStep(LONG, ("run --this " + "x" * 90,), True),
            FilledStep(Wording("Elsewhere.", "别处。"), (), False),
        ),
        **fields,
    }
    return Match(**given)  # type: ignore[arg-type]


def shown(answer: Explained, language: str = "en", width: int = 80) -> str:
    out = io.StringIO()
    explained.explained(answer, language, Console(file=out, width=width))
    return out.getvalue()


@pytest.mark.parametrize("language", ["en", "zh"])
def test_everything_but_commands_fits(language: str) -> None:
    rows = shown(Explained((match("root"),)), language).splitlines()
    wide = [row for row in rows if cell_len(row) > 80]
    assert all("run --this" in row for row in wide)
    assert "\x1b" not in "".join(rows)


def test_the_root_is_whole_and_the_rest_in_a_line() -> None:
    text = shown(
        Explained(
            (
                match("root", count=7, ranks=(3,)),
                match("next"),
                match("echo", Role.ECHO, consequence_of="root", ranks=(0, 1, 2)),
                match("deeper", consequence_of="echo"),
                match("calm", Role.HARMLESS),
            )
        )
    )
    assert text.index("Title of root") < text.index("Title of next")
    assert "train.log:12, rank 3, 7 times: it said this" in text
    assert "follows   Title of echo (train.log:12, ranks 0, 1, 2)" in text
    assert "follows   ranks 0, 1, 2 only report that rank 3 failed:" in text
    assert "also      Title of deeper" in text
    assert "harmless  Title of calm" in text
    assert text.count("cure") == 2
    assert "2. (does not apply to this machine) Elsewhere." in text


def test_not_recognised_says_how_to_get_a_better_log() -> None:
    better = BetterLog("any", Wording("Try again.", "再试一次。"), ("flatout doctor",), ())
    answer = Explained((match("calm", Role.HARMLESS),), (better,), bytes_read=9)
    text = shown(answer)
    assert text.startswith("not recognised")
    assert "Try again." in text
    assert "          flatout doctor" in text
    assert "harmless  Title of calm" in text
    assert "未识别" in shown(answer, "zh")


def test_a_crash_is_explained_without_lines_that_nobody_has() -> None:
    out = io.StringIO()
    explained.crash(Explained((match("root", count=2),)), "en", Console(file=out, width=80))
    text = out.getvalue()
    assert text.splitlines()[1] == "flatout: what this means"
    assert "found     rank 3: it said this" in text
    assert "train.log" not in text


def test_a_guess_about_a_crash_takes_one_line() -> None:
    out = io.StringIO()
    answer = Explained((match("root", confidence=Confidence.LOW),))
    explained.crash(answer, "en", Console(file=out, width=80))
    assert out.getvalue().split("\n")[1:] == [
        "flatout: Title of root (flatout explain root)",
        "",
    ]


def test_a_terminal_without_the_letters() -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    explained.explained(Explained((match("root"),)), "zh", Console(file=out, width=80))
    out.flush()
    assert b"?" in out.buffer.getvalue()  # type: ignore[attr-defined]
