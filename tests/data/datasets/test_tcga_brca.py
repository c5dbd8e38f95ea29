import numpy as np
import pandas as pd
import pytest
from fakes.tcga_brca import write_tcga_brca

from pfl_lightning.data import TCGABRCA
from pfl_lightning.errors import PflError
from pfl_lightning.tasks import Survival


def test_files_are_joined_by_patient_and_a_region_is_a_client(tmp_path):
    write_tcga_brca(tmp_path)
    data = TCGABRCA(str(tmp_path), standardize=False)
    data.setup()
    table = pd.read_csv(tmp_path / "brca.csv").set_index("pid")
    splits = pd.read_csv(tmp_path / "train_test_split.csv")
    assert isinstance(data.task, Survival)
    assert sorted(data.client_names) == [f"region {number}" for number in range(6)]
    samples = data.tables["test"].samples
    for split in ("train", "test"):
        patients = splits["pid"][splits["fold2"].str.startswith(split)]
        wanted = table.loc[patients].drop(columns=["E", "T"]).to_numpy()
        rows = slice(len(patients)) if split == "train" else slice(len(splits) - len(patients), None)
        np.testing.assert_array_equal(samples.inputs[rows], wanted)
        np.testing.assert_array_equal(samples.targets[rows], table.loc[patients, ["E", "T"]])
    for client, name in enumerate(data.client_names):
        assert data.tables["test"].counts[client] == (splits["fold2"] == f"test_{name[-1]}").sum()
    assert "2 patients are in none" in data.understood


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda root: (root / "brca.csv").unlink(), "data.root: no 'brca.csv' in '.*; put brca.csv and "),
        (lambda root: (root / "train_test_split.csv").unlink(), "data.root: cannot read '.*train_test_split.csv'"),
        (lambda root: replace(root / "train_test_split.csv", "test_3", "test"), ".*fold2 must be train_0 to test_5, "),
        (lambda root: replace(root / "brca.csv", "TCGA-7,", "TCGA-x,"), ".*no time of patient TCGA-7, who is in "),
        (lambda root: replace(root / "brca.csv", ",T\n", ",time\n"), ".*no column 'T'"),
        (lambda root: replace(root / "brca.csv", "TCGA-7,", "TCGA-8,"), ".*cannot read '.*brca.csv'"),
    ],
)
def test_wrong_files_get_a_line(change, line, tmp_path):
    write_tcga_brca(tmp_path)
    change(tmp_path)
    with pytest.raises(PflError, match=f"^{line}"):
        TCGABRCA(str(tmp_path)).load()


def replace(path, old, new):
    path.write_text(path.read_text().replace(old, new))
