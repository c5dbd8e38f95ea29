"""Arrays, folders of pictures, tables and Hugging Face's data sets: the same samples from each, at the same clients."""

import sys
import warnings

import lightning.pytorch as pl
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import Dataset

from pfl_lightning import load_method
from pfl_lightning.data import IID, Arrays, Dirichlet, HuggingFace, ImageFolders, NaturalUsers, OwnData, RawData, Table
from pfl_lightning.errors import PflError
from pfl_lightning.methods.fedavg import FedAvg
from pfl_lightning.methods.fedrep import FedRep
from pfl_lightning.models import LogisticRegression
from pfl_lightning.objects import to_settings
from pfl_lightning.tasks import Classification, MultiLabel, Regression, Segmentation

RANDOM = np.random.default_rng(0)
N = 60
IMAGES = RANDOM.integers(0, 256, (N, 6, 5, 3), np.uint8)
LABELS = np.arange(N) % 3
WARDS = np.array([f"ward {number % 4}" for number in range(N)])


@pytest.fixture
def datasets():
    """Hugging Face's library."""
    return pytest.importorskip("datasets")


def ready(data):
    data.setup()
    return data


def held(data):
    """The samples of each client, by the client's name: targets and inputs as networks see them."""
    found = {}
    for client, name in enumerate(data.client_names):
        rows = [table.examples(torch.tensor([client])) for table in data.tables.values()]
        inputs = torch.cat([each.gather(each.positions)[0] for each in rows if each.longest])
        targets = torch.cat([each.targets(each.positions)[0] for each in rows if each.longest])
        order = np.lexsort(np.column_stack([targets, inputs.flatten(1)]).T)
        found[name] = (targets[order], inputs[order])
    return found


def assert_same(data, other):
    assert data.num_clients == other.num_clients
    ours, theirs = held(ready(data)), held(ready(other))
    assert ours.keys() == theirs.keys()
    for name, (targets, inputs) in ours.items():
        torch.testing.assert_close(targets, theirs[name][0])
        torch.testing.assert_close(inputs, theirs[name][1])


@settings(deadline=None, max_examples=15)
@given(clients=st.lists(st.integers(0, 6) | st.just(10**12), min_size=14, max_size=40), seed=st.integers(0, 3))
def test_every_sample_ends_with_its_client(clients, seed):
    clients = [*clients, *np.repeat(sorted(set(clients)), 2)]  # at least two, one of which is for testing
    numbers = np.arange(len(clients), dtype=np.float32)[:, None]
    data = Arrays(numbers, numbers[:, 0], clients, partition_seed=seed, standardize=False)
    found = held(ready(data))
    assert set(found) == {str(client) for client in clients}
    for name, (targets, inputs) in found.items():
        assert targets.tolist() == inputs[:, 0].tolist()
        assert targets.tolist() == [place for place, client in enumerate(clients) if str(client) == name]


def test_large_numbers_with_a_small_spread_are_standardised_and_constants_are_0():
    times = 1.7e12 + np.arange(60) * 5000.0  # milliseconds over five minutes
    inputs = Arrays(np.stack([times, np.full(60, 0.1)], 1), np.arange(60) % 3).load()[0].inputs.double()
    assert inputs[:, 0].std(correction=0).item() == pytest.approx(1, rel=1e-3)
    assert inputs[:, 1].abs().max() < 1e-12


