import pytest
from reproduction.fedmac import search
from reproduction.fedmac.items import PAPER


def test_every_point_of_the_grids_is_tried_and_shown_as_its_mean_over_the_seeds(write_run, place, monkeypatch):
    place, started = place("mnist_mlr", seeds=(1, 2)), []
    metrics = [["round", "time/compute", "test/global/accuracy/mean"], *([at, 1.0, 0.5] for at in (0, 20))]
    for seed, right in ((1, 70), (2, 80)):  # of 100 samples in the end, and 5 more before
        clients = [(at, "val", "personal", 0, 100, right + more, 1.0) for at, more in ((0, 5), (20, 0))]
        tested = [(at, "test", "global", 0, 1, 1, 0.0) for at in (0, 20)]
        write_run("search/pfedme,lr=0.05", seed, 20, metrics, [*clients, *tested])
    monkeypatch.setattr(search, "tried", lambda there, sweep: started.extend(sweep.names))
    assert search.search_claims(place) == []
    assert len(set(started)) == len(started) == sum(map(len, search.GRIDS.values()))
    rows = [line.replace("|", " ").split() for line in (place.folder / "search.md").read_text().splitlines()]
    assert ["pfedme", "lr=0.05", "80.00", "75.00"] in rows
    assert sum(row[-2:] == ["-", "-"] for row in rows) == len(started) - 1


def test_the_tables_are_made_again_by_the_rates_that_validation_samples_choose(place, monkeypatch):
    best = {"fedmac": 0.1, "heurfedamp": 0.05}  # of the learning rates; others do not finish, and take the first
    made = []

    def tried(there, method, rates):
        assert there.seeds == (1,)
        return search.Trial(rates, *((90.0, 80.0) if rates["lr"] == best.get(method) else ()))

    def trained(there, sweeps):
        made.extend((there.folder.name, there.seeds, *sweep.names) for sweep in sweeps)
        return {name: name for sweep in sweeps for name in sweep.names}

    monkeypatch.setattr(search, "tried_rates", tried)
    monkeypatch.setattr(search, "trained", trained)
    monkeypatch.setattr(search, "claims_of", lambda there, found: list(found))
    assert search.searched_claims(place("mnist_mlr", seeds=(1, 2))) == list(search.GRIDS)
    assert {each[:2] for each in made} == {("searched", (1, 2))}
    names = {name for *_, name in made}
    assert {"fedmac,lr=0.1,correlation=0.002,copy_lr=37.5", "heurfedamp,lr=0.05", "pfedme,lr=0.02"} <= names


@pytest.mark.parametrize("name", ["search", "searched"])
def test_both_are_items(name):
    assert PAPER.items[name].pairs_at("full") == ("mnist_mlr", "mnist_dnn", "fashion_mnist_mlr", "fashion_mnist_dnn")
