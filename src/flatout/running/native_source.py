"""What the source of a script tells of how it would train on several processes by itself.

Where it starts a group of processes it is made for several, and where it imports nothing but torch
and what computes, no framework can. Between the two only a look at the running program tells, as of
a group that is started under a condition. The source is that of the script and of its own modules,
as far as they are imported by name.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from flatout.running.group_starts import GROUPS, Certainty, starts

SourceTells = Literal["ddp", "perhaps ddp", "plain", "nothing"]
SPAWNS = re.compile(r"^[^#\n]*\b(?:spawn|start_processes|Process)\(", re.MULTILINE)
"""It starts all of its processes as well: nothing can start it as one of them."""
SIGNS = re.compile(
    r"\b(?:Accelerator|Fabric|\w*Trainer|accelerate|lightning|pytorch_lightning"
    r"|DistributedDataParallel|fully_shard|FullyShardedDataParallel"
    r"|init_process_group|init_device_mesh|init_distributed\w*|import_module|__import__|exec)\b"
    r"""|["'](?:RANK|WORLD_SIZE|LOCAL_RANK|SLURM_PROCID|SLURM_LOCALID)["']"""
)
"""It may use a framework, start a group, or ask for its rank."""
WORDS = (
    "PIL absl albumentations attr attrs click cv2 datasets dotenv einops fire flatout h5py "
    "huggingface_hub hydra imageio joblib loguru matplotlib ml_collections nltk numba numpy "
    "omegaconf pandas psutil pyarrow pydantic regex requests rich safetensors scipy seaborn "
    "sentencepiece simple_parsing six sklearn soundfile tensorboard tensorboardX tiktoken timm "
    "tokenizers torch torchaudio torchmetrics torchtext torchvision tqdm transformers typer "
    "typing_extensions tyro wandb yaml"
)
COMPUTES = frozenset(WORDS.split())
"""Packages that start no processes which train, but by the names in SIGNS."""
MOST_FILES = 400
MOST_BYTES = 2**20
"""Of one file."""


class _Source(NamedTuple):
    """One file."""

    text: str
    tree: ast.Module | None
    """None: it is no Python that this one reads."""
    known: bool
    """All that it imports is known."""


def tells(script: Path | None) -> SourceTells:
    """What the source of this script tells; nothing: none of these, or it cannot be read."""
    sources = list(_sources(script)) if script is not None else []
    if not sources:
        return "nothing"
    groups = [each for each in sources if GROUPS.search(each.text)]
    if groups and not any(SPAWNS.search(source.text) for source in [sources[0], *groups]):
        found = starts([source.tree for source in sources if source.tree is not None])
        if found is not Certainty.NO:
            return "ddp" if found is Certainty.SURE else "perhaps ddp"
    plain = all(source.known and not SIGNS.search(source.text) for source in sources)
    return "plain" if plain else "nothing"


def _sources(script: Path) -> Iterator[_Source]:
    """The script and its own modules."""
    roots = [script.parent, _above_packages(script.parent)]
    waiting, seen = [script], {script}
    while waiting:
        path = waiting.pop(0)
        text = _text(path)
        if text is None:
            continue
        tree = _tree(text)
        known = tree is not None and len(seen) <= MOST_FILES
        for folders, name in _imports(tree, path, roots) if tree is not None else ():
            files = [file for folder in folders for file in _files(folder, name)]
            known = known and (bool(files) or _is_known(name))
            new = [file for file in dict.fromkeys(files) if file not in seen]
            waiting += new[: max(0, MOST_FILES - len(seen))]
            seen.update(new)
        yield _Source(text, tree, known)


def _above_packages(folder: Path) -> Path:
    """Where a package must be looked for that this folder is part of: `python -m` puts it there."""
    while (folder / "__init__.py").is_file() and folder.parent != folder:
        folder = folder.parent
    return folder


def _text(path: Path) -> str | None:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(MOST_BYTES)
    except OSError:
        return None


def _tree(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):  # of another Python, or cut
        return None


def _imports(tree: ast.Module, path: Path, roots: list[Path]) -> Iterator[tuple[list[Path], str]]:
    """(folders to look in, dotted name) of each module that is imported."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((roots, each.name) for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            folders = roots
            if node.level:
                folders = [path.parents[min(node.level, len(path.parents)) - 1]]
            base = node.module or ""
            if base:
                yield folders, base
            for each in node.names:  # it may be a module of a package of ours
                inner = f"{base}.{each.name}" if base else each.name
                if any(_files(folder, inner) for folder in folders):
                    yield folders, inner


def _files(folder: Path, name: str) -> list[Path]:
    """Those of a module of this name, with the packages around it; empty: it is not there."""
    found: list[Path] = []
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        base = folder.joinpath(*parts[:end])
        inside, beside = base / "__init__.py", base.with_name(f"{base.name}.py")
        if inside.is_file():
            found.append(inside)
        elif beside.is_file():
            found.append(beside)
        elif not base.is_dir():
            return []
    return found


def _is_known(name: str) -> bool:
    top = name.partition(".")[0]
    return top in sys.stdlib_module_names or top in COMPUTES
