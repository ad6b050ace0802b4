"""`image_loader`: the same pictures in, the same batches out, whatever is broken or in the way."""

from __future__ import annotations

import gc
import json
import os
import random
import sys
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

import flatout
from flatout_train.errors import UsageError
from flatout_train.images import device_decoding, finishing
from flatout_train.images import image_loader as images
from flatout_train.images.decoding import CorruptError, PillowPicture
from flatout_train.images.device_decoding import DeviceDecoder
from flatout_train.images.image_loader import ImageLoader, image_loader
from flatout_train.loader import sampling
from flatout_train.loader.sampling import World
from train.images.pictures import encoded, folder, picture, reference

SIZE = 16
MEAN = torch.tensor(images.IMAGENET_MEAN).view(1, 3, 1, 1)
STD = torch.tensor(images.IMAGENET_STD).view(1, 3, 1, 1)
LEVEL = 1.01 / 255 / 0.224
"""One step of 256, once normalised."""


def loader(root: Path, batch_size: int = 4, **given: Any) -> ImageLoader:
    return image_loader(root, batch_size, **{"size": SIZE, "device": "cpu", "workers": 2} | given)


def passed(one: ImageLoader) -> list[tuple[Tensor, Tensor]]:
    return list(one)


def same(a: list[tuple[Tensor, Tensor]], b: list[tuple[Tensor, Tensor]], far: float = 0) -> bool:
    return len(a) == len(b) and all(
        x.shape == y.shape and float((x - y).abs().max()) <= far and torch.equal(k, m)
        for (x, k), (y, m) in zip(a, b, strict=True)
    )


def test_batches_are_normalised_channels_last_and_labelled(tmp_path: Path) -> None:
    one = flatout.image_loader(folder(tmp_path), 5, size=SIZE, device="cpu", workers=1)
    assert (one.classes, one.class_to_index) == (["c0", "c1", "c2"], {"c0": 0, "c1": 1, "c2": 2})
    batches = passed(one)
    assert len(one) == len(batches) == 2
    for found, labels in batches:
        assert found.shape == (5, 3, SIZE, SIZE) and found.dtype == torch.float32
        assert found.is_contiguous(memory_format=torch.channels_last)
        assert labels.shape == (5,) and labels.dtype == torch.int64
        pixels = found * STD + MEAN
        assert float(pixels.min()) >= 0 and float(pixels.max()) <= 1.0001
    assert set(one.notes) == {"augment", "cache", "decoder", "pictures", "workers"}
    assert one.notes["pictures"] == "12 in 3 classes"


@pytest.mark.parametrize("cache", [False, "host"])
def test_evaluation_gives_every_picture_once_as_pillow_would(tmp_path: Path, cache: Any) -> None:
    root = folder(tmp_path, 3, 3)
    one = loader(root, train=False, cache=cache)
    wanted = [
        reference(Image.open(root / f"c{n // 3}/{n % 3}.jpg"), SIZE, round(SIZE * 256 / 224))
        for n in range(9)
    ]
    for _ in range(2):
        batches = passed(one)
        assert [len(labels) for _, labels in batches] == [4, 4, 1]
        assert torch.cat([labels for _, labels in batches]).tolist() == [0] * 3 + [1] * 3 + [2] * 3
        found = torch.cat([batch for batch, _ in batches]) * STD + MEAN
        pixels = torch.stack(wanted).permute(0, 3, 1, 2) / 255
        assert float((found - pixels).abs().max()) <= 1.01 / 255


def test_the_same_seed_gives_the_same_batches_for_any_workers_and_cache(tmp_path: Path) -> None:
    root = folder(tmp_path)
    first = loader(root, workers=0, cache=False)
    epochs = [passed(first) for _ in range(3)]
    assert not same(epochs[0], epochs[1]), "every epoch is another one"
    for given in ({"workers": 1}, {"workers": 3}, {"prefetch": 0}):
        again = loader(root, **{"cache": False} | given)
        assert all(same(passed(again), epoch) for epoch in epochs)
    assert not same(passed(loader(root, seed=1, cache=False)), epochs[0])
    kept = loader(root, cache="host")  # one canvas size: pixels of the whole picture are rounded
    fresh = [passed(loader(root, cache="host", workers=w)) for w in (0, 2)]
    assert same(fresh[0], fresh[1]) and same(fresh[0], passed(kept))
    assert "decoded" in kept.notes["cache"]


