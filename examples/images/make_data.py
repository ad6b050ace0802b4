"""Write the data set: real handwritten digits on crops of real photographs, as JPEG files.

The 1797 digits and the two photographs come with scikit-learn, so nothing is downloaded.
"""

import csv
import random
from pathlib import Path

from PIL import Image, ImageEnhance

SIDE = 288  # of the pictures, in pixels
TEST_PART = 5  # every fifth digit is for testing


def load_sources():
    try:
        from sklearn.datasets import load_digits, load_sample_images
    except ImportError as error:
        raise SystemExit(
            "the pictures are made from data that comes with scikit-learn: "
            "pip install scikit-learn (or use --synthetic)"
        ) from error
    digits = load_digits()
    photos = [Image.fromarray(photo) for photo in load_sample_images().images]
    return digits.images, digits.target, photos


def draw(digit, photo, test, rng):
    """One picture: the digit, enlarged and in a light colour, on a darkened crop of the photo."""
    # Test pictures get their background from the right third, training pictures from the rest.
    border = photo.width * 2 // 3
    crop = rng.randint(130, photo.width - border)
    left = rng.randint(border, photo.width - crop) if test else rng.randint(0, border - crop)
    top = rng.randint(0, photo.height - crop)
    picture = photo.crop((left, top, left + crop, top + crop)).resize((SIDE, SIDE))
    picture = ImageEnhance.Brightness(picture).enhance(0.6)
    side = rng.randint(SIDE * 7 // 10, SIDE * 9 // 10)
    ink = (digit * 22).clip(0, 255).astype("uint8")
    mask = Image.fromarray(ink).resize((side, side), Image.BICUBIC)
    mask = mask.rotate(rng.uniform(-8, 8), Image.BILINEAR)
    colour = tuple(rng.randint(200, 255) for _ in range(3))
    place = (rng.randint(0, SIDE - side), rng.randint(0, SIDE - side))
    picture.paste(Image.new("RGB", (side, side), colour), place, mask)
    return picture


def make(folder):
    """Fill `folder` with pictures; labels.csv is written last and says that all are there."""
    folder = Path(folder)
    images, targets, photos = load_sources()
    rng = random.Random(0)
    rows = []
    for index, (digit, target) in enumerate(zip(images, targets, strict=True)):
        split = "test" if index % TEST_PART == 0 else "train"
        name = f"{split}/{target}/{index:04d}.jpg"
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        draw(digit, rng.choice(photos), split == "test", rng).save(path, quality=90)
        rows.append((name, split, int(target)))
    with open(folder / "labels.csv", "w", newline="") as file:
        csv.writer(file).writerows(rows)


if __name__ == "__main__":
    make(Path(__file__).resolve().parent / "data")
