import numpy as np
import pytest
from fakes.cinic10 import CLASSES, random_files
from fakes.torchvision_data import tar

from pfl_lightning.data.datasets.cinic10 import CINIC10
from pfl_lightning.data.own import image_folders

FILES, PIXELS = random_files({"train": 3, "valid": 1, "test": 2})
pytestmark = pytest.mark.filterwarnings("ignore:.*is not the official data set")


def write_archive(root, files, top=""):
    (root / "CINIC-10.tar.gz").write_bytes(tar({top + name: content for name, content in files.items()}))


def write_folders(root, files, top=""):
    for name, content in files.items():
        path = root / top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


@pytest.mark.parametrize("top", ["", "CINIC-10/", "./"])
@pytest.mark.parametrize("write", [write_archive, write_folders])
def test_every_layout_is_read_and_valid_left_out(tmp_path, write, top):
    write(tmp_path, dict(reversed(FILES.items())), top)
    (tmp_path / "train").mkdir(exist_ok=True)  # of another data set, in the folder of all of them
    for part, (split, count) in zip(CINIC10(root=str(tmp_path)).load(), [("train", 3), ("test", 2)], strict=True):
        names = [f"{split}/{label}/{number}.png" for label in CLASSES for number in range(count)]
        pixels = [np.atleast_3d(PIXELS[name]) * np.ones(3, dtype=np.uint8) for name in names]  # grey to three channels
        np.testing.assert_array_equal(part.inputs, np.stack(pixels).transpose(0, 3, 1, 2))
        assert part.targets.tolist() == [label for label in range(10) for _ in range(count)]


@pytest.mark.parametrize("write", [write_archive, write_folders])
def test_images_are_decoded_once_and_part_of_the_data_set_gives_one_warning(tmp_path, write, monkeypatch):
    write(tmp_path, FILES)
    with pytest.warns(UserWarning, match="30 training and 20 test samples instead of 90,000 and 90,000") as caught:
        first = CINIC10(root=str(tmp_path)).load()
    assert len(caught) == 1
    monkeypatch.setattr(image_folders, "decode", None)
    for part, again in zip(first, CINIC10(root=str(tmp_path)).load(), strict=True):
        assert part.inputs.equal(again.inputs)
        assert part.targets.equal(again.targets)


@pytest.fixture(scope="module")
def real(real_data, tmp_path_factory):
    """The splits of the real sample; the cache goes elsewhere."""
    root = tmp_path_factory.mktemp("cinic10")
    (root / "CINIC-10.tar.gz").symlink_to(real_data / "cinic10/CINIC-10.tar.gz")
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
