"""What is kept where: by the bytes it takes and the bytes there are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flatout_train.errors import UsageError
from flatout_train.images import augmenting
from flatout_train.images import cache as image_cache
from flatout_train.images.cache import Canvases, Files, Room, plan
from flatout_train.images.image_loader import image_loader
from train.images.pictures import folder

CPU = torch.device("cpu")
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
    def chosen(host: int | None, device: int | None) -> tuple[str, Any]:
        found = plan("auto", 100, BOTH, 1000.0, Room(host, device))
        return found.kind, found.canvas

    plenty = size(LARGE)
    assert chosen(plenty, plenty) == ("device", LARGE)
    assert chosen(plenty, plenty - 1) == ("device", SMALL)
    assert chosen(plenty, size(SMALL) - 1) == ("host", LARGE)
    assert chosen(plenty - 1, None) == ("host", SMALL)
    assert chosen(size(SMALL) - 1, None) == ("files", None)
    assert chosen(99_999, None) == ("none", None)
    assert chosen(None, None) == ("none", None)


def test_what_is_asked_for_is_done_though_it_may_not_fit() -> None:
    tight = Room(1, 1)
    assert plan("host", 100, BOTH, 1000.0, tight).canvas == SMALL
    assert plan("device", 100, BOTH, 1000.0, tight).kind == "device"
    assert plan("files", 100, BOTH, 1000.0, tight).kind == "files"
    assert plan(False, 100, BOTH, 1000.0, Room(10**12, None)).kind == "none"
    through = plan(False, 100, [SMALL], 1000.0, tight, SMALL)
    assert (through.kind, through.canvas) == ("none", SMALL)
    for asked in ("disk", True, None):
        with pytest.raises(UsageError, match="cache="):
            plan(asked, 100, BOTH, 1000.0, tight)  # type: ignore[arg-type]


def test_the_reason_tells_the_bytes() -> None:
    kept = plan("auto", 100, BOTH, 1000.0, Room(2**30, None)).reason
    assert kept.startswith("decoded, 448 x 448 pixels each: 57.4 MiB of 1.0 GiB")
    assert "97.7 KiB together" in plan("files", 100, BOTH, 1000.0, Room(None, None)).reason
    none = plan("auto", 100, BOTH, 1000.0, Room(1000, None)).reason
    assert (
        none == "18.8 MiB decoded and 97.7 KiB of files do not fit in the 1000 B that may be used"
    )
    assert "is unknown" in plan("auto", 100, BOTH, 1000.0, Room(None, None)).reason


@given(
    host=st.none() | st.integers(0, 10**9),
    device=st.none() | st.integers(0, 10**9),
    count=st.integers(1, 5000),
    mean=st.floats(1, 1e6),
)
def test_nothing_is_kept_that_does_not_fit(
    host: int | None, device: int | None, count: int, mean: float
) -> None:
    found = plan("auto", count, BOTH, mean, Room(host, device))
    space = {"device": device, "host": host, "files": host}.get(found.kind, 0)
    needed = {"files": int(count * mean), "none": 0}.get(found.kind)
    if needed is None:
        assert found.canvas is not None
        needed = size(found.canvas, count)
    assert space is not None and needed <= space


def test_canvases_are_read_once_they_are_whole() -> None:
    canvases = Canvases(3, (2, 4), CPU)
    assert canvases.get(1) is None
    assert canvases.unfilled() == 3 * 2 * 4 * 3
    picture = torch.randint(0, 256, (2, 4, 3), dtype=torch.uint8)
    canvases.put(1, picture, (20, 40))
    assert canvases.get(1) == (20, 40)
    assert torch.equal(canvases.pixels[1], picture)
    canvases.put_together([2, 0], torch.stack([picture, 255 - picture]), [(5, 6), (7, 8)])
    assert (canvases.get(2), canvases.get(0)) == ((5, 6), (7, 8))
    assert torch.equal(canvases.pixels[0], 255 - picture)
    assert canvases.unfilled() == 0


def test_files_are_kept_up_to_the_limit() -> None:
    files = Files(10)
    files.put(0, b"1234")
    files.put(0, b"1234")
    files.put(1, b"123456789")
    files.put(2, b"123456")
    assert (files.get(0), files.get(1), files.get(2)) == (b"1234", None, b"123456")
    assert files.unfilled() == 0


def test_what_other_caches_will_fill_is_not_given_twice(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(image_cache, "spare_memory", lambda: 200_000)
    before = image_cache.room(CPU).host
    canvases = Canvases(10, (10, 10), CPU)
    assert before is not None
    assert image_cache.room(CPU).host == before - 3000
    assert image_cache.room(CPU).device is None
    del canvases
    assert image_cache.room(CPU).host == before


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


@pytest.mark.gpu
def test_the_devices_memory_is_measured() -> None:
    device = torch.device("cuda")
    free = image_cache.room(device).device
    assert free is not None and 0 < free <= torch.cuda.mem_get_info()[1] * image_cache.DEVICE_SHARE
    canvases = Canvases(4, (8, 8), device)
    batch = torch.randint(0, 256, (2, 8, 8, 3), dtype=torch.uint8, device=device)
    canvases.put_together([3, 1], batch, [(8, 8), (9, 9)])
    assert canvases.on_device and torch.equal(canvases.pixels[3], batch[0])
    assert (canvases.get(0), canvases.get(1), canvases.get(3)) == (None, (9, 9), (8, 8))
