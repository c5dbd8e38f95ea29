import fakes
import numpy as np
import pytest
from fakes.panels import passed
from fakes.sent140 import write_glove
from reproduction.delta_fl import devices, runs
from reproduction.runs import Place, split_data

FEW = "--data.num_clients=11 --data.partition.min_samples=5 --data.participation.pool_size=2"


@pytest.mark.parametrize("pair", devices.TABLE)
def test_devices_are_counted_as_the_runs_split_them(pair, tmp_path, monkeypatch, capsys):
    data = pair.partition("_")[0]
    fakes.WRITERS[data](tmp_path / data)
    write_glove(tmp_path / "glove", {"happy": np.ones(50)})
    monkeypatch.setitem(runs.SMALL, pair, FEW)
    place = Place(pair, "small", tmp_path, tmp_path, [1])
    place = place._replace(options=runs.fit_options(place))
    found = devices.measured(split_data(place.options))
    assert found[:2] == (5, 6)
    assert 5 <= found.smallest <= found.median <= found.largest
    assert devices.device_claims(place) == []
    assert "train" in capsys.readouterr().out


def test_a_row_of_table_1_allows_for_another_half_of_the_users():
    paper = devices.TABLE["femnist_linear"]
    for changed, expected in (
        ({"median": 170, "largest": 400}, [True, True]),
        ({"median": 150}, [True, False]),
        ({"smallest": 100}, [True, False]),
        ({"test": 864}, [False, True]),
    ):
        assert passed(devices.row_claims(paper._replace(**changed), paper)) == expected
