"""What holds for all data sets that torchvision reads, on tiny folders in their real layout."""

import pickle
from typing import Any, NamedTuple
from urllib.error import URLError

import fakes
import numpy as np
import pytest
import torch
import torchvision

from pfl_lightning.data import CIFAR10, MNIST, FashionMNIST
from pfl_lightning.errors import PflError

SOURCES = [CIFAR10, MNIST, FashionMNIST]
COUNTS = {"train": 25, "test": 12}


class Fake(NamedTuple):
    source: Any
    root: Any
    images: dict
    targets: dict

    @property
    def folder(self):
        return self.root / self.source.folder

    def write(self, targets):
        fakes.write(self.source, self.folder, self.images, targets)


@pytest.fixture(params=SOURCES)
def fake(request, tmp_path):
    fake = Fake(request.param, tmp_path, *fakes.random_images(request.param, COUNTS))
    fake.folder.mkdir(parents=True)
    fake.write(fake.targets)
    return fake


@pytest.fixture
def downloads(monkeypatch):
    """Every attempt to download; all of them fail."""
    attempts = []

    def fail(url, *args, **kwargs):
        attempts.append(url)
        raise URLError("no network")

    for module in (torchvision.datasets.cifar, torchvision.datasets.mnist):
        monkeypatch.setattr(module, "download_and_extract_archive", fail)
    return attempts


def test_folder_that_is_not_official_loads_with_one_warning(fake, downloads):
    with pytest.warns(UserWarning, match="25 training and 12 test samples") as caught:
        splits = fake.source(root=str(fake.root)).load()
    assert len(caught) == 1
    assert fake.source.__name__ in str(caught[0].message)
    assert not downloads
    for split, images, targets in zip(splits, fake.images.values(), fake.targets.values(), strict=True):
        np.testing.assert_array_equal(split.inputs, images)
        np.testing.assert_array_equal(split.targets, targets)
        assert (split.inputs.dtype, split.targets.dtype) == (torch.uint8, torch.int64)


def test_official_sizes_load_without_a_warning(fake, monkeypatch):
    monkeypatch.setattr(fake.source, "official_sizes", tuple(COUNTS.values()))
    train, test = fake.source(root=str(fake.root)).load()
    assert (len(train.targets), len(test.targets)) == (25, 12)


@pytest.mark.parametrize("fake", [CIFAR10], indirect=True)
def test_class_names_need_not_be_the_official_file(fake):
    names = pickle.loads(fakes.CIFAR10_META, encoding="latin1")
    (fake.folder / "batches.meta").write_bytes(pickle.dumps(names))
    with pytest.warns(UserWarning, match="25 training and 12 test samples"):
        fake.source(root=str(fake.root)).load()


@pytest.mark.parametrize("source", SOURCES)
def test_missing_folder_is_named_when_the_download_fails(source, tmp_path, downloads):
    with pytest.raises(PflError, match=r"data\.root: .*download failed") as caught:
        source(root=str(tmp_path)).setup()
    assert str(tmp_path / source.folder) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert downloads


@pytest.mark.parametrize("source", SOURCES)
def test_download_that_failed_is_tried_again(source, tmp_path, downloads):
    for _ in range(2):
        downloads.clear()
        with pytest.raises(PflError, match="download failed"):
            source(root=str(tmp_path)).prepare_data()
        assert downloads


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])


def scramble(path):
    path.write_bytes(b"not a data set" * 9)


def empty(path):
    path.write_bytes(b"")


def remove(path):
    path.unlink()


@pytest.mark.parametrize("damage", [truncate, scramble, empty, remove])
def test_damaged_file_is_refused(fake, damage, downloads):
    for path in [path for path in fake.folder.iterdir() if path.name != "batches.meta"]:
        content = path.read_bytes()
        damage(path)
        with pytest.raises(PflError, match=r"data\.root: cannot read") as caught:
            fake.source(root=str(fake.root)).setup()
        assert str(fake.folder) in str(caught.value)
        assert "\n" not in str(caught.value)
        path.write_bytes(content)
    assert not downloads


@pytest.mark.parametrize("name", COUNTS)
def test_images_without_labels_are_refused(fake, name):
    # the labels of the two splits are joined, so those of all later samples would be wrong
    fake.write({**fake.targets, name: fake.targets[name][:-1]})
    with pytest.raises(PflError, match=r"data\.root: .* is damaged"):
        fake.source(root=str(fake.root)).load()
