"""Every link between the repository's own pages leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

import pytest

FENCE = re.compile(r"^[ ]*(```+)[^\n]*\n.*?^[ ]*\1[ ]*$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
LINK = re.compile(r"\[[^\[\]]*\]\((?![a-z]+:)([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)
FOLDERS = (".github", "benchmarks", "docs", "examples", "tests")


def markdown(root: Path) -> list[Path]:
    files = [path for folder in FOLDERS for path in (root / folder).rglob("*.md")]
    return sorted([*root.glob("*.md"), *files])


def links(text: str) -> list[str]:
    """The targets of the links in a page, but for those that lead out of the repository."""
    return LINK.findall(CODE.sub("code", FENCE.sub("", text)))


def anchors(text: str) -> set[str]:
    """The names of a page's headings in its address, as GitHub and the site make them."""
    titles = HEADING.findall(FENCE.sub("", text))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken(page: Path) -> list[str]:
    found = links(page.read_text(encoding="utf-8"))
    return [link for link in found if not leads_somewhere(page, link)]


def leads_somewhere(page: Path, link: str) -> bool:
    name, _, anchor = unquote(link).partition("#")
    target = page.parent / name if name else page
    if not anchor:
        return target.exists()
    return target.is_file() and anchor in anchors(target.read_text(encoding="utf-8"))


def test_no_link_is_broken(root: Path) -> None:
    pages = markdown(root)
    assert {root / "README.md", root / "docs/findings/README.md"} <= set(pages)
    bad = {page.relative_to(root).as_posix(): broken(page) for page in pages}
    assert {name: targets for name, targets in bad.items() if targets} == {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[there](other.md), [part](other.md#two-words), [picture](plot.png)", []),
        ("# Here\n[own heading](#here)", []),
        ("[outside](https://example.org/other.md#three)", []),
        ("`a[0](gone.md)` and\n```python\nf[0](gone.md)\n```\n", []),
        ("[gone](gone.md)", ["gone.md"]),
        ("![gone](gone.png)", ["gone.png"]),
        ("[no such part](other.md#three)", ["other.md#three"]),
        ("[no such heading](#there)", ["#there"]),
        ("| [a cell](gone.md) | `code` |", ["gone.md"]),
    ],
)
def test_broken_links_are_seen(tmp_path: Path, text: str, expected: list[str]) -> None:
    (tmp_path / "other.md").write_text("# One\n\n## Two `words`\n", encoding="utf-8")
    (tmp_path / "plot.png").touch()
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    assert broken(page) == expected