def test_from_the_second_epoch_on_nothing_is_read(tmp_path: Path) -> None:
    root = folder(tmp_path, 3, 4)
    one = loader(root, cache="host")
    whole = [passed(one) for _ in range(2)]
    kept = loader(root, cache="host")
    first = passed(kept)
    for path in root.rglob("*.jpg"):
        path.unlink()
    assert same(first, whole[0]) and same(passed(kept), whole[1])
    assert len(kept.skipped) == 0


@pytest.mark.slow
@pytest.mark.parametrize("cache", [False, "host"])
@pytest.mark.parametrize("after", [1, 4, 5])
def test_a_resumed_run_goes_on_at_the_exact_picture(tmp_path: Path, cache: Any, after: int) -> None:
    root = folder(tmp_path, 2, 8)
    given: dict[str, Any] = {"cache": cache, "color_jitter": 0.3}
    whole = loader(root, **given)
    batches = passed(whole) + passed(whole)
    one = loader(root, **given)
    handed: list[tuple[Tensor, Tensor]] = []
    while len(handed) < after:
        for batch in one:
            handed.append(batch)
            if len(handed) == after:
                break
    state = json.loads(json.dumps(one.state_dict()))
    other = loader(root, **given | {"workers": 0})
    other.load_state_dict(state)
    left = passed(other)
    left += passed(other) if len(handed) + len(left) < 8 else []
    assert same(handed + left, batches)


def test_a_resumed_run_keeps_the_resolution_that_it_had(tmp_path: Path) -> None:
    root = folder(tmp_path)
    whole = passed(loader(root, cache="host"))
    one = loader(root, cache="host")
    for _ in one:
        break
    other = loader(root, cache=False)
    assert other.state_dict()["canvas"] is None
    other.load_state_dict(one.state_dict())
    assert same(passed(other), whole[1:])
    assert other.notes["cache"].startswith("no")


def test_other_pictures_cannot_be_resumed_with(tmp_path: Path) -> None:
    root = folder(tmp_path)
    state = loader(root).state_dict()
    (root / "c0/more.jpg").write_bytes(encoded(picture(1)))
    with pytest.raises(UsageError, match="pictures was 12, now it is 13"):
        loader(root).load_state_dict(state)
    (root / "c0/more.jpg").unlink()
    (root / "c0/0.jpg").rename(root / "c1/0a.jpg")
    with pytest.raises(UsageError, match="names_and_labels was"):
        loader(root).load_state_dict(state)
    with pytest.raises(UsageError, match="state has version 99, this flatout reads 2"):
        loader(root).load_state_dict({**state, "version": 99})
    state = loader(root).state_dict()
    with pytest.raises(UsageError, match="seed was 0, now it is 1"):
        loader(root, seed=1).load_state_dict(state)


