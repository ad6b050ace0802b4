"""Every file in backends/ is a whole backend: documented, loadable, and read without torch."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from every import for_every
from flatout.exporting import artefact
from flatout.knowledge import backends
from flatout.nouns.exported import BuildPrecision
from flatout_programs import backends as programs

HEADINGS = [
    "What it is",
    "When it wins",
    "What it needs",
    "What it may change",
    "By hand",
    "References",
]
each_backend = for_every(backends.every(), lambda backend: backend.id)


@each_backend
def test_its_page_has_every_heading_in_order(backend: backends.KnownBackend) -> None:
    assert re.findall(r"^## (.+)$", backend.page, flags=re.MULTILINE) == HEADINGS
    assert re.search(r"^- https://", backend.page, flags=re.MULTILINE)
    assert backend.title


@each_backend
def test_it_builds_and_is_loaded(backend: backends.KnownBackend) -> None:
    module = programs.load(backend.id)
    assert list(inspect.signature(module.build).parameters) == [
        "captured",
        "folder",
        "variant",
        "settings",
    ]
    assert backend.variants
    for variant in backend.variants:
        assert BuildPrecision(variant.precision)
        assert all(package.mb > 0 for package in backend.packages(variant))
    assert "def start(folder: Path, options: dict[str, Any], threads: int)" in artefact.program(
        backend.id
    )


def test_ids_are_file_names_and_the_order_is_that_of_simplicity() -> None:
    folder = Path(programs.__file__).parent
    files = {path.stem.replace("_", "-") for path in folder.glob("*.py")} - {"--init--"}
    assert set(backends.ids()) == files
    ranks = [backend.rank for backend in backends.every()]
    assert ranks == sorted(set(ranks))
    assert backends.ids()[0] == "eager"
    names = ["aoti", "onnxruntime", "openvino"]
    assert [name for name in backends.ids() if name in names] == names