@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(0, 255), min_size=2, max_size=30), st.booleans())
def test_standardised_inputs_have_mean_0_and_deviation_1(values, are_pixels):
    values = np.array(values, np.uint8 if are_pixels else np.float64)[:, None]
    if are_pixels:
        values = np.repeat(values, 64, 1)  # in a row
    targets = np.arange(len(values)) / 7
    data = Arrays(values, targets, partition=Dirichlet(min_size=1), num_clients=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of samples that are alike
        train, _ = data.load()
    inputs = data.transform()(train.inputs)
    if len(np.unique(values)) == 1 and (are_pixels or values[0] not in (0, 1)):
        expected = torch.zeros(values.shape)
    elif not are_pixels and set(np.unique(values)) <= {0, 1}:
        expected = torch.from_numpy(values).float()
    else:
        expected = torch.from_numpy((values - values.mean()) / values.std()).float()
    torch.testing.assert_close(inputs, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", [np.uint8, np.float32])
def test_each_channel_is_standardised_over_all_images(kind):
    scale = np.array([1, 3, 9])[:, None, None]
    images = (20 * scale * np.random.default_rng(0).random((150, 3, 4, 5))).astype(kind)
    data = Arrays(images, np.arange(150) % 2, standardize=True)
    train, _ = data.load()
    inputs, numbers = data.transform()(train.inputs), images.astype(np.float64)
    axes = {"axis": (0, 2, 3), "keepdims": True}
    expected = torch.from_numpy((numbers - numbers.mean(**axes)) / numbers.std(**axes)).float()
    torch.testing.assert_close(inputs, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("images", [IMAGES.transpose(0, 3, 1, 2), torch.from_numpy(IMAGES), IMAGES[::-1].copy()[::-1]])
def test_the_order_of_axes_and_the_kind_of_array_do_not_matter(images):
    assert_same(Arrays(images, LABELS, WARDS), Arrays(IMAGES, LABELS, WARDS))
    assert Arrays(images, LABELS).load()[0].inputs.shape == (N, 3, 6, 5)


@pytest.mark.parametrize("suffix", [".npz", ".pt"])
def test_a_file_holds_the_same_as_the_arrays(suffix, tmp_path):
    path = tmp_path / f"mine{suffix}"
    if suffix == ".npz":
        np.savez(path, inputs=IMAGES, targets=LABELS, clients=WARDS)
    else:
        content = {"inputs": torch.from_numpy(IMAGES), "targets": torch.from_numpy(LABELS), "clients": WARDS.tolist()}
        torch.save(content, path)
    assert ready(Arrays(file=str(path))).fingerprint() == ready(Arrays(IMAGES, LABELS, WARDS)).fingerprint()


@pytest.mark.parametrize(
    ("kind", "options"), [(Arrays, {}), (HuggingFace, {}), (ImageFolders, {}), (Table, {"target": "ill"})]
)
def test_the_file_or_folder_comes_first_and_settings_name_it(kind, options, tmp_path):
    data = kind(tmp_path / "mine", **options)
    assert to_settings(data)["init_args"] == {kind.files_option: str(tmp_path / "mine"), **options}
    assert getattr(data, kind.files_option) == str(tmp_path / "mine")


def write_pictures(root, numbers, by_client=True, kind="RGB"):
    for number in numbers:
        place = root / (WARDS[number] if by_client else "") / f"kind {LABELS[number]}" / f"{number:03}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(IMAGES[number]).convert(kind).save(place)


def test_a_folder_holds_the_same_as_the_arrays_also_from_its_cache(tmp_path):
    write_pictures(tmp_path, range(N))
    for _ in range(2):
        data = ImageFolders(str(tmp_path))
        assert_same(data, Arrays(IMAGES, LABELS, WARDS))
        assert data.class_names == ("kind 0", "kind 1", "kind 2")
    assert len(list((tmp_path / ".pfl_cache").glob("*.pt"))) == 1


def test_train_and_test_folders_are_the_splits(tmp_path):
    write_pictures(tmp_path / "train", range(40), by_client=False, kind="L")
    write_pictures(tmp_path / "test", range(40, N), by_client=False, kind="L")
    write_pictures(tmp_path / "other", range(N), by_client=False, kind="L")
    (tmp_path / "train" / "kind 0" / ".DS_Store").write_text("not a picture")
    train, test = ImageFolders(str(tmp_path)).load()
    assert train.inputs.shape == (40, 1, 6, 5)
    assert test.inputs.shape == (20, 1, 6, 5)
    assert sorted(test.targets.tolist()) == sorted(LABELS[40:].tolist())


def test_folders_may_be_links(tmp_path):
    write_pictures(tmp_path / "elsewhere", range(N), by_client=False)
    (tmp_path / "linked").mkdir()
    for folder in (tmp_path / "elsewhere").iterdir():
        (tmp_path / "linked" / folder.name).symlink_to(folder)
    links, files = (ImageFolders(str(tmp_path / name)).load()[0] for name in ("linked", "elsewhere"))
    assert torch.equal(links.inputs, files.inputs)
    assert torch.equal(links.targets, files.targets)


def test_pictures_are_grey_if_all_are_or_if_asked_and_resized(tmp_path):
    write_pictures(tmp_path, range(5), kind="L")
    write_pictures(tmp_path, range(5, 10))
    for options, shape in (({}, (3, 6, 5)), ({"grey": True}, (1, 6, 5)), ({"size": 4}, (3, 4, 4))):
        data = ImageFolders(str(tmp_path), **options)
        data.load()
        assert data.input_shape == shape
    assert len(list((tmp_path / ".pfl_cache").glob("*.pt"))) == 3


@pytest.mark.parametrize("by_client", [True, False])
def test_only_pictures_of_the_chosen_classes_are_decoded(tmp_path, by_client):
    write_pictures(tmp_path, range(N), by_client)
    for damaged in tmp_path.rglob("kind 1/*.png"):
        damaged.write_bytes(b"no picture")
    data = ImageFolders(str(tmp_path), classes=["kind 2", "kind 0"])
    chosen = LABELS != 1
    clients = {"clients": WARDS[chosen]} if by_client else {}
    other = Arrays(IMAGES[chosen], np.array(["kind 0", "?", "kind 2"])[LABELS[chosen]], **clients)
    samples, expected = (
        sorted(zip(kind.inputs.tolist(), kind.targets.tolist(), strict=True)) for kind, _ in (data.load(), other.load())
    )
    assert samples == expected
    assert data.class_names == ("kind 0", "kind 2")


def test_pictures_can_be_resized_to_a_height_and_a_width(tmp_path):
    write_pictures(tmp_path, range(10))
    data = ImageFolders(str(tmp_path), size=(4, 7))
    data.load()
    assert data.input_shape == (3, 4, 7)


def test_pictures_are_turned_as_their_camera_says_and_drawn_on_white(tmp_path):
    upper = np.triu(np.full((6, 6), 255, np.uint8))
    for kind, corner in (("a", 0), ("b", 3)):
        (tmp_path / "turned" / kind).mkdir(parents=True)
        (tmp_path / "clear" / kind).mkdir(parents=True)
        exif = Image.Exif()
        exif[274] = 6  # turned by a quarter
        Image.fromarray(upper).save(tmp_path / "turned" / kind / "0.png", exif=exif)
        picture = np.zeros((6, 6, 4), np.uint8)
        picture[corner, corner, 3] = 255
        Image.fromarray(picture).save(tmp_path / "clear" / kind / "0.png")
    with pytest.warns(match="the inputs of all 2 training samples are alike"):
        turned, _ = ImageFolders(str(tmp_path / "turned")).load()
    np.testing.assert_array_equal(turned.inputs[0, 0], np.rot90(upper, -1))
    clear, _ = ImageFolders(str(tmp_path / "clear")).load()
    expected = np.full((2, 3, 6, 6), 255)
    expected[0, :, 0, 0] = expected[1, :, 3, 3] = 0
    np.testing.assert_array_equal(clear.inputs, expected)


@pytest.mark.parametrize(
    ("other", "note"),
    [
        ("val", "train; val for testing; extra is not used"),
        ("test", "train; val for validation; test for testing; extra is not used"),
    ],
)
def test_every_split_of_a_folder_is_used_or_named(other, note, tmp_path):
    write_pictures(tmp_path / "train", range(40), by_client=False)
    for name in {"extra", "val", other}:
        write_pictures(tmp_path / name, range(40, N), by_client=False)
    data = ready(ImageFolders(str(tmp_path), num_clients=2))
    assert data.tables["test"].counts.sum() == 20
    assert data.tables["val"].counts.sum() == (20 if other == "test" else 4)
    assert f"  splits  {note}\n" in data.understood


def test_folders_as_of_tiny_imagenet_are_classes(tmp_path):
    for number in range(40):
        place = tmp_path / "train" / f"n0{LABELS[number]}" / "images" / f"{number}.JPEG"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(IMAGES[number]).save(place)
    (tmp_path / "val" / "images").mkdir(parents=True)
    Image.fromarray(IMAGES[0]).save(tmp_path / "val" / "images" / "val_0.JPEG")
    data = ready(ImageFolders(str(tmp_path), num_clients=2))
    assert data.class_names == ("n00", "n01", "n02")
    assert "  splits  train; val is not used, since its folders are no classes of train\n" in data.understood


TABLE = pd.DataFrame(
    {
        "age": RANDOM.normal(50, 10, N),
        "pulse": RANDOM.integers(50, 90, N),
        "smokes": RANDOM.random(N) < 0.5,
        "blood": RANDOM.choice(["A", "B", "AB"], N),
        "ward": WARDS,
        "ill": np.where(LABELS == 1, "yes", "no"),
    }
)
FEATURES = np.column_stack(
    [TABLE.age, TABLE.pulse, TABLE.smokes, *((TABLE.blood == kind) for kind in ("A", "AB", "B"))]
).astype(np.float64)


def test_a_table_holds_the_same_as_the_arrays(tmp_path):
    TABLE.to_csv(tmp_path / "ill.csv", index=False)
    data = Table(str(tmp_path / "ill.csv"), "ill", client="ward")
    assert_same(data, Arrays(FEATURES, TABLE.ill, WARDS))
    assert data.class_names == ("no", "yes")
    chosen = Table(str(tmp_path / "ill.csv"), "ill", client="ward", features=["pulse", "age"])
    assert_same(chosen, Arrays(FEATURES[:, 1::-1], TABLE.ill, WARDS))
    data = Table(str(tmp_path / "ill.csv"), "age", client="ward")
    train, _ = data.load()
    assert (type(data.task), data.task.outputs, data.class_names) == (
        Regression,
        1,
        (),
    )  # a target with a decimal point
    np.testing.assert_allclose(train.targets, TABLE.age, rtol=1e-6)


@pytest.mark.parametrize(
    ("column", "line"),
    [
        (np.where(np.arange(N) == 3, "?", np.arange(N).astype(str)), r"'x' has '\?' in line 5 among numbers \(1 of 60"),
        ([f"{number % 9},000 $" for number in range(N)], "'x' has numbers as text, such as '0,000 \\$'; make numbers"),
        ([f"{number % 29} kg" for number in range(N)], "'x' has numbers as text, such as '0 kg'; make numbers"),
        ([f"2024-01-{number % 9 + 1:02}" for number in range(N)], "'x' has dates, such as '2024-01-01'; make numbers"),
        (
            [f"id {number}" for number in range(N)],
            "'x' of text has 60 values in 60 lines; make numbers of it, or leave",
        ),
    ],
)
def test_text_that_is_mostly_something_else_is_refused(column, line):
    with pytest.raises(PflError, match=f"^data.features: column {line}"):
        Table(TABLE.assign(x=column), "ill").setup()


@pytest.mark.parametrize("column", [["64GB", "128GB"] * 30, [f"A{number % 30}" for number in range(N)]])
def test_text_with_a_few_numbers_or_codes_is_text(column):
    assert "'x' one for each of" in ready(Table(TABLE.assign(x=column), "ill", num_clients=4)).understood


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ward": ["ward 0", "Ward 0 "] * 30}, "'Ward 0 ' and 'ward 0' are two clients"),
        ({"ill": ["yes", "no", "no "] * 20}, "'no' and 'no ' are two classes"),
    ],
)
def test_names_that_differ_by_blanks_or_capitals_alone_are_told(changes, words):
    with pytest.warns(UserWarning, match=f"^data: {words}; write them alike if they are one$"):
        Table(TABLE.assign(**changes), "ill", client="ward").setup()


def rows(data):
    """What networks see of all samples, without their order, and what ``network_inputs`` makes of the same."""
    tables = [table.examples(torch.arange(len(table))) for table in data.tables.values()]
    return torch.cat([each.gather(each.positions)[each.present] for each in tables]).flatten(1)


@pytest.mark.parametrize(
    ("data", "raw"),
    [
        (Table(TABLE, "ill", client="ward"), TABLE),
        (Arrays(FEATURES, LABELS, WARDS), FEATURES),
        (Arrays(FEATURES, LABELS, WARDS, standardize=False), FEATURES),
        (Arrays(IMAGES, LABELS, WARDS), IMAGES),
        (Arrays(IMAGES / 255, LABELS, WARDS, layout="NHWC"), IMAGES / 255),
        (Arrays(FEATURES.astype(int), LABELS, WARDS, layout="NL"), FEATURES.astype(int)),
    ],
)
def test_new_samples_are_scaled_as_those_for_training(data, raw):
    seen = rows(ready(data))
    found = data.network_inputs(raw)
    assert found.shape[1:] == data.input_shape[: found.ndim - 1]
    found = found.flatten(1)
    assert torch.equal(found.unique(dim=0), seen.unique(dim=0))
    assert torch.equal(data.network_inputs(raw[:3]).flatten(1), found[:3])


@pytest.mark.parametrize(
    ("data", "raw", "line"),
    [
        (
            Table(TABLE, "ill", num_clients=4),
            TABLE.assign(blood="0"),
            "inputs must have values that were there in training, got blood_0",
        ),
        (
            Arrays(FEATURES, LABELS, WARDS),
            FEATURES[:, :2],
            r"inputs must be \[6\] each as those for training, got float64 \[2\]",
        ),
        (
            Arrays(IMAGES, LABELS, WARDS),
            IMAGES / 255,
            r"inputs must be uint8 \[3, 6, 5\] each as those for training, got float64",
        ),
    ],
)
def test_new_samples_of_another_form_are_refused(data, raw, line):
    data.setup()
    with pytest.raises(ValueError, match=f"^{line}"):
        data.network_inputs(raw)


def test_a_table_says_what_its_columns_became():
    table = TABLE.assign(number=np.arange(N), same=1.5).drop(columns="ward")
    with pytest.warns(match="^data.features: 'number' has another whole number in every line, and is an input"):
        data = ready(Table(table, "ill", num_clients=2))
    expected = "5 of numbers, 'blood' one for each of 3 values, with a single value: same"
    assert f"  columns {expected}\n" in data.understood


def test_names_of_clients_are_as_they_are_written(tmp_path):
    sites = ["north", "NA", "007", "1.0"] * 15
    TABLE.assign(site=sites).drop(columns="ward").to_csv(tmp_path / "sites.csv", index=False)
    data = ready(Table(str(tmp_path / "sites.csv"), "ill", client="site"))
    assert sorted(data.client_names) == sorted(set(sites))


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_the_first_line_tells_how_columns_are_separated(separator, tmp_path):
    TABLE.to_csv(tmp_path / "ill.csv", index=False, sep=separator)
    assert_same(Table(str(tmp_path / "ill.csv"), "ill", client="ward"), Arrays(FEATURES, TABLE.ill, WARDS))


def test_a_table_without_names_gets_a_line(tmp_path):
    np.savetxt(tmp_path / "heart.csv", np.arange(60).reshape(10, 6), delimiter=",")
    with pytest.raises(PflError, match=r"^data\.file: the first line of '.*' must have names of columns, got 0"):
        Table(str(tmp_path / "heart.csv"), "5").setup()


@pytest.mark.parametrize("names", [("x_train", "y_train", "x_test"), ("train_images", "train_labels", "test_images")])
def test_files_of_other_libraries_have_other_names(names, tmp_path):
    inputs, targets, test = names
    of_test = "y_test" if test == "x_test" else "test_labels"
    arrays = {inputs: IMAGES, targets: LABELS[:, None], test: IMAGES, of_test: LABELS}
    np.savez(tmp_path / "mine.npz", val_images=IMAGES[:9], val_labels=LABELS[:9], **arrays)
    data = ready(Arrays(file=str(tmp_path / "mine.npz"), num_clients=2))
    splits = {"test": (IMAGES, LABELS), "val": (IMAGES[:9], LABELS[:9])}
    assert data.fingerprint() == ready(Arrays(IMAGES, LABELS, num_clients=2, **splits)).fingerprint()
    assert "  splits  train; val for validation; test for testing\n" in data.understood
    # each client has all that is dealt of a split
    assert {split: int(table.counts.sum()) for split, table in data.tables.items()} == {"train": N, "val": 9, "test": N}


def test_texts_without_a_tokenizer_are_told_the_option():
    with pytest.raises(PflError, match=r"inputs are texts, such as 'ward 0'; data\.tokenizer makes tokens of them$"):
        Arrays(WARDS, LABELS).setup()


def test_two_columns_of_one_name_are_refused(tmp_path):
    (tmp_path / "twice.csv").write_text("x,x,y\n1,2,0\n")
    with pytest.raises(PflError, match=r"^data\.file: two columns of '.*' have the name 'x'; rename one$"):
        Table(str(tmp_path / "twice.csv"), "y").setup()


SEVERAL = {
    "labels": (np.stack([LABELS == 1, LABELS > 0, np.arange(N) % 5 - 1], 1).clip(-1, 1), MultiLabel, torch.int8),
    "booleans": (np.stack([LABELS == 1, LABELS > 0], 1), MultiLabel, torch.int8),
    "numbers": (RANDOM.normal(size=(N, 2)), Regression, torch.float32),
}


@pytest.mark.parametrize(("targets", "task", "dtype"), SEVERAL.values(), ids=SEVERAL)
def test_several_targets_of_a_sample_are_labels_or_numbers(targets, task, dtype, tmp_path):
    data = Arrays(IMAGES, targets, WARDS)
    assert_same(data, Arrays(torch.from_numpy(IMAGES), targets.tolist(), WARDS))
    assert (type(data.task), data.task.outputs) == (task, targets.shape[1])
    samples = data.tables["train"].samples
    assert samples.targets.dtype == dtype
    np.testing.assert_allclose(samples.targets.numpy(), targets, rtol=1e-6)
    table = pd.DataFrame({"age": TABLE.age, "ward": WARDS})
    names = [f"target {column}" for column in range(targets.shape[1])]
    table.assign(**dict(zip(names, targets.T, strict=True))).to_csv(tmp_path / "several.csv", index=False)
    of_table = ready(Table(str(tmp_path / "several.csv"), names, client="ward"))
    assert (type(of_table.task), of_table.input_shape) == (task, (1,))
    assert torch.equal(of_table.tables["train"].samples.targets, samples.targets)
    assert of_table.class_names == (tuple(names) if task is MultiLabel else ())


@pytest.mark.parametrize(
    ("targets", "line"),
    [
        (
            np.eye(3, dtype=int)[LABELS],
            r"targets \[60, 3\] can be classes or labels, one for each sample; .*target_type must be classes or labels",
        ),
        (SEVERAL["labels"][0] * 1.0, "targets of 0, 1 and -1 can be .*; data.target_type must be labels or numbers"),
        (
            np.stack([LABELS, LABELS], 1),
            "targets must be labels: 0, 1, or -1 for unknown; or floats for a regression, got 2 in sample 2",
        ),
        (
            np.stack([WARDS, WARDS], 1),
            r"targets must have the shape \[samples\], one per sample, or .* numbers, got \[60, 2\]",
        ),
        (np.full((N, 2), np.nan), r"training samples: targets must be finite numbers, got nan in sample 0"),
    ],
)
def test_targets_that_could_be_several_things_are_refused_in_a_line(targets, line):
    with pytest.raises(PflError, match=f"^data: Arrays: {line}$"):
        Arrays(IMAGES, targets, WARDS).setup()


def test_training_and_test_targets_have_as_many_columns():
    labels = SEVERAL["labels"][0]
    with pytest.raises(PflError, match=r"training and test targets must have as many columns, got \[\[2\], \[3\]\]$"):
        Arrays(IMAGES, labels, WARDS, test=(IMAGES, labels[:, :2], WARDS)).setup()


def test_a_network_whose_one_output_is_enough_for_two_classes_is_not_for_two_labels(fit):
    data = Arrays(IMAGES, SEVERAL["booleans"][0], WARDS)
    line = "^model.network: LogisticRegression has one output for 2 labels; allowed: two, such as MLP$"
    with pytest.raises(PflError, match=line):
        fit(FedAvg(network=LogisticRegression), data, 1)


def test_a_column_of_numbers_and_text_is_text_however_long_the_table(tmp_path):
    codes = ["1", "2"] * 10_000 + ["A"]  # pandas reads so many in several parts, the first of them as numbers
    table = pd.DataFrame({"code": codes, "text": "some words", "ward": codes, "ill": [False, True] * 10_000 + [True]})
    table.to_csv(tmp_path / "long.csv", index=False)
    data = Table(str(tmp_path / "long.csv"), "ill", client="ward", features=["code", "text"])
    train, _ = data.load()
    assert train.inputs.shape == (20_001, 4)
    assert train.inputs.sum(0).tolist() == [10_000, 10_000, 1, 20_001]


def test_a_hugging_face_data_set_holds_the_same_as_the_arrays(datasets, tmp_path):
    columns = {"picture": [Image.fromarray(image) for image in IMAGES], "kind": LABELS, "ward": WARDS}
    dataset = datasets.Dataset.from_dict(columns).cast_column("kind", datasets.ClassLabel(names=["c", "b", "a"]))
    options = {"input": "picture", "target": "kind", "client": "ward"}
    data = HuggingFace(dataset, **options)
    assert_same(data, Arrays(IMAGES, LABELS, WARDS))
    assert data.class_names == ("c", "b", "a"), "the order of the labels, not of the alphabet"
    datasets.DatasetDict({"train": dataset, "test": dataset}).save_to_disk(tmp_path / "saved")
    (tmp_path / "hub" / "data").mkdir(parents=True)
    for split in ("train-00000-of-00002", "train-00001-of-00002", "test", "validation"):
        half = dataset.select(range(30)) if split.startswith("train-00000") else dataset.select(range(30, 60))
        (half if split.startswith("train") else dataset).to_parquet(tmp_path / "hub" / "data" / f"{split}.parquet")
    split = (IMAGES, LABELS, WARDS)
    for folder, splits in (("saved", {"test": split}), ("hub", {"test": split, "val": split})):
        expected = ready(Arrays(IMAGES, LABELS, WARDS, **splits)).fingerprint()
        assert ready(HuggingFace(root=str(tmp_path / folder), **options)).fingerprint() == expected


def labelled(datasets, labels, names):
    pictures = [Image.fromarray(image) for image in IMAGES[: len(labels)]]
    features = {"image": datasets.Image(), "label": datasets.ClassLabel(names=names)}
    return datasets.Dataset.from_dict({"image": pictures, "label": labels}, datasets.Features(features))


def test_classes_of_splits_are_matched_by_name(datasets):
    train = labelled(datasets, LABELS, ["a", "b", "c"])
    test = labelled(datasets, LABELS, ["c", "a", "b"])
    _, found = HuggingFace(datasets.DatasetDict(train=train, test=test)).load()
    np.testing.assert_array_equal(found.targets, np.array([2, 0, 1])[LABELS])
    other = labelled(datasets, LABELS, ["a", "b", "d"])
    with pytest.raises(PflError, match="test class 'd' must be one of training: a, b, c"):
        HuggingFace({"train": train, "test": other}).load()


def test_hidden_targets_leave_the_validation_split_for_testing(datasets):
    splits = {"train": LABELS, "validation": LABELS[:30], "test": LABELS[:20] * 0 - 1}
    splits = {name: labelled(datasets, labels, ["a", "b", "c", "d"]) for name, labels in splits.items()}
    data = ready(HuggingFace(datasets.DatasetDict(splits), num_clients=2))
    assert data.tables["test"].counts.sum() == 30
    note = "train; validation for testing; test is not used, since its targets are hidden (-1)"
    assert f"  splits  {note}\n" in data.understood
    assert "  task    4 classes: a, b, c, d; without samples: d\n" in data.understood


def test_other_files_beside_those_of_a_split_are_not_part_of_it(datasets, tmp_path):
    labelled(datasets, LABELS, ["a", "b", "c"]).to_parquet(tmp_path / "train.parquet")
    labelled(datasets, LABELS[::-1], ["a", "b", "c"]).to_parquet(tmp_path / "train_shuffled.parquet")
    data = ready(HuggingFace(tmp_path, num_clients=2))
    assert len(data.tables["train"].samples.targets) == N
    assert "  splits  train; train_shuffled is not used\n" in data.understood


def test_a_list_of_data_sets_gets_a_line(datasets):
    with pytest.raises(PflError, match=r"^data\.dataset must be a Dataset or a DatasetDict, got list; datasets\.conc"):
        HuggingFace([labelled(datasets, LABELS, ["a", "b", "c"])] * 2).setup()


def test_a_repository_with_several_data_sets_is_refused(datasets, tmp_path):
    for name in ("hate", "irony"):
        (tmp_path / name).mkdir()
        datasets.Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]}).to_parquet(tmp_path / name / "train.parquet")
    with pytest.raises(PflError) as refused:
        HuggingFace(tmp_path).setup()
    assert str(refused.value) == (
        f"data.root: '{tmp_path}' has several data sets; allowed: one of {tmp_path / 'hate'}, {tmp_path / 'irony'}"
    )