def break_some(root: Path) -> dict[str, str]:
    """Files that cannot be decoded, in c0 of a large folder; name -> reason."""
    whole = encoded(picture(1, 300, 300))
    (root / "c0/0.jpg").write_bytes(b"")
    (root / "c0/2.jpg").write_bytes(whole[: len(whole) // 2])
    (root / "c0/3.jpg").write_text("no picture")
    (root / "c0/4.png").write_bytes(encoded(picture(1), "PNG")[:200])
    (root / "c0/5.jpg").mkdir()
    reasons = {"0.jpg": "empty", "2.jpg": "truncated", "3.jpg": "not a picture", "4.png": ""}
    if sys.platform != "win32":
        os.symlink(root / "nowhere", root / "c0/6.jpg")
        reasons["6.jpg"] = "No such file"
    return reasons


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_in_training_the_next_good_picture_comes_for_a_corrupt_one(
    tmp_path: Path, workers: int
) -> None:
    root = folder(tmp_path, 4, 12)
    for name in ("5.jpg", "6.jpg"):
        (root / "c0" / name).unlink()
    reasons = break_some(root)
    one = loader(root, workers=workers, seed=3)
    with pytest.warns(UserWarning, match=f"{len(reasons)} pictures of .* were skipped"):
        batches = passed(one)
    assert all(found.shape == (4, 3, SIZE, SIZE) for found, _ in batches)
    assert len(one.skipped) == len(reasons)
    for skipped in one.skipped:
        assert skipped.path.parent == root / "c0"
        assert reasons[skipped.path.name] in skipped.reason
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing new: no second warning
        passed(one)
    with pytest.warns(UserWarning):
        again = passed(loader(root, workers=1, seed=3))
    assert same(batches, again)


def test_the_replacement_brings_its_own_label(tmp_path: Path) -> None:
    root = folder(tmp_path, 2, 1)
    (root / "c0/0.jpg").write_bytes(b"broken")
    one = loader(root, batch_size=2, augment="none")
    with pytest.warns(UserWarning, match="1 pictures"):
        [(found, labels)] = passed(one)
    assert labels.tolist() == [1, 1] and torch.equal(found[0], found[1])


def test_in_evaluation_a_corrupt_picture_is_left_out(tmp_path: Path) -> None:
    root = folder(tmp_path, 2, 4)
    for number in range(3):
        (root / f"c0/{number}.jpg").write_bytes(b"broken")
    one = loader(root, batch_size=3, train=False)
    with pytest.warns(UserWarning, match="3 pictures"):
        batches = passed(one)
    assert [labels.tolist() for _, labels in batches] == [[0, 1, 1], [1, 1]]


def test_what_is_left_out_does_not_change_the_others(tmp_path: Path) -> None:
    root = folder(tmp_path, 2, 4)
    given: dict[str, Any] = {"batch_size": 8, "train": False, "color_jitter": 0.5}
    [(whole, _)] = passed(loader(root, **given))
    (root / "c0/2.jpg").write_bytes(b"broken")
    with pytest.warns(UserWarning, match="1 pictures"):
        [(found, _)] = passed(loader(root, **given))
    assert torch.equal(found, whole[[0, 1, 3, 4, 5, 6, 7]])


def test_mostly_corrupt_pictures_are_an_error_that_names_some(tmp_path: Path) -> None:
    root = folder(tmp_path, 2, 4)
    for path in list(root.rglob("*.jpg"))[:5]:
        path.write_bytes(b"broken")
    for train in (True, False):
        with pytest.raises(UsageError, match=r"5 of the first . pictures .*jpg \(not a picture"):
            passed(loader(root, train=train))
    for path in root.rglob("*.jpg"):
        path.write_bytes(b"broken")
    with pytest.raises(UsageError, match="8 of the first 8"):
        passed(loader(root))


@pytest.mark.skipif(
    sys.platform == "win32" or os.geteuid() == 0, reason="everything is readable here"
)
def test_an_unreadable_file_is_skipped(tmp_path: Path) -> None:
    root = folder(tmp_path)
    (root / "c0/0.jpg").chmod(0)
    one = loader(root)
    with pytest.warns(UserWarning, match="Permission denied"):
        passed(one)


def test_trouble_that_is_not_the_files_is_not_taken_for_corruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = loader(folder(tmp_path))

    def full(path: Path) -> bytes:
        raise OSError(24, "Too many open files", str(path))

    monkeypatch.setattr(Path, "read_bytes", full)
    with pytest.raises(OSError, match="Too many open files"):
        passed(one)
    assert len(one.skipped) == 0


def test_pictures_of_all_sizes_and_kinds_make_one_batch(tmp_path: Path) -> None:
    root = tmp_path / "c"
    root.mkdir()
    for number, (width, height) in enumerate([(1, 1), (1, 400), (400, 1), (33, 700), (16, 16)]):
        (root / f"{number}.jpg").write_bytes(encoded(picture(number, width, height)))
    (root / "5.png").write_bytes(encoded(picture(5).convert("RGBA"), "PNG"))
    (root / "6.gif").write_bytes(encoded(picture(6).quantize(16), "GIF"))
    for given in ({}, {"train": False}, {"cache": "host"}, {"train": False, "cache": "host"}):
        one = loader(tmp_path, batch_size=7, **given)
        for _ in range(2):
            [(found, _)] = passed(one)
            assert found.shape == (7, 3, SIZE, SIZE) and bool(found.isfinite().all())


def test_a_function_of_the_users_gets_pixels_on_the_device(tmp_path: Path) -> None:
    root = folder(tmp_path)
    seen: list[Tensor] = []
    threads = set()

    def darker(batch: Tensor) -> Tensor:
        seen.append(batch)
        threads.add(threading.current_thread())
        return batch.float() / 2

    plain = passed(loader(root))
    found = passed(loader(root, augment=darker))
    assert all(batch.dtype == torch.uint8 and batch.shape == (4, 3, SIZE, SIZE) for batch in seen)
    assert threads == {threading.current_thread()}
    for (a, _), (b, _) in zip(plain, found, strict=True):
        torch.testing.assert_close((a * STD + MEAN) / 2, b * STD + MEAN, rtol=0, atol=1e-5)

    def wrong(batch: Tensor) -> Tensor:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        passed(loader(root, augment=wrong))


def test_labels_from_a_table_and_half_precision(tmp_path: Path) -> None:
    root = folder(tmp_path, 1, 4)
    table = {"c0/0.jpg": 7, "c0/1.jpg": 9, "c0/3.jpg": 7}
    one = loader(root, labels=table, train=False, dtype=torch.bfloat16)
    [(found, labels)] = passed(one)
    assert one.classes == ["7", "9"] and labels.tolist() == [0, 1, 0]
    assert found.dtype == torch.bfloat16


def test_a_pass_that_is_given_up_leaves_the_loader_usable(tmp_path: Path) -> None:
    one = loader(folder(tmp_path))
    for _ in one:
        break
    assert len(passed(one)) == 3
    before = threading.active_count()
    one.close()
    del one
    gc.collect()
    assert threading.active_count() < before


@pytest.mark.parametrize("train", [True, False])
def test_ranks_share_an_epoch_without_overlap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, train: bool
) -> None:
    root = folder(tmp_path, 1, 12)
    table = {f"c0/{number}.jpg": number for number in range(12)}
    found = []
    for rank in range(3):
        monkeypatch.setattr(sampling, "world", lambda rank=rank: World(rank, 3))
        one = loader(root, batch_size=2, labels=table, train=train)
        batches = passed(one)
        assert len(batches) == len(one) == 2
        found.append(torch.cat([labels for _, labels in batches]))
    assert sorted(torch.cat(found).tolist()) == list(range(12))


def test_the_programs_own_random_numbers_are_not_touched(tmp_path: Path) -> None:
    torch.manual_seed(1)
    random.seed(1)
    before = torch.get_rng_state(), random.getstate()
    passed(loader(folder(tmp_path), workers=0, color_jitter=0.3))
    assert torch.equal(torch.get_rng_state(), before[0]) and random.getstate() == before[1]


def threads_of_a_new_thread() -> int:
    with ThreadPoolExecutor(1) as later:
        return later.submit(torch.get_num_threads).result()


def test_workers_leave_the_programs_threads_alone(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        passed(loader(folder(tmp_path), workers=2))
        # While a worker of the loader begins, a new thread may inherit that worker's number.
        deadline = time.monotonic() + 120
        while threads_of_a_new_thread() != 3 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert threads_of_a_new_thread() == 3
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": 2.5}, r"batch_size=2\.5"),
        ({"batch_size": 13}, "fewer than one batch of 13"),
        ({"workers": -1}, "workers=-1"),
        ({"workers": "many"}, "workers='many'"),
        ({"prefetch": -1}, "prefetch=-1"),
        ({"dtype": torch.uint8}, "floating-point"),
        ({"cache": "disk"}, "cache='disk'"),
        ({"decoder": "none"}, "decoder='none'"),
        ({"augment": 3}, "augment=3"),
    ],
)
def test_arguments_that_cannot_be_are_refused(
    tmp_path: Path, given: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        loader(folder(tmp_path), **given)


def fake(broken: set[int]) -> Callable[[torch.device], DeviceDecoder]:
    """A decoder for a device that is the CPU; files of these lengths fail."""

    def decode(files: list[Tensor]) -> list[Tensor]:
        if any(len(file) in broken for file in files):
            raise RuntimeError("nvjpegDecode failed: 6\nmore")
        data = [bytes(file.tolist()) for file in files]
        return [PillowPicture(one).region(None, 1.0).permute(2, 0, 1) for one in data]

    return lambda device: DeviceDecoder("fake:device", decode)


@pytest.mark.parametrize("given", [{}, {"train": False}, {"color_jitter": 0.2}])
def test_decoding_on_a_device_gives_the_same_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
) -> None:
    root = folder(tmp_path, 3, 4, width=SIZE * 2, height=SIZE * 2)
    (root / "c1/9.png").write_bytes(encoded(picture(9, SIZE * 2, SIZE * 2), "PNG"))
    wanted = loader(root, cache=False, **given)
    monkeypatch.setattr(device_decoding, "installed", fake(set()))
    one = loader(root, cache=False, decoder="fake:device", **given)
    far = LEVEL * (2 if "color_jitter" in given else 1)
    for _ in range(2):
        assert same(passed(one), passed(wanted), far)
    assert one.state_dict()["decoder"] == "fake:device"
    assert not loader(root, cache="host", **given)._images.pipeline.reader.decodes_on_device


