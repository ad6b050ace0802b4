"""Pixels of decoded JPEG files, kept in memory that forked loader workers share.

`Decoded` changes the `load` of Pillow's JPEG files, so images in its log are not decoded again, and
`resize`, so an image that is resized before anything else is done with it is not resized again.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import io
import os
import stat
import sys
import time
from collections.abc import Callable
from typing import Any

from flatout_agent.attach.replacing import Replacement
from flatout_agent.limits import CACHE_SHARE, spare_memory
from flatout_agent.speedups.images.jpeg_loading import Later, copy_of_info, postpone
from flatout_agent.speedups.shared_log import COUNT, FULL, HITS, MISSES, OFF, ON, USED, Log

LOOK_EVERY = 64
"""Images that a process adds between two checks of the remaining memory."""
CHECK_EVERY = 61
"""One in this many images from memory is also decoded, and compared."""
FRESH_S = 2.0
"""A file that changed within this time may change again without its timestamps showing it."""
MOST_RESIZES = 4
"""A program with more sizes than this draws them at random, and would fill the memory."""
BANDS = {"RGB": 3, "L": 1}


class Decoded:
    """Replaces the `load` of JPEG files while at least one loader wants it."""

    def __init__(self, plugin: Any, log: Log) -> None:
        self.log = log
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
            if spare is None or numbers[USED] > CACHE_SHARE * (spare + numbers[USED]):
                numbers[FULL] = 1
                return False
        return self.log.put(key, pixels)


def _is_closed(parts: dict[str, Any]) -> bool:
    """Whether the image with these attributes was closed: Pillow then has an error there."""
    core = parts.get("_im", parts.get("im"))
    return core is not None and not hasattr(core, "resize")
