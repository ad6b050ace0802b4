"""Which pictures a folder holds, and their labels."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch

from flatout_train.errors import UsageError
from flatout_train.images import folder as image_folder


def touch(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def test_class_folders_are_sorted_and_searched_to_the_bottom(tmp_path: Path) -> None:
    root = touch(tmp_path, "dog/b.jpg", "dog/a.PNG", "cat/deep/er/x.webp", "cat/notes.txt")
    found = image_folder.find(root)
    assert found.classes == ["cat", "dog"]
    assert found.names == ["cat/deep/er/x.webp", "dog/a.PNG", "dog/b.jpg"]
    assert found.labels.tolist() == [0, 1, 1]
    assert found.labels.dtype == torch.int64
    assert found.left_out == 1
    assert found.path(0) == root / "cat/deep/er/x.webp"


def test_what_begins_with_a_dot_is_no_class_and_no_picture(tmp_path: Path) -> None:
    root = touch(
        tmp_path, "cat/a.jpg", "cat/._a.jpg", ".ipynb_checkpoints/b.jpg", "cat/.trash/c.jpg"
    )
    found = image_folder.find(root)
    assert (found.classes, found.names) == (["cat"], ["cat/a.jpg"])


@pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege there")
def test_links_are_followed_and_circles_end(tmp_path: Path) -> None:
    root = touch(tmp_path / "data", "cat/a.jpg")
    touch(tmp_path / "elsewhere", "b.jpg")
    os.symlink(tmp_path / "elsewhere", root / "cat/more")
    os.symlink(root / "cat", root / "cat/circle")
    assert image_folder.find(root).names == ["cat/a.jpg", "cat/more/b.jpg"]


def test_given_classes_fix_the_labels_though_one_is_empty(tmp_path: Path) -> None:
    root = touch(tmp_path, "dog/a.jpg")
    (root / "cat").mkdir()
    found = image_folder.find(root, classes=["cat", "cow", "dog"])
    assert (found.classes, found.labels.tolist()) == (["cat", "cow", "dog"], [2])
    with pytest.raises(UsageError, match="'dog', which classes= does not list"):
        image_folder.find(root, classes=["cat"])
    with pytest.raises(UsageError, match="each once"):
        image_folder.find(root, classes=["cat", "cat", "dog"])


def test_a_mapping_gives_the_labels(tmp_path: Path) -> None:
    root = touch(tmp_path, "a.jpg", "b/c.jpg")
    found = image_folder.find(root, {"b/c.jpg": 10, "a.jpg": 2})
    assert found.names == ["b/c.jpg", "a.jpg"]
    assert (found.classes, found.labels.tolist()) == (["2", "10"], [1, 0])
    named = image_folder.find(root, {"b/c.jpg": "10", "a.jpg": "2"})
    assert (named.classes, named.labels.tolist()) == (["10", "2"], [0, 1])


def test_folders_that_cannot_be_are_refused_with_the_cure(tmp_path: Path) -> None:
    def refused(words: str, root: Path, **given: object) -> None:
        with pytest.raises(UsageError, match=words):
            image_folder.find(root, **given)  # type: ignore[arg-type]

    refused("does not exist", tmp_path / "none")
    refused("is a file", touch(tmp_path, "file") / "file")
    empty = tmp_path / "empty"
    empty.mkdir()
    refused("one folder of pictures per class", empty)
    refused("are in .* itself", touch(tmp_path / "flat", "a.jpg"))
    refused("no pictures below", touch(tmp_path / "texts", "cat/a.txt"))
    half = touch(tmp_path / "half", "cat/a.jpg", "dog/b.txt")
    refused("no pictures in the class folders 'dog'", half)
    refused("lists no pictures", empty, labels={})
    refused("none of the pictures .* 'x.jpg'", empty, labels={"x.jpg": 1})


def test_the_digest_tells_other_pictures_and_other_labels(tmp_path: Path) -> None:
    root = touch(tmp_path, "a.jpg", "b.jpg")
    digests = {
        image_folder.find(root, labels).digest()
        for labels in ({"a.jpg": 0, "b.jpg": 1}, {"b.jpg": 0, "a.jpg": 1}, {"a.jpg": 0, "b.jpg": 0})
    }
    assert len(digests) == 3
