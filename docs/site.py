"""The site's pages, from docs/, the rest of the repository and the code, and their order.

MkDocs calls this (mkdocs.yml, `make site`). The Markdown is written for readers of the repository:
a link to what a page is made from leads to that page, a link to another file to the repository, and
lists are indented as Python-Markdown wants it.
"""

from __future__ import annotations

import logging
import posixpath
import re
from pathlib import Path
from typing import Any

import generate
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

DOCS = Path(__file__).parent
ROOT = DOCS.parent
ELSEWHERE = {
    "README.md": "index.md",
    "README.zh-CN.md": "zh/index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CODE_OF_CONDUCT.md": "conduct.md",
    "benchmarks/README.md": "benchmarks/README.md",
    "benchmarks/strangers/README.md": "benchmarks/strangers.md",
    "examples/recipes/README.md": "recipes.md",
}
"""Where it stands in the repository -> where on the site."""
GUIDE = [
    "guide-tune.md",
    "guide-live.md",
    "guide-ranks.md",
    "guide-nodes.md",
    "guide-launch.md",
    "guide-export.md",
    "guide-profile.md",
    "guide-doctor.md",
    "guide-explain.md",
    "guide-library.md",
    "from-the-naive-loop.md",
    "recipes.md",
    "guard.md",
    "measured.md",
    "architecture.md",
]
"""In this order; what else lies in docs/ itself follows."""
FAMILIES = {
    "COMM": "Communication",
    "COPY": "Copies",
    "DATA": "Data loading",
    "ENV": "Environment",
    "HOST": "Host",
    "HW": "Hardware",
    "KERN": "Kernels",
    "LOOP": "Training loop",
    "MEM": "Memory",
    "SYNC": "Synchronisation",
}
REFERENCE = generate.pages()
SOURCES = {made.source: uri for uri, made in reversed(REFERENCE.items())}
"""File or folder of the repository -> the page that is made from it, the first of several."""
ORIGIN = re.compile(r"\A<!--.*?-->\s*")
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?\)")
NAME = re.compile(r"^- Name: `([\w-]+)`", re.MULTILINE)
NUMBERED = re.compile(r"\d\. ")

Nav = list[Any]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The order of all pages."""
    logging.getLogger("jieba").setLevel(logging.WARNING)
    others = [path.name for path in sorted(DOCS.glob("*.md")) if path.name not in GUIDE]
    tables = [f"benchmarks/{path.name}" for path in sorted((DOCS / "benchmarks").glob("*.md"))]
    config.nav = [
        {"Home": ["index.md", {"中文": "zh/index.md"}]},
        {"Guide": [*GUIDE, *others]},
        {"Commands": _folder("commands")},
        {"Engines": _folder("engines")},
        {"Backends": _folder("backends")},
        {"Boosts": _folder("boosts")},
        {"Findings": _findings()},
        {"Errors": [*_folder("errors"), {"中文": _folder("errors/zh")}]},
        {"Library": _folder("library")},
        {"Benchmarks": ["benchmarks/README.md", *tables, "benchmarks/strangers.md"]},
        {
            "Project": [
                "changelog.md",
                "contributing.md",
                {"Security": "security.md"},
                {"Code of conduct": "conduct.md"},
            ]
        },
    ]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The pages that stand elsewhere, and those made from the code."""
    for place, target in ELSEWHERE.items():
        files.append(File.generated(config, target, abs_src_path=str(ROOT / place)))
    for target, made in REFERENCE.items():
        files.append(File.generated(config, target, content=made.text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page with links for the site, and lists for Python-Markdown."""
    uri = page.file.src_uri
    places = {target: place for place, target in ELSEWHERE.items()}
    folder = posixpath.dirname(places.get(uri, f"docs/{uri}"))

    def replaced(match: re.Match[str]) -> str:
        image, label, target, anchor = match.groups()
        place = posixpath.normpath(posixpath.join(folder, target))
        inside = _on_site(place, files)
        if (inside, uri) == ("errors/README.md", "zh/index.md"):
            inside = "errors/zh/README.md"
        if inside is not None:
            link = posixpath.relpath(inside, posixpath.dirname(uri) or ".")
            return f"{image}[{label}]({link}{anchor or ''})"
        if not (ROOT / place).exists():
            return match[0]
        if config.repo_url:
            return f"{image}[{label}]({config.repo_url}/blob/HEAD/{place}{anchor or ''})"
        return label

    if uri in ("index.md", "zh/index.md"):
        page.meta["hide"] = ["navigation"]  # nothing stands beside it
    # MkDocs takes the page's title from its first line.
    return _lists(LINK.sub(replaced, ORIGIN.sub("", markdown)))


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Chinese pages say so: browsers choose the form of the signs by it."""
    chinese = "zh" in page.file.src_uri.split("/")
    return f'<div lang="zh-Hans">\n{html}\n</div>' if chinese else html


def _on_site(place: str, files: Files) -> str | None:
    """The page or picture that a place of the repository has become."""
    if place in SOURCES:
        return SOURCES[place]
    for candidate in (place, f"{place}/README.md"):
        uri = ELSEWHERE.get(candidate, candidate.removeprefix("docs/"))
        known = candidate in ELSEWHERE or candidate.startswith("docs/")
        if known and files.get_file_from_path(uri) is not None:
            return uri
    return None


def _folder(name: str) -> Nav:
    """The pages of the reference in a folder, its index first."""
    pages = [uri for uri in REFERENCE if posixpath.dirname(uri) == name]
    return sorted(pages, key=lambda uri: (not uri.endswith("/README.md"), uri))


def _findings() -> Nav:
    """The index, then the findings by the letters of their code, with the short name of each."""
    families: dict[str, Nav] = {}
    index, *pages = _folder("findings")
    for uri in pages:
        code = posixpath.basename(uri).removesuffix(".md")
        name = NAME.search(REFERENCE[uri].text)
        letters = code.rstrip("0123456789")
        family = f"{FAMILIES[letters]} ({letters})" if letters in FAMILIES else letters
        label = f"{code} {name[1]}" if name else code
        families.setdefault(family, []).append({label: uri})
    return [index, *({family: pages} for family, pages in families.items())]


def _lists(markdown: str) -> str:
    """What belongs to an item stands four columns in; a list begins after an empty line."""
    lines: list[str] = []
    fenced = item = False
    for line in markdown.splitlines():
        indent = len(line) - len(line.lstrip())
        if line.lstrip().startswith("```"):
            fenced = not fenced
        if indent == 0 and line:
            item = not fenced and NUMBERED.match(line) is not None
            begins = not fenced and (item or line.startswith(("- ", "* ")))
            before = lines[-1] if lines else ""
            if begins and before and not before.startswith((" ", "- ", "* ")):
                lines += [] if NUMBERED.match(before) else [""]
        lines.append(" " + line if item and indent >= 3 else line)
    return "\n".join(lines) + "\n"
