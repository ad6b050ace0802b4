"""Regions, flips and colours: the distributions of torchvision, the arithmetic of Pillow."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from flatout_train.errors import UsageError
from flatout_train.images import augmenting
from flatout_train.images.augmenting import DRAWS, RATIO, Cuts, Normalise
from flatout_train.images.decoding import PillowPicture
from flatout_train.images.device_decoding import DecodedPicture
from train.images.pictures import encoded, picture, reference

CPU = torch.device("cpu")
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def cuts(
    augment: object = "auto", size: int = 32, train: bool = True, jitter: object = 0.0
) -> Cuts:
    return augmenting.choose(augment, size, None, train, jitter)  # type: ignore[arg-type]


def boxes(width: int, height: int, count: int) -> torch.Tensor:
    draws = cuts().draw(count, seed=5).tolist()
    return torch.tensor([augmenting.random_box(width, height, row) for row in draws]).double()


@given(
    width=st.integers(1, 600), height=st.integers(1, 600), seed=st.integers(0, 2**62)
)  # fmt: skip
def test_a_random_region_lies_in_the_picture(width: int, height: int, seed: int) -> None:
    row = cuts().draw(1, seed)[0].tolist()
    left, top, w, h = augmenting.random_box(width, height, row)
    assert left >= 0 and top >= 0 and w >= 1 and h >= 1
    assert left + w <= width and top + h <= height
    if min(width, height) > 50:
        area, ratio = w * h / (width * height), w / h
        assert area < 1.02
        if RATIO[0] <= width / height <= RATIO[1]:
            assert area > 0.076
            assert 0.67 < ratio < 1.47


def test_areas_and_ratios_are_spread_as_random_resized_crop_spreads_them() -> None:
    found = boxes(400, 400, 6000)
    area = found[:, 2] * found[:, 3] / 160_000
    small = area[area < 0.5]  # larger regions are tried again where they do not fit
    share = float((small < 0.29).double().mean())
    assert abs(share - 0.5) < 0.03, "areas are uniform"
    ratio = (found[:, 2] / found[:, 3])[area < 0.5].log()
    assert abs(float(ratio.mean())) < 0.02, "ratios are uniform in the logarithm"
    assert abs(float((ratio.abs() < math.log(RATIO[1]) / 2).double().mean()) - 0.5) < 0.03
    room = 400 - found[:, 2]
    assert abs(float((found[:, 0] / room.clamp(min=1)).mean()) - 0.5) < 0.02
    assert float(area.min()) < 0.09 and float(area.max()) > 0.9


def test_pictures_that_no_region_fits_are_taken_whole_in_one_direction() -> None:
    row = [0.999] * DRAWS  # a ratio of 4/3 and almost all of the area never fit
    assert augmenting.random_box(1000, 10, row) == ((1000 - 13) // 2, 0, 13, 10)
    assert augmenting.random_box(10, 1000, row) == (0, (1000 - 13) // 2, 10, 13)
    assert augmenting.random_box(1, 1, row) == (0, 0, 1, 1)


def test_half_of_the_pictures_are_flipped_and_the_draws_are_one_per_seed() -> None:
    draws = cuts().draw(4000, seed=1)
    assert torch.equal(draws, cuts().draw(4000, seed=1))
    assert not torch.equal(draws, cuts().draw(4000, seed=2))
    flipped = sum(cuts().flips(row) for row in draws.tolist())
    assert abs(flipped - 2000) < 4 * math.sqrt(1000)
    assert not any(cuts("none").flips(row) for row in draws.tolist())


@pytest.mark.parametrize(("width", "height"), [(48, 40), (40, 48), (31, 90), (300, 37), (64, 64)])
def test_evaluation_is_resize_and_centre_crop_as_with_pillow(width: int, height: int) -> None:
    image = picture(1, width, height)
    chosen = cuts(train=False)
    opened = PillowPicture(encoded(image, "PNG"))
    found = augmenting.cut(opened, chosen, [0.0] * DRAWS)
    if max(width, height) > 3 * min(width, height):  # only the middle was resized
        side = 3 * min(width, height)
        left = (width - side) // 2
        image = image.crop((left, 0, left + side, height))
    wanted = reference(image, 32, chosen.resize)
    assert int((found.int() - wanted.int()).abs().max()) <= 1


def test_a_very_long_picture_stays_small_in_between() -> None:
    opened = PillowPicture(encoded(picture(1, 1, 20_000), "PNG"))
    found = augmenting.cut(opened, cuts(train=False, size=224), [0.0] * DRAWS)
    assert found.shape == (224, 224, 3)


def test_a_random_region_is_cut_and_resized_as_with_pillow() -> None:
    image = picture(2, 203, 151)
    row = cuts().draw(1, seed=3)[0].tolist()
    left, top, width, height = augmenting.random_box(203, 151, row)
    wanted = image.crop((left, top, left + width, top + height))
    wanted = wanted.resize((32, 32), Image.Resampling.BILINEAR)
    if cuts().flips(row):
        wanted = wanted.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    flat = torch.frombuffer(bytearray(wanted.tobytes()), dtype=torch.uint8).view(32, 32, 3)
    for opened in (
        PillowPicture(encoded(image, "PNG")),
        DecodedPicture(PillowPicture(encoded(image, "PNG")).region(None, 1).permute(2, 0, 1)),
    ):
        found = augmenting.cut(opened, cuts(), row)
        assert int((found.int() - flat.int()).abs().max()) <= 1


@given(
    side=st.tuples(st.integers(4, 60), st.integers(4, 60)),
    size=st.integers(1, 40),
    seed=st.integers(0, 2**31),
)
def test_a_batch_cut_at_once_is_each_picture_cut_alone(
    side: tuple[int, int], size: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    canvases = torch.randint(0, 256, (3, *side, 3), dtype=torch.uint8, generator=generator)
    rows = cuts().draw(3, seed).tolist()
    places = [augmenting.random_box(side[1], side[0], row) for row in rows]
    flips = [cuts().flips(row) for row in rows]
    together = augmenting.cut_together(canvases, size, torch.tensor(places), torch.tensor(flips))
    for number in range(3):
        alone = augmenting.cut_on_canvas(canvases[number], size, places[number], flips[number])
        assert float((together[number] - alone.permute(2, 0, 1)).abs().max()) <= 1


def test_colours_change_as_color_jitter_changes_them() -> None:
    images = torch.rand(4, 3, 8, 8) * 255
    row = torch.full((4, DRAWS), 0.75)  # each factor is 1 + change / 2
    grey = 0.299 * images[:, 0] + 0.587 * images[:, 1] + 0.114 * images[:, 2]
    bright = augmenting.recolour(images, cuts(jitter=(0.4, 0, 0)), row)
    torch.testing.assert_close(bright, (images * 1.2).clamp(0, 255))
    contrast = augmenting.recolour(images, cuts(jitter=(0, 0.4, 0)), row)
    mean = grey.mean((1, 2))[:, None, None, None]
    torch.testing.assert_close(contrast, (mean + 1.2 * (images - mean)).clamp(0, 255))
    saturation = augmenting.recolour(images, cuts(jitter=(0, 0, 0.4)), row)
    base = grey[:, None]
    torch.testing.assert_close(saturation, (base + 1.2 * (images - base)).clamp(0, 255))
    assert augmenting.recolour(images, cuts(), row) is images


def test_factors_of_colour_are_spread_over_the_whole_range() -> None:
    draws = cuts().draw(2000, seed=9)
    ones = torch.full((2000, 3, 1, 1), 100.0)
    factors = augmenting.recolour(ones, cuts(jitter=(0.4, 0, 0)), draws)[:, 0, 0, 0] / 100
    assert 0.6 <= float(factors.min()) < 0.61 and 1.39 < float(factors.max()) <= 1.4
    assert abs(float(factors.mean()) - 1) < 0.02


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_normalising_is_the_plain_formula_both_ways(dtype: torch.dtype) -> None:
    rows = torch.randint(0, 256, (2, 9, 7, 3), dtype=torch.uint8)
    images = rows.permute(0, 3, 1, 2)
    mean, std = (torch.tensor(part).view(1, 3, 1, 1) for part in (MEAN, STD))
    wanted = ((images.float() / 255 - mean) / std).to(dtype)
    normalise = Normalise(MEAN, STD, CPU, dtype)
    for found in (normalise(images), normalise.at_once(images), normalise.at_once(images.half())):
        assert found.dtype == dtype
        assert found.is_contiguous(memory_format=torch.channels_last)
        close = 1e-2 if dtype == torch.bfloat16 else 1e-5
        torch.testing.assert_close(found, wanted, rtol=close, atol=1e-5)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(UsageError, match="size=0"):
        cuts(size=0)
    with pytest.raises(UsageError, match="resize=20 must be at least size=32"):
        augmenting.choose("auto", 32, 20, False, 0.0)
    with pytest.raises(UsageError, match="augment='all'"):
        cuts("all")
    for jitter in (-0.1, 2, (0.1, 0.2), (0.1, 0.2, 3)):
        with pytest.raises(UsageError, match="color_jitter"):
            cuts(jitter=jitter)
    with pytest.raises(UsageError, match="std above 0"):
        Normalise(MEAN, (1, 1, 0), CPU, torch.float32)


def test_the_choice_is_told() -> None:
    assert str(cuts()) == "random resized crop, flip"
    assert str(cuts("none")) == "resize to 37, centre crop"
    assert str(cuts(train=False)) == "resize to 37, centre crop"
    assert "your own function" in str(cuts(lambda images: images, jitter=0.1))


@pytest.mark.gpu
def test_a_batch_on_the_gpu_is_the_batch_on_the_cpu() -> None:
    canvases = torch.stack(
        [PillowPicture(encoded(picture(n, 96, 80))).region(None, 1.0) for n in range(4)]
    )
    rows = cuts().draw(4, 3).tolist()
    places = torch.tensor([augmenting.random_box(96, 80, row) for row in rows])
    flips = torch.tensor([cuts().flips(row) for row in rows])
    here = augmenting.cut_together(canvases, 32, places, flips)
    there = augmenting.cut_together(canvases.cuda(), 32, places.cuda(), flips.cuda())
    assert float((there.float().cpu() - here).abs().max()) <= 1
    whole = augmenting.resized(canvases[0].cuda(), 40, 50)
    assert int((whole.cpu().int() - augmenting.resized(canvases[0], 40, 50).int()).abs().max()) <= 1
    normalise = Normalise(MEAN, STD, torch.device("cuda"), torch.bfloat16)(there)
    assert normalise.is_contiguous(memory_format=torch.channels_last)
    wanted = Normalise(MEAN, STD, CPU, torch.float32)(here)
    torch.testing.assert_close(normalise.float().cpu(), wanted, rtol=0, atol=0.05)
