"""A signature and a family of signatures as Markdown, in one of the languages."""

from __future__ import annotations

import difflib

from flatout.explaining import filling, lines
from flatout.explaining.patterns import compiled
from flatout.knowledge import signatures
from flatout.nouns.signature import Family, Role, Signature, Wording

SURE = Wording("Confidence", "可信度")
LEVELS = {
    "high": Wording("high", "高"),
    "likely": Wording("likely", "较可能"),
    "low": Wording("low", "低"),
}
ROLES = {
    Role.ERROR: Wording("error", "错误"),
    Role.WARNING: Wording("warning", "警告"),
    Role.ECHO: Wording("only reports the end of another process", "只转述另一个进程的结束"),
    Role.HARMLESS: Wording("harmless", "无害"),
}
SOURCES = Wording("Sources", "来源")
CURE = Wording("Cure", "解决")
COUNT = Wording("{count} signatures.", "共 {count} 个特征。")


def find(name: str, language: str = "en") -> str | None:
    """The page of a signature by its id, or None if there is none."""
    key = name.strip().lower().replace("_", "-")
    signature = next((entry for entry in signatures.every() if entry.id == key), None)
    return None if signature is None else signature_page(signature, language, level=1)


def nearest(name: str) -> tuple[str, ...]:
    """Ids of signatures most like an unknown one, best first."""
    ids = [signature.id for signature in signatures.every()]
    return tuple(difflib.get_close_matches(name.strip().lower(), ids, n=2, cutoff=0.7))


def family_page(family: Family, language: str) -> str:
    """All signatures of a family."""
    parts = [f"# {family.title.in_language(language)}"]
    parts.append(COUNT.in_language(language).format(count=len(family.signatures)))
    parts += [signature_page(signature, language, level=2) for signature in family.signatures]
    return "\n\n".join(parts)


def signature_page(signature: Signature, language: str, level: int) -> str:
    """Title, message, cause and cure; placeholders are replaced by their fallback or name."""
    facts = (
        f"`{signature.id}` · {ROLES[signature.role].in_language(language)} · "
        f"{SURE.in_language(language)}: {LEVELS[signature.confidence].in_language(language)}"
    )
    parts = [f"{'#' * level} {_text(signature.title, language)}", facts]
    parts.append("\n".join(["```", *message(signature), "```"]))
    parts.append(_text(signature.cause, language))
    parts.append(f"{CURE.in_language(language)}:")
    steps = []
    for number, step in enumerate(signature.cure, 1):
        steps.append(f"{number}. {_text(step.text, language)}")
        if step.commands:
            commands = (f"   {filling.text(command, {})}" for command in step.commands)
            steps += ["", "   ```", *commands, "   ```", ""]
    parts.append("\n".join(steps))
    if signature.sources:
        sources = ", ".join(f"<{source}>" for source in signature.sources)
        parts.append(f"{SOURCES.in_language(language)}: {sources}")
    return "\n\n".join(parts)


def message(signature: Signature) -> tuple[str, ...]:
    """The lines of its log that show it, for which people search."""
    text = signature.log.encode()
    places = [place for pattern in signature.any for place in compiled(pattern).finditer(text)]
    rows, messages, begin = signature.log.splitlines(), [], 0
    for row in rows:
        end = begin + len(row.encode()) + 1
        if any(place.start() < end and place.end() > begin for place in places):
            messages.append(lines.stripped(row).strip())
        begin = end
    return tuple(dict.fromkeys(messages))


def _text(wording: Wording, language: str) -> str:
    return filling.text(wording.in_language(language), {})
