import pytest
import torch
from fakes.cohorts import examples_of

from pfl_lightning.client import Engine
from pfl_lightning.data import EvalBatch
from pfl_lightning.federation.cohort import Cohort
from pfl_lightning.federation.evaluator import Evaluator
from pfl_lightning.models import LogisticRegression
from pfl_lightning.tasks import Classification
from pfl_lightning.tree import Params


@pytest.mark.parametrize("chunk_size", [1, 2])
def test_two_clients_are_scored_with_each_of_their_models_on_each_split(chunk_size):
    """Models that always say class 0, and class 1: they are right on 1 and 3 of 4 samples, and on 1 and 0 of 1."""
    examples, network = examples_of(counts=(4, 1), shape=(2,), classes=2), LogisticRegression((2,), 3)
    examples.samples.targets = torch.tensor([0, 1, 1, 1, 0])
    zeros = {name: torch.zeros_like(tensor) for name, tensor in network.state_dict().items()}

    def models(train):
        for name, label in (("stored", 1), ("global", 0)):
            bias = torch.eye(3)[label].expand(len(train), 3)
            yield (
                name,
                Params(zeros, {"fc.bias": bias}) if name == "stored" else Params({**zeros, "fc.bias": bias[0]}, {}),
            )

    evaluator = Evaluator()
    evaluator.prepare(["train", "test"], ("stored", "global"), clients=2, task=Classification().sized(3))
    evaluator.begin()
    batch = EvalBatch(1, examples, {"train": examples, "test": examples})
    evaluator.step(batch, models, lambda *_: Engine(network), Cohort(chunk_size, [[1]]), input_bytes=8)
    found = evaluator.results("stored")
    assert found["test/stored/accuracy/mean"] == pytest.approx((3 / 4 + 0) / 2)
    assert found["test/global/accuracy/mean"] == pytest.approx((1 / 4 + 1) / 2)
    assert next(iter(found)) == "test/accuracy"
    assert found["test/accuracy"] == found["test/stored/accuracy/mean"]
    right, wrong = -torch.tensor([1.0, 0, 0]).log_softmax(0)[:2]
    assert found["train/global/loss/mean"].item() == pytest.approx(((right + 3 * wrong) / 4 + right).item() / 2)
