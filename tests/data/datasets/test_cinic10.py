import numpy as np
import pytest
from fakes.cinic10 import CLASSES, random_files
from fakes.torchvision_data import tar

from pfl_lightning.data.datasets import cinic10
from pfl_lightning.data.datasets.cinic10 import CINIC10
from pfl_lightning.errors import PflError

FILES, PIXELS = random_files({"train": 3, "valid": 1, "test": 2})
pytestmark = pytest.mark.filterwarnings("ignore:.*is not the official data set")


def write_archive(root, files, top=""):
    (root / "CINIC-10.tar.gz").write_bytes(tar({top + name: content for name, content in files.items()}))


def write_folders(root, files, top=""):
    for name, content in files.items():
        path = root / top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def refused(root):
    with pytest.raises(PflError, match=r"^data\.root: ") as caught:
        CINIC10(root=str(root)).setup()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("top", ["", "CINIC-10/", "./"])
@pytest.mark.parametrize("write", [write_archive, write_folders])
def test_every_layout_is_read_and_valid_left_out(tmp_path, write, top):
    write(tmp_path, dict(reversed(FILES.items())), top)
    for part, (split, count) in zip(CINIC10(root=str(tmp_path)).load(), [("train", 3), ("test", 2)], strict=True):
        names = [f"{split}/{label}/{number}.png" for label in CLASSES for number in range(count)]
        pixels = [np.atleast_3d(PIXELS[name]) * np.ones(3, dtype=np.uint8) for name in names]  # grey to three channels
        np.testing.assert_array_equal(part.inputs, np.stack(pixels).transpose(0, 3, 1, 2))
        assert part.targets.tolist() == [label for label in range(10) for _ in range(count)]


def test_part_of_the_data_set_gives_one_warning(tmp_path):
    write_archive(tmp_path, FILES)
    with pytest.warns(UserWarning, match="30 training and 20 test samples instead of 90,000 and 90,000") as caught:
        CINIC10(root=str(tmp_path)).load()
    assert len(caught) == 1


@pytest.mark.parametrize("write", [write_archive, write_folders])
def test_images_are_decoded_once(tmp_path, write, monkeypatch):
    write(tmp_path, FILES)
    first = CINIC10(root=str(tmp_path)).load()
    monkeypatch.setattr(cinic10, "decode", None)
    for part, again in zip(first, CINIC10(root=str(tmp_path)).load(), strict=True):
        assert part.inputs.equal(again.inputs)
        assert part.targets.equal(again.targets)


def test_missing_files_are_named_when_the_download_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(cinic10, "ARCHIVE", cinic10.ARCHIVE._replace(urls=("http://127.0.0.1:9/none",)))
    assert f"there is no '{tmp_path / 'CINIC-10.tar.gz'}', and cannot download" in refused(tmp_path)


@pytest.mark.parametrize("length", [0, 100, 20_000])
def test_archive_that_is_cut_off_is_refused(tmp_path, length):
    write_archive(tmp_path, FILES)
    archive = tmp_path / "CINIC-10.tar.gz"
    archive.write_bytes(archive.read_bytes()[:length])
    for _ in range(2):
        assert refused(tmp_path).startswith(f"data.root: cannot read '{archive}' (")


@pytest.mark.parametrize("content", [b"no image", FILES["test/dog/1.png"][:600]])
def test_damaged_image_is_named(tmp_path, content):
    write_archive(tmp_path, FILES | {"test/dog/1.png": content})
    assert f"cannot read '{tmp_path / 'CINIC-10/test/dog/1.png'}'" in refused(tmp_path)


@pytest.fixture(scope="module")
def real(real_data, tmp_path_factory):
    """The splits of the real sample; the cache goes elsewhere."""
    root = tmp_path_factory.mktemp("cinic10")
    (root / "CINIC-10.tar.gz").symlink_to(real_data / "cinic10/CINIC-10.tar.gz")
    return CINIC10(root=str(root)).load()


def test_real_sample_has_its_counts(real):
    # the sample's own description: 80 training and 60 test images of each class
    for split, count in zip(real, (80, 60), strict=True):
        assert split.inputs.shape == (10 * count, 3, 32, 32)
        assert split.targets.bincount().tolist() == [count] * 10


def test_normalised_real_images_have_about_mean_zero_and_deviation_one(real):
    inputs = CINIC10().transform()(real[0].inputs)
    assert inputs.mean((0, 2, 3)).abs().max() < 0.05
    assert (inputs.std((0, 2, 3)) - 1).abs().max() < 0.05
