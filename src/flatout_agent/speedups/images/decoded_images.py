"""Pixels of decoded JPEG files, kept in memory that forked loader workers share.

`Log` is that memory: a file without a name, to which each process appends. Nobody needs to remove
it: the system frees it when the last process that has it ends, however it ends. `Decoded` changes
the `load` of Pillow's JPEG files, so images in the log are not decoded again, and `resize`, so an
image that is resized before anything else is done with it is not resized again.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import io
import mmap
import os
import stat
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from flatout_agent.attach.replacing import Replacement
from flatout_agent.limits import spare_memory
from flatout_agent.speedups.images.jpeg_loading import Later, copy_of_info, postpone

SHARE = 0.25
"""Share of the free memory; the model's activations and the program's other data come later."""
LOOK_EVERY = 64
"""Images that a process adds between two checks of the remaining memory."""
CHECK_EVERY = 61
"""One in this many images from memory is also decoded, and compared."""
FRESH_S = 2.0
"""A file that changed within this time may change again without its timestamps showing it."""
MOST_RESIZES = 4
"""A program with more sizes than this draws them at random, and would fill the memory."""
BANDS = {"RGB": 3, "L": 1}
USED, COUNT, HITS, MISSES, FULL, ON, OFF = range(7)
HEADER = mmap.PAGESIZE
RECORD = 24
"""Bytes before the pixels: 16 for the key, 8 for the number of bytes that follow."""


def _memory() -> int:
    """A file without a name."""
    if sys.platform != "linux":
        raise OSError("only Linux has files in memory")
    return os.memfd_create("flatout")


def _written(file: int, parts: list[bytes], place: int) -> int:
    if sys.platform == "win32":
        return 0
    return os.pwritev(file, parts, place)


class Log:
    """Keys and bytes in shared memory; entries never change."""

    def __init__(self, room: int) -> None:
        """`room`: the most bytes. Raises OSError or AttributeError if there is no such memory."""
        self._file = _memory()
        try:
            self.room = room
            os.ftruncate(self._file, HEADER + room)
            self._view = memoryview(mmap.mmap(self._file, HEADER + room))
        except BaseException:
            os.close(self._file)
            raise
        self.numbers = self._view[:HEADER].cast("q")
        self._places: dict[bytes, tuple[int, int]] = {}
        self._bytes_read = 0
        self.thread_lock = threading.Lock()
        """Excludes other threads of this process; between processes the file is locked."""
        _logs.add(self)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, OSError):  # the memory is freed with its last view
            os.close(self._file)

    def get(self, key: bytes) -> memoryview | None:
        """The bytes under this key, if some process has added them."""
        extent = self._places.get(key)
        if extent is None and self._bytes_read < self.numbers[USED]:
            with self.thread_lock:
                self._catch_up()
            extent = self._places.get(key)
        return None if extent is None else self._view[extent[0] : extent[0] + extent[1]]

    def put(self, key: bytes, data: bytes) -> bool:
        """Add these bytes, if there is room and no process has done so; whether they were added."""
        if self.numbers[FULL]:
            return False
        with self._alone():
            self._catch_up()
            return key not in self._places and self._append(key, data)

    def count(self, number: int) -> None:
        """Increment counter `number`, alone: if two processes added at once, one count would be
        lost.
        """
        with self._alone():
            self.numbers[number] += 1

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep all other threads and processes from writing to the log meanwhile."""
        if sys.platform == "win32":
            raise OSError("only Linux has files in memory")
        import fcntl

        with self.thread_lock:
            fcntl.lockf(self._file, fcntl.LOCK_EX)  # freed by the system if the process is killed
            try:
                yield
            finally:
                fcntl.lockf(self._file, fcntl.LOCK_UN)

    def _append(self, key: bytes, data: bytes) -> bool:
        numbers, begin = self.numbers, self.numbers[USED]
        size = RECORD + len(data)
        if begin + size > self.room:
            numbers[FULL] = 1
            return False
        record = [key + len(data).to_bytes(8, "little"), data]
        try:
            written = _written(self._file, record, HEADER + begin)
        except OSError:  # whereas writing through the view would end the process
            written = 0
        if written != size:
            numbers[FULL] = 1
            return False
        numbers[USED] = begin + size  # others may read it from here on
        return True

    def _catch_up(self) -> None:
        """Read what other processes have added."""
        used = self.numbers[USED]
        while self._bytes_read < used:
            begin = HEADER + self._bytes_read
            key = bytes(self._view[begin : begin + 16])
            size = int.from_bytes(self._view[begin + 16 : begin + RECORD], "little")
            self._places[key] = (begin + RECORD, size)
            self._bytes_read += RECORD + size