def test_hugging_faces_missing_library_gets_a_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(PflError, match=r'^data: HuggingFace needs uv pip install "pfl_lightning\[datasets\]"'):
        HuggingFace(tmp_path).setup()


def test_hugging_faces_pictures_are_decoded_from_bytes_of_plain_formats_alone(datasets, tmp_path):
    Image.fromarray(IMAGES[0]).save(tmp_path / "mine.png")
    Image.fromarray(IMAGES[0]).save(tmp_path / "program.eps")  # Pillow would start Ghostscript
    eps = (tmp_path / "program.eps").read_bytes()

    def line(column, feature):
        dataset = datasets.Dataset.from_dict({"image": column, "label": [0, 1]}).cast_column("image", feature)
        with pytest.raises(PflError) as caught:
            HuggingFace(dataset).setup()
        return str(caught.value)

    named = "data.root: column image, row 0 must have the bytes of a picture, got the name of a file"
    for path in (str(tmp_path / "mine.png"), "http://127.0.0.1:9/mine.png"):
        assert line([{"bytes": None, "path": path}] * 2, datasets.Image()) == named
    said = line([{"bytes": eps, "path": None}] * 2, datasets.Image())
    assert said.startswith("data.root: cannot read 'column image, row 0' (")
    said = line([[{"bytes": eps, "path": None}]] * 2, [datasets.Image()])
    assert "column 'image' must be pictures, numbers or text, got " in said
    assert said.endswith("); give a folder that save_to_disk has written, or one with train*.parquet and test*.parquet")


