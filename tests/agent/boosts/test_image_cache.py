"""image-cache: the same pixels from memory, for all workers, bounded, and nothing left behind."""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import os
import pickle
import random
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw, ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from torch.utils.data import DataLoader, Dataset, TensorDataset

from flatout_agent.apply.booster import Booster
from flatout_agent.boost import Applied, Declined
from flatout_agent.boosts import image_cache as boost
from flatout_agent.job import Job
from flatout_agent.speedups import shared_log
from flatout_agent.speedups.images import decoded_images, jpeg_loading
from flatout_agent.speedups.shared_log import COUNT, FULL, HITS, MISSES, OFF, USED, Log
from flatout_agent.tell.recorder import Recorder
from flatout_agent.wire import BoostOrder, JobFacts, LoaderFacts
from photos import photographs
from switched import switched as on
from switched import told

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="shared memory without a name")
LOADER = LoaderFacts("Photos", False, 4, 100, 0, False, False, "fork", False)
FACTS = JobFacts("2.13.0", "3.11.7", "linux", "cpu", loaders=(LOADER,), wait_share=0.5)
CHINA, FLOWER = (photograph.resize((200, 150)) for photograph in photographs())
BYTES = 200 * 150 * 3
ROOM = 64 << 20


@pytest.fixture(autouse=True)
def as_at_the_start(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Files that were just written are kept, and the machine's memory is always the same."""
    boost._known.clear()
    monkeypatch.setattr(decoded_images, "FRESH_S", -60.0)
    for module in (boost, decoded_images):
        monkeypatch.setattr(module, "spare_memory", lambda: 4 * ROOM)
    yield
    boost._known.clear()
    assert not {"load", "convert"} & vars(JpegImageFile).keys()


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    return saved(CHINA, tmp_path / "china.jpg")


def saved(image: Any, path: Path, **options: Any) -> Path:
    image.save(path, "JPEG", **options)
    return path


def photos(folder: Path, count: int) -> list[Path]:
    images = [CHINA, FLOWER]
    return [
        saved(images[number % 2], folder / f"{number}.jpg", quality=50 + number)
        for number in range(count)
    ]


def loaded(path: Any) -> Any:
    with open(path, "rb") as file:
        return Image.open(file).convert("RGB")


def crop_and_flip(image: Any) -> Any:
    """A random resized crop and a flip, as torchvision makes them."""
    width, height = random.randint(60, 200), random.randint(60, 150)
    left, top = random.randint(0, 200 - width), random.randint(0, 150 - height)
    image = image.crop((left, top, left + width, top + height)).resize((32, 32))
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < 0.5 else image


class Photos(Dataset[Any]):
    def __init__(self, paths: list[Path], whole: bool = False) -> None:
        self.paths, self.whole = paths, whole

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        image = loaded(self.paths[index])
        return torch.from_numpy(np.asarray(image if self.whole else crop_and_flip(image)).copy())


def loader_of(paths: list[Path], **options: Any) -> DataLoader[Any]:
    whole = options.pop("whole", False)
    return DataLoader(Photos(paths, whole), **{"batch_size": 2, **options})


def switched(loader: Any = None, job: Job | None = None) -> Any:
    return on(boost, loader_of([]) if loader is None else loader, job)


def numbers() -> Any:
    return boost._known[0].log.numbers


# The same pixels ------------------------------------------------------------------------------


def drawn_on(image: Any) -> Any:
    ImageDraw.Draw(image).rectangle((0, 0, 100, 100), fill=(255, 0, 0))
    return image


def pasted_on(image: Any) -> Any:
    copied = image.convert(image.mode)
    copied.paste(7, (0, 0, 100, 100))
    return copied


def error_of(use: Callable[[], Any]) -> str:
    try:
        return f"{use()}"
    except Exception as error:
        return f"{type(error)} {error}"


USES: dict[str, Callable[[Any], Any]] = {
    "convert": lambda image: image.convert("RGB").tobytes(),
    "convert to its own mode": lambda image: image.convert().tobytes(),
    "convert to gray": lambda image: image.convert("L").tobytes(),
    "array": lambda image: np.asarray(image).tobytes(),
    "crop, resize": lambda image: image.crop((3, 4, 150, 99)).resize((20, 20)).tobytes(),
    "resize": lambda image: image.resize((20, 30)).tobytes(),
    "convert, resize": lambda image: [
        image.convert("RGB").resize((20, 30), Image.Resampling.BILINEAR, reducing_gap=gap).tobytes()
        for gap in (None, 2.0)
    ],
    "resize, its own": lambda image: (image.convert("RGB").resize((9, 9)).info, image.info),
    "resize to more": lambda image: image.convert("RGB").resize((300, 300)).tobytes(),
    "resize a part": lambda image: image.resize((20, 30), box=(5, 5, 90, 100)).tobytes(),
    "resize what was drawn on": lambda image: (
        drawn_on(image.convert("RGB")).resize((9, 9)).tobytes()
    ),
    "paste, resize": lambda image: pasted_on(image).resize((9, 9)).tobytes(),
    "resize to nothing": lambda image: error_of(lambda: image.resize((0, -1))),
    "close, resize": lambda image: error_of(lambda: (image.close(), image.resize((9, 9)))),
    "write to a copy": lambda image: (pasted_on(image), image.tobytes())[1],
    "write beside a copy": lambda image: (
        copied := image.convert(image.mode),
        image.paste(7, (0, 0, 50, 50)),
        copied.tobytes(),
    )[2],
    "pixel": lambda image: image.load()[3, 4],
    "in place": lambda image: (image.putpixel((1, 1), 3), image.tobytes())[1],
    "copy": lambda image: copy.copy(image).tobytes(),
    "deepcopy": lambda image: copy.deepcopy(image).tobytes(),
    "pickle": lambda image: pickle.loads(pickle.dumps(image)).tobytes(),
    "thumbnail": lambda image: (image.thumbnail((20, 20)), image.tobytes())[1],
    "draft": lambda image: (image.draft("L", (50, 50)), image.tobytes())[1],
    "info": lambda image: (image.convert("RGB").info, image.info, image.format),
    "state": lambda image: (image.load() is None, image.fp, image.tile, image.readonly),
    "name": lambda image: repr(image.convert(image.mode)).partition(" at ")[0],
    "class": lambda image: (type(image), type(image.convert(image.mode))),
}


def variants(folder: Path) -> list[Path]:
    exif = Image.Exif()
    exif[0x0112] = 6
    found = [
        saved(CHINA, folder / "plain.jpg", exif=exif, dpi=(90, 90), comment=b"a comment"),
        saved(CHINA.convert("L"), folder / "gray.jpg"),
        saved(CHINA.convert("CMYK"), folder / "cmyk.jpg"),
        saved(CHINA, folder / "progressive.jpg", progressive=True),
        folder / "several.jpg",
        folder / "image.png",
    ]
    CHINA.save(found[-1])
    CHINA.save(found[-2], "MPO", save_all=True, append_images=[FLOWER])
    return found


@pytest.mark.parametrize("name", USES)
def test_whatever_is_asked_has_every_bit(tmp_path: Path, name: str) -> None:
    def program() -> list[Any]:
        results = []
        for path in variants(tmp_path):
            for _ in range(3):
                with Image.open(path) as image:
                    results.append(USES[name](image))
                results.append(image.size)
        return results

    variants(tmp_path)
    plain = program()
    with switched() as applied:
        assert program() == plain
        assert told(applied)[0] == (name not in ("draft", "thumbnail", "close, resize"))


def test_an_image_is_resized_once(photo: Path, monkeypatch: Any) -> None:
    plain = loaded(photo).resize((20, 30)).tobytes()
    with switched():
        assert loaded(photo).resize((20, 30)).tobytes() == plain
        core = type(loaded(photo).im)
        monkeypatch.setattr(
            Image.Image, "load", lambda image: pytest.fail("its pixels are asked for")
        )
        assert isinstance(loaded(photo).im, core)
        for _ in range(3):
            assert loaded(photo).resize((20, 30)).im.size == (20, 30)


def test_sizes_drawn_at_random_are_not_kept(photo: Path) -> None:
    with switched():
        for side in range(10, 60):
            assert loaded(photo).resize((side, side)).size == (side, side)
        assert numbers()[USED] < BYTES + 4 * 3 * 15 * 15 + 1000


def test_a_resize_that_gives_other_pixels_switches_it_off(photo: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(decoded_images, "CHECK_EVERY", 1)
    with switched() as applied:
        loaded(photo).resize((20, 30))
        log = boost._known[0].log
        assert log.get(bytes(16)) is None  # reads all that was added
        place, size = next(found for found in log._places.values() if found[1] < BYTES)
        log._view[place + size - 1] ^= 1
        loaded(photo).resize((20, 30))
        assert numbers()[OFF]
        assert not told(applied)[0]


def test_files_are_closed_as_before(photo: Path) -> None:
    with switched():
        for _ in range(3):
            image = Image.open(photo)
            file = image.fp
            copied = image.convert("RGB")
            assert file.closed
            image.close()
            with pytest.raises(ValueError, match="closed"):
                image.getpixel((0, 0))
            with open(photo, "rb") as own:
                assert Image.open(own).convert("RGB") == copied
                assert not own.closed


def test_images_outlast_it(photo: Path) -> None:
    plain = loaded(photo).tobytes()
    with switched():
        loaded(photo)
        image = Image.open(photo)
        copied = image.convert("RGB")
    boost.forget(Job())
    assert not boost._known
    assert image.tobytes() == copied.tobytes() == plain


def test_threads(tmp_path: Path) -> None:
    paths = photos(tmp_path, 8)
    plain = [loaded(path).tobytes() for path in paths]
    wrong: list[int] = []

    def work() -> None:
        for number in random.sample(range(8), 8) * 4:
            if loaded(paths[number]).tobytes() != plain[number]:
                wrong.append(number)

    with switched():
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert numbers()[COUNT] == 8
    assert wrong == []


# Files that change ----------------------------------------------------------------------------


def test_a_file_that_is_written_anew_is_decoded_anew(photo: Path) -> None:
    """Even of the same size, and with its time put back."""
    before = os.stat(photo)
    with switched():
        old = [loaded(photo).tobytes() for _ in range(2)]
        data = photo.read_bytes()
        saved(FLOWER, photo, quality=20)
        photo.write_bytes(photo.read_bytes().ljust(len(data), b"\0"))
        os.utime(photo, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert os.stat(photo).st_size == before.st_size
        assert loaded(photo).tobytes() != old[1]
        other = saved(CHINA.rotate(180), photo.with_name("other.jpg"))
        for _ in range(2):
            assert loaded(other).tobytes() != old[1]
        os.replace(other, photo)
        found = loaded(photo).tobytes()
    assert found == loaded(photo).tobytes() != old[1]


@pytest.mark.parametrize("numbered", [True, False])
def test_name_and_number_each_tell_files_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, numbered: bool
) -> None:
    """Where times are coarse, or numbers change."""
    original = os.fstat

    def coarse(file: int) -> os.stat_result:
        parts = list(original(file))
        parts[6:] = [9, 9, 9, 9]  # size and times
        if not numbered:
            parts[1] = 9
        return os.stat_result(parts)

    monkeypatch.setattr(decoded_images.os, "fstat", coarse)
    paths = photos(tmp_path, 2)
    plain = [loaded(path).tobytes() for path in paths]
    with switched():
        for number, path in enumerate(paths):
            folder = tmp_path / f"folder {number}"
            folder.mkdir()
            monkeypatch.chdir(folder)
            if numbered:
                (tmp_path / "link.jpg").unlink(missing_ok=True)
                (tmp_path / "link.jpg").symlink_to(path)
            else:
                path.rename("image.jpg")
            name = tmp_path / "link.jpg" if numbered else "image.jpg"
            assert [loaded(name).tobytes() for _ in range(2)] == [plain[number]] * 2
        assert numbers()[HITS] == 2


def test_a_file_that_just_changed_is_not_kept(photo: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(decoded_images, "FRESH_S", 2.0)
    with switched() as applied:
        loaded(photo)
        loaded(photo)
        assert numbers()[COUNT] == numbers()[HITS] == 0
        assert told(applied) == (False, "no JPEG file was decoded a second time")


def test_a_file_without_a_name_is_not_kept(photo: Path) -> None:
    plain = loaded(photo)
    with switched(), open(photo, "rb") as file:
        for _ in range(2):
            with os.fdopen(os.dup(file.fileno()), "rb") as other:
                assert Image.open(other).convert("RGB") == plain
        assert numbers()[COUNT] == 0


def test_files_in_memory_are_told_apart_by_their_bytes(tmp_path: Path) -> None:
    files = [path.read_bytes() for path in photos(tmp_path, 2)]
    plain = [Image.open(io.BytesIO(data)).convert("RGB") for data in files]
    small = Image.open(io.BytesIO(files[0]))
    small.draft("L", small.size)
    small.load()
    with switched():
        for _ in range(3):
            for data, expected in zip(files, plain, strict=True):
                assert Image.open(io.BytesIO(data)).convert("RGB") == expected
            drafted = Image.open(io.BytesIO(files[0]))
            drafted.draft("L", drafted.size)  # the same bytes, decoded in gray
            drafted.load()
            assert drafted.tobytes() == small.tobytes()
        assert numbers()[COUNT] == 2
        assert numbers()[HITS] == 4
        stream = io.BytesIO(files[0])
        image = Image.open(stream)
        stream.seek(0)
        stream.write(files[1])  # before its pixels were read
        stream.truncate()
        image.load()
        assert stream.closed or image.tobytes() == plain[1].tobytes()


def test_a_broken_file_raises_each_time(photo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photo.write_bytes(photo.read_bytes()[:4000])
    with switched():
        for _ in range(2):
            with pytest.raises(OSError, match="truncated"):
                loaded(photo)
        monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
        gray = [loaded(photo).tobytes() for _ in range(2)]
        assert gray[0] == gray[1]
        monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", False)
        with pytest.raises(OSError, match="truncated"):
            loaded(photo)


def test_pixels_that_differ_switch_it_off_for_good(photo: Path) -> None:
    plain = loaded(photo).tobytes()
    with switched() as applied:
        assert [loaded(photo).tobytes() for _ in range(2)] == [plain] * 2
        decoded = boost._known[0]
        (begin, _) = next(iter(decoded.log._places.values()))
        os.pwrite(decoded.log._file, b"\x07\x08\x09" * 10, begin)
        wrong = 0
        for _ in range(decoded_images.CHECK_EVERY + 5):
            wrong += loaded(photo).tobytes() != plain
        assert wrong == decoded_images.CHECK_EVERY - 2
        assert numbers()[OFF]
        assert not told(applied)[0]
        assert "other pixels" in told(applied)[1]
    with pytest.raises(Declined, match="other pixels"):
        boost.apply(Job(), loader_of([]), {})


# How much is kept -----------------------------------------------------------------------------


def test_when_it_is_full_no_more_are_added(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(boost, "spare_memory", lambda: 4 * 3 * (BYTES + 30))
    monkeypatch.setattr(boost, "LEAST_ROOM", 1)
    paths = photos(tmp_path, 5)
    plain = [loaded(path).tobytes() for path in paths]
    with switched() as applied:
        for _ in range(3):
            assert [loaded(path).tobytes() for path in paths] == plain
        assert numbers()[COUNT] == 3
        assert numbers()[USED] <= 3 * (BYTES + 30)
        assert told(applied)[0]
        assert "6 images from memory (3 kept in 0 MB, no more may be taken)" in told(applied)[1]


def test_it_stops_when_the_program_needs_the_memory(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(decoded_images, "LOOK_EVERY", 2)
    paths = photos(tmp_path, 6)
    with switched():
        for path in paths[:3]:
            loaded(path)
        monkeypatch.setattr(decoded_images, "spare_memory", lambda: BYTES)
        for path in paths[3:]:
            loaded(path)
        assert numbers()[FULL]
        assert numbers()[COUNT] == 3


def test_a_system_out_of_memory_is_no_error(photo: Path, monkeypatch: Any) -> None:
    def full(*args: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(decoded_images.os, "pwritev", full)
    plain = loaded(photo).tobytes()
    with switched():
        assert [loaded(photo).tobytes() for _ in range(2)] == [plain] * 2
        assert numbers()[FULL]


def test_too_little_memory_or_none_that_is_shared_is_declined(monkeypatch: Any) -> None:
    for spare, reason in ((None, "is unknown"), (1 << 20, "only 0 MB")):
        monkeypatch.setattr(boost, "spare_memory", lambda spare=spare: spare)
        with pytest.raises(Declined, match=reason):
            boost.apply(Job(), loader_of([]), {})
    monkeypatch.setattr(boost, "spare_memory", lambda: 4 * ROOM)
    monkeypatch.delattr(decoded_images.os, "memfd_create")
    with pytest.raises(Declined, match="no shared memory"):
        boost.apply(Job(), loader_of([]), {})


# The log --------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    entries=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 300)), max_size=30),
    room=st.integers(0, 3000),
)
def test_a_log_gives_what_it_took(entries: list[tuple[int, int]], room: int) -> None:
    log, known = Log(max(1, room)), {}
    for name, size in entries:
        key, data = bytes([name]) * 16, bytes([size % 256]) * size
        if key in known:
            data = b"another"
        elif log.numbers[USED] + 24 + size <= room and not log.numbers[FULL]:
            known[key] = data
        log.put(key, data)
        for wanted in range(10):
            found = log.get(bytes([wanted]) * 16)
            assert (None if found is None else bytes(found)) == known.get(bytes([wanted]) * 16)
    assert len(log._places) == len(known)


def in_children(*works: Callable[[], None]) -> list[int]:
    """Each in a forked process, at once; their exit codes."""
    children = []
    for work in works:
        child = os.fork()
        if child == 0:
            try:
                work()
            except BaseException:
                os._exit(1)
            os._exit(0)
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_processes_add_to_one_log(monkeypatch: Any) -> None:
    log = Log(1 << 20)
    original = os.pwritev

    def slowly(*args: Any) -> int:
        time.sleep(0.001)
        return original(*args)

    monkeypatch.setattr(decoded_images.os, "pwritev", slowly)

    def add(first: int) -> Callable[[], None]:
        def work() -> None:
            for number in range(first, first + 50):
                log.put(number.to_bytes(16, "big"), bytes([number]) * number)
                found = log.get(number.to_bytes(16, "big"))
                assert found is not None
                assert bytes(found) == bytes([number]) * number

        return work

    assert in_children(add(0), add(25), add(50), add(75)) == [0] * 4
    for number in range(125):
        found = log.get(number.to_bytes(16, "big"))
        assert found is not None
        assert bytes(found) == bytes([number]) * number


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_process_that_is_killed_while_it_adds_holds_nobody_up(monkeypatch: Any) -> None:
    log = Log(1 << 20)
    log.put(b"1" * 16, b"first")
    original = os.pwritev

    def killed(*args: Any) -> int:
        original(*args)
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    with monkeypatch.context() as patch:
        patch.setattr(decoded_images.os, "pwritev", killed)
        assert in_children(lambda: log.put(b"2" * 16, b"second")) == [-signal.SIGKILL]
    assert log.get(b"2" * 16) is None
    log.put(b"3" * 16, b"third")
    assert bytes(log.get(b"3" * 16) or b"") == b"third"
    assert bytes(log.get(b"1" * 16) or b"") == b"first"


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_process_forked_while_a_thread_adds_is_not_held_up() -> None:
    log = Log(1 << 20)
    log.put(b"1" * 16, b"first")

    def add() -> None:
        signal.alarm(120)
        log.put(b"2" * 16, b"second")

    with log.thread_lock:
        assert in_children(add) == [0]
    assert bytes(log.get(b"2" * 16) or b"") == b"second"


def memories() -> int:
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found += "memfd:flatout" in os.readlink(f"/proc/self/fd/{name}")
    with open("/proc/self/maps") as maps:
        return found + sum("memfd:flatout" in line for line in maps)


@pytest.mark.slow
def test_nothing_is_left(photo: Path) -> None:
    """With the last reference, where garbage collection pauses as well."""
    gc.collect()
    gc.disable()
    before = memories(), sorted(os.listdir("/dev/shm"))
    with switched():
        loaded(photo)
        loaded(photo)
        assert memories() > before[0]
        assert sorted(os.listdir("/dev/shm")) == before[1]
    assert boost._known  # until the tuning has decided
    boost.forget(Job())
    left = memories(), sorted(os.listdir("/dev/shm"))
    gc.enable()
    assert left == before


# With loaders ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_from_the_second_epoch_on_nothing_is_decoded(tmp_path: Path, workers: int) -> None:
    loader = loader_of(photos(tmp_path, 12), num_workers=workers, shuffle=True)

    def epochs(applied: Applied | None = None) -> list[Any]:
        random.seed(1)
        torch.manual_seed(1)
        found = []
        for epoch in range(3):
            found.append(torch.cat(list(loader)))
            if applied is not None:
                assert numbers()[MISSES] == 12
                assert numbers()[HITS] == 12 * epoch
        return found

    plain = epochs()
    with switched(loader) as applied:
        fast = epochs(applied)
        assert told(applied)[0]
        assert told(applied)[1].startswith("24 images from memory (12 kept")
    for one, other in zip(plain, fast, strict=True):
        assert torch.equal(one, other)
    assert not torch.equal(plain[1], plain[2])  # random crops


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_switched_in_the_middle_of_an_epoch(
    tmp_path: Path, recorder: Recorder, workers: int
) -> None:
    loader, job = loader_of(photos(tmp_path, 24), num_workers=workers, whole=True), Job()
    plain = torch.cat(list(loader))
    job.handovers = weakref.WeakSet()
    booster = Booster(job, (), recorder)
    job.loaders.append(loader)
    for _ in range(2):
        iterator = iter(loader)
        job.iterating(loader, iterator)
        found = []
        for number, batch in enumerate(job.batches(loader, iterator)):
            found.append(batch)
            if number == 2:
                assert booster.on(BoostOrder("image-cache")) is None
            if number == 9:
                booster.off("image-cache")
        assert torch.equal(torch.cat(found), plain)
    assert numbers()[HITS] > 0
    assert loader.worker_init_fn is None


def test_two_loaders_share_it_and_it_ends_with_the_last(tmp_path: Path) -> None:
    paths = photos(tmp_path, 4)
    first, second = (loader_of(paths, whole=True) for _ in range(2))
    one, other = (boost.apply(Job(), loader, {}) for loader in (first, second))
    list(first)
    list(second)
    assert numbers()[HITS] == 4
    one.undo()
    list(second)
    assert numbers()[HITS] == 8
    other.undo()
    list(second)
    assert numbers()[HITS] == 8


def test_pixels_stay_while_it_is_switched_off_and_on(tmp_path: Path) -> None:
    loader = loader_of(photos(tmp_path, 4))
    with switched(loader):
        list(loader)
    with switched(loader) as applied:
        assert not told(applied)[0]
        list(loader)
        assert told(applied)[1].startswith("4 images from memory")
        boost.forget(Job())
        list(loader)
        assert numbers()[HITS] == 8
    assert not boost._known


def test_it_is_ready_when_all_were_decoded(tmp_path: Path) -> None:
    loader = loader_of(photos(tmp_path, 12))
    with switched(loader) as applied:
        assert applied.steps_to_ready() == 6
        for number, _ in enumerate(loader, 1):
            assert applied.steps_to_ready() == 6 - number
    assert applied.steps_to_ready() == 0


def test_it_does_not_wait_where_nothing_is_decoded(tmp_path: Path, monkeypatch: Any) -> None:
    loader, job = loader_of(photos(tmp_path, 12)), Job()
    with switched(loader, job) as applied:
        job.steps += shared_log.PATIENCE
        assert applied.steps_to_ready() == 0
        next(iter(loader))
        assert applied.steps_to_ready() == 5
        monkeypatch.setattr(shared_log, "LATELY", 38)  # the same files again and again
        for _ in range(18):
            next(iter(loader))
        assert applied.steps_to_ready() == 5
        for _ in range(25):
            next(iter(loader))
        assert applied.steps_to_ready() == 0


# Loader workers -------------------------------------------------------------------------------


def test_the_programs_own_worker_init_is_called_and_put_back(photo: Path) -> None:
    loader = loader_of([photo], num_workers=1, worker_init_fn=print)
    with switched(loader):
        called: list[int] = []
        assert loader.worker_init_fn is not print
        loader.worker_init_fn.own = called.append
        loader.worker_init_fn(7)
        assert called == [7]
        loader.worker_init_fn.own = print
    assert loader.worker_init_fn is print


def test_workers_that_another_boost_keeps_are_started_anew(photo: Path) -> None:
    loader = loader_of([photo], num_workers=1, persistent_workers=True)
    loader._get_iterator = None  # type: ignore[assignment]
    loader._iterator = iter(())  # type: ignore[assignment]
    with switched(loader):
        assert loader._iterator is None
        loader._iterator = iter(())
    assert loader._iterator is None


# Where it is declined -------------------------------------------------------------------------


def test_spawned_and_kept_workers_are_declined(photo: Path) -> None:
    spawned = loader_of([photo], num_workers=1, multiprocessing_context="spawn")
    with pytest.raises(Declined, match="not forked"):
        boost.apply(Job(), spawned, {})
    kept = loader_of([photo], num_workers=1, persistent_workers=True)
    list(kept)
    with pytest.raises(Declined, match="keeps its workers"):
        boost.apply(Job(), kept, {})
    assert not boost._known


def test_programs_without_pillow_are_declined(photo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "PIL.JpegImagePlugin")
    rows = DataLoader(TensorDataset(torch.zeros(4, 3)))
    with pytest.raises(Declined, match="Pillow"):
        boost.apply(Job(), rows, {})
    assert jpeg_loading._names_pillow(loader_of([photo]))

    class Inside(Dataset[Any]):
        def __getitem__(self, index: int) -> Any:
            from PIL import Image

            return Image.open(photo)

    assert jpeg_loading._names_pillow(DataLoader(Inside()))


def test_an_old_pillow_is_declined(photo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "Image", lambda: object.__new__(type("Old", (), {})))
    assert jpeg_loading.jpeg_plugin(loader_of([photo])) is None


def test_by_hand_keeps_images(photo: Path) -> None:
    import functools

    scope: dict[str, Any] = {"functools": functools, "Image": Image, "path": photo}
    exec(boost.by_hand(FACTS, {}), scope)
    assert scope["image"].tobytes() == loaded(photo).tobytes()
