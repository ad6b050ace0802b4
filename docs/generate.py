"""Make the reference pages: docs/boosts from the boosts, docs/findings from the checks.

Run by `make docs`; `tests/law` fails where a page differs from what this would write.
"""

from __future__ import annotations

import sys
from pathlib import Path

from flatout.diagnosing.pages import Page
from flatout.diagnosing.pages import every as every_finding
from flatout.knowledge import boosts
from flatout.knowledge.boosts import KnownBoost

DOCS = Path(__file__).parent
MADE = "<!-- Made by `make docs` from src/{file}.py: edit it there. -->"
MOMENTS = {
    "start": "when torch has been imported",
    "loader": "when a DataLoader is iterated for the first time",
    "model": "when a model is called in training for the first time",
    "optimizer": "when an optimizer takes its first step",
}
RISKS = {
    "exact": "exact: the same arithmetic, at most reordered",
    "rounding": "rounding: numbers are computed in another precision",
    "semantics": "semantics: what is computed changes; never on unless allowed",
}


def pages() -> dict[Path, str]:
    """Every generated page, by its path."""
    found = {DOCS / "boosts" / f"{boost.id}.md": page(boost) for boost in boosts.every()}
    found[DOCS / "boosts" / "README.md"] = index()
    findings = every_finding()
    found |= {DOCS / "findings" / f"{page.code}.md": finding(page) for page in findings}
    found[DOCS / "findings" / "README.md"] = finding_index(findings)
    return found


def finding(page: Page) -> str:
    """One finding code's page."""
    file = f"flatout/diagnosing/checks/{page.id.replace('-', '_')}"
    return f"{MADE.format(file=file)}\n\n{page.markdown}"


def finding_index(findings: tuple[Page, ...]) -> str:
    """The table of all finding codes."""
    rows = [f"| [{p.code}]({p.code}.md) | {p.title} | {p.severity} |" for p in findings]
    head = ["<!-- Made by `make docs`. -->", "", "# Findings", ""]
    return "\n".join([*head, "| code | what is wrong | severity |", "|---|---|---|", *rows]) + "\n"


def page(boost: KnownBoost) -> str:
    """One boost's page: its facts, then its docstring."""
    title, _, text = boost.page.partition("\n")
    facts = [
        f"- Risk: {RISKS[boost.risk.value]}",
        f"- Applied {MOMENTS[boost.moment.value]}",
        f"- Since {boost.since}",
    ]
    if boost.params:
        shown = [f"`{name}`: {_values(values)}" for name, values in boost.params.items()]
        facts.append(f"- Parameters (the default first): {'; '.join(shown)}")
    if boost.conflicts:
        facts.append(f"- Never together with {_links(sorted(boost.conflicts))}")
    if boost.retry_after:
        facts.append(f"- Tried again once one of these was kept: {_links(boost.retry_after)}")
    file = f"flatout_agent/boosts/{boost.id.replace('-', '_')}"
    head = [MADE.format(file=file), f"# {boost.id}", title]
    return "\n\n".join([*head, "\n".join(facts), text.strip()]) + "\n"


def index() -> str:
    """The table of all boosts."""
    rows = [
        f"| [{boost.id}]({boost.id}.md) | {boost.title} | {boost.risk.value} |"
        for boost in boosts.every()
    ]
    head = ["<!-- Made by `make docs`. -->", "", "# Boosts", ""]
    return "\n".join([*head, "| boost | what it does | risk |", "|---|---|---|", *rows]) + "\n"


def main() -> None:
    """Write the pages that differ; remove those of boosts and checks that are no more."""
    wanted = pages()
    for folder in {path.parent for path in wanted}:
        folder.mkdir(exist_ok=True)
        for stale in set(folder.glob("*.md")) - set(wanted):
            stale.unlink()
    for path, text in wanted.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8", newline="\n")
            sys.stdout.write(f"{path.relative_to(DOCS.parent)}\n")


def _values(values: tuple[object, ...]) -> str:
    return ", ".join(f"`{value!r}`" for value in values)


def _links(ids: tuple[str, ...] | list[str]) -> str:
    return ", ".join(f"[{boost_id}]({boost_id}.md)" for boost_id in ids)


if __name__ == "__main__":
    main()
