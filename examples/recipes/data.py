"""The data of the three recipes, all of it from packages that are installed: nothing is downloaded.

Pictures: scikit-learn's 1797 handwritten digits drawn on crops of its two photographs, written as
JPEG files in the layout of ImageNet (`train/<class>/*.jpg`, `val/<class>/*.jpg`). Text: the source
of Python's own standard library, cut into words; a word that is not among the commonest is spelt
in bytes, so that any text can be encoded and comes back as it was.
"""

import random
import re
import sysconfig
from collections import Counter
from pathlib import Path

import torch
from torch.utils.data import Dataset

SIDE = 400  # pixels of the pictures, about as in ImageNet
WORD = re.compile(r"[A-Za-z]+|\d|\s+|[^\sA-Za-z\d]")
PAD, MASK, FIRST_BYTE, FIRST_WORD = 0, 1, 2, 258


def draw(digit, photo, rng):
    """One picture: the digit, enlarged and in a light colour, on a darkened crop of the photo."""
    from PIL import Image, ImageEnhance

    crop = rng.randint(300, min(photo.size))
    left, top = rng.randint(0, photo.width - crop), rng.randint(0, photo.height - crop)
    picture = photo.crop((left, top, left + crop, top + crop)).resize((SIDE, SIDE))
    picture = ImageEnhance.Brightness(picture).enhance(0.6)
    side = rng.randint(SIDE * 7 // 10, SIDE * 9 // 10)
    mask = Image.fromarray((digit * 22).clip(0, 255).astype("uint8"))
    mask = mask.resize((side, side), Image.BICUBIC).rotate(rng.uniform(-8, 8), Image.BILINEAR)
    colour = tuple(rng.randint(200, 255) for _ in range(3))
    place = (rng.randint(0, SIDE - side), rng.randint(0, SIDE - side))
    picture.paste(Image.new("RGB", (side, side), colour), place, mask)
    return picture


def pictures(folder, count=1797):
    """Write `count` pictures, every fifth of them for validation; what is there stays."""
    from PIL import Image
    from sklearn.datasets import load_digits, load_sample_images

    folder = Path(folder)
    digits, photos = load_digits(), [Image.fromarray(p) for p in load_sample_images().images]
    for index in range(count):
        part = "val" if index % 5 == 0 else "train"
        path = folder / part / str(digits.target[index]) / f"{index:04d}.jpg"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            rng = random.Random(index)
            picture = draw(digits.images[index], rng.choice(photos), rng)
            picture.save(path.with_suffix(".part"), "JPEG", quality=95)
            path.with_suffix(".part").rename(path)  # a file that was cut off is not a picture
    return folder


def words(packages=True):
    """The standard library's source, in words: 4 million, or 1.6 without its packages."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(root.rglob("*.py") if packages else root.glob("*.py"))
    unwanted = {"site-packages", "test", "tests", "idlelib"}
    files = [path for path in files if not unwanted.intersection(path.parts)]
    if not files:
        raise SystemExit("this Python's standard library is not there as source files")
    return WORD.findall("\n".join(path.read_text("utf-8", errors="replace") for path in files))


class Vocabulary:
    """Numbers of the words: padding, mask, 256 bytes, then the commonest words up to `size`."""

    def __init__(self, words, size):
        commonest = sorted(Counter(words).items(), key=lambda item: (-item[1], item[0]))
        self.words = [word for word, _ in commonest[: size - FIRST_WORD]]
        self.numbers = {word: FIRST_WORD + index for index, word in enumerate(self.words)}

    def encode(self, words):
        tokens = []
        for word in words:
            number = self.numbers.get(word)
            if number is None:
                tokens += (FIRST_BYTE + byte for byte in word.encode())
            else:
                tokens.append(number)
        return torch.tensor(tokens)

    def decode(self, tokens):
        text = bytearray()
        for token in tokens:
            if token >= FIRST_WORD and token - FIRST_WORD < len(self.words):
                text += self.words[token - FIRST_WORD].encode()
            elif FIRST_BYTE <= token < FIRST_WORD:
                text.append(token - FIRST_BYTE)
        return text.decode(errors="replace")


def text(vocabulary, small):
    """(vocabulary, tokens to train on, tokens for validation): the last tenth validates."""
    source = words(packages=not small)
    border = len(source) * 9 // 10
    known = Vocabulary(source[:border], vocabulary)
    return known, known.encode(source[:border]), known.encode(source[border:])


class Windows(Dataset):
    """A long text in pieces of `length` tokens, and `more` that overlap with the next piece."""

    def __init__(self, tokens, length, more=0):
        self.tokens, self.length, self.more = tokens, length, more

    def __len__(self):
        return (len(self.tokens) - self.more) // self.length

    def __getitem__(self, index):
        start = index * self.length
        return self.tokens[start : start + self.length + self.more]
