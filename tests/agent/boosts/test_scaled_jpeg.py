"""scaled-jpeg: what is shrunk is nearly the same, all else has every bit, errors come in time."""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import pickle
import random
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile, ImageFilter, ImageOps, JpegImagePlugin, UnidentifiedImageError
from PIL.JpegImagePlugin import JpegImageFile
from torch.utils.data import DataLoader, Dataset, TensorDataset

from flatout_agent.boost import Applied, Declined
from flatout_agent.boosts import scaled_jpeg as boost
from flatout_agent.job import Job
from flatout_agent.speedups.images import jpeg_loading, lazy_jpeg
from flatout_agent.speedups.images.jpeg_bytes import is_plain
from flatout_agent.wire import JobFacts, LoaderFacts
from photos import photographs

LOADER = LoaderFacts("Photos", False, 4, 100, 0, False, False, "fork", False)
FACTS = JobFacts("2.13.0", "3.11.7", "linux", "cpu", loaders=(LOADER,), wait_share=0.5)
CHINA, FLOWER = photographs()
METHODS = ("convert", "crop", "resize")
BILINEAR = Image.Resampling.BILINEAR
quick = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(autouse=True)
def as_at_the_start() -> Iterator[None]:
    boost._known.clear()
    yield
    assert not METHODS & vars(JpegImageFile).keys()  # a test that fails would spoil the others


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    return saved(CHINA, tmp_path / "china.jpg", quality=92)


def saved(image: Any, path: Path, **options: Any) -> Path:
    image.save(path, "JPEG", **options)
    return path


def loaded(path: Any) -> Any:
    """As torchvision's datasets open a file."""
    with open(path, "rb") as file:
        return Image.open(file).convert("RGB")


class Photos(Dataset[Any]):
    def __init__(self, paths: list[Path], shape: Callable[[Any], Any]) -> None:
        self.paths, self.shape = paths, shape

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        image = self.shape(loaded(self.paths[index]))
        return torch.from_numpy(np.asarray(image).copy())