def one_that_differs(root: Path) -> int:
    """The length of a file that no other has."""
    lengths = [path.stat().st_size for path in sorted(root.rglob("*.jpg"))]
    return next(length for length in lengths if lengths.count(length) == 1)


def test_what_the_device_cannot_decode_is_decoded_on_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = folder(tmp_path, 2, 8)
    wanted = passed(loader(root, cache=False, train=False))
    monkeypatch.setattr(device_decoding, "installed", fake({one_that_differs(root)}))
    one = loader(root, decoder="fake:device", cache=False, train=False)
    assert same(passed(one), wanted, LEVEL)
    assert len(one.skipped) == 0


@pytest.mark.parametrize("train", [True, False])
def test_what_neither_can_decode_is_skipped_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, train: bool
) -> None:
    root = folder(tmp_path, 2, 8)
    bad = one_that_differs(root)

    def opened(data: bytes) -> Any:
        if len(data) == bad:
            raise CorruptError("no Huffman table")
        return PillowPicture(data)

    monkeypatch.setattr(device_decoding, "installed", fake({bad}))
    monkeypatch.setattr(finishing, "PillowPicture", opened)
    one = loader(root, decoder="fake:device", cache=False, train=train)
    with pytest.warns(UserWarning, match="no Huffman table"):
        batches = passed(one)
    assert sum(len(labels) for _, labels in batches) == (16 if train else 15)
    assert len(one.skipped) == 1


