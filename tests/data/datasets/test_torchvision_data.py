"""What holds for all data sets that torchvision unpacks, on tiny folders in their real layout."""

import urllib.request
from typing import Any, NamedTuple
from urllib.error import URLError

import numpy as np
import pytest
import torch
from fakes import torchvision_data as fakes

from pfl_lightning.data.datasets.cifar import CIFAR10, CIFAR100
from pfl_lightning.data.datasets.mnist import EMNIST, MNIST, FashionMNIST
from pfl_lightning.errors import PflError

SOURCES = [CIFAR10, CIFAR100, MNIST, FashionMNIST, EMNIST]
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

    def holds(self, splits):
        for split, images, targets in zip(splits, self.images.values(), self.targets.values(), strict=True):
            np.testing.assert_array_equal(split.inputs, images)
            np.testing.assert_array_equal(split.targets, targets)
            assert (split.inputs.dtype, split.targets.dtype) == (torch.uint8, torch.int64)
        return True


@pytest.fixture(params=SOURCES)
def fake(request, tmp_path):
    fake = Fake(request.param, tmp_path, *fakes.random_images(request.param, COUNTS))
    fake.write(fake.targets)
    return fake


@pytest.fixture(autouse=True)
def downloads(monkeypatch):
    """Addresses that were asked for; there is no network."""
    attempts = []

    def refuse(request, **_):
        attempts.append(request.full_url)
        raise URLError("no way")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    return attempts


def test_folder_that_is_not_official_loads_with_one_warning(fake, downloads):
    with pytest.warns(UserWarning, match=f"{fake.source.__name__} .* 25 training and 12 test samples") as caught:
        splits = fake.source(root=str(fake.root)).load()
    assert len(caught) == 1
    assert not downloads
    assert fake.holds(splits)


@pytest.mark.parametrize("fake", [CIFAR10, MNIST], indirect=True)
def test_official_sizes_in_the_home_folder_load_without_a_warning(fake, monkeypatch):
    monkeypatch.setenv("HOME", str(fake.root.parent))
    module = fake.source(root=f"~/{fake.root.name}")
    module.official_sizes = tuple(COUNTS.values())
    assert fake.holds(module.load())


@pytest.mark.parametrize("source", [CIFAR10, MNIST])
def test_a_download_that_fails_leaves_no_folder(source, tmp_path, downloads):
    with pytest.raises(PflError, match=rf"^data\.root: no {source.__name__} in .*the download failed: .*no way"):
        source(root=str(tmp_path / "new")).prepare_data()
    assert downloads
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("source", "name"),
    [
        (MNIST, "MNIST/raw/t10k-labels-idx1-ubyte.gz"),
        (CIFAR10, "cifar-10-python.tar.gz"),
        (EMNIST, "EMNIST/raw/gzip/x"),
    ],
)
def test_nothing_is_downloaded_through_a_link(source, name, tmp_path, downloads):
    user = tmp_path / "user"
    user.write_text("mine")
    link = tmp_path / "data" / name
    link.parent.mkdir(parents=True)
    link.symlink_to(user)
    with pytest.raises(PflError, match=rf"{name}' is a link, and a download would overwrite what it points to"):
        source(root=str(tmp_path / "data")).prepare_data()
    assert not downloads
    assert user.read_text() == "mine"


def test_archives_are_verified_and_unpacked_by_torchvision(fake, tmp_path, monkeypatch):
    archives, official = fakes.pack(fake.source, fake.folder)
    monkeypatch.setattr(fake.source, "source", official)
    module = fake.source(root=str(tmp_path / "new"))
    folder = module.path.parent if fake.source in (CIFAR10, CIFAR100) else module.path
    folder.mkdir(parents=True)
    for name, content in archives.items():
        (folder / name).write_bytes(content)
    module.prepare_data()
    with pytest.warns(UserWarning, match="25 training and 12 test samples"):
        assert fake.holds(module.load())


@pytest.mark.filterwarnings("ignore:.*is not the official data set")
@pytest.mark.parametrize("source", SOURCES)
def test_defaults_go_together(source, tmp_path):
    fakes.write_random(source, tmp_path)
    module = source(root=str(tmp_path))
    module.setup()
    assert module.tables["train"].counts.min() > 0
    assert sum(int(table.counts.sum()) for table in module.tables.values()) == 500  # 400 for training, 100 for testing


@pytest.mark.parametrize("fake", [CIFAR100, EMNIST], indirect=True)
def test_chosen_classes_are_counted_from_zero(fake):
    with pytest.warns(UserWarning, match="25 training and 12 test samples"):
        whole, some = (fake.source(root=str(fake.root), classes=classes).load() for classes in (None, (3, 40)))
    for split, chosen in zip(whole, some, strict=True):
        kept = [place for place, label in enumerate(split.targets.tolist()) if 3 <= label < 40]
        assert 0 < len(kept) < len(split.targets)
        assert chosen.targets.tolist() == [split.targets[place] - 3 for place in kept]
        assert chosen.inputs.equal(split.inputs[kept])


@pytest.mark.parametrize("source", [CIFAR100, EMNIST])
def test_classes_that_are_not_there_are_refused(source):
    for classes in ((5, 5), (7, 3), (0, 101)):
        with pytest.raises(PflError, match=r"^data\.classes must be .* from 0 to (100|47), .*, got \[\d, \d+\]$"):
            source(classes=classes)
