"""What holds for all data sets that torchvision unpacks, on tiny folders in their real layout."""

import pickle
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from fakes import torchvision_data as fakes
from torchvision.datasets import utils

from pfl_lightning.data.datasets import torchvision_data
from pfl_lightning.data.datasets.cifar10 import CIFAR10
from pfl_lightning.data.datasets.cifar100 import CIFAR100
from pfl_lightning.data.datasets.emnist import EMNIST
from pfl_lightning.data.datasets.mnist import MNIST, FashionMNIST
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


@pytest.fixture
def downloads(monkeypatch):
    """Names of the archives that were asked for; each download breaks."""
    attempts = []

    def break_off(remote, folder):
        attempts.append(remote.name)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{remote.name}.part").write_bytes(b"half")
        raise PflError(f"cannot download '{remote.name}'")

    monkeypatch.setattr(torchvision_data, "fetch", break_off)
    return attempts


@pytest.fixture
def server(monkeypatch):
    """Serves the archives of a fake in place of the official ones, and nothing else."""

    def serve(fake, **options):
        archives, official = fakes.pack(fake.source, fake.folder, **options)

        def fetch(remote, folder):
            assert fakes.md5(archives[remote.name]) == remote.digest
            assert remote.urls[0].startswith("http")
            assert all(url.endswith(remote.name) for url in remote.urls)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / remote.name).write_bytes(archives[remote.name])

        monkeypatch.setattr(fake.source, "source", official)
        monkeypatch.setattr(torchvision_data, "fetch", fetch)
        monkeypatch.setattr(utils, "_urlretrieve", None)
        return archives

    return serve


def test_folder_that_is_not_official_loads_with_one_warning(fake, downloads):
    with pytest.warns(UserWarning, match="25 training and 12 test samples") as caught:
        splits = fake.source(root=str(fake.root)).load()
    assert len(caught) == 1
    assert fake.source.__name__ in str(caught[0].message)
    assert not downloads
    assert fake.holds(splits)


def test_official_sizes_load_without_a_warning(fake):
    module = fake.source(root=str(fake.root))
    module.official_sizes = tuple(COUNTS.values())
    train, test = module.load()
    assert (len(train.targets), len(test.targets)) == (25, 12)


@pytest.mark.parametrize("fake", [CIFAR10], indirect=True)
def test_class_names_need_not_be_the_official_file(fake):
    names = pickle.loads(fakes.CIFAR10_META, encoding="latin1")
    (fake.folder / "batches.meta").write_bytes(pickle.dumps(names))
    with pytest.warns(UserWarning, match="25 training and 12 test samples"):
        fake.source(root=str(fake.root)).load()


@pytest.mark.parametrize("fake", [CIFAR10, MNIST], indirect=True)
def test_root_may_be_in_the_home_folder(fake, monkeypatch):
    monkeypatch.setenv("HOME", str(fake.root.parent))
    with pytest.warns(UserWarning, match="not the official"):
        assert fake.holds(fake.source(root=f"~/{fake.root.name}").load())


@pytest.mark.parametrize("source", SOURCES)
def test_missing_files_are_named_when_the_download_fails(source, tmp_path, downloads):
    with pytest.raises(PflError, match=r"data\.root: .*download failed: cannot download '.*; or put") as caught:
        source(root=str(tmp_path)).setup()
    assert str(tmp_path / source.folder) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert downloads


@pytest.mark.parametrize("source", SOURCES)
def test_download_that_broke_is_continued(source, tmp_path, downloads):
    for _ in range(2):
        with pytest.raises(PflError, match="download failed"):
            source(root=str(tmp_path)).prepare_data()
        assert [path.read_bytes() for path in tmp_path.rglob("*.part")] == [b"half"]
    assert len(downloads) == 2


@pytest.mark.filterwarnings("ignore:.*is not the official data set")
def test_downloaded_archives_are_unpacked(fake, server, tmp_path):
    archives = server(fake)
    module = fake.source(root=str(tmp_path / "new"))
    module.prepare_data()
    assert fake.holds(module.load())
    assert {name for name in archives if list((tmp_path / "new").rglob(name))} == set(archives)


def truncate(content):
    return content[: len(content) * 2 // 3]


def test_half_unpacked_files_do_not_stay(fake, server, tmp_path):
    archives = server(fake, damage=truncate)
    module = fake.source(root=str(tmp_path / "new"))
    for _ in range(2):
        with pytest.raises(PflError, match=r"data\.root: cannot unpack") as caught:
            module.prepare_data()
        assert "\n" not in str(caught.value)
        left = [path.name for path in (tmp_path / "new").rglob("*") if path.is_file()]
        assert sorted(left) == sorted(archives)


@pytest.mark.parametrize(
    "damage", [truncate, lambda content: b"not a data set" * 9, lambda content: b"", None], ids=["cut", "text", "", "-"]
)
def test_damaged_file_is_refused(fake, damage, downloads):
    for path in [path for path in fake.folder.iterdir() if "meta" not in path.name]:
        content = path.read_bytes()
        path.unlink() if damage is None else path.write_bytes(damage(content))
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
    with pytest.raises(PflError, match=r"data\.root: cannot read '.*' \((5|12|25) \w+ with (4|11|24) \w+\)"):
        fake.source(root=str(fake.root)).load()


def test_labels_beyond_the_classes_are_refused(fake):
    fake.write({**fake.targets, "test": fake.targets["test"] + 100})
    with pytest.raises(PflError, match=r"data\.root: cannot read '.*' \(the label 1\d\d of sample 0 .* from 0 to"):
        fake.source(root=str(fake.root)).load()


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
@pytest.mark.parametrize("classes", [(5, 5), (7, 3), (0, 101)])
def test_classes_that_are_not_there_are_refused(source, classes):
    with pytest.raises(PflError, match=r"data\.classes: \[\d, \d+\] is not possible; allowed: .* from 0 to (100|47)$"):
        source(classes=classes)
