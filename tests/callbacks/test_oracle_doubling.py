from itertools import pairwise
from math import sqrt

import lightning.pytorch as pl
import pytest
from fakes.methods import TINY

from pfl_lightning.callbacks import OracleDoubling
from pfl_lightning.data import LinearRepresentation
from pfl_lightning.errors import PflError
from pfl_lightning.methods import FedAvg, LinearFedRep
from pfl_lightning.models import LinearNetwork
from pfl_lightning.system import Participation

FLOOR, LEAVE, STOP = 0.4, 1.3, 1.25


class Rounds(pl.Callback):
    """Remembers the participants and the distance of every round."""

    def __init__(self) -> None:
        self.values: list[tuple[int, float]] = []

    def on_train_batch_end(self, trainer, *_) -> None:
        metrics = trainer.callback_metrics
        self.values.append((int(metrics["system/cohort"]), float(metrics["train/distance"])))


@pytest.fixture
def run(fit):
    def start(rounds=60, folder="run", ckpt_path=None, pool_size=None):
        data = LinearRepresentation(
            num_clients=24, noise=0.3, fresh=True, participation=Participation(pool_size=pool_size)
        )
        rounds_seen = Rounds()
        method = LinearFedRep(network=LinearNetwork, lr=0.5, init="random")
        fit(method, data, rounds, folder, ckpt_path, [OracleDoubling(6, FLOOR, LEAVE, STOP), rounds_seen])
        return rounds_seen.values

    return start


@pytest.mark.slow
def test_participants_double_at_their_floor_and_the_run_ends_at_the_pools_also_if_it_is_resumed(run, tmp_path):
    straight = run(folder="straight")
    for seen, pool in ((straight, 24), (run(pool_size=12), 12)):
        assert [seen[0][0], seen[-1][0]] == [6, pool]
        assert {size for size, _ in seen} == {6, 12, pool}
        for (size, distance), (following, _) in pairwise(seen):
            assert following == (min(2 * size, pool) if distance <= LEAVE * FLOOR / sqrt(size) else size)
            assert distance > STOP * FLOOR / sqrt(pool)
        assert seen[-1][1] <= STOP * FLOOR / sqrt(pool)
        assert len(seen) < 60
    stop = 1 + [size for size, _ in straight].index(12)  # within the second stage
    assert straight[stop][0] == 12
    first = run(stop, "resumed")
    assert first + run(60, "resumed", tmp_path / "resumed/checkpoints/last.ckpt") == straight


class Told(FedAvg):
    """Its distances are these."""

    def __init__(self, distances):
        super().__init__(network=TINY, eval_epochs=0)
        self.told = iter(distances)

    def training_step(self, batch, batch_idx):
        super().training_step(batch, batch_idx)
        self.log("train/distance", next(self.told))


def test_a_stage_is_left_at_its_own_floor_and_the_run_ends_at_the_pools_lower_one(ragged_data, fit, tmp_path):
    # the floors of 1, 2 and 4 clients are 1, 0.707 and 0.5: left at 1.5 and 1.06, not at 0.75; the end is at 0.6
    distances = [1.6, 1.4, 1.2, 1.0, 0.74, 0.61, 0.59, 0.58]
    doubling = OracleDoubling(1, floor=1.0, leave=1.5, stop=1.2)
    for folder in ("one", "two"):  # an object that is used again starts anew
        rounds = Rounds()
        fit(Told(distances), ragged_data(num_clients=4), 8, folder, callbacks=[doubling, rounds])
        assert rounds.values == list(zip([1, 1, 2, 2, 4, 4, 4], map(pytest.approx, distances), strict=False))
    last = tmp_path / "two/checkpoints/last.ckpt"
    with pytest.raises(PflError, match=r"^ckpt_path: the run reached its target in round 7; start a new run$"):
        fit(Told(distances), ragged_data(num_clients=4), 8, "two", last, [doubling])


def test_a_method_without_a_distance_is_refused(fit, ragged_data):
    with pytest.raises(PflError, match=r"^OracleDoubling needs train/distance, which LinearFedRep logs on"):
        fit(FedAvg(), ragged_data(), 1, callbacks=[OracleDoubling(2, 1.0)])
