import csv

import pytest
import yaml
from reproduction.delta_fl import search


@pytest.fixture
def write_run(tmp_path):
    """Writes a run that ends after some of its 20 rounds, with the loss and the errors of validation devices."""

    def write(name, seed, loss, errors, rounds=20):
        folder = tmp_path / name / f"seed_{seed}" / "FedAvg-FEMNIST" / "version_0"
        folder.mkdir(parents=True)
        settings = {"seed_everything": seed, "model": {"class_path": "FedAvg"}, "data": {"class_path": "FEMNIST"}}
        (folder / "config.yaml").write_text(yaml.safe_dump(settings | {"trainer": {"max_steps": 20}}))
        label = {"method": "FedRep", "name": "FedRep", "doubling": None, "suffixes": {}, "is_baseline": False}
        (folder / "label.yaml").write_text(yaml.safe_dump(label))
        with (folder / "metrics.csv").open("w", newline="") as file:
            csv.writer(file).writerows([["round", "time/compute", "test/global/accuracy/mean"], [rounds, 1.0, 0.5]])
        with (folder / "clients.csv").open("w", newline="") as file:
            rows = [(rounds, "val", "global", client, 100, 100 - error, loss) for client, error in enumerate(errors)]
            header = ("round", "split", "model", "client", "samples", "correct", "loss")
            csv.writer(file).writerows([header, *rows, (rounds, "test", "global", 99, 1, 1, 0.0)])

    return write


def test_a_row_is_the_mean_over_seeds_of_loss_and_tail(write_run, place):
    place = place("femnist_linear", seeds=(1, 2))
    write_run("fedavg,lr=1.0", 1, 0.5, range(11))  # 90th percentile 9 %
    write_run("fedavg,lr=1.0", 2, 0.7, range(0, 22, 2))  # 18 %
    assert search.validation(place, "fedavg,lr=1.0") == ("0.6000", "13.5")


def test_a_rate_with_a_run_that_did_not_finish_has_no_numbers(write_run, place):
    place = place("femnist_linear", seeds=(1, 2))
    write_run("fedavg,lr=3.0", 1, 9.9, range(11), rounds=10)
    for name in ("fedavg,lr=1.0", "fedavg,lr=3.0"):
        write_run(name, 2, 0.5, range(11))
    for name in ("fedavg,lr=1.0", "fedavg,lr=3.0", "fedavg,lr=9.0"):
        assert search.validation(place, name) == ("-", "-")
    table = search.rates_table(place, {3.0: "fedavg,lr=3.0"})
    assert [list(column.cells) for column in table.columns] == [["3"], ["-"], ["-"]]
