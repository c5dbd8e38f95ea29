from functools import partial

import numpy as np
import pytest
import torch
from fakes.methods import make_method
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.nn import functional as F

from pfl_lightning.callbacks import CosineMaps
from pfl_lightning.errors import PflError
from pfl_lightning.methods import DePRL, Ditto, FedAvg, FedRep, LGFedAvg, Local
from pfl_lightning.models import MLP

pytestmark = pytest.mark.usefixtures("pictures")

HEAD, BODY = ("fc2.weight", "fc2.bias"), ("fc1.weight", "fc1.bias")
CORRELATION, SMALLEST = "cosines/heads_data_correlation", "cosines/bodies_smallest"


def run(make, data, fit, rounds=2, **options):
    method = make_method(make, network=partial(MLP, hidden=(6,)), batch_size=4, lr=0.1)
    maps = CosineMaps()
    trainer = fit(method, data, rounds, callbacks=[maps], **options)
    return method, maps, {name: float(value) for name, value in trainer.callback_metrics.items() if "cosines" in name}


def plain_cosines(vectors):
    return F.cosine_similarity(vectors[:, None], vectors[None], dim=2)


def models(method, names):
    return torch.cat([method.clients.stack(name).reshape(6, -1) for name in names], dim=1).double()


@pytest.mark.parametrize(
    ("make", "prefix", "bodies"),
    [
        (partial(FedRep, head_epochs=1), "", False),
        (partial(DePRL, head_epochs=1), "", True),
        (Local, "", True),
        (Ditto, "personal.", True),
    ],
)
def test_heads_and_bodies_are_those_that_clients_keep(make, prefix, bodies, ragged_data, fit):
    data = ragged_data()
    method, maps, logged = run(make, data, fit)
    counts = torch.from_numpy(data.class_counts()["train"]).double()
    heads = plain_cosines(models(method, [prefix + name for name in HEAD]))
    torch.testing.assert_close(maps.maps["data"], plain_cosines(counts))
    torch.testing.assert_close(maps.maps["heads"], heads)
    above = np.triu_indices(6, 1)
    expected = np.corrcoef(plain_cosines(counts)[above], heads[above])[0, 1]
    assert logged[CORRELATION] == pytest.approx(expected, abs=1e-6)
    assert set(logged) == ({CORRELATION, SMALLEST} if bodies else {CORRELATION})
    if bodies:
        found = plain_cosines(models(method, [prefix + name for name in BODY]))[above]
        assert logged[SMALLEST] == pytest.approx(found.min().item(), abs=1e-6)


@pytest.mark.slow
def test_the_maps_are_drawn_after_training_and_there_is_no_correlation_with_equal_heads(ragged_data, fit, tmp_path):
    run(partial(DePRL, head_epochs=1), ragged_data(), fit, rounds=4, logger=TensorBoardLogger(tmp_path, "", "board"))
    board = EventAccumulator(str(tmp_path / "board")).Reload()
    (image,) = board.Images("cosines/maps")
    assert (image.step, image.width > 1500) == (4, True)
    assert [event.step for event in board.Scalars(CORRELATION)] == [2, 4]
    assert board.Scalars(SMALLEST)[0].value == pytest.approx(1)


@pytest.mark.parametrize("make", [FedAvg, partial(LGFedAvg, head=1)])
def test_a_method_without_heads_at_clients_is_refused(make, ragged_data, fit):
    with pytest.raises(
        PflError, match=r"^CosineMaps needs clients that keep heads, as in FedRep; those of \w+ keep none$"
    ):
        run(make, ragged_data(), fit)
