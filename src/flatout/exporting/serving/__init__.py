"""From an artefact folder to what serves it: its own server, a container, Triton, KServe."""

from __future__ import annotations

from flatout.exporting.serving.files import write
from flatout.exporting.serving.kserve import kserve
from flatout.exporting.serving.running import serve
from flatout.exporting.serving.triton import Repository, triton

__all__ = ["Repository", "kserve", "serve", "triton", "write"]
