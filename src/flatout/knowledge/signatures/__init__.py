"""Signatures: one TOML file per family; the folder is the table.

To add one, add a [[signature]] to its family's file. The fields are those of
`flatout.nouns.signature`; their values are checked here when the files are read.
"""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib import resources

from flatout.knowledge.compat.tables import Row
from flatout.nouns.signature import (
    BetterLog,
    Confidence,
    CureStep,
    Family,
    Role,
    Signature,
    Wording,
)

BETTER_LOGS = "better_logs.toml"
PLACEHOLDER = re.compile(
    r"\{(?P<name>[a-z_][a-z_0-9]*)(?:!(?P<form>[a-z]+))?(?:\|(?P<other>[^{}]*))?\}"
)
"""`{name}`, `{name|other}`, `{name!form}`, `{name!form|other}`."""
FORMS = ("cuda", "cudnn")
WHEELS = "wheels"
"""A placeholder that no pattern captures: the address of PyTorch's builds."""
GROUP = re.compile(r"\(\?P<([a-z_][a-z_0-9]*)>")
_FIELDS = {
    "id", "log", "title", "cause", "cure", "any", "all", "none", "captures", "needs", "near",
    "role", "specificity", "confidence", "leads_to", "sources",
}  # fmt: skip
_STEP_FIELDS = {"en", "zh", "commands", "when", "if_text"}


@cache
def families() -> tuple[Family, ...]:
    """All families, by id."""
    folder = resources.files(__name__)
    files = (file for file in folder.iterdir() if file.name.endswith(".toml"))
    texts = {file.name: file.read_text(encoding="utf-8") for file in files}
    del texts[BETTER_LOGS]
    return tuple(family(texts[name], name.removesuffix(".toml")) for name in sorted(texts))


@cache
def every() -> tuple[Signature, ...]:
    """All signatures, family by family."""
    return tuple(signature for group in families() for signature in group.signatures)


@cache
def better_logs() -> tuple[BetterLog, ...]:
    """What to try for a better log, by kind of error, the most specific first."""
    text = resources.files(__name__).joinpath(BETTER_LOGS).read_text(encoding="utf-8")
    rows = Row(BETTER_LOGS, tomllib.loads(text)).rows("better_log")
    return tuple(
        BetterLog(row.text("id"), _wording(row), row.texts("commands"), row.texts("any"))
        for row in rows
    )


def family(text: str, name: str) -> Family:
    """The family in a TOML text. Raises ValueError saying what is wrong and where."""
    try:
        document = Row(f"{name}.toml", tomllib.loads(text))
    except tomllib.TOMLDecodeError as problem:
        raise ValueError(f"{name}.toml: not TOML: {problem}") from problem
    title = _wording(document.row("family"))
    return Family(name, title, tuple(_signature(row, name) for row in document.rows("signature")))


def _signature(row: Row, family: str) -> Signature:
    name = row.text("id")
    row = Row(f"{family}.toml {name}", row.fields)
    _check_fields(row, _FIELDS)
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
        raise ValueError(f"{row.where}: an id is lower-case words with hyphens")
    signature = Signature(
        id=name,
        family=family,
        log=row.text("log"),
        title=_wording(row.row("title")),
        cause=_wording(row.row("cause")),
        cure=tuple(_step(step) for step in row.rows("cure")),
        any=row.texts("any"),
        all=row.texts("all"),
        none=row.texts("none"),
        captures=row.texts("captures"),
        needs=row.texts("needs"),
        near=_number(row, "near", 40, 0, 200),
        role=Role(row.text_or_none("role") or "error"),
        specificity=_number(row, "specificity", None, 1, 9),
        confidence=Confidence(row.text("confidence")),
        leads_to=row.texts("leads_to"),
        sources=row.texts("sources"),
    )
    if not signature.any or not signature.cure:
        raise ValueError(f"{row.where}: it needs `any` and at least one [[signature.cure]]")
    _check_placeholders(signature, row.where)
    return signature


def _step(row: Row) -> CureStep:
    _check_fields(row, _STEP_FIELDS)
    return CureStep(
        _wording(row), row.texts("commands"), row.text_or_none("when"), row.text_or_none("if_text")
    )


def _wording(row: Row) -> Wording:
    """The texts with line breaks removed; a blank line separates paragraphs."""
    paragraphs = ((" ".join(part.split()) for part in row.text(language).split("\n\n"))
                  for language in ("en", "zh"))  # fmt: skip
    english, chinese = ("\n\n".join(parts).strip() for parts in paragraphs)
    return Wording(english, chinese)


def _number(row: Row, name: str, default: int | None, minimum: int, maximum: int) -> int:
    value = row.fields.get(name, default)
    if not isinstance(value, int) or not minimum <= value <= maximum:
        raise ValueError(f"{row.where}: {name} must be from {minimum} to {maximum}, not {value!r}")
    return value


def _check_fields(row: Row, names: set[str]) -> None:
    if unknown := sorted(set(row.fields) - names):
        raise ValueError(f"{row.where}: unknown field {', '.join(unknown)}")


def _check_placeholders(signature: Signature, where: str) -> None:
    patterns = (*signature.any, *signature.all, *signature.captures)
    groups = {name for pattern in patterns for name in GROUP.findall(pattern)}
    steps = signature.cure
    wordings = [signature.title, signature.cause, *(step.text for step in steps)]
    texts = [text for wording in wordings for text in (wording.en, wording.zh)]
    for text in (*texts, *(line for step in steps for line in step.commands)):
        for placeholder in PLACEHOLDER.finditer(text):
            if placeholder["name"] not in {*groups, WHEELS}:
                raise ValueError(f"{where}: no pattern captures {{{placeholder['name']}}}")
            if placeholder["form"] not in (None, *FORMS):
                raise ValueError(f"{where}: {placeholder[0]} has an unknown form")