@pytest.mark.parametrize(
    "said",
    [
        "Error while decoding JPEG images: CUDA out of memory. Tried to allocate 1 GiB",
        "CUDA error: an illegal memory access was encountered",
    ],
)
def test_the_devices_own_trouble_is_no_fault_of_a_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    def decode(files: list[Tensor]) -> list[Tensor]:
        raise RuntimeError(said)

    monkeypatch.setattr(
        device_decoding, "installed", lambda device: DeviceDecoder("fake:device", decode)
    )
    one = loader(folder(tmp_path, 2, 8), decoder="fake:device", cache=False)
    with pytest.raises(RuntimeError, match=said[-20:]):
        passed(one)
    assert len(one.skipped) == 0


@pytest.mark.gpu
@pytest.mark.parametrize("cache", [False, "host"])
@pytest.mark.parametrize("train", [True, False])
def test_batches_on_the_gpu_are_those_on_the_cpu(tmp_path: Path, cache: Any, train: bool) -> None:
    root = folder(tmp_path, 4, 16, width=SIZE * 2, height=SIZE * 2)
    here = loader(root, 8, train=train, cache=cache)
    there = loader(root, 8, train=train, cache=cache, device="cuda", decoder="pillow")
    for _ in range(3):
        mine, theirs = passed(here), passed(there)
        assert all(batch.device.type == "cuda" for pair in theirs for batch in pair)
        assert same([(a.cpu(), b.cpu()) for a, b in theirs], mine, 2 * LEVEL)
        assert all(a.is_contiguous(memory_format=torch.channels_last) for a, _ in theirs)


@pytest.mark.gpu
def test_the_gpu_decodes_where_it_can(tmp_path: Path) -> None:
    root = folder(tmp_path, 4, 16, width=96, height=80)
    (root / "c0/0.jpg").write_bytes(b"broken")
    decoder = device_decoding.installed(torch.device("cuda"))
    if decoder is None:
        pytest.skip("no decoder for the device is installed")
    one = loader(root, 8, device="cuda", decoder=decoder.name, cache=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs, mine = passed(one), passed(loader(root, 8, cache=False))
    assert same([(a.cpu(), b.cpu()) for a, b in theirs], mine, 10 * LEVEL)
