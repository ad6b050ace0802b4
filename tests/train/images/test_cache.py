"""What is kept where: by the bytes it takes and the bytes there are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from flatout_train.errors import UsageError
from flatout_train.images import augmenting
from flatout_train.images import cache as image_cache
from flatout_train.images.cache import Canvases, plan
from flatout_train.images.image_loader import image_loader
from train.images.pictures import folder

TRAIN = augmenting.choose("auto", 224, None, True, 0.0)
EVALUATE = augmenting.choose("auto", 224, None, False, 0.0)
SMALL, LARGE = (256, 256), (448, 448)
BOTH = [LARGE, SMALL]


def size(side: tuple[int, int], count: int = 100) -> int:
    return count * side[0] * side[1] * 3


def test_a_canvas_is_as_large_as_the_pictures_are_up_to_twice_the_size() -> None:
    assert image_cache.canvases(TRAIN, [(300, 400), (375, 500)]) == [(375, 448), (256, 256)]
    assert image_cache.canvases(TRAIN, [(32, 32)]) == [(32, 32)], "small ones stay as they are"
    assert image_cache.canvases(TRAIN, [(3000, 4000)]) == BOTH
    assert image_cache.canvases(TRAIN, []) == []
    assert image_cache.canvases(EVALUATE, [(300, 400)]) == [(224, 224)], "nothing is cut later"


def test_the_best_that_fits_is_kept() -> None:
    def chosen(room: int | None) -> Any:
        found = plan("auto", 100, BOTH, room)
        return found.keeps and found.canvas

    assert chosen(size(LARGE)) == LARGE
    assert chosen(size(LARGE) - 1) == SMALL
    assert chosen(size(SMALL)) == SMALL
    assert chosen(size(SMALL) - 1) is False
    assert chosen(None) is False
    assert not plan("auto", 100, [], 10**12).keeps


def test_what_is_asked_for_is_done_though_it_may_not_fit() -> None:
    assert plan("host", 100, BOTH, 1).canvas == SMALL
    assert plan("host", 100, BOTH, None).keeps
    assert not plan(False, 100, BOTH, 10**12).keeps
    through = plan(False, 100, [SMALL], 1, SMALL)
    assert (through.keeps, through.canvas) == (False, SMALL)
    for asked in ("disk", True, None):
        with pytest.raises(UsageError, match="cache="):
            plan(asked, 100, BOTH, 1)  # type: ignore[arg-type]


def test_the_reason_tells_the_bytes() -> None:
    kept = plan("auto", 100, BOTH, 2**30).reason
    assert kept.startswith("decoded, 448 x 448 pixels each: 57.4 MiB of 1.0 GiB")
    none = plan("auto", 100, BOTH, 1000).reason
    assert none == "18.8 MiB decoded do not fit in the 1000 B that may be used"
    assert "is unknown" in plan("auto", 100, BOTH, None).reason


def test_what_other_caches_will_fill_is_not_given_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_cache, "spare_memory", lambda: 200_000)
    before = image_cache.room()
    canvases = Canvases(10, (10, 10))
    assert before is not None
    assert image_cache.room() == before - 3000
    canvases.put(1, torch.zeros(10, 10, 3, dtype=torch.uint8), (20, 40))
    assert image_cache.room() == before - 2700
    del canvases
    assert image_cache.room() == before


def test_memory_decides_of_a_real_loader(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    root = folder(tmp_path)  # 12 pictures of 48 x 40 pixels, of some 2 KiB
    decoded = 12 * 32 * 32 * 3

    def note(host: int | None) -> str:
        monkeypatch.setattr(image_cache, "spare_memory", lambda: host)
        return image_loader(root, 4, size=16, device="cpu", workers=0).notes["cache"]

    assert "32 x 32 pixels each" in note(2 * decoded)
    assert "19 x 19 pixels each" in note(2 * decoded - 2)
    assert "do not fit" in note(2000)
    assert "is unknown" in note(None)
