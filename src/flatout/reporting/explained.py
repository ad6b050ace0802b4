"""What `flatout explain` prints, in English or Chinese: the root cause, its cure, what follows."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from flatout.nouns.explained import Explained, Match
from flatout.nouns.signature import Confidence, Role, Wording
from flatout.reporting import plain
from flatout.reporting.paragraphs import LABEL, paragraph, show, styled, width_of

if TYPE_CHECKING:
    from rich.console import Console

OTHERS = 3
"""Number of further errors that are shown with their cure; the rest have only their title."""

WORDS = {
    Role.ERROR: Wording("error", "错误"),
    Role.WARNING: Wording("warning", "警告"),
    Role.ECHO: Wording("report", "转述"),
    Role.HARMLESS: Wording("harmless", "无害"),
}
STYLES = {
    Role.ERROR: "bold red",
    Role.WARNING: "bold yellow",
    Role.ECHO: "bold yellow",
    Role.HARMLESS: "bold green",
}
SURE = {
    Confidence.HIGH: Wording(
        "high: the text itself names this cause", "高：文本本身指明了这个原因"
    ),
    Confidence.LIKELY: Wording(
        "likely: few causes print this, and it is the likeliest",
        "较可能：只有少数原因会打印这段文字，这是最可能的一个",
    ),
    Confidence.LOW: Wording(
        "low: the text only shows that something of this kind failed",
        "低：文本只表明这一类操作失败了",
    ),
}
CONFIDENCE = Wording("certainty", "可信度")
FOUND = Wording("found", "依据")
WHY = Wording("why", "原因")
CURE = Wording("cure", "解决")
OBSERVED = Wording("known", "已知")
THEN = Wording("follows", "后果")
LINE = Wording("line {line}", "第 {line} 行")
RANK = Wording("rank {rank}", "rank {rank}")
TIMES = Wording("{count} times", "共 {count} 次")
RANKS = Wording("ranks {ranks}", "rank {ranks}")
ONLY_REPORT = Wording(
    "ranks {ranks} only report that rank {rank} failed:",
    "rank {ranks} 只是转述 rank {rank} 的失败：",
)
MEANING = Wording("flatout: what this means", "flatout：这是什么意思")
NOT_HERE = Wording("(does not apply to this machine) ", "（不适用于本机）")
ALSO = Wording("also", "另有")
UNKNOWN = Wording("not recognised", "未识别")
UNKNOWN_TEXT = Wording("no signature matches this text.", "没有与这段文字匹配的特征。")
TO_GET = Wording("To get a better log:", "可以这样得到更好的日志：")
EMPTY = Wording("there is no text to explain", "没有可解释的文本")
TO_GIVE = ("flatout explain train.log", "python train.py 2>&1 | flatout explain")
DRAWN = ("FORCE_COLOR", "TTY_COMPATIBLE")
"""Variables that can make rich take a pipe for a terminal."""


def explained(answer: Explained, language: str, console: Console | None = None) -> None:
    """Print the answer; on stdout unless another console is given."""
    from rich.console import Console

    console = console or Console()
    page = _Page(console, language)
    if answer.recognised:
        page.recognised(answer.matches, answer.observations)
    else:
        page.unknown(answer)


def crash(answer: Explained, language: str, console: Console | None = None) -> None:
    """Only the root cause, on stderr, under the traceback of a program that crashed."""
    from rich.console import Console

    console = console or Console(stderr=True)
    page, root = _Page(console, language), answer.matches[0]
    page.places = False
    page.line("")
    if root.confidence is Confidence.LOW:  # a guess is not worth a page
        page.line(f"flatout: {page.text_of(root.title)} (flatout explain {root.id})")
    else:
        page.line(page.text_of(MEANING), "bold", len("flatout:"))
        page.whole(root, answer.observations)


def page(markdown: str) -> None:
    """Draw it on a terminal; print it unchanged into a pipe."""
    if sys.stdout.isatty() or any(os.environ.get(name) for name in DRAWN):
        from rich.console import Console
        from rich.markdown import Markdown

        console = Console()
        if console.is_terminal:
            console.print(Markdown(markdown, hyperlinks=False), width=min(console.width, 100))
        else:
            console.print(
                markdown.rstrip(), markup=False, highlight=False, emoji=False, soft_wrap=True
            )
    else:
        sys.stdout.write(f"{markdown.rstrip()}\n")


class _Page:
    def __init__(self, console: Console, language: str) -> None:
        self.console = console
        self.language = language
        self.places = True
        """Whether to show line numbers and counts, as for a reader who has the log."""
        self.width = width_of(console)

    def recognised(self, matches: Sequence[Match], observations: Sequence[Wording]) -> None:
        root, *rest = matches
        self.whole(root, observations)
        roots = [match for match in rest if match.consequence_of is None]
        others = [match for match in roots if match.signature.role is not Role.HARMLESS]
        consequences = [match for match in rest if match.consequence_of == root.id]
        # Ranks that failed because the root cause's rank failed.
        failed = root.evidence.rank
        ranks = sorted({rank for match in consequences for rank in match.ranks} - set(root.ranks))
        if failed is not None and ranks:
            text = self.text_of(ONLY_REPORT).format(ranks=", ".join(map(str, ranks)), rank=failed)
            self._paragraph(self.text_of(THEN), text, "dim")
        for match in consequences:
            self._brief(THEN, match)
        for match in others[:OTHERS]:
            self.line("")
            self.whole(match)
        further = [match for match in rest if match.consequence_of not in (None, root.id)]
        for match in (*others[OTHERS:], *further):
            self._brief(ALSO, match)
        for match in roots:
            if match.signature.role is Role.HARMLESS:
                self._brief(WORDS[Role.HARMLESS], match)

    def unknown(self, answer: Explained) -> None:
        label = self.text_of(UNKNOWN)
        why = self.text_of(UNKNOWN_TEXT if answer.bytes_read else EMPTY)
        self.line(f"{label}: {why}", "bold yellow", len(label))
        if not answer.bytes_read:
            self._commands(TO_GIVE)
            return
        self._paragraph("", self.text_of(TO_GET))
        for advice in answer.better_log:
            self._paragraph("", self.text_of(advice.text))
            self._commands(advice.commands)
        for match in answer.matches:
            self._brief(WORDS[Role.HARMLESS], match)

    def whole(self, match: Match, observations: Sequence[Wording] = ()) -> None:
        """observations: what is known about this crash, beyond what its message means."""
        role = match.signature.role
        self._paragraph(self.text_of(WORDS[role]), self.text_of(match.title), STYLES[role])
        self._paragraph(self.text_of(CONFIDENCE), self.text_of(SURE[match.confidence]), "dim")
        where = ", ".join(self._where(match))
        found = f"{where}: {match.evidence.text}" if where else match.evidence.text
        self._paragraph(self.text_of(FOUND), found, "dim")
        for number, said in enumerate(observations):
            self._paragraph(self.text_of(OBSERVED) if number == 0 else "", self.text_of(said))
        for number, part in enumerate(self.text_of(match.cause).split("\n\n")):
            self._paragraph(self.text_of(WHY) if number == 0 else "", part, "dim")
        for number, step in enumerate(match.cure, 1):
            mark = f"{number}. " if len(match.cure) > 1 else ""
            elsewhere = self.text_of(NOT_HERE) if step.applies is False else ""
            label = self.text_of(CURE) if number == 1 else ""
            self._paragraph(label, f"{elsewhere}{self.text_of(step.text)}", "bold cyan", mark)
            self._commands(step.commands, len(mark))

    def text_of(self, wording: Wording) -> str:
        return wording.in_language(self.language)

    def _commands(self, commands: Sequence[str], indent: int = 0) -> None:
        """Commands stay on one line, however long, so that they can be copied."""
        for command in commands:
            self.line(f"{'':{LABEL + indent}}{plain.one_line(command)}", "cyan")

    def _brief(self, label: Wording, match: Match) -> None:
        text = self.text_of(match.title)
        where = ", ".join(self._where(match))
        style = STYLES[Role.HARMLESS] if match.signature.role is Role.HARMLESS else "dim"
        self._paragraph(self.text_of(label), f"{text} ({where})", style)

    def _where(self, match: Match) -> Iterator[str]:
        evidence = match.evidence
        if not self.places:
            pass
        elif evidence.source is not None:
            yield f"{evidence.source}:{evidence.line}"
        else:
            yield self.text_of(LINE).format(line=evidence.line)
        if len(match.ranks) > 1:
            yield self.text_of(RANKS).format(ranks=", ".join(map(str, match.ranks)))
        elif evidence.rank is not None:
            yield self.text_of(RANK).format(rank=evidence.rank)
        if match.count > 1 and self.places:
            yield self.text_of(TIMES).format(count=match.count)

    def _paragraph(self, label: str, text: str, style: str = "", mark: str = "") -> None:
        """The label in the first column, then the mark, then the wrapped text."""
        for row in paragraph(label, text, self.width, style, mark, fold=True):
            show(self.console, row)

    def line(self, text: str, style: str = "", length: int | None = None) -> None:
        show(self.console, styled(text, style, length))
