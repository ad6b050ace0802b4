"""What a cell of a notebook shows: the line that changes, and the card."""

from __future__ import annotations

import dataclasses
import sys
import types
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import pytest

from flatout.nouns.run_end import RunEnd
from flatout.nouns.trial import Trial, Verdict
from flatout.nouns.tuned import Tuned
from flatout.reporting import live, notebook
from reporting import tuned_examples

END = RunEnd(1200, samples_per_s=640.0, engaged=("gc-pause",))


class Reader(HTMLParser):
    """Collects the elements and the text of a page, and sees that all are closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.text = ""
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("example", [*tuned_examples.ALL.values(), tuned_examples.hostile, None])
def test_a_card_is_plain_elements_in_the_colours_of_the_page(
    example: Callable[[], Tuned] | None,
) -> None:
    tuned = example() if example is not None else None
    page = Reader(notebook.card(END, tuned, ["a line <b>"]))
    assert page.tags <= {"div", "span", "b", "a", "details", "summary"}
    assert "a line <b>" in page.text, "foreign text is text"
    assert "None" not in page.text


def test_a_card_tells_the_gain_the_boosts_and_what_the_guard_compared() -> None:
    tuned = tuned_examples.good()
    assert tuned.best is not None and tuned.plan is not None
    text = Reader(notebook.card(END, tuned)).text
    assert f"{tuned.baseline.step_ms / tuned.best.step_ms:.2f}× faster" in text
    assert all(boost.id in text for boost in tuned.plan.boosts)
    assert "gradient error" in text
    assert f"{tuned.best.step_ms:.0f} ms a step" in text
    lasting = dataclasses.replace(tuned, saved_s=12.0)
    assert "this run took about 12 s less" in Reader(notebook.card(END, lasting)).text


def test_one_output_changes_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[tuple[str, dict[str, str]]] = []
    handle = types.SimpleNamespace(update=lambda bundle, raw: shown.append(("update", bundle)))

    def display(bundle: dict[str, str], raw: bool, display_id: bool) -> Any:
        shown.append(("new", bundle))
        return handle

    module: Any = types.ModuleType("IPython.display")
    module.display = display
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    output = notebook.CellOutput(lambda text: text.replace("1747880836.py", "In[3]"))
    on = Trial(("gc-pause",), "gc-pause", verdict=Verdict.KEPT, gain=2.0, pairs=3)
    output.decision(Trial((), "compile", verdict=Verdict.SKIPPED, reason="does not apply"))
    assert shown == []
    output.decision(on)
    output.decision(Trial((), "bf16-autocast", verdict=Verdict.FAILED, reason="1747880836.py:4"))
    output.decision(Trial(("gc-pause",), "gc-pause", verdict=Verdict.SLOWER, reason="no more"))
    output.say("step 129: still comparing, after 2 min 30 s")
    output.ended(END, None, ["a further line"])
    assert [kind for kind, _ in shown] == ["new", *["update"] * 4]
    lines = [bundle["text/plain"] for _, bundle in shown]
    assert lines[0] == f"flatout: on: gc-pause; last: {live.decision_words(on)}"
    assert lines[1] == "flatout: on: gc-pause; last: bf16-autocast off, failed, In[3]:4"
    assert lines[2] == "flatout: last: gc-pause off, no more"
    assert lines[3] == "flatout: step 129: still comparing, after 2 min 30 s"
    assert lines[4].splitlines()[0] == "flatout: a further line"
    assert lines[4].splitlines()[1].startswith("flatout: 1,200 steps")
    assert "1,200 steps" in shown[4][1]["text/html"]