def test_the_datas_own_clients_are_taken_unless_options_say_otherwise():
    assert ready(Arrays(IMAGES, LABELS, WARDS)).num_clients == 4
    assert ready(Arrays(IMAGES, LABELS, WARDS, num_clients=2)).num_clients == 2
    with pytest.warns(match=r"^data: 3 clients of the data take no part: .* test sample, or have fewer than 2 in all$"):
        few = ready(Arrays(IMAGES, LABELS, np.minimum(np.arange(N), 3), partition=NaturalUsers(min_samples=2)))
    assert few.client_names == ("3",)
    dealt = ready(Arrays(IMAGES, LABELS, WARDS, partition=Dirichlet(10.0, min_size=2)))
    assert (dealt.num_clients, dealt.client_names) == (20, ())
    assert isinstance(ready(Arrays(IMAGES, LABELS, num_clients=3)).partition, Dirichlet)
    test = IMAGES[:30], LABELS[:30], ["ward 1", "ward 3"] * 15
    with pytest.warns(match=r"^data: 2 clients of the data take no part: they lack a training or a test sample"):
        assert sorted(ready(Arrays(IMAGES, LABELS, WARDS, test=test)).client_names) == ["ward 1", "ward 3"]
    assert sorted(ready(Arrays(IMAGES, LABELS, WARDS, test=test, test_clients=0.5)).client_names) == sorted(set(WARDS))


