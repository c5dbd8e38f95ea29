"""Several labels, and several numbers, from arrays: FedAvg is the loop that everyone writes, in float64."""

from copy import deepcopy
from math import exp, log

import numpy as np
import pytest
import torch
from fakes.cohorts import samples_of
from fakes.methods import built, distance
from fakes.tasks import labels_of
from sklearn.datasets import load_linnerud, make_multilabel_classification
from torch.optim import SGD

from pfl_lightning.data import IID, Arrays, Dirichlet
from pfl_lightning.methods import FedAvg
from pfl_lightning.models import LogisticRegression
from pfl_lightning.seeding import permutations
from pfl_lightning.tasks import Classification, MultiLabel

pytestmark = pytest.mark.usefixtures("float64")
RATE = 0.05
BATCH = 4
NUMBERS = load_linnerud(return_X_y=True)[1]
MOMENTS = NUMBERS.mean(0), NUMBERS.std(0)


def labelled():
    """Clients with five labels each, of which some are unknown; of some samples all are."""
    inputs, targets = make_multilabel_classification(200, n_features=8, n_classes=5, random_state=0)
    targets[::4, 1] = -1
    targets[::6] = -1
    return Arrays(inputs, targets, num_clients=4, partition=Dirichlet(1.0), val_fraction=0.0)


def measured():
    """Clients with three numbers for each sample."""
    inputs, targets = load_linnerud(return_X_y=True)
    return Arrays(inputs, targets, num_clients=3, partition=IID(), val_fraction=0.0)


def loss_of_labels(outputs, targets):
    """Loss and amount of a sample."""
    losses = [
        torch.log(1 + torch.exp((1 - 2 * t) * z)) for z, t in zip(outputs, targets.tolist(), strict=True) if t >= 0
    ]
    return (sum(losses) / len(losses), 1) if losses else (0 * outputs.sum(), 0)


def loss_of_numbers(outputs, targets):
    """Loss and amount of a sample: standardised numbers are learned."""
    numbers = zip(outputs, targets, *MOMENTS, strict=True)
    return sum((z - (t - mean) / deviation) ** 2 / 2 for z, t, mean, deviation in numbers) / len(targets), 1


def rmse(outputs, targets):
    """The root mean squared error of all numbers, in their units."""
    mean, deviation = map(torch.tensor, MOMENTS)
    return (mean + deviation * outputs - targets).square().mean().sqrt().item()


def macro_f1(outputs, targets):
    """The mean F1 of the labels that a sample has."""
    scores = []
    for predicted, truth in zip((outputs > 0).T.tolist(), targets.T.tolist(), strict=True):
        pairs = [*zip(predicted, truth, strict=True)]
        hits, said, missed = (pairs.count(pair) for pair in ((True, 1), (True, 0), (False, 1)))
        scores += [2 * hits / (2 * hits + said + missed)] if hits + missed else []
    return sum(scores) / len(scores) if scores else float("nan")


def mean_loss(network, inputs, targets, loss_of):
    losses, amounts = zip(*map(loss_of, network(inputs), targets), strict=True)
    return sum(losses) / max(sum(amounts), 1)


def plain_fedavg(network, data, rounds, loss_of):
    """The network after some rounds, and the training loss of each."""
    network = deepcopy(network)
    clients = range(data.num_clients)
    examples = [data.tables["train"].examples(torch.tensor([client])) for client in clients]
    weights = [float(own.counts[0]) for own in examples]
    history = []
    for index in range(rounds):
        models, losses = [], []
        for own in examples:
            inputs, targets = samples_of(own)
            model = deepcopy(network)
            optimizer = SGD(model.parameters(), RATE)
            key = (data.seed, "train", index, "all", "order", 0)
            sums = amounts = 0.0
            for batch in permutations(key, own.ids, own.counts, len(inputs))[0].split(BATCH):
                outputs = model(inputs[batch])
                of_samples = [loss_of(*sample) for sample in zip(outputs, targets[batch], strict=True)]
                total = sum(loss for loss, _ in of_samples)
                amount = sum(amount for _, amount in of_samples)
                optimizer.zero_grad()
                (total / max(amount, 1)).backward()
                optimizer.step()
                sums += total.item()
                amounts += amount
            models.append(model.state_dict())
            losses.append(sums / amounts)
        history.append(np.average(losses, weights=weights))
        mean = {name: sum(w * model[name] for w, model in zip(weights, models, strict=True)) for name in models[0]}
        network.load_state_dict({name: tensor / sum(weights) for name, tensor in mean.items()})
    return network, history


