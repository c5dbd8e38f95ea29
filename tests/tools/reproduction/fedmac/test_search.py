from reproduction.fedmac import search


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