_logs: weakref.WeakSet[Log] = weakref.WeakSet()


def _forked() -> None:
    """Another thread may have held a lock, and does not exist here to release it."""
    for log in list(_logs):
        log.thread_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class Decoded:
    """Replaces the `load` of JPEG files while at least one loader wants it."""

    def __init__(self, plugin: Any, room: int) -> None:
        self.log = Log(room)
        self.files: Any = plugin.JpegImageFile
        self.pillow: Any = importlib.import_module("PIL.Image")
        self.holders = self._turn = self._added = 0
        self.lasting = True
        self._resizes: set[str] = set()
        self._replacements = self._in_place()

    def hold(self) -> None:
        """Register a loader that wants it."""
        self.holders += 1
        self.log.numbers[ON] = 1
        for replacement in self._replacements:
            replacement.put()

    def let_go(self) -> None:
        """Unregister a loader; the images stay."""
        self.holders -= 1
        if not self.holders:
            self.log.numbers[ON] = 0  # in workers, too
            for replacement in self._replacements:
                replacement.back()

    def end(self) -> None:
        """Release the memory with the last image that needs it, without garbage collection."""
        self._replacements = ()  # the methods refer to this object

    def engagement(self, before: int) -> tuple[bool, str]:
        """(took hold, detail) since `before` images had come from memory."""
        numbers = self.log.numbers
        if numbers[OFF]:
            return False, "a file that looked unchanged was decoded to other pixels"
        if numbers[HITS] <= before:
            return False, "no JPEG file was decoded a second time"
        cached = f"{numbers[COUNT]} kept in {numbers[USED] / 1e6:.0f} MB"
        full = ", no more may be taken" if numbers[FULL] else ""
        return True, f"{numbers[HITS] - before} images from memory ({cached}{full})"

    # In place of Pillow's methods ---------------------------------------------------------------

    def _in_place(self) -> tuple[Replacement, ...]:
        decode, plain = self.files.load, self.pillow.Image
        convert_plain, resize_plain = plain.convert, plain.resize

        @functools.wraps(decode)
        def load(image: Any) -> Any:
            key = self._key(image)
            return decode(image) if key is None else self._load(decode, image, key)

        @functools.wraps(convert_plain)
        def convert(image: Any, mode: Any = None, *args: Any, **options: Any) -> Any:
            if (mode is not None and mode != image.mode) or args or options:
                return convert_plain(image, mode, *args, **options)
            key = self._key(image)
            copy = None if key is None else self._copy(image, key)
            if copy is None:
                copy = convert_plain(image, mode)
                if key is not None:
                    vars(copy)["load"] = Later(copy, self, None, key)
            return copy

        @functools.wraps(resize_plain)
        def resize(image: Any, size: Any, *args: Any, **options: Any) -> Any:
            plainly = functools.partial(resize_plain, image, size, *args, **options)
            decoded = self._key_as_decoded(image)
            if decoded is None:
                return plainly()
            settings = repr((size, args, sorted(options.items())))
            return self._resized(image, decoded, settings, plainly)

        return (
            Replacement(self.files, {"load": load, "convert": convert}),
            Replacement(plain, {"resize": resize}),
        )

    def _key(self, image: Any) -> bytes | None:
        """The identity of this image, or None if it is loaded as written."""
        if not self.log.numbers[ON] or type(image) is not self.files or image.mode not in BANDS:
            return None
        if len(image.tile) != 1 or image.decoderconfig or "load" in vars(image):
            return None
        try:
            return self._identity(image)
        except Exception:  # an error that the program did not expect here is raised as usual
            return None

    def _identity(self, image: Any) -> bytes | None:
        codec, _, offset, _ = image.tile[0]
        file = image.fp
        if codec != "jpeg" or offset != 0 or self.log.numbers[OFF]:
            return None
        lenient = bool(sys.modules["PIL.ImageFile"].LOAD_TRUNCATED_IMAGES)
        seen = repr((image.mode, image.size, lenient)).encode()
        if type(file) is io.BytesIO:
            return hashlib.blake2b(file.getbuffer(), digest_size=16, key=seen).digest()
        if type(file) is not io.BufferedReader or not isinstance(file.name, str | bytes):
            return None
        status = os.fstat(file.fileno())
        changed = max(status.st_mtime, status.st_ctime)
        if not stat.S_ISREG(status.st_mode) or time.time() - changed < FRESH_S:
            return None
        times = (status.st_mtime_ns, status.st_ctime_ns)
        path = os.path.abspath(file.name)  # noqa: PTH100 - links are told by inode
        parts = (path, status.st_dev, status.st_ino, status.st_size, *times)
        text = repr(parts).encode(errors="surrogateescape")
        return hashlib.blake2b(text, digest_size=16, key=seen).digest()

    def _load(self, decode: Callable[[Any], Any], image: Any, key: bytes) -> Any:
        log = self.log
        cached = log.get(key)
        if cached is not None:
            self._turn += 1
            twin = self._image_of(image, cached) if self._turn % CHECK_EVERY else None
            if twin is not None:
                postpone(image, self, lambda _: twin.im, key)
                log.count(HITS)
                return image.load()
        pixels = decode(image)
        with contextlib.suppress(Exception):
            if cached is not None and image.tobytes() != cached:
                log.numbers[OFF] = 1
            elif cached is None:
                log.count(MISSES)
                if self._keep(key, image.tobytes()):
                    log.count(COUNT)
        return pixels

    def _copy(self, image: Any, key: bytes) -> Any:
        """The result of `convert` to the image's own mode, or None if it must go through `load`."""
        cached = self.log.get(key)
        if cached is None or (self._turn + 1) % CHECK_EVERY == 0:
            return None
        copy = self._image_of(image, cached)
        if copy is not None:
            vars(copy)["load"] = Later(copy, self, None, key)
            self._turn += 1
            self.log.count(HITS)
            postpone(image, self, lambda owner: self._image_of(owner, cached).im, key)
            copy.info = copy_of_info(image)
        return copy

    def _key_as_decoded(self, image: Any) -> bytes | None:
        """The identity of an image that is as it was decoded, or None.

        `load`, which all methods call that may write to an image, takes its mark away.
        """
        parts = vars(image)
        later = parts.get("load")
        if type(later) is not Later or later.source is not self:
            return self._key(image)
        if _is_closed(parts) or not self.log.numbers[ON] or self.log.numbers[OFF]:
            return None
        return later.key

    def _resized(self, image: Any, decoded: bytes, settings: str, resize: Callable[[], Any]) -> Any:
        """The resized image. decoded: the identity of the image. settings: those of the resize."""
        self._resizes.add(settings)
        if len(self._resizes) > MOST_RESIZES:
            return resize()
        key = hashlib.blake2b(settings.encode(), digest_size=16, key=decoded).digest()
        cached = self.log.get(key)
        if cached is not None:
            self._turn += 1
            if self._turn % CHECK_EVERY and self._left_as_loaded(image, decoded):
                size = (int.from_bytes(cached[:4], "little"), int.from_bytes(cached[4:8], "little"))
                result = self.pillow.frombytes(image.mode, size, cached[8:])
                result.info = copy_of_info(image)
                return result
        result = resize()
        with contextlib.suppress(Exception):
            wide, high = result.size
            if wide * high <= image.size[0] * image.size[1]:
                pixels = wide.to_bytes(4, "little") + high.to_bytes(4, "little") + result.tobytes()
                if cached is None:
                    self._keep(key, pixels)
                elif pixels != cached:
                    self.log.numbers[OFF] = 1
        return result

    def _left_as_loaded(self, image: Any, key: bytes) -> bool:
        """Leave the file's image as `load` does, if that can be done without decoding it."""
        if "load" in vars(image):
            return True
        cached = self.log.get(key)
        if cached is None:
            return False
        postpone(image, self, lambda owner: self._image_of(owner, cached).im, key)
        self.log.count(HITS)
        return True

    def _image_of(self, image: Any, pixels: memoryview) -> Any:
        wide, high = image.size
        if len(pixels) != wide * high * BANDS[image.mode]:
            return None
        try:
            return self.pillow.frombytes(image.mode, image.size, pixels)
        except Exception:
            return None

    def _keep(self, key: bytes, pixels: bytes) -> bool:
        """Add the pixels while there is memory to spare; whether they were added."""
        numbers = self.log.numbers
        if numbers[FULL]:
            return False
        self._added += 1
        if self._added % LOOK_EVERY == 0:
            spare = spare_memory()
            if spare is None or numbers[USED] > SHARE * (spare + numbers[USED]):
                numbers[FULL] = 1
                return False
        return self.log.put(key, pixels)


def _is_closed(parts: dict[str, Any]) -> bool:
    """Whether the image with these attributes was closed: Pillow then has an error there."""
    core = parts.get("_im", parts.get("im"))
    return core is not None and not hasattr(core, "resize")
