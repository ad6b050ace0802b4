"""Every link between the repository's own pages leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

import pytest

from law.sources import script_of_docs

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
    assert {root / "README.md", root / "docs/guide-tune.md"} <= set(pages)
    bad = {page.relative_to(root).as_posix(): broken(page) for page in pages}
    assert {name: targets for name, targets in bad.items() if targets} == {}


def test_pages_made_from_the_code_are_whole(root: Path, tmp_path: Path) -> None:
    """They are built with the site; what links to them here links to what they are made from."""
    made = script_of_docs("generate").pages()
    assert len(made) > 200
    assert [uri for uri, page in made.items() if not (root / page.source).exists()] == []
    for uri, page in made.items():
        (tmp_path / uri).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / uri).write_text(page.text, encoding="utf-8")
    bad = {uri: targets for uri in made if (targets := broken(tmp_path / uri))}
    assert bad == {}
    headless = [uri for uri, page in made.items() if not page.text.startswith("# ")]
    assert headless == []


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
