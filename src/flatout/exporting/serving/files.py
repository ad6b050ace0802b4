"""The server and its Dockerfile, written into the artefact folder."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

from flatout.exporting import artefact
from flatout.exporting.serving.model import AGAIN, ServedModel, read
from flatout.nouns.errors import UserError

PACKAGE = "flatout_programs.serving"
PORT = 8000
USER = "10001:10001"
"""Not root; it needs no name and no home."""
SYSTEM = {"aoti": ("libgomp1",), "compile": ("g++", "libgomp1")}
"""Backend -> what it needs of the system beside its wheels: OpenMP, a compiler."""


def write(folder: Path) -> tuple[Path, ...]:
    """Write serve.py with its modules, requirements.txt and the Dockerfile; the paths."""
    model = read(folder)
    texts = {**_server(), **_container(model)}
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
    paths = tuple(folder / name for name in texts)
    artefact.note_served(folder, paths)
    return paths


def _server() -> dict[str, str]:
    """The server's files by name: in the folder nothing of flatout is there to import."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"{PACKAGE} is not installed beside flatout")
    texts = {}
    for path in sorted(Path(spec.origin).parent.glob("*.py")):
        name = path.name if path.name == "serve.py" else f"serving/{path.name}"
        texts[name] = path.read_text(encoding="utf-8").replace(f"{PACKAGE}.", "serving.")
    return texts


def _container(model: ServedModel) -> dict[str, str]:
    pins = "".join(f"{name}=={version}\n" for name, version in model.packages.items())
    parts = ["load.py", "manifest.json", *model.files]
    mine = ["serve.py", "serving", "requirements.txt", *sorted({*parts})]
    return {
        "requirements.txt": pins,
        "Dockerfile": _dockerfile(model, mine),
        # Only what is copied goes to the builder.
        ".dockerignore": "".join(["*\n", *(f"!{name}\n" for name in mine), "**/__pycache__\n"]),
    }


def _dockerfile(model: ServedModel, names: list[str]) -> str:
    return "\n".join(
        [
            f"# {model.name} on {model.backend}, over HTTP. Build and run:",
            "#   docker build -t model .",
            f"#   docker run --rm --init --read-only --tmpfs /tmp -p 127.0.0.1:{PORT}:{PORT} model",
            f"FROM python:{_python(model)}-slim",
            "",
            *_system(model),
            "WORKDIR /model",
            "COPY requirements.txt .",
            *_packages(model),
            *(f"COPY --chown={USER} {source} {target}" for source, target in _copies(names)),
            "",
            f"USER {USER}",
            "ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp",
            f"EXPOSE {PORT}",
            "# ready: the model is loaded; a large one takes longer than start-period says",
            "HEALTHCHECK --interval=10s --timeout=3s --start-period=60s CMD \\",
            f'    ["python", "-c", "{_health()}"]',
            "# after SIGTERM it answers for five more seconds, while it is taken out of balancers",
            'ENTRYPOINT ["python", "serve.py", "--host", "0.0.0.0"]',
            f'CMD ["--port", "{PORT}", "--linger-s", "5"]',
            "",
        ]
    )


def _system(model: ServedModel) -> list[str]:
    packages = SYSTEM.get(model.backend)
    if packages is None:
        return []
    return [
        "RUN apt-get update \\",
        f"    && apt-get install -y --no-install-recommends {' '.join(packages)} \\",
        "    && rm -rf /var/lib/apt/lists/*",
    ]


def _packages(model: ServedModel) -> list[str]:
    install = "RUN pip install --no-cache-dir -r requirements.txt"
    if "torch" not in model.packages:
        return [install]
    return [
        "# torch for CPUs alone is a tenth of the size. Its index is what `flatout env install`",
        "# names on a machine without GPU: docker build --build-arg TORCH_INDEX=... -t model .",
        "ARG TORCH_INDEX",
        f"{install} ${{TORCH_INDEX:+--extra-index-url $TORCH_INDEX}}",
    ]


def _python(model: ServedModel) -> str:
    return ".".join((model.python or "3.11").split(".")[:2])


def _health() -> str:
    ask = (
        f"c = HTTPConnection('127.0.0.1', {PORT}, timeout=2); c.request('GET', '/v2/health/ready')"
    )
    return f"from http.client import *; {ask}; exit(c.getresponse().status != 200)"


def _copies(names: list[str]) -> Iterator[tuple[str, str]]:
    flat = [
        name for name in names if "/" not in name and name not in ("serving", "requirements.txt")
    ]
    yield _words(flat), "./"
    yield "serving", "serving"
    for name in names:
        if "/" in name:
            yield _words([name]), name


def _words(names: list[str]) -> str:
    if all(re.fullmatch(r"[\w./+-]+", name) for name in names):
        return " ".join(names)
    raise UserError(f"a file of the model has a name that no Dockerfile takes: {names}", AGAIN)
