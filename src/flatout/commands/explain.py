"""flatout explain."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flatout.commands import _options, look_here, print_document, warn
from flatout.nouns.errors import UserError

if TYPE_CHECKING:
    from flatout.explaining.explaining import Source
    from flatout.nouns.page import Page

PLACE = ("Fix", 2)
USAGE = "[OPTIONS] [WHAT]..."
WORD = re.compile(r"[A-Za-z0-9_-]{2,80}")
CODE = re.compile(r"[A-Za-z]{2,5}\d{1,4}|[a-z0-9]+([-_][a-z0-9]+)+")
"""Text that can only be a finding's code or a name: no message looks like this."""

What = Annotated[
    list[str] | None,
    typer.Argument(metavar="WHAT", hidden=True),
]
Lang = Annotated[
    str | None,
    typer.Option(
        metavar="[en|zh]",
        help="Language of the answer.  [default: by locale]",
    ),
]


def command(
    what: What = None,
    lang: Lang = None,
    python: _options.Python = None,
    as_json: _options.Json = False,
) -> int:
    """Explain an error message, a log, a finding code or a boost.

    WHAT is the text of an error, a log file, a folder of logs, or - for standard input. It prints
    the cause, how certain that is, and the fix. If there are logs of several ranks, it explains the
    error that came first. If WHAT is the code of a finding, or the name of a boost, of an error, of
    a backend of `flatout export` or of an engine of `flatout launch`, it prints the page about it.

    Examples:
      flatout explain train.log
      python train.py 2>&1 | flatout explain
      flatout explain "CUDA error: device-side assert triggered"
      flatout explain ENV002
      flatout explain channels-last

    Exit code: 0 if the error is known, 1 if it is not.
    """
    from flatout.nouns.explained import Explained
    from flatout.reporting import document, explained, languages

    words, language = what or [], languages.chosen(lang)
    if len(words) == 1 and WORD.fullmatch(words[0]) and not Path(words[0]).exists():
        page = _page(words[0], "en" if as_json else language)
        if page is not None:
            text = page if isinstance(page, str) else page.markdown
            if as_json:
                told = {"id": words[0], "body": page} if isinstance(page, str) else page
                print_document(document.explain_document(Explained(()), told))
            else:
                in_chinese = any("\u4e00" <= letter <= "\u9fff" for letter in text)
                if lang and language == "zh" and not in_chinese:
                    warn("这一页只有英文版")
                explained.page(text)
            return 0
    from flatout.explaining.explaining import explain

    try:
        answer = explain(_sources(words), lambda: look_here(python))
    except OSError as error:
        raise UserError(f"a log cannot be read: {error}", "give a file that can be read") from error
    if as_json:
        print_document(document.explain_document(answer))
    else:
        explained.explained(answer, language)
    return 0 if answer.recognised else 1


def _page(name: str, language: str) -> Page | str | None:
    """The page of that name, as Markdown unless it is a finding's, or None for any other text.

    Raises UserError if it looks like a name but nothing has it.
    """
    from flatout.diagnosing import pages
    from flatout.watching import pages as alert_pages

    if page := pages.find(name) or alert_pages.find(name):
        return page
    from flatout.knowledge import backends, boosts
    from flatout.launching import engines

    word = name.strip().lower().replace("_", "-")
    found = [room.get(word).page for room in (boosts, backends) if word in room.ids()]
    found += [engines.page(word)] if word in engines.names() else []
    if found:
        return "\n".join(found)
    return pages.of_signature(name, language) if CODE.fullmatch(name) else None


def _sources(words: Sequence[str]) -> Iterator[Source]:
    from flatout.probing import logs

    if words and words != ["-"]:
        yield from logs.contents(words)
        return
    if not words and (sys.stdin is None or sys.stdin.isatty()):
        raise UserError("nothing to explain", "flatout explain train.log, or pipe a log into it")
    yield None, logs.of_stream(sys.stdin.buffer)
