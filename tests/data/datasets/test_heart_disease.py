import numpy as np
import pandas as pd
import pytest
from fakes.heart_disease import SITES, patients, write_heart_disease, write_site
from sklearn.model_selection import train_test_split

from pfl_lightning.data import HeartDisease
from pfl_lightning.errors import PflError

pytestmark = pytest.mark.filterwarnings("ignore:.*is not the official data set")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("heart")
    write_heart_disease(folder)
    return folder


def reference(root):
    """Training and test patients of each site: features, classes and sites, by pandas as FLamby describes it."""
    tables = []
    for site in SITES:
        table = pd.read_csv(root / f"processed.{site}.data", header=None, na_values="?")
        tables.append(table.drop(columns=[10, 11, 12]).dropna().assign(site=site))
    every = pd.get_dummies(pd.concat(tables, ignore_index=True), columns=[2, 6], drop_first=True, dtype=float)
    splits = ([], [])
    for site in SITES:
        rows = every[every.site == site].drop(columns="site")
        targets = (rows.pop(13) > 0).astype(int).to_numpy()
        train, test = map(
            sorted,
            train_test_split(
                range(len(rows)), train_size=0.66, test_size=1 - 0.66, random_state=43, shuffle=True, stratify=targets
            ),
        )
        features = rows.to_numpy()
        scaled = (features - features[train].mean(0)) / features[train].std(0, ddof=1)
        for split, members in zip(splits, (train, test), strict=True):
            split.append((scaled[members], targets[members], [site] * len(members)))
    return [[np.concatenate(values) for values in zip(*split, strict=True)] for split in splits]


def test_patients_features_and_splits_are_flambys(root):
    for raw, expected in zip(HeartDisease(root=str(root)).read(), reference(root), strict=True):
        assert raw.inputs.shape[1] == 13
        np.testing.assert_allclose(raw.inputs, expected[0], atol=1e-12)
        assert raw.targets.tolist() == expected[1].tolist()
        assert raw.clients.tolist() == expected[2].tolist()


@pytest.mark.parametrize(("count", "train", "test"), [(303, 199, 104), (261, 172, 89), (46, 30, 16), (130, 85, 45)])
def test_sizes_of_the_splits_are_those_that_flamby_states(tmp_path, count, train, test):
    random = np.random.default_rng(0)
    for site in SITES:
        write_site(tmp_path, site, patients(random, count, missing=0.0))
    sizes = [len(split.targets) for split in HeartDisease(root=str(tmp_path)).read()]
    assert sizes == [4 * train, 4 * test]


def test_the_four_sites_are_the_clients_with_test_patients_of_their_own(root):
    data = HeartDisease(root=str(root))
    data.setup()
    assert sorted(data.client_names) == sorted(SITES)
    assert data.class_names == ("healthy", "disease")
    assert (data.tables["test"].counts > 0).all()
    assert "standardised by the mean and deviation of each site" in data.understood


def test_grades_1_to_4_are_a_disease_and_kinds_are_indicators_without_the_first(tmp_path):
    random = np.random.default_rng(0)
    words = {site: patients(random, 20, missing=0.0) for site in SITES}
    words["va"][:, 13] = np.repeat(["0", "0", "1", "2", "4"], 4)
    for site, rows in words.items():
        write_site(tmp_path, site, rows)
    raw = HeartDisease(root=str(tmp_path)).read()
    targets = np.concatenate([split.targets[split.clients == "va"] for split in raw])
    assert np.bincount(targets).tolist() == [8, 12]
    # a site's indicators have as many values as the site has kinds, and the first kind has none
    cleveland = np.concatenate([split.inputs[split.clients == "cleveland"] for split in raw])
    kinds = words["cleveland"][:, 2].astype(float)
    largest = np.array([(cleveland[:, column] > 0).sum() for column in (8, 9, 10)])
    assert largest.tolist() == [(kinds == kind).sum() for kind in (2, 3, 4)]


def test_a_feature_that_never_changes_at_a_site_is_only_shifted(tmp_path):
    random = np.random.default_rng(0)
    for site in SITES:
        rows = patients(random, 20, missing=0.0)
        rows[:, 4] = "0"  # as in Zurich and Basel
        write_site(tmp_path, site, rows)
    for split in HeartDisease(root=str(tmp_path)).read():
        assert not split.inputs[:, 3].any()


def test_a_missing_site_is_named(root, tmp_path):
    write_site(tmp_path, "cleveland", patients(np.random.default_rng(0), 9))
    with pytest.raises(PflError, match=r"^data\.root: no heart disease in .*processed\.hungarian\.data.*download http"):
        HeartDisease(root=str(tmp_path)).load()