def test_the_options_of_every_data_set_hold():
    data = ready(Arrays(IMAGES, LABELS, WARDS, test_clients=0.25, val_clients=0.3, max_samples=5))
    assert (data.training_clients, data.num_clients) == (2, 4)
    assert data.tables["train"].counts.tolist() == [5, 5, 0, 0]
    new = Arrays(IMAGES, LABELS, WARDS, num_clients=3, new_clients=1)
    new.setup("test")
    assert len(new.client_names) == 1
    assert set(new.client_names).isdisjoint(ready(Arrays(IMAGES, LABELS, WARDS, num_clients=3)).client_names)


@pytest.mark.parametrize(
    ("dtype", "found"), [(np.int16, ("tokens", (90, int(IMAGES.max()) + 1))), (np.uint8, ("numbers", (90,)))]
)
def test_whole_numbers_are_tokens_and_bytes_are_pixels(dtype, found):
    data = Arrays(IMAGES.reshape(N, -1).astype(dtype), LABELS)
    data.load()
    assert (data.input_kind, data.input_shape) == found


class Twice(OwnData):
    """A class of the user's own."""

    def read(self):
        return RawData(FEATURES, LABELS, WARDS), RawData(FEATURES + 1, LABELS, WARDS)


def test_test_samples_are_standardised_like_the_training_samples():
    train, test = Twice().load()
    deviation = np.where(np.isin(FEATURES, (0, 1)).all(0), 1, FEATURES.std(0))
    np.testing.assert_allclose(test.inputs - train.inputs, np.broadcast_to(1 / deviation, FEATURES.shape), rtol=1e-4)


