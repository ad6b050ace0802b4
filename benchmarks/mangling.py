"""What happens to a log on its way: colours, prefixes, line ends, quotes, other output around it.

Each function takes a log and returns it as somebody else might paste it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable

Mangle = Callable[[str], str]


def coloured(text: str) -> str:
    return "".join(f"\x1b[31m{line}\x1b[0m\n" for line in text.splitlines())


def of_rank(text: str) -> str:
    return "".join(f"[rank3]: {line}\n" for line in text.splitlines())


def dated(text: str) -> str:
    rows = enumerate(text.splitlines())
    return "".join(f"2026-03-01 12:{i // 60:02d}:{i % 60:02d},123 {line}\n" for i, line in rows)


def composed(text: str) -> str:
    return "".join(f"trainer-1  | {line}\n" for line in text.splitlines())


def windows(text: str) -> str:
    return text.replace("\n", "\r\n").replace("/home/user/", "C:\\Users\\me\\")


def wrapped(text: str) -> str:
    kept = {"width": 100, "break_long_words": False, "break_on_hyphens": False}
    return "\n".join(textwrap.fill(line, **kept) for line in text.splitlines())


def cut_hard(text: str) -> str:
    rows = [line[i : i + 80] for line in text.splitlines() for i in range(0, len(line) or 1, 80)]
    return "\n".join(rows)


def quoted(text: str) -> str:
    return text.replace("'", "’").replace('"', "&quot;")


def amid_a_run(text: str) -> str:
    steps = "".join(f"step {i}: loss {2 / (i + 1):.4f}, 812.4 samples/s\n" for i in range(120))
    return f"{steps}{text}\n{steps}"


def without_head(text: str) -> str:
    rows = text.splitlines()
    return "\n".join(rows[len(rows) // 3 :])


def without_tail(text: str) -> str:
    rows = text.splitlines()
    return "\n".join(rows[: -(len(rows) // 3) or None])


CUT: tuple[Mangle, ...] = (without_head, without_tail)
"""What they cut off may be what names the cause: then silence or doubt is right."""
EVERY: tuple[Mangle, ...] = (
    coloured,
    of_rank,
    dated,
    composed,
    windows,
    wrapped,
    cut_hard,
    quoted,
    amid_a_run,
)
