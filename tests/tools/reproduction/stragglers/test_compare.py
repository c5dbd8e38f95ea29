import pytest
from fakes.panels import FAST, SLOW
from reproduction.items import Item
from reproduction.stragglers import compare

from pfl_lightning.errors import PflError
from pfl_lightning.runs.experiment import Experiment

ANSWERS = {answer["answer"]: answer for answer in Item("stragglers", "answers").block.answers}


@pytest.fixture
def fixed(part):
    return part(paper="stragglers", item="answers", title="femnist-fixed", seeds=[1])


def stages(rounds: int, doubling: dict) -> list[int]:
    """Clients in each round."""
    n0, every = doubling["n0"], doubling["rounds_per_stage"]
    return [min(20, n0 << number // every) for number in range(rounds)]


@pytest.mark.parametrize("name", ANSWERS)
def test_every_answer_has_as_many_uploads_and_an_evaluation_for_as_many(name, fixed):
    words = compare.words_of(fixed, "FedRep", ANSWERS[name], 10, 0.1)
    settings = Experiment.from_settings(*words).settings
    rounds, callbacks = settings["trainer"]["max_steps"], settings["trainer"]["callbacks"]
    participation = settings["data"]["init_args"]["participation"]
    options = participation["init_args"] if participation else {}
    cohorts = [options.get("buffer", 20)] * rounds
    if callbacks:
        callback = callbacks[0] if isinstance(callbacks, list) else callbacks
        cohorts = stages(rounds, callback["init_args"])
    assert sum(cohorts) == 400
    assert settings["trainer"]["val_check_interval"] * cohorts[-1] == 40
    assert settings["data"]["init_args"]["communication_time"] == (0 if ANSWERS[name]["waits"] else 10)
    assert (options.get("pool_size") or 20) == (10 if name in ("FedBuff", "FedAsync") else 20)


def test_rates_are_not_searched_without_the_data(fixed):
    with pytest.raises(PflError, match=r"^data.root: no LEAF files"):
        compare.tuned(fixed, "FedRep", ANSWERS["rounds of all"], 0)


def test_the_picture_has_a_row_of_panels_for_each_method_which_end_with_the_last_answer_but_one():
    curves = {
        (m, time, name): c for m in ("FedRep", "FedAvg") for time in (0, 10) for name, c in (("a", FAST), ("b", SLOW))
    }
    panels = compare.answers_figure(curves).axes
    assert [axes.get_title() for axes in panels[::2]] == ["FedRep, communication 0 s", "FedAvg, communication 0 s"]
    # 40 rounds of the faster, with 4 s of computation
    assert [axes.get_xlim()[1] for axes in panels] == [4, 404] * 2