def test_a_stored_run_holds_no_samples(tmp_path):
    options = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "max_epochs": -1}
    trainer = pl.Trainer(default_root_dir=tmp_path, max_steps=1, enable_checkpointing=False, **options)
    method, data = FedRep(eval_epochs=0), Arrays(IMAGES, LABELS, WARDS)
    trainer.fit(method, data)
    trainer.save_checkpoint(tmp_path / "one.ckpt")
    weights = sum(tensor.nbytes for tensor in method.state_dict().values())
    assert (tmp_path / "one.ckpt").stat().st_size < weights + 100_000
    assert load_method(tmp_path / "one.ckpt").built_for["input_shape"] == (3, 6, 5)


MASKS = np.where(IMAGES[..., 0] > 128, IMAGES[..., 1] % 3, 255).astype(np.uint8)


@pytest.mark.parametrize(("dtype", "names"), [(np.uint8, ()), (np.int64, ()), (np.uint8, ("sky", "sea", "sand"))])
def test_whole_numbers_for_each_pixel_are_a_segmentation(dtype, names):
    class Masked(OwnData):
        def read(self):
            return RawData(IMAGES, MASKS.astype(dtype), class_names=names), None

    data = ready(Masked(num_clients=2))
    assert (type(data.task), data.task.outputs, data.num_classes) == (Segmentation, 3, 3)
    assert data.class_names == (names or ("0", "1", "2"))
    np.testing.assert_array_equal(data.tables["train"].samples.targets, MASKS)


def test_masks_of_true_and_false_have_two_classes():
    data = Arrays(IMAGES, MASKS == 1)
    train, _ = data.load()
    assert data.task.outputs == 2
    np.testing.assert_array_equal(train.targets, MASKS == 1)


