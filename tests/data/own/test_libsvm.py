import gzip

import numpy as np
import pytest
from fakes.libsvm import write_a9a, write_rows

from pfl_lightning.data import LibSVM
from pfl_lightning.data.own import libsvm
from pfl_lightning.errors import PflError


@pytest.fixture
def small(tmp_path):
    """A training file of 5 features, with an empty row, and a test file that lacks the last two."""
    write_rows(tmp_path / "train", [1, -1, -1], [{1: 0.5, 5: 2}, {}, {3: -1}])
    write_rows(tmp_path / "test", [-1, 1], [{3: 4}, {1: 7}])
    return tmp_path


def test_indices_count_from_1_rows_may_be_empty_and_features_of_one_file_are_0_in_the_other(small):
    train, test = LibSVM(file=str(small / "train"), test_file=str(small / "test")).read()
    assert train.inputs.tolist() == [[0.5, 0, 0, 0, 2], [0] * 5, [0, 0, -1, 0, 0]]
    assert test.inputs.tolist() == [[0, 0, 4, 0, 0], [7, 0, 0, 0, 0]]
    assert train.inputs.dtype == np.float32


def test_indices_count_from_0_if_either_file_has_a_0(small):
    write_rows(small / "test", [-1, 1], [{0: 9}, {1: 7}])
    train, test = LibSVM(file=str(small / "train"), test_file=str(small / "test")).read()
    assert train.inputs[0].tolist() == [0, 0.5, 0, 0, 0, 2]
    assert test.inputs.tolist() == [[9, 0, 0, 0, 0, 0], [0, 7, 0, 0, 0, 0]]


@pytest.mark.parametrize("names", [(-1, 1), (1, 2), (0, 1), (3, 7, 9)])
def test_whole_labels_are_classes_in_sorted_order(tmp_path, names):
    labels = np.tile(names, 20)[::-1]
    write_rows(tmp_path / "file", labels, [{1: number} for number in range(len(labels))])
    data = LibSVM(file=str(tmp_path / "file"), num_clients=2)
    samples, test = data.load()
    assert test is None
    assert data.class_names == tuple(map(str, names))
    assert [names[target] for target in samples.targets] == labels.tolist()


def test_other_labels_are_a_regression(tmp_path):
    (tmp_path / "file").write_text("".join(f"{number}.5 1:{number}\n" for number in range(20)))
    data = LibSVM(file=str(tmp_path / "file"), num_clients=2)
    samples, _ = data.load()
    assert samples.targets.flatten().tolist() == [number + 0.5 for number in range(20)]
    assert data.task.goal == "a regression"


def test_packed_files_and_the_official_test_samples_are_read(tmp_path):
    write_a9a(tmp_path)
    packed = tmp_path / "a9a.gz"
    packed.write_bytes(gzip.compress((tmp_path / "a9a").read_bytes()))
    data = LibSVM(file=str(packed), test_file=str(tmp_path / "a9a.t"), num_clients=4)
    data.setup()
    assert data.input_shape == (12,)
    assert int(data.tables["test"].counts.sum()) == 200


def test_a_file_that_would_fill_the_memory_is_refused_before_it_is_dense(tmp_path):
    # 2 samples of 4 bytes * (2^31 - 1) features
    write_rows(tmp_path / "wide", [1, -1], [{1: 1}, {2**31 - 1: 1}])
    with pytest.raises(PflError, match=r"^data\.file: .*wide' has 2,147,483,647 features, .* 16\.0 GiB.*at most 4 GiB"):
        LibSVM(file=str(tmp_path / "wide")).read()
    assert libsvm.MOST_BYTES == 4 * 2**30
