"""flatout explain."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flatout.commands import look_here
from flatout.nouns.errors import UserError

if TYPE_CHECKING:
    from flatout.diagnosing.signatures.explaining import Source

CODE = re.compile(r"[A-Za-z]{2,5}\d{1,4}|[a-z0-9]+([-_][a-z0-9]+)+")
"""A finding's code, or the name of a finding or a signature."""


def command(
    what: Annotated[
        list[str] | None,
        typer.Argument(help="An error's text, a log, a folder of logs, - for stdin, or a code."),
    ] = None,
    lang: Annotated[str | None, typer.Option(help="en or zh; by locale if not given.")] = None,
    python: Annotated[str | None, typer.Option(help="The Python that runs the script.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> int:
    """Say what an error means here: its root cause, how sure that is, and the cure.

    flatout explain train.log, or a folder with a log per rank, or "the text"

    python train.py 2>&1 | flatout explain

    Of a finding's code (ENV002) it prints the page. Exit code 1: not recognised.
    """
    words = what or []
    if len(words) == 1 and CODE.fullmatch(words[0]) and not Path(words[0]).exists():
        return _page(words[0], as_json)
    from flatout.diagnosing.signatures.explaining import explain
    from flatout.reporting import document, explained, languages

    language = languages.chosen(lang)
    try:
        answer = explain(_sources(words), lambda: look_here(python))
    except OSError as error:
        raise UserError(f"a log cannot be read: {error}", "give a file that can be read") from error
    if as_json:
        typer.echo(json.dumps(document.explain_document(answer), indent=2))
    else:
        explained.explained(answer, language)
    return 0 if answer.recognised else 1


def _page(name: str, as_json: bool) -> int:
    from flatout.diagnosing import pages

    page = pages.find(name)
    markdown = page.markdown if page is not None else pages.of_signature(name)
    if as_json:
        from flatout.nouns.explained import Explained
        from flatout.reporting import document

        typer.echo(json.dumps(document.explain_document(Explained(()), page), indent=2))
    else:
        from flatout.reporting import markdown_page

        markdown_page.show(markdown)
    return 0


def _sources(words: Sequence[str]) -> Iterator[Source]:
    from flatout.probing import logs

    if words and words != ["-"]:
        yield from logs.named(words)
        return
    if not words and (sys.stdin is None or sys.stdin.isatty()):
        raise UserError("nothing to explain", "flatout explain train.log, or pipe a log into it")
    yield None, logs.of_stream(sys.stdin.buffer)
