"""What scripts beside the package import from it, often within a function, exists."""

from __future__ import annotations

import ast
from functools import cache

from law.sources import SRC, tree

PACKAGES = {path.name for path in SRC.iterdir() if path.name.startswith("flatout")}
SCRIPTS = sorted(
    path
    for folder in ("benchmarks", "docs", "examples", "tests")
    for path in (SRC.parent / folder).rglob("*.py")
    if "import" in (text := path.read_text(encoding="utf-8")) and "flatout" in text
)


@cache
def names(module: str) -> set[str]:
    """What can be imported from a module: what it binds at its top level, and modules below."""
    place = SRC.joinpath(*module.split("."))
    found = {path.stem for path in place.iterdir()} if place.is_dir() else set()
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    pending: list[ast.AST] = list(tree(file).body) if file.exists() else []
    while pending:
        node = pending.pop()
        match node:
            case ast.FunctionDef() | ast.ClassDef():
                found.add(node.name)
                continue
            case ast.Import() | ast.ImportFrom():
                found |= {(item.asname or item.name).partition(".")[0] for item in node.names}
            case ast.Name(ctx=ast.Store()):
                found.add(node.id)
            case ast.Assign(targets=[ast.Name("__all__")], value=ast.List(elts=public)):
                found |= {item.value for item in public if isinstance(item, ast.Constant)}
        pending += ast.iter_child_nodes(node)
    return found


def test_names_imported_from_the_package_exist() -> None:
    missing = []
    for path in SCRIPTS:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom) or node.level or node.module is None:
                continue
            if node.module.partition(".")[0] in PACKAGES:
                absent = {item.name for item in node.names} - names(node.module)
                missing += [
                    f"{path.relative_to(SRC.parent)}:{node.lineno} {name}" for name in absent
                ]
    assert missing == []
