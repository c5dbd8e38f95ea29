import hashlib
import io
import tarfile

import numpy as np
import pytest
from fakes.cinic10 import CLASSES, random_files
from fakes.torchvision_data import tar

from pfl_lightning.data.datasets import cinic10
from pfl_lightning.data.datasets.cinic10 import CINIC10
from pfl_lightning.data.own import image_folders
from pfl_lightning.errors import PflError

FILES, PIXELS = random_files({"train": 3, "valid": 1, "test": 2})
pytestmark = pytest.mark.filterwarnings("ignore:.*is not the official data set")


def make_official(monkeypatch, archive):
    digest = hashlib.md5(archive).hexdigest()
    monkeypatch.setattr(cinic10, "ARCHIVE", cinic10.ARCHIVE._replace(digest=digest))


def write_archive(root, files, monkeypatch, top=""):
    archive = tar({top + name: content for name, content in files.items()})
    (root / "CINIC-10.tar.gz").write_bytes(archive)
    make_official(monkeypatch, archive)


def write_folders(root, files, _, top=""):
    for name, content in files.items():
        path = root / top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


@pytest.mark.parametrize("top", ["", "CINIC-10/", "./"])
@pytest.mark.parametrize("write", [write_archive, write_folders])
def test_every_layout_is_read_and_valid_left_out(tmp_path, write, top, monkeypatch):
    write(tmp_path, dict(reversed(FILES.items())), monkeypatch, top)
    (tmp_path / "train").mkdir(exist_ok=True)  # of another data set, in the folder of all of them
    for part, (split, count) in zip(CINIC10(root=str(tmp_path)).load(), [("train", 3), ("test", 2)], strict=True):
        names = [f"{split}/{label}/{number}.png" for label in CLASSES for number in range(count)]
        pixels = [np.atleast_3d(PIXELS[name]) * np.ones(3, dtype=np.uint8) for name in names]  # grey to three channels
        np.testing.assert_array_equal(part.inputs, np.stack(pixels).transpose(0, 3, 1, 2))
        assert part.targets.tolist() == [label for label in range(10) for _ in range(count)]


@pytest.mark.parametrize("write", [write_archive, write_folders])
def test_images_are_decoded_once_and_part_of_the_data_set_gives_one_warning(tmp_path, write, monkeypatch):
    write(tmp_path, FILES, monkeypatch)
    with pytest.warns(UserWarning, match="30 training and 20 test samples instead of 90,000 and 90,000") as caught:
        first = CINIC10(root=str(tmp_path)).load()
    assert len(caught) == 1
    monkeypatch.setattr(image_folders, "decode", None)
    for part, again in zip(first, CINIC10(root=str(tmp_path)).load(), strict=True):
        assert part.inputs.equal(again.inputs)
        assert part.targets.equal(again.targets)


def link(name, target, kind=tarfile.SYMTYPE):
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


def large(name):
    member = tarfile.TarInfo(name)
    member.size = 1000
    return member


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ([link("train/out", "../../user")], "got a link or a device: train/out"),
        ([link("train/out", "../user", tarfile.LNKTYPE)], "got a link or a device: train/out"),
        ([link("train/pipe", "", tarfile.FIFOTYPE)], "got a link or a device: train/pipe"),
        ([large("../user")], "is outside|outside the destination"),
        ([large(f"train/{number}") for number in range(10)], "it must hold at most 10,000 bytes"),
    ],
    ids=["link", "hard-link", "pipe", "outside", "size"],
)
def test_an_archive_with_anything_but_files_within_its_folder_leaves_nothing(tmp_path, members, words, monkeypatch):
    monkeypatch.setattr(cinic10, "MAX_BYTES", 10_000)
    user, data = tmp_path / "user", tmp_path / "data"
    user.write_text("mine")
    data.mkdir()
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for member in members:
            archive.addfile(member, io.BytesIO(bytes(member.size)))
    (data / "CINIC-10.tar.gz").write_bytes(content.getvalue())
    make_official(monkeypatch, content.getvalue())
    with pytest.raises(PflError, match=words):
        CINIC10(root=str(data)).load()
    assert [path.name for path in data.iterdir() if path.suffix != ".lock"] == ["CINIC-10.tar.gz"]
    assert user.read_text() == "mine"


def test_an_archive_is_unpacked_into_a_folder_of_its_own(tmp_path, monkeypatch):
    """What is there under that name may be a link to a folder of the user's, or left by a process that was killed."""
    user, data = tmp_path / "user", tmp_path / "data"
    for folder in (user / "train/cat", data):
        folder.mkdir(parents=True)
    (user / "train/cat/0.png").write_text("mine")
    (data / "CINIC-10.part").symlink_to(user)
    write_archive(data, FILES, monkeypatch)
    CINIC10(root=str(data)).prepare_data()
    assert (user / "train/cat/0.png").read_text() == "mine"
    assert not (data / "CINIC-10").is_symlink()
    (data / "CINIC-10").rename(data / "CINIC-10.part")
    (data / "CINIC-10.part/train/cat/left.png").touch()
    CINIC10(root=str(data)).prepare_data()
    assert not (data / "CINIC-10/train/cat/left.png").exists()


def test_an_archive_that_is_cut_or_another_one_is_refused(tmp_path, monkeypatch):
    write_archive(tmp_path, FILES, monkeypatch)
    archive = tmp_path / "CINIC-10.tar.gz"
    archive.write_bytes(archive.read_bytes()[:-1])
    with pytest.raises(PflError, match="is cut or not the official"):
        CINIC10(root=str(tmp_path)).load()
    assert not (tmp_path / "CINIC-10").exists()


@pytest.fixture(scope="module")
def real(real_data, tmp_path_factory):
    """The splits of the real sample; the cache goes elsewhere."""
    root = tmp_path_factory.mktemp("cinic10")
    (root / "CINIC-10").symlink_to(real_data / "cinic10/CINIC-10")
    return CINIC10(root=str(root)).load()


@pytest.mark.slow
def test_real_sample_has_its_counts_and_normalised_about_mean_zero_and_deviation_one(real):
    # the sample's own description: 80 training and 60 test images of each class
    for split, count in zip(real, (80, 60), strict=True):
        assert split.inputs.shape == (10 * count, 3, 32, 32)
        assert split.targets.bincount().tolist() == [count] * 10
    inputs = CINIC10().transform()(real[0].inputs)
    assert inputs.mean((0, 2, 3)).abs().max() < 0.05
    assert (inputs.std((0, 2, 3)) - 1).abs().max() < 0.05
