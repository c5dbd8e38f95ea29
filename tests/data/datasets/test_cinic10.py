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


@pytest.fixture(autouse=True)
def downloads(monkeypatch):
    """Archives that were asked for; there is no network."""
    attempts = []

    def fail(remote, folder):
        attempts.append(remote.name)
        raise PflError(f"cannot download '{remote.name}'")

    monkeypatch.setattr(cinic10, "fetch", fail)
    return attempts


def refused(root):
    with pytest.raises(PflError, match=r"^data\.root: ") as caught:
        CINIC10(root=str(root)).setup()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("top", ["", "CINIC-10/", "./"])
@pytest.mark.parametrize("write", [write_archive, write_folders])
def test_every_layout_is_read_and_valid_left_out(tmp_path, write, top, downloads):
    write(tmp_path, dict(reversed(FILES.items())), top)
    for part, (split, count) in zip(CINIC10(root=str(tmp_path)).load(), [("train", 3), ("test", 2)], strict=True):
        names = [f"{split}/{label}/{number}.png" for label in CLASSES for number in range(count)]
        pixels = [np.atleast_3d(PIXELS[name]) * np.ones(3, dtype=np.uint8) for name in names]  # grey to three channels
        np.testing.assert_array_equal(part.inputs, np.stack(pixels).transpose(0, 3, 1, 2))
        assert part.targets.tolist() == [label for label in range(10) for _ in range(count)]
    assert not downloads


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


def test_missing_files_are_named_when_the_download_fails(tmp_path, downloads):
    complaint = refused(tmp_path)
    assert "CINIC-10/train/<class>/*.png" in complaint
    assert f"no CINIC10 in '{tmp_path}'" in complaint
    assert downloads == ["CINIC-10.tar.gz"]


def test_archive_is_fetched_into_the_root(tmp_path, monkeypatch):
    monkeypatch.setattr(cinic10, "fetch", lambda remote, folder: write_archive(folder, FILES))
    module = CINIC10(root=str(tmp_path))
    module.prepare_data()
    assert len(module.load()[0].targets) == 30


@pytest.mark.parametrize("length", [0, 100, 20_000, -1])
def test_archive_that_is_cut_off_is_refused(tmp_path, length):
    write_archive(tmp_path, FILES)
    archive = tmp_path / "CINIC-10.tar.gz"
    assert archive.stat().st_size > 20_000
    archive.write_bytes(archive.read_bytes()[:length])
    assert refused(tmp_path).startswith(f"data.root: cannot read '{archive}' (")


@pytest.mark.parametrize(
    "content", [b"", b"no image", FILES["test/dog/1.png"][:600], FILES["test/dog/1.png"][:900] + b"\0" * 2000]
)
@pytest.mark.parametrize(("write", "path"), [(write_archive, "CINIC-10.tar.gz"), (write_folders, "test/dog/1.png")])
def test_damaged_image_is_named(tmp_path, write, path, content):
    write(tmp_path, FILES | {"test/dog/1.png": content})
    complaint = refused(tmp_path)
    assert f"cannot read '{tmp_path / path}'" in complaint
    assert "test/dog/1.png" in complaint


def test_link_to_nothing_is_named(tmp_path):
    write_folders(tmp_path, FILES)
    path = tmp_path / "train/ship/9.png"
    path.symlink_to("nowhere")
    assert refused(tmp_path) == f"data.root: cannot read '{path}' (No such file or directory)"


def test_image_of_another_size_is_refused(tmp_path):
    write_folders(tmp_path, FILES)
    image = cinic10.Image.fromarray(np.zeros((28, 32, 3), dtype=np.uint8))
    image.save(tmp_path / "train/ship/0.png")
    assert "32 x 28 pixels instead of 32 x 32" in refused(tmp_path)


@pytest.mark.parametrize("write", [write_archive, write_folders])
def test_unknown_class_is_refused(tmp_path, write):
    write(tmp_path, FILES | {"train/boat/0.png": FILES["train/ship/0.png"]})
    assert "train/boat/0.png: no such class; allowed: airplane, " in refused(tmp_path)


@pytest.mark.parametrize("write", [write_archive, write_folders])
def test_missing_split_is_refused(tmp_path, write):
    write(tmp_path, {name: content for name, content in FILES.items() if not name.startswith("test")})
    assert "no images in test" in refused(tmp_path)


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
