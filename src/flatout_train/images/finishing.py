"""From a batch of read pictures to normalised images on the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from flatout_train.images import augmenting
from flatout_train.images.augmenting import Cuts, Normalise
from flatout_train.images.decoding import PillowPicture
from flatout_train.images.device_decoding import DecodedPicture, DeviceDecoder, parts
from flatout_train.images.reading import Item, Reader, error_line
from flatout_train.out_of_memory import is_out_of_memory


@dataclass
class ReadBatch:
    """A batch after reading."""

    items: list[Item | None]
    slots: Tensor
    """uint8 [n, h, w, 3] on the host; pinned where batches are copied to a device."""
    draws: Tensor


class Finisher:
    """Decodes (where the device can), crops, recolours and normalises a batch on its device."""

    def __init__(
        self,
        reader: Reader,
        device: torch.device,
        normalise: Normalise,
        decoder: DeviceDecoder | None = None,
    ) -> None:
        self.reader, self.device, self.normalise = reader, device, normalise
        self.cuts: Cuts = reader.cuts
        self.decoder = decoder

    def finish(self, read: ReadBatch) -> tuple[Tensor, Tensor] | None:
        """Images [n, 3, size, size], labels int64 [n], or None if every picture was skipped.

        The images are normalised, unless there is a user's function: it takes uint8 images, and
        runs in `last`, where it draws its random numbers in the program's order.
        """
        decoded = self._decoded(read)
        readable = [place for place, item in enumerate(read.items) if item is not None]
        if not readable:
            return None
        indices = [item.index for item in read.items if item is not None]
        draws = read.draws if len(readable) == len(read.items) else read.draws[readable]
        images = self._images(read, readable, decoded)
        labels = self.reader.pictures.labels[indices].to(self.device, non_blocking=True)
        if self.cuts.colours is not None:
            images = augmenting.recolour(images.float(), self.cuts, draws)
        if self.cuts.call is not None:
            return (
                images if images.dtype == torch.uint8 else images.round().to(torch.uint8)
            ), labels
        return self.normalise(images), labels

    def last(self, images: Tensor) -> Tensor:
        """Apply the user's function, if any, and the normalisation that `finish` omitted for it."""
        if self.cuts.call is None:
            return images
        return self.normalise(self.cuts.call(images))

    def _decoded(self, read: ReadBatch) -> dict[int, Tensor]:
        """Place in the batch -> pixels, uint8 [3, h, w], of pictures that the device decodes."""
        places = [
            place for place, item in enumerate(read.items) if item and item.encoded is not None
        ]
        if not places or self.decoder is None:
            return {}
        pixels_by_place: dict[int, Tensor] = {}
        sizes = [_item(read, place).pixels for place in places]
        for part in parts(sizes):
            part_places = [places[number] for number in part]
            try:
                pixels = self.decoder.decode([_file(read, place) for place in part_places])
                pixels_by_place.update(zip(part_places, pixels, strict=True))
            except Exception as error:
                _raise_trouble(error)
                for place in part_places:  # one cannot be decoded: find out which
                    self._alone(read, place, pixels_by_place)
        return pixels_by_place

    def _alone(self, read: ReadBatch, place: int, pixels_by_place: dict[int, Tensor]) -> None:
        """Decode one picture, or its replacement."""
        while (item := read.items[place]) is not None and item.encoded is not None:
            pixels = self._decoded_alone(item)
            if pixels is not None:
                pixels_by_place[place] = pixels
                return
            draws = read.draws[place].tolist()
            read.items[place] = self.reader.read(item.index, draws, read.slots[place])

    def _decoded_alone(self, item: Item) -> Tensor | None:
        """The picture's pixels, or None if it is skipped, since the host cannot decode it either.

        nvJPEG supports fewer JPEG variants (chroma subsampling, coding) than Pillow.
        """
        assert self.decoder is not None and item.encoded is not None
        try:
            return self.decoder.decode([item.encoded])[0]
        except Exception as error:
            _raise_trouble(error)
        try:
            picture = PillowPicture(item.encoded.numpy().tobytes())
            pixels = picture.region(None, 1.0).permute(2, 0, 1)
        except Exception as error:
            self.reader.skip(item.index, error_line(error))
            return None
        return pixels.to(self.device)

    def _images(self, read: ReadBatch, readable: list[int], decoded: dict[int, Tensor]) -> Tensor:
        """Images from the slots and the decoded pixels: uint8 [n, 3, size, size], channels last."""
        count = len(read.items)
        if len(decoded) == len(readable) and self.cuts.random:
            return self._cut_decoded(readable, decoded, read.draws)
        batch = read.slots[:count].to(self.device, non_blocking=True)
        for place, pixels in decoded.items():
            draws = read.draws[place].tolist()
            batch[place] = augmenting.cut(DecodedPicture(pixels), self.cuts, draws)
        if len(readable) < count:
            batch = batch[torch.tensor(readable).to(self.device)]
        return batch.permute(0, 3, 1, 2)

    def _cut_decoded(
        self, readable: list[int], decoded: dict[int, Tensor], draws: Tensor
    ) -> Tensor:
        """All regions at once, [n, 3, size, size]: each in the corner of a common canvas."""
        boxes, flips = [], []
        for place in readable:
            row = draws[place].tolist()
            pixels = decoded[place]
            boxes.append(augmenting.random_box(pixels.shape[2], pixels.shape[1], row))
            flips.append(self.cuts.flips(row))
        done = []
        tallest, widest = max(box[3] for box in boxes), max(box[2] for box in boxes)
        for part in parts([3 * tallest * widest] * len(readable)):
            pad = torch.empty(len(part), tallest, widest, 3, dtype=torch.uint8, device=self.device)
            for row_of_pad, number in enumerate(part):
                left, top, width, height = boxes[number]
                region = decoded[readable[number]][:, top : top + height, left : left + width]
                pad[row_of_pad, :height, :width] = region.permute(1, 2, 0)
            corners = torch.tensor([(0, 0, *boxes[number][2:]) for number in part])
            flipped = torch.tensor([flips[number] for number in part])
            where = [each.to(self.device, non_blocking=True) for each in (corners, flipped)]
            done.append(augmenting.cut_together(pad, self.cuts.size, *where))
        return torch.cat(done) if len(done) > 1 else done[0]


def _raise_trouble(error: Exception) -> None:
    """Raise the error again if the device caused it, not the picture.

    torchvision raises RuntimeError for everything: only the text distinguishes them.
    """
    if is_out_of_memory(error) or "CUDA error" in str(error):
        raise error


def _item(read: ReadBatch, place: int) -> Item:
    item = read.items[place]
    assert item is not None
    return item


def _file(read: ReadBatch, place: int) -> Tensor:
    encoded = _item(read, place).encoded
    assert encoded is not None
    return encoded