def crop_and_flip(image: Any, size: int = 48) -> Any:
    """A random resized crop and a flip, as torchvision makes them."""
    wide, high = image.size
    width, height = (random.randint(length // 2, length) for length in (wide, high))
    left, top = random.randint(0, wide - width), random.randint(0, high - height)
    image = image.crop((left, top, left + width, top + height)).resize((size, size), BILINEAR)
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < 0.5 else image


def to_small(image: Any) -> Any:
    return image.resize((64, 48), BILINEAR)


def loader_of(*paths: Path, shape: Any = to_small, **options: Any) -> DataLoader[Any]:
    return DataLoader(Photos(list(paths), shape), batch_size=1, **options)


class Switched:
    """The boost around some code."""

    def __init__(self, loader: Any = None, margin: float = 2.0) -> None:
        self.loader, self.margin = loader, margin

    def __enter__(self) -> Applied:
        boost._known.clear()
        loader = loader_of(Path("none")) if self.loader is None else self.loader
        self.applied = boost.apply(Job(), loader, {"margin": self.margin})
        return self.applied

    def __exit__(self, *error: object) -> None:
        self.applied.undo()


def shrinking() -> lazy_jpeg.Shrinking:
    return boost._known[0]


def unchecked() -> None:
    """The checks give the exact image: here the other is wanted."""
    shrinking().numbers[lazy_jpeg.CHECKED] = lazy_jpeg.FIRST_CHECKS


def same(one: Any, other: Any) -> bool:
    return bool(
        (one.mode, one.size, one.info) == (other.mode, other.size, other.info)
        and one.tobytes() == other.tobytes()
    )


# What is decoded small ------------------------------------------------------------------------


def test_a_shrunk_image_is_decoded_small_and_nearly_the_same(photo: Path) -> None:
    plain = to_small(loaded(photo))
    with Switched() as applied:
        unchecked()
        small = to_small(loaded(photo))
        assert applied.engaged()[0]  # type: ignore[index]
    assert type(small) is Image.Image
    assert small.info == plain.info
    assert 0 < lazy_jpeg.difference(small, plain) < 0.003


@pytest.mark.parametrize("margin", [2.0, 1.5])
@pytest.mark.parametrize("image", [CHINA, FLOWER], ids=["china", "flower"])
@quick
@given(data=st.data())
def test_crops_come_from_just_the_same_part(image: Any, margin: float, data: Any) -> None:
    """A shift by half a pixel of the result would be several times as different."""
    file = io.BytesIO()
    image.save(file, "JPEG", quality=92)
    wide, high = image.size
    width, height = (data.draw(st.integers(250, length)) for length in image.size)
    left, top = (data.draw(st.integers(0, n)) for n in (wide - width, high - height))
    box = (left, top, left + width, top + height)
    resample = data.draw(st.sampled_from([None, 1, 2, 3, 5]))

    def program() -> Any:
        return Image.open(file).convert("RGB").crop(box).resize((60, 50), resample)

    plain = program()
    with Switched(margin=margin):
        unchecked()
        small = program()
        assert shrinking().numbers[lazy_jpeg.SCALED] == 1
    assert lazy_jpeg.difference(small, plain) < 0.01


def test_what_the_program_notes_stays(photo: Path) -> None:
    with Switched():
        unchecked()
        image = loaded(photo)
        image.info["note"] = 1
        small = to_small(image)
        small.info["other"] = 2
        assert small.info["note"] == 1
        assert "other" not in image.info


def test_a_box_of_resize_is_the_same_part(photo: Path) -> None:
    def program() -> Any:
        return loaded(photo).crop((7, 5, 630, 420)).resize((50, 40), box=(10.5, 3.25, 600, 400))

    plain = program()
    with Switched():
        unchecked()
        small = program()
        assert shrinking().numbers[lazy_jpeg.SCALED] == 1
    assert lazy_jpeg.difference(small, plain) < 0.005


def test_the_decoding_is_as_small_as_the_margin_allows(photo: Path) -> None:
    scales = []
    with Switched():
        unchecked()
        for size in ((40, 26), (80, 53), (160, 106), (161, 107), (320, 213)):
            image = loaded(photo)
            source = lazy_jpeg._held(image)[0]
            image.resize(size)
            scales.append(source._scale)
    assert scales == [8, 4, 2, 0, 0]


def test_an_image_that_is_cropped_again_and_again_is_decoded_twice_at_most(photo: Path) -> None:
    with Switched(), pytest.MonkeyPatch.context() as patch:
        unchecked()
        decoded = []
        original = lazy_jpeg.Source._decoded
        patch.setattr(
            lazy_jpeg.Source,
            "_decoded",
            lambda source, scale: decoded.append(scale) or original(source, scale),
        )
        image = loaded(photo)
        for size in (20, 20, 40, 80, 100, 200):
            image.crop((10, 10, 410, 410)).resize((size, size))
        assert decoded == [8, 1]
        assert lazy_jpeg._held(image)[0]._small is None


def test_a_file_is_decoded_once_for_all_of_its_images(photo: Path) -> None:
    with Switched(), pytest.MonkeyPatch.context() as patch:
        decoded = []
        original = lazy_jpeg.Source._decoded
        patch.setattr(
            lazy_jpeg.Source,
            "_decoded",
            lambda source, scale: decoded.append(scale) or original(source, scale),
        )
        image = Image.open(photo)
        images = [image, image.convert("RGB"), image.convert(), image.crop((0, 0, 640, 427))]
        for number, found in enumerate(images):
            found.putpixel((0, 0), (number, number, number))
        assert [found.getpixel((0, 0)) for found in images] == [(n, n, n) for n in range(4)]
        assert decoded == [1]


def test_files_need_no_convert(photo: Path) -> None:
    plain = Image.open(photo).resize((60, 40))
    with Switched():
        unchecked()
        image = Image.open(photo)
        small = image.resize((60, 40))
        assert shrinking().numbers[lazy_jpeg.SCALED] == 1
        assert lazy_jpeg.difference(small, plain) < 0.004
        assert same(image, Image.open(photo))
        assert image.fp is None
    assert same(image, Image.open(photo))


# What has every bit ---------------------------------------------------------------------------

USES: dict[str, Callable[[Any], Any]] = {
    "array": lambda image: np.asarray(image).tobytes(),
    "bytes": lambda image: image.tobytes(),
    "data": lambda image: image.getpixel((3, 4)),
    "flip": lambda image: image.transpose(Image.Transpose.FLIP_TOP_BOTTOM).tobytes(),
    "flip, resize": lambda image: ImageOps.mirror(image).resize((20, 20)).tobytes(),
    "filter": lambda image: image.filter(ImageFilter.BLUR).tobytes(),
    "gray": lambda image: image.convert("L").resize((20, 20)).tobytes(),
    "nearest": lambda image: image.resize((20, 20), Image.Resampling.NEAREST).tobytes(),
    "box": lambda image: image.resize((20, 20), Image.Resampling.BOX).tobytes(),
    "large": lambda image: image.resize((500, 400)).tobytes(),
    "narrow": lambda image: image.resize((10, 400)).tobytes(),
    "crop": lambda image: image.crop((1, 2, 301, 202)).tobytes(),
    "crop beyond": lambda image: image.crop((-5, 2, 301, 202)).resize((20, 20)).tobytes(),
    "crop of nothing": lambda image: image.crop((5, 5, 5, 5)).size,
    "crop None": lambda image: image.crop().tobytes(),
    "crops of a crop": lambda image: image.crop((9, 9, 409, 309)).crop((1, 2, 30, 40)).tobytes(),
    "fractions": lambda image: image.crop((0.6, 2.5, 301.5, 202.2)).tobytes(),
    "thumbnail": lambda image: (image.thumbnail((50, 50)), image.tobytes())[1],
    "upright": lambda image: ImageOps.exif_transpose(image).tobytes(),
    "copy": lambda image: copy.copy(image).tobytes(),
    "deepcopy": lambda image: copy.deepcopy(image).tobytes(),
    "pickle": lambda image: pickle.loads(pickle.dumps(image)).tobytes(),
    "equal": lambda image: (image == image.copy(), image.copy() == image),
    "paste": lambda image: (image.paste((1, 2, 3), (0, 0, 9, 9)), image.tobytes())[1],
    "pixel": lambda image: (image.putpixel((1, 1), (9, 9, 9)), image.tobytes())[1],
    "onto another": lambda image: Image.blend(image.copy(), image, 0.5).tobytes(),
    "save": lambda image: (out := io.BytesIO(), image.save(out, "PNG"), out.getvalue())[2],
    "histogram": lambda image: image.histogram(),
    "exif": lambda image: dict(image.getexif()),
    "known": lambda image: (image.size, image.mode, image.getbands(), image.format, image.info),
    "note": lambda image: (image.info.update(note=1), image.tobytes(), dict(image.info)),
    "note, crop": lambda image: (image.info.update(note=1), image.crop((0, 0, 9, 9)).info),
    "class": lambda image: (image.__class__, isinstance(image, Image.Image), image.readonly),
    "name": lambda image: repr(image).partition(" at ")[0],
    "unknown": lambda image: (hasattr(image, "nothing"), image.width, image.tobytes())[1:],
    "attribute": lambda image: (setattr(image, "label", 3), image.label, vars(image)["label"]),
    "closed": lambda image: use_closed(image),
}


def use_closed(image: Any) -> str:
    image.close()
    with pytest.raises(ValueError) as raised:
        image.getpixel((0, 0))
    return str(raised.value)


@pytest.mark.parametrize("name", USES)
@pytest.mark.parametrize("where", ["copy", "file", "again"])
def test_whatever_else_is_asked_has_every_bit(photo: Path, name: str, where: str) -> None:
    def program() -> Any:
        image = Image.open(photo)
        if where == "file":
            with image:
                return USES[name](image)
        found = image.convert("RGB")
        if where == "again":
            found = found.convert()
        results = [USES[name](found)]
        if name != "closed":  # both are still what they are, and independent of each other
            results += [found.tobytes(), image.tobytes(), image.size]
        return results

    plain = program()
    with Switched():
        assert program() == plain
        if name not in ("thumbnail", "upright"):
            assert shrinking().numbers[lazy_jpeg.SCALED] == 0


def test_an_image_that_was_decoded_is_a_plain_one(photo: Path) -> None:
    with Switched():
        image = loaded(photo)
        assert issubclass(type(image), Image.Image)
        assert type(image) is not Image.Image
        image.load()
        assert type(image) is Image.Image
        assert vars(image).keys() == vars(Image.new("RGB", (1, 1))).keys()


def variants(folder: Path) -> dict[str, Path]:
    found = {
        "gray": saved(CHINA.convert("L"), folder / "gray.jpg"),
        "cmyk": saved(CHINA.convert("CMYK"), folder / "cmyk.jpg"),
        "progressive": saved(CHINA, folder / "progressive.jpg", progressive=True),
        "tail": folder / "tail.jpg",
        "several": folder / "several.jpg",
        "png": folder / "image.png",
    }
    CHINA.save(found["png"])
    CHINA.save(found["several"], "MPO", save_all=True, append_images=[FLOWER])
    found["tail"].write_bytes(saved(CHINA, folder / "whole.jpg").read_bytes() + b"more")
    return found


def test_other_files_are_decoded_in_the_programs_way(tmp_path: Path) -> None:
    for path in variants(tmp_path).values():
        plain = to_small(loaded(path))
        with Switched():
            assert type(loaded(path)) is Image.Image
            assert same(to_small(loaded(path)), plain)
            with Image.open(path, formats=["JPEG", "PNG", "MPO"]) as image:
                assert same(image.convert("RGB"), loaded(path))


def test_restarts_and_subsampling_are_plain(tmp_path: Path) -> None:
    for number, options in enumerate(
        [{"restart_marker_rows": 1}, {"subsampling": 0}, {"subsampling": 2}, {"optimize": True}]
    ):
        path = saved(CHINA, tmp_path / f"{number}.jpg", **options)
        assert is_plain(path.read_bytes())
        plain = loaded(path).tobytes()
        with Switched():
            assert type(loaded(path)) is not Image.Image
            assert loaded(path).tobytes() == plain


def test_a_broken_file_raises_where_it_is_opened(photo: Path) -> None:
    """As in a dataset that skips such files."""
    data = photo.read_bytes()
    for broken in (data[:-2], data[: len(data) // 2], data[: len(data) // 2] + b"\xff\xd9" * 0):
        photo.write_bytes(broken)
        with pytest.raises(OSError) as plain:
            loaded(photo)
        with Switched(), pytest.raises(OSError) as found:
            loaded(photo)
        assert str(found.value) == str(plain.value)


def test_truncated_files_may_be_allowed(photo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    photo.write_bytes(photo.read_bytes()[:20_000])
    plain = to_small(loaded(photo))
    with Switched():
        assert same(to_small(loaded(photo)), plain)


def test_no_damage_of_the_header_is_taken_for_plain() -> None:
    file = io.BytesIO()
    CHINA.resize((40, 24)).save(file, "JPEG")
    data = file.getvalue()
    assert is_plain(data)
    taken = 0
    for place in range(2, data.index(b"\xff\xda") + 14):
        for value in {0, 1, 2, 9, 0x7F, 0xC4, 0xFF, data[place] ^ 1, data[place] ^ 2}:
            damaged = data[:place] + bytes((value,)) + data[place + 1 :]
            if is_plain(damaged):
                with contextlib.suppress(UnidentifiedImageError):  # an error of opening
                    Image.open(io.BytesIO(damaged)).load()
                    taken += 1
    assert taken > 1000


def test_codes_that_cannot_be_told_apart_are_not_plain() -> None:
    file = io.BytesIO()
    CHINA.resize((40, 24)).save(file, "JPEG")
    data = bytearray(file.getvalue())
    counts = data.index(b"\xff\xc4") + 5
    longest = max(range(16), key=lambda length: data[counts + length])
    data[counts] += 3
    data[counts + longest] -= 3
    with pytest.raises(OSError, match="broken"):
        Image.open(io.BytesIO(data)).load()
    assert not is_plain(bytes(data))


@settings(quick, max_examples=300)
@given(data=st.data())
def test_damage_changes_neither_results_nor_errors(data: Any) -> None:
    file = io.BytesIO()
    CHINA.resize((160, 120)).save(file, "JPEG")
    damaged = bytearray(file.getvalue())
    header = damaged.index(b"\xff\xda") + 14
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(2, header) | st.integers(2, len(damaged) - 1))
        damaged[place] = data.draw(st.sampled_from([0, 0xFF, 0xD0, 0xD9, 0xDA, 0xC4, 1, 0x7F, 17]))

    def opened() -> Any:
        try:
            return Image.open(io.BytesIO(bytes(damaged))).convert("RGB")
        except Exception as error:
            return f"{type(error).__name__}: {error}".partition("<")[0]

    plain = opened()
    with Switched():
        found = opened()
        assert isinstance(found, str) == isinstance(plain, str)
        assert found == plain


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_wrong_calls_raise_what_they_did(photo: Path) -> None:
    calls: list[Callable[[Any], Any]] = [
        lambda image: image.resize((20, 20), 99),
        lambda image: image.resize((20, -1)),
        lambda image: image.resize((20, 20), box=(0, 0, 9999, 1)),
        lambda image: image.resize((20, 20), reducing_gap=0.5),
        lambda image: image.resize(20),
        lambda image: image.resize(),
        lambda image: image.crop((5, 5, 1, 1)),
        lambda image: image.crop((5, 5)),
        lambda image: image.convert("no such mode"),
        lambda image: image.nothing,
    ]
    for call in calls:
        for image in (lambda: loaded(photo), lambda: Image.open(photo)):
            with pytest.raises(Exception) as plain:
                call(image())
            with Switched(), pytest.raises(type(plain.value)) as found:
                call(image())
            assert str(found.value) == str(plain.value)
    del plain, found
    gc.collect()  # the files that nobody closes


def test_files_are_closed_as_before(photo: Path) -> None:
    with warnings.catch_warnings(), Switched():
        warnings.simplefilter("error")
        image = Image.open(photo)
        file = image.fp
        small = to_small(image.convert("RGB"))
        assert file.closed
        with Image.open(photo) as image:
            copied = image.convert("RGB")
        assert np.asarray(image).tobytes() == np.asarray(copied).tobytes()
        with open(photo, "rb") as own:
            copied = Image.open(own).convert("RGB")
            assert not own.closed
            reference = weakref.ref(own)
        del own
        gc.collect()
        assert reference() is None  # nothing that is undecoded keeps the program's file
        assert copied.size == CHINA.size
        image = Image.open(photo)
        image.verify()
        assert small.size == (64, 48)


def test_nothing_is_left_in_a_circle(photo: Path) -> None:
    """Where the garbage collection pauses, images would pile up."""
    gc.disable()
    try:
        with Switched():
            image = Image.open(photo)
            copied = image.convert("RGB")
            source = weakref.ref(lazy_jpeg._held(copied)[0])
            part = copied.crop((0, 0, 300, 300))
            part.resize((20, 20))
            part.load()
            del image, copied, part
            assert source() is None
    finally:
        gc.enable()


def test_threads_share_an_image(photo: Path) -> None:
    plain = loaded(photo).tobytes()
    small = to_small(loaded(photo))
    with Switched():
        unchecked()
        for _ in range(10):
            image, found, wait = loaded(photo), [], threading.Barrier(6)

            def work(number: int, image: Any = image, found: Any = found, wait: Any = wait) -> None:
                wait.wait()
                if number % 2:
                    found.append(image.tobytes() == plain)
                else:
                    found.append(lazy_jpeg.difference(to_small(image), small) < 0.004)

            threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert found == [True] * 6


# The safeguard --------------------------------------------------------------------------------


def test_the_first_images_are_exact_and_compared(photo: Path) -> None:
    plain = to_small(loaded(photo))
    with Switched() as applied:
        for _ in range(lazy_jpeg.FIRST_CHECKS):
            assert same(to_small(loaded(photo)), plain)
        assert not same(to_small(loaded(photo)), plain)
        assert f"in {lazy_jpeg.FIRST_CHECKS} checks" in applied.engaged()[1]  # type: ignore[index]


def test_one_in_many_is_compared_later(photo: Path) -> None:
    with Switched():
        unchecked()
        for _ in range(lazy_jpeg.CHECK_EVERY):
            to_small(loaded(photo))
        checked = shrinking().numbers[lazy_jpeg.CHECKED]
        assert checked == lazy_jpeg.FIRST_CHECKS + 1


@pytest.mark.parametrize(("far", "images"), [(0.04, 1), (0.015, lazy_jpeg.FEWEST_CHECKS)])
def test_what_comes_out_different_switches_it_off_for_good(
    photo: Path, monkeypatch: pytest.MonkeyPatch, far: float, images: int
) -> None:
    monkeypatch.setattr(lazy_jpeg, "difference", lambda one, other: far)
    plain = to_small(loaded(photo))
    with Switched() as applied:
        for _ in range(images):
            assert shrinking().on
            assert same(to_small(loaded(photo)), plain)
        assert not shrinking().on
        assert type(loaded(photo)) is Image.Image
        told = applied.engaged()
        assert told is not None
        assert not told[0]
        assert "too different" in told[1]
    with pytest.raises(Declined, match="too different"):
        boost.apply(Job(), loader_of(photo), {})


def test_a_shift_would_be_noticed(photo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is low enough for what could go wrong."""
    original = lazy_jpeg._resized

    def shifted(plain: Any, small: Any, part: Any, wanted: Any, gap: Any) -> Any:
        moved = (part[0] + 3, part[1], part[2], part[3])
        return original(plain, small, moved, wanted, gap)

    monkeypatch.setattr(lazy_jpeg, "_resized", shifted)
    with Switched():
        for _ in range(lazy_jpeg.FEWEST_CHECKS):
            loaded(photo).resize((80, 60), BILINEAR)
        assert shrinking().numbers[lazy_jpeg.OFF]


# With loaders ---------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_gets_nearly_the_same(tmp_path: Path, workers: int) -> None:
    paths = [
        saved(image, tmp_path / f"{number}.jpg", quality=90)
        for number, image in enumerate([CHINA, FLOWER] * 10)
    ]

    def epoch(loader: Any) -> Any:
        return torch.cat(list(loader)).float()

    loader = loader_of(*paths, num_workers=workers)
    plain = epoch(loader)
    with Switched(loader) as applied:
        fast = epoch(loader)
        told = applied.engaged()
    assert told is not None
    assert told[0], told
    assert "20 images" in told[1]
    assert 0 < (fast - plain).abs().mean() / 255 < 0.004
    assert torch.equal(epoch(loader), plain)
    assert loader.worker_init_fn is None


@pytest.mark.parametrize("workers", [0, 2])
def test_random_crops_draw_the_same_numbers(photo: Path, workers: int) -> None:
    loader = loader_of(*[photo] * 12, shape=crop_and_flip, num_workers=workers)
    batches = []
    for on in (False, True):
        random.seed(3)
        torch.manual_seed(3)
        if on:
            with Switched(loader):
                batches.append(torch.cat(list(loader)).float())
        else:
            batches.append(torch.cat(list(loader)).float())
    assert (batches[0] - batches[1]).abs().mean() / 255 < 0.004


def test_it_ends_at_once_in_workers_under_way(photo: Path) -> None:
    loader = loader_of(*[photo] * 40, num_workers=1, prefetch_factor=2)
    plain = torch.cat(list(loader))
    applied = boost.apply(Job(), loader, {})
    unchecked()
    batches = iter(loader)
    first = next(batches)
    applied.undo()
    rest = list(batches)
    assert not torch.equal(first[0], plain[0])
    assert torch.equal(rest[-1][0], plain[-1])


def test_two_loaders_share_it(photo: Path) -> None:
    first, second = (boost.apply(Job(), loader_of(photo), {}) for _ in range(2))
    first.undo()
    assert METHODS[0] in vars(JpegImageFile)
    to_small(loaded(photo))
    second.undo()
    assert METHODS[0] not in vars(JpegImageFile)
    assert first.engaged() == second.engaged()


def test_undecoded_images_outlast_it(photo: Path) -> None:
    plain = to_small(loaded(photo))
    image = Image.open(photo)
    with Switched():
        copied = image.convert("RGB")
    assert same(to_small(copied), plain)
    assert same(to_small(image), to_small(Image.open(photo)))


def test_the_programs_own_worker_init_is_called_and_put_back(photo: Path) -> None:
    loader = loader_of(photo, num_workers=1, worker_init_fn=print)
    applied = boost.apply(Job(), loader, {})
    called: list[int] = []
    assert loader.worker_init_fn is not print
    loader.worker_init_fn.own = called.append
    loader.worker_init_fn(7)
    assert called == [7]
    loader.worker_init_fn.own = print
    applied.undo()
    assert loader.worker_init_fn is print


def test_workers_that_another_boost_keeps_are_started_anew(photo: Path) -> None:
    loader = loader_of(photo, num_workers=1, persistent_workers=True)
    loader._get_iterator = None  # type: ignore[assignment]
    loader._iterator = iter(())  # type: ignore[assignment]
    with Switched(loader):
        assert loader._iterator is None
        loader._iterator = iter(())
    assert loader._iterator is None


# Where it is declined -------------------------------------------------------------------------


def test_applies() -> None:
    assert boost.applies(FACTS, {}) is None
    few = JobFacts("2.13.0", "3.11.7", "linux", "cpu", loaders=(LOADER,), wait_share=0.01)
    assert "waiting" in (boost.applies(few, {}) or "")
    assert "no DataLoader" in (boost.applies(JobFacts("2", "3", "linux", "cpu"), {}) or "")
    spawned = LoaderFacts("Photos", False, 4, 100, 2, False, False, "spawn", True)
    for loader, reason in (
        (spawned, "not forked"),
        (LoaderFacts("TensorDataset", False, 4, 9, 0, False, False, "fork", True), "in memory"),
    ):
        facts = JobFacts("2.13.0", "3.11.7", "linux", "cpu", loaders=(loader,))
        assert reason in (boost.applies(facts, {}) or "")
    assert boost.promise(FACTS, {}) > 1


def test_spawned_and_kept_workers_are_declined(photo: Path) -> None:
    spawned = loader_of(photo, num_workers=1, multiprocessing_context="spawn")
    with pytest.raises(Declined, match="not forked"):
        boost.apply(Job(), spawned, {})
    kept = loader_of(photo, num_workers=1, persistent_workers=True)
    list(kept)
    with pytest.raises(Declined, match="keeps its workers"):
        boost.apply(Job(), kept, {})


def test_programs_without_pillow_are_declined(photo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(jpeg_loading.sys.modules, "PIL.JpegImagePlugin")
    rows = DataLoader(TensorDataset(torch.zeros(4, 3)))
    with pytest.raises(Declined, match="Pillow"):
        boost.apply(Job(), rows, {})
    assert jpeg_loading._names_pillow(loader_of(photo))

    class Inside(Dataset[Any]):
        def __getitem__(self, index: int) -> Any:
            from PIL import Image

            return Image.open(photo)

    assert jpeg_loading._names_pillow(DataLoader(Inside()))


def test_an_old_pillow_is_declined(photo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "Image", lambda: object.__new__(type("Old", (), {})))
    assert jpeg_loading.jpeg_plugin(loader_of(photo)) is None


def test_a_subclass_of_the_programs_own_is_left_alone(photo: Path) -> None:
    class Own(JpegImageFile):
        pass

    plain = to_small(Own(str(photo)).convert("RGB"))
    with Switched():
        assert same(to_small(Own(str(photo)).convert("RGB")), plain)
        drafted = Image.open(photo)
        drafted.draft("RGB", (100, 100))
        assert type(drafted.convert("RGB")) is Image.Image
    assert JpegImagePlugin.JpegImageFile is JpegImageFile


def test_by_hand_decodes_small(photo: Path) -> None:
    scope = {"Image": Image, "path": photo, "SIZE": 40}
    lines = boost.by_hand(FACTS, {"margin": 2.0}).replace("2 * SIZE", "int(2 * SIZE)")
    exec(lines, scope)
    assert scope["image"].size == (160, 107)  # type: ignore[attr-defined]