WRONG = {
    "no targets": ({"targets": None}, "data.targets are required with inputs, one per sample"),
    "floats": ({"clients": np.arange(N) / 2}, "clients must be whole numbers or text, got floats"),
    "objects": ({"inputs": np.array([{}] * N)}, "inputs must be numbers, all of one shape, or text, got object"),
    "flat": ({"inputs": np.arange(N) / 2}, "inputs must have the shape [samples, features] or more axes, got [60]"),
    "words": (
        {"inputs": IMAGES.astype(np.int64)},
        "inputs must be uint8 pixels, floats, or have a data.layout, got int64 [6, 5, 3]",
    ),
    "negative": (
        {"inputs": np.arange(N * 4).reshape(N, 4) - 1, "layout": "NL"},
        "tokens must be whole numbers from 0 (data.layout: NF makes them features), got -1 in sample 0",
    ),
    "one-hot": (
        {"targets": np.eye(3)[LABELS]},
        "targets [60, 3] can be classes or labels, one for each sample; data.target_type",
    ),
    "minus": ({"targets": LABELS - 1}, "targets must be classes from 0, got -1; drop samples whose class is unknown"),
    "ids": (
        {"targets": np.arange(N)},
        "targets are 60 whole numbers, of which 60 are there once; data.target_type must be",
    ),
    "float classes": ({"targets": LABELS * 1.0}, "floats that look like 3 classes (0.0, 1.0, 2.0, ...); data.target"),
    "text as numbers": ({"targets": WARDS, "target_type": "numbers"}, "must be numbers with data.target_type: numbers"),
    "masked": ({"inputs": np.ma.masked_less(FEATURES, 0.1)}, "inputs must not be masked, got"),
    "one class": ({"targets": LABELS * 0}, "targets must be two classes or more, or floats"),
    "masks": (
        {"targets": MASKS / 2},
        "targets must be whole numbers [samples, height, width] to be masks, got float64",
    ),
    "colours": ({"targets": IMAGES}, "to be masks, got uint8 of the shape [60, 6, 5, 3]"),
    "large masks": (
        {"targets": MASKS.astype(int) + 2},
        "masks must be classes counted from 0, or 255 to ignore a pixel",
    ),
    "black and white": ({"targets": MASKS * 0 + 255}, "masks must have two classes or more, got only 0 and 255"),
    "small masks": ({"targets": MASKS[:, 1:]}, "shape [6, 5] each for inputs of [3, 6, 5], got [5, 5]"),
    "test shape": ({"test": (IMAGES[:, :5], LABELS, WARDS)}, "shape, got uint8 [5, 5, 3] and uint8 [6, 5, 3]"),
    "test kind": ({"test": (IMAGES, LABELS / 2, WARDS)}, "training and test targets must have one type: whole numbers"),
    "test targets": ({"test": (IMAGES,)}, "data.test must be inputs, targets and, if known, clients, got 1 of them"),
    "test clients": ({"test": (IMAGES, LABELS)}, "clients are required of both training and test samples"),
    "file": ({"file": "mine.npz"}, "data.file must be a file, or None with inputs and"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arrays_get_one_line(name):
    changes, line = WRONG[name]
    with pytest.raises(PflError) as raised:
        Arrays(**{"inputs": IMAGES, "targets": LABELS, "clients": WARDS, **changes}).load_checked()
    assert line in str(raised.value)
    assert str(raised.value).startswith("data")
    assert "\n" not in str(raised.value)


def test_objects_of_python_in_a_file_get_a_line(tmp_path):
    np.savez(tmp_path / "mine.npz", inputs=FEATURES, targets=LABELS, clients=WARDS.astype(object))
    with pytest.raises(PflError, match=r"^data\.file: 'clients' holds objects of Python; save clients\.astype\(str\)"):
        Arrays(file=str(tmp_path / "mine.npz")).setup()


def test_test_samples_can_be_a_dictionary():
    named = Arrays(IMAGES, LABELS, WARDS, test={"targets": LABELS, "inputs": IMAGES, "clients": WARDS})
    assert_same(named, Arrays(IMAGES, LABELS, WARDS, test=(IMAGES, LABELS, WARDS)))
    with pytest.raises(PflError, match=r"^data\.test must be inputs, targets and, if known, clients, got x, y"):
        Arrays(IMAGES, LABELS, test={"x": IMAGES, "y": LABELS})


def test_arrays_are_neither_changed_nor_shared():
    inputs, targets = FEATURES.copy(), LABELS / 7
    data = Arrays(inputs, targets, standardize=False)
    train, _ = data.load()
    before = train.inputs.clone(), train.targets.clone()
    inputs += 1
    targets += 1
    torch.testing.assert_close((train.inputs, train.targets), before)


def test_bytes_in_a_column_of_lists_are_pixels(datasets):
    features = datasets.Features(
        {"image": datasets.Sequence(datasets.Value("uint8")), "label": datasets.Value("int64")}
    )
    rows = IMAGES.reshape(N, -1)
    dataset = datasets.Dataset.from_dict({"image": rows.tolist(), "label": LABELS}, features)
    data = ready(HuggingFace(dataset, num_clients=2))
    assert (data.input_kind, data.input_shape) == ("numbers", (90,))


@pytest.mark.parametrize("key", ["input", "target", "client"])
def test_a_column_that_is_not_there_is_named_by_its_option(datasets, key):
    columns = {"input": "x", "target": "y", key: "z"}
    line = f"data.{key}: no column 'z'; allowed: x, y"
    with pytest.raises(PflError, match=line):
        HuggingFace(datasets.Dataset.from_dict({"x": [[0.5]] * 9, "y": [0, 1, 2] * 3}), **columns).setup()


def test_a_data_set_from_python_without_a_split_for_training_is_named_by_its_option(datasets):
    given = {"test": datasets.Dataset.from_dict({"image": [[0.5]] * 4, "label": [0, 1] * 2})}
    with pytest.raises(PflError, match=r"^data.dataset: cannot read 'dict' \(no split 'train' among test\); give a "):
        HuggingFace(given).setup()


def test_whole_numbers_with_and_without_a_sign_are_classes():
    data = ready(Arrays(IMAGES, LABELS.astype(np.uint64), test=(IMAGES, LABELS.astype(np.int64)), num_clients=2))
    assert (type(data.task), data.task.classes) == (Classification, 3)


class Windows(Dataset):
    """A client's samples as torch has them."""

    def __init__(self, places):
        self.places = [*places]

    def __len__(self):
        return len(self.places)

    def __getitem__(self, number):
        place = self.places[number]
        return torch.from_numpy(IMAGES[place]), int(LABELS[place])


@pytest.mark.parametrize("named", [False, True])
def test_a_data_set_of_torch_for_each_client_holds_the_same_as_the_arrays(named):
    names = sorted({*WARDS})
    of_wards = [Windows(np.flatnonzero(name == WARDS)) for name in names]
    data = Arrays(dict(zip(names, of_wards, strict=True)) if named else of_wards)
    order = np.argsort(WARDS, kind="stable")
    clients = WARDS if named else np.unique(WARDS, return_inverse=True)[1]
    arrays = Arrays(IMAGES[order], LABELS[order], clients[order])
    assert_same(data, arrays)
    assert sorted(data.client_names) == (names if named else [*map(str, range(len(names)))])
    tested = Arrays(of_wards, test=of_wards[::-1], val=of_wards)
    assert {split: len(table.flat) - 1 for split, table in ready(tested).tables.items()} == dict.fromkeys(
        ("train", "val", "test"), N
    )


@pytest.mark.parametrize(
    ("sample", "line"),
    [
        ({"image": 0}, "data.inputs: Dataset 0 must give input and target, got dict"),
        ((0, 1, 2), "data.inputs: Dataset 0 must give input and target, got 3 of them"),
        ((np.zeros(3), 1), r"data.inputs must have one shape, got \[3\] in Dataset 0 and \[2\]"),
    ],
)
def test_a_data_set_that_gives_something_else_gets_a_line(sample, line):
    class Mixed(Windows):
        def __getitem__(self, number):
            return sample if number else (np.zeros(2), 0)

    with pytest.raises(PflError, match=f"^{line}$"):
        Arrays([Mixed(range(4))]).load()


def test_samples_for_validation_are_the_datas_own_and_clients_can_lack_them():
    of_first = WARDS[0] == WARDS
    some = (IMAGES[of_first], LABELS[of_first], WARDS[of_first])
    data = ready(Arrays(IMAGES, LABELS, WARDS, test=(IMAGES, LABELS, WARDS), val=some))
    counts = dict(zip(data.client_names, data.tables["val"].counts.tolist(), strict=True))
    assert counts == {name: int(of_first.sum()) if name == WARDS[0] else 0 for name in {*WARDS}}
    assert data.tables["train"].counts.sum() == N, "none of the training samples is held out"
    none = ready(Arrays(IMAGES, LABELS, WARDS, test=(IMAGES, LABELS, WARDS), val=some, val_fraction=0.0))
    assert none.tables["val"].counts.sum() == 0
    with pytest.raises(PflError, match=r"^data\.val needs data\.test; "):
        Arrays(IMAGES, LABELS, val=some)


def test_named_clients_never_train_and_come_last():
    names = sorted({*WARDS})
    data = ready(Arrays(IMAGES, LABELS, WARDS, test_clients=[names[0]], val_clients=[names[2]]))
    assert data.client_names[-2:] == (names[2], names[0])
    sizes = np.array([(name == WARDS).sum() for name in data.client_names])
    for split, of_clients in (("train", sizes[:-2]), ("val", sizes[-2:-1]), ("test", sizes[-1:])):
        assert data.tables[split].counts.sum() == of_clients.sum()
    assert data.training_clients == len(names) - 2


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            {"test_clients": ["ward 00"]},
            "data.test_clients: ward 00 is no client of the data, or named twice; did you ",
        ),
        ({"test_clients": ["ward 0"], "val_clients": ["ward 0"]}, "data.(val|test)_clients: ward 0 is no client of "),
        ({"test_clients": ["ward 0"], "clients": None}, "data.test_clients: ward 0 needs clients of the data "),
        ({"test_clients": ["ward 0"], "partition": IID()}, "data.test_clients: ward 0 needs clients of the data "),
        ({"test_clients": sorted({*WARDS})}, r"data.num_clients must be more than the \d clients that never train"),
    ],
)
def test_names_of_clients_that_cannot_be_held_out_get_a_line(options, line):
    with pytest.raises(PflError, match=f"^{line}"):
        ready(Arrays(**{"inputs": IMAGES, "targets": LABELS, "clients": WARDS, **options}))


