import pytest
from reproduction.delta_fl import search


@pytest.fixture
def write(write_run):
    """Writes a run that ends after some of its 20 rounds, with the loss and the errors of validation devices."""

    def run(name, seed, loss, errors, rounds=20):
        metrics = [["round", "time/compute", "test/global/accuracy/mean"], [rounds, 1.0, 0.5]]
        clients = [(rounds, "val", "global", client, 100, 100 - error, loss) for client, error in enumerate(errors)]
        write_run(name, seed, 20, metrics, [*clients, (rounds, "test", "global", 99, 1, 1, 0.0)])

    return run


def test_a_row_is_the_mean_over_seeds_of_loss_and_tail(write, place):
    place = place("femnist_linear", seeds=(1, 2))
    write("fedavg,lr=1.0", 1, 0.5, range(11))  # 90th percentile 9 %
    write("fedavg,lr=1.0", 2, 0.7, range(0, 22, 2))  # 18 %
    assert search.validation(place, "fedavg,lr=1.0") == ("0.6000", "13.5")


def test_a_rate_with_a_run_that_did_not_finish_has_no_numbers(write, place, monkeypatch):
    place, started = place("femnist_linear", seeds=(1, 2)), []
    for name in ("search/fedavg,lr=1.0", "search/fedavg,lr=0.1"):
        write(name, 2, 0.5, range(11))
    write("search/fedavg,lr=1.0", 1, 9.9, range(11), rounds=10)
    write("search/fedavg,lr=0.1", 1, 0.5, range(11))
    monkeypatch.setattr(search, "tried", lambda there, sweep: started.append((there.folder, sweep.names)))
    assert search.search_claims(place) == []
    ((folder, names),) = started
    assert (folder, names[0], len(names)) == (place.folder / "search", "fedavg,lr=0.1", 5)
    lines = [line.split() for line in (place.folder / "search.md").read_text().splitlines()]
    cells = [[cell for cell in line if cell != "|"] for line in lines]
    rates = (["0.1", "0.5000", "9.0"], *([rate, "-", "-"] for rate in ("0.3", "1", "3", "10")))
    assert all(row in cells for row in rates)
