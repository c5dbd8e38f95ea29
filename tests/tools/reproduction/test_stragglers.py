from pathlib import Path

import pytest
from fakes.panels import FAST, SLOW
from reproduction import stragglers
from reproduction.runs import Place

from pfl_lightning.errors import PflError
from pfl_lightning.runs.experiment import Experiment


def stages(rounds: int, doubling: dict) -> list[int]:
    """Clients in each round."""
    n0, every = doubling["n0"], doubling["rounds_per_stage"]
    return [min(20, n0 << number // every) for number in range(rounds)]


@pytest.mark.parametrize("name", stragglers.answers("fixed", 20))
def test_every_answer_has_as_many_uploads_and_an_evaluation_for_as_many(name):
    place = Place("femnist-fixed", "small", Path("data"), Path("out"), [1])
    answer = stragglers.answers("fixed", 20)[name]
    settings = Experiment.from_settings(*stragglers.words_of(place, "FedRep", answer, 10, 0.1)).settings
    rounds, callbacks = settings["trainer"]["max_steps"], settings["trainer"]["callbacks"]
    participation = settings["data"]["init_args"]["participation"]
    options = participation["init_args"] if participation else {}
    cohorts = [options.get("buffer", 20)] * rounds
    if callbacks:
        callback = callbacks[0] if isinstance(callbacks, list) else callbacks
        cohorts = stages(rounds, callback["init_args"])
    assert sum(cohorts) == 400
    assert settings["trainer"]["val_check_interval"] * cohorts[-1] == 40
    assert settings["data"]["init_args"]["communication_time"] == (0 if answer.waits else 10)
    assert options.get("concurrency", 20) == (10 if name in ("FedBuff", "FedAsync") else 20)


def test_rates_are_not_searched_without_the_data(tmp_path):
    place = Place("femnist-fixed", "small", tmp_path / "nowhere", tmp_path / "runs", [1])
    with pytest.raises(PflError, match=r"^data.root: no LEAF files"):
        stragglers.tuned(place, "FedRep", "rounds of all", 0)


def test_the_picture_has_a_row_of_panels_for_each_method_which_end_with_the_last_answer_but_one():
    found = {("FedRep", time, name): curve for time in stragglers.TIMES for name, curve in (("a", FAST), ("b", SLOW))}
    panels = stragglers.figure(found | {("FedAvg", *key[1:]): curve for key, curve in found.items()}).axes
    assert [axes.get_title() for axes in panels[::2]] == ["FedRep, communication 0 s", "FedAvg, communication 0 s"]
    # 40 rounds of the faster, with 4 s of computation
    assert [axes.get_xlim()[1] for axes in panels] == [4, 404] * 2