def test_a_second_file_is_for_testing_and_has_the_same_columns(tmp_path):
    first, second = TABLE[:40], TABLE[40:]
    for name, part in (("train", first), ("test", second), ("other", second.drop(columns="age"))):
        part.to_csv(tmp_path / f"{name}.csv", index=False)
    files = {name: str(tmp_path / f"{name}.csv") for name in ("train", "test", "other")}
    data = Table(files["train"], "ill", client="ward", test_file=files["test"])
    features, targets = FEATURES, TABLE.ill
    test = (features[40:], targets[40:], WARDS[40:])
    assert_same(data, Arrays(features[:40], targets[:40], WARDS[:40], test=test))
    assert data.tables["test"].counts.sum() == 20
    with pytest.raises(PflError, match=r"^data\.file: '.*other\.csv' has no column 'age'"):
        Table(files["train"], "ill", client="ward", test_file=files["other"]).load()


def test_a_client_that_is_named_for_testing_needs_no_training_samples():
    trains = WARDS != "ward 2"
    data = Arrays(
        IMAGES[trains],
        LABELS[trains],
        WARDS[trains],
        test=(IMAGES, LABELS, WARDS),
        test_clients=["ward 2"],
        val_fraction=0.0,
    )
    assert ready(data).client_names[-1] == "ward 2"
    assert (data.num_clients, data.training_clients) == (4, 3)