@pytest.mark.parametrize(
    ("make_data", "loss_of", "score_of"),
    [(labelled, loss_of_labels, macro_f1), (measured, loss_of_numbers, rmse)],
    ids=["labels", "numbers"],
)
def test_fedavg_is_a_plain_loop(make_data, loss_of, score_of, backend, fit):
    data = make_data()
    data.setup()
    method = built(FedAvg, data, backend=backend, batch_size=BATCH, lr=RATE, weight_decay=0.0)
    network, history = plain_fedavg(method.network, data, 2, loss_of)
    assert distance(method.network, network) > 1e-2, "it learns"
    losses = [float(fit(method, data, 1, bare=True).callback_metrics["train/loss"])]
    method = built(FedAvg, data, backend=backend, batch_size=BATCH, lr=RATE, weight_decay=0.0)
    losses.append(float(fit(method, data, 2, bare=True).callback_metrics["train/loss"]))
    assert losses == pytest.approx(history, abs=1e-10)
    assert distance(method.network, network) < 1e-10
    test = data.tables["test"].examples(torch.arange(data.num_clients))
    params = method.received(test.ids)
    sums = method.engine.sums(test, params)
    scores = {"loss": method.engine.mean_losses(test, params), **data.task.scores(sums, test.counts)}
    for client in range(data.num_clients):
        inputs, targets = samples_of(test, client)
        expected = mean_loss(network, inputs, targets, loss_of).item()
        assert scores["loss"][client].item() == pytest.approx(expected, abs=1e-10)
        score = scores[data.task.score.name][client].item()
        assert score == pytest.approx(score_of(network(inputs), targets), abs=1e-10, nan_ok=True)


def test_a_single_label_is_the_logistic_loss_bit_for_bit(ragged_data, fit):
    class OneLabel(ragged_data):
        task = MultiLabel().sized(1)

        def load(self):
            return tuple(
                split._replace(targets=(split.targets == 1)[:, None].to(torch.int8)) for split in super().load()
            )

    class TwoClasses(ragged_data):
        task = Classification().sized(2)

        def load(self):
            return tuple(split._replace(targets=(split.targets == 1).long()) for split in super().load())

    methods, losses = [], []
    for kind in (OneLabel, TwoClasses):
        methods.append(built(FedAvg, kind(), network=LogisticRegression))
        losses.append(fit(methods[-1], kind(), 2, bare=True).callback_metrics["train/loss"])
    assert distance(*methods) == 0
    assert losses[0] == losses[1]


@pytest.mark.parametrize("column", [0, 2])
def test_a_run_that_knows_one_label_alone_is_a_run_on_this_label(column, ragged_data, fit):
    def run(labels, start=None):
        class Data(ragged_data):
            task = MultiLabel().sized(labels)

            def load(self):
                for split in super().load():
                    own = labels_of(split.inputs.flatten(1))[:, [column]]
                    hidden = torch.full((len(own), 4), -1, dtype=torch.int8)
                    hidden[:, [column]] = own
                    yield split._replace(targets=own if labels == 1 else hidden)

        method = built(FedAvg, Data(), network=LogisticRegression, weight_decay=0.0)
        if start is not None:
            method.network.load_state_dict({name: tensor[[column]] for name, tensor in start.items()})
        before = {name: tensor.clone() for name, tensor in method.network.state_dict().items()}
        return method, before, fit(method, Data(), 2).callback_metrics

    of_four, start, metrics = run(4)
    of_one, _, expected = run(1, start)
    for name, tensor in of_one.network.state_dict().items():
        after = of_four.network.state_dict()[name]
        assert distance({"": after[[column]]}, {"": tensor}) < 1e-14
        others = [label for label in range(4) if label != column]
        assert distance({"": after[others]}, {"": start[name][others]}) < 1e-15, "nothing is known of them"
    for tag in ("train/loss", "test/macro_f1", "test/finetuned/macro_f1/worst"):
        assert float(metrics[tag]) == pytest.approx(float(expected[tag]), abs=1e-7)


def test_the_logistic_loss_of_the_loop_is_that_of_the_formula():
    loss, amount = loss_of_labels(torch.tensor([2.0, -1.0, 9.0]), torch.tensor([1, 0, -1], dtype=torch.int8))
    assert (loss.item(), amount) == (pytest.approx((log(1 + exp(-2)) + log(1 + exp(-1))) / 2), 1)
