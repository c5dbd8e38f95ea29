"""Next tokens: losses and scores against torch's and counts, and FedAvg against a plain loop."""

from math import e, exp, log

import numpy as np
import pytest
import torch
from fakes.cohorts import Identity, deal_out, params_of, samples_of
from fakes.loops import plain_rounds
from fakes.methods import built, distance, tensors
from fakes.tasks import LENGTH, VOCABULARY, sequences, token_data
from plain_methods import PlainLoop
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

from pfl_lightning.client import Engine, Phase, Samples
from pfl_lightning.methods import FedAvg
from pfl_lightning.models import CharGRU, Network
from pfl_lightning.models.text import OneHot
from pfl_lightning.tasks import AMOUNT, NO_TARGET, NextToken

TASK = NextToken().sized(VOCABULARY)


def summed(outputs, targets):
    """Sums over the samples of one client."""
    values = {"loss": TASK.losses(outputs, targets), AMOUNT: TASK.amounts(targets)}
    return {name: each.sum(0, keepdim=True) for name, each in {**values, **TASK.statistics(outputs, targets)}.items()}


def scored(outputs, targets):
    """The scores of a client with these samples."""
    scores = TASK.scores(summed(outputs, targets), torch.tensor([len(targets)]))
    return {name: value.item() for name, value in scores.items()}


def test_a_loss_is_the_sum_of_torchs_over_the_targets_and_its_gradient_prediction_minus_target():
    _, targets = sequences(9)
    outputs = torch.randn(9, LENGTH, VOCABULARY).requires_grad_()
    losses = TASK.losses(outputs, targets)
    kept = targets != NO_TARGET
    for row in range(9):
        expected = sum(
            (nn.CrossEntropyLoss()(outputs[row, step], targets[row, step]) for step in kept[row].nonzero()[:, 0]),
            torch.zeros(()),
        )
        torch.testing.assert_close(losses[row], expected, rtol=0, atol=1e-13)
    (slopes,) = torch.autograd.grad(losses.sum(), outputs)
    expected = (outputs.softmax(-1) - F.one_hot(targets.clamp(min=0), VOCABULARY)) * kept[..., None]
    torch.testing.assert_close(slopes, expected, rtol=0, atol=1e-14)
    assert TASK.amounts(targets).tolist() == kept.sum(1).tolist()
    assert losses[0] == 0
    assert TASK.amounts(targets)[0] == 0


def test_uniform_outputs_have_the_perplexity_of_the_vocabulary():
    _, targets = sequences(9)
    assert scored(torch.zeros(9, LENGTH, VOCABULARY), targets)["perplexity"] == pytest.approx(VOCABULARY, abs=1e-12)


def test_scores_are_those_of_all_targets_and_statistics_add_up():
    _, targets = sequences(12)
    outputs = 3 * torch.randn(12, LENGTH, VOCABULARY)
    kept = targets != NO_TARGET
    scores = scored(outputs, targets)
    expected = F.cross_entropy(outputs[kept], targets[kept]).exp()
    assert scores["perplexity"] == pytest.approx(float(expected), abs=1e-10)
    right = (outputs[kept].argmax(-1) == targets[kept]).double().mean()
    assert scores["accuracy"] == pytest.approx(float(right), abs=1e-14)
    whole, first, second = (summed(outputs[rows], targets[rows]) for rows in (slice(None), slice(5), slice(5, None)))
    torch.testing.assert_close({name: first[name] + second[name] for name in first}, whole, rtol=0, atol=1e-12)


def test_perplexity_is_capped_and_undefined_without_targets():
    targets = torch.tensor([[1, NO_TARGET]])
    outputs = torch.zeros(1, 2, VOCABULARY)
    outputs[0, 0, 0] = 1e4
    assert scored(outputs, targets) == {"perplexity": pytest.approx(exp(20)), "accuracy": 0}
    assert str(scored(outputs, torch.full((1, 2), NO_TARGET))) == str({"perplexity": torch.nan, "accuracy": torch.nan})


@pytest.mark.parametrize(
    ("targets", "line"),
    [
        (torch.tensor([0, 1]), r"targets must have the shape \[samples, length\], got \[2\]"),
        (torch.zeros(2, 3), "targets must be whole numbers, got torch.float32"),
        (torch.tensor([[0, 5]]), "targets must be whole numbers from 0 to 4, or -100 for none, got 5 in sample 0"),
        (torch.tensor([[0], [-1]]), "targets must be whole numbers from 0 to 4, or -100 for none, got -1 in sample 1"),
        (torch.full((2, 3), NO_TARGET), "targets must have a token, got -100 alone"),
    ],
)
def test_targets_of_another_task_are_refused(targets, line):
    with pytest.raises(ValueError, match=f"^{line}$"):
        TASK.check(targets)


class PlainNextToken(PlainLoop):
    """FedAvg whose batches have the mean loss of their targets; it keeps the sums of both in a client's last round."""

    def loss_of(self, model, client):
        vars(self).setdefault("sums", {})[client] = [0.0, 0]

        def loss(inputs, targets):
            kept = targets != -100
            classes = targets[kept].long()
            total = F.cross_entropy(model(inputs)[kept], classes, reduction="sum")
            self.sums[client][0] += total.item()
            self.sums[client][1] += len(classes)
            return total / max(1, len(classes))

        return loss


def test_fedavg_follows_a_plain_loop_over_two_rounds(ragged_data, fit, backend):
    data = token_data(ragged_data)(val_fraction=0.0)
    method = built(FedAvg, data, weight_decay=0.0, network=data.network, lr=0.5, backend=backend)
    start = tensors(method.network)
    plain = plain_rounds(PlainNextToken, method, data, 2, lr=0.5)
    trainer = fit(method, data, 2, bare=True)
    assert distance(start, plain.network) > 1e-2
    assert distance(plain.network, method.network) < 1e-10
    losses = [total / max(tokens, 1) for total, tokens in plain.sums.values()]
    counts = [plain.count(client) for client in plain.sums]
    assert float(trainer.callback_metrics["train/loss"]) == pytest.approx(np.average(losses, weights=counts), abs=1e-10)
    table = data.tables["test"]
    everyone = table.examples(torch.arange(6))
    sums = method.engine.sums(everyone, method.received(everyone.ids))
    found = TASK.scores(sums, table.counts)["perplexity"]
    for client in range(6):
        inputs, targets = samples_of(table.examples(torch.tensor([client])))
        kept = targets != NO_TARGET
        likelihood = plain.network(inputs).softmax(-1)[kept].gather(-1, targets[kept][:, None].long())
        assert found[client] == pytest.approx(1 / likelihood.log().mean().exp().item(), abs=1e-10, nan_ok=True)


def table_network():
    return Network({"onehot": OneHot(VOCABULARY), "fc": nn.Linear(VOCABULARY, VOCABULARY)})


def one_client(inputs, targets):
    return deal_out(Samples(inputs, targets, Identity()), (len(inputs),))


def test_a_table_learns_the_entropy_of_the_bigram_counts(backend):
    inputs, targets = sequences(60)
    examples = one_client(inputs, targets)
    network = table_network()
    params = params_of(network, clients=1)
    phase = Phase(frozenset(params.tree), epochs=800, batch_size=60, lr=2.0)
    trained, _ = Engine(network, backend, task=TASK).train(examples, params, phase, (0,))
    sums = Engine(network, backend, task=TASK).sums(examples, trained)
    counts = torch.zeros(VOCABULARY, VOCABULARY)
    for token, target in zip(inputs.flatten().tolist(), targets.flatten().tolist(), strict=True):
        if target != NO_TARGET:
            counts[token, target] += 1
    entropy = -(counts * (counts / counts.sum(1, keepdim=True)).log()).sum() / counts.sum()
    assert counts.min() > 0
    assert entropy < log(VOCABULARY) - 0.02
    found = TASK.scores(sums, examples.counts)["perplexity"].item()
    assert found == pytest.approx(e ** float(entropy), abs=1e-6)


def test_a_batch_without_targets_changes_nothing(backend):
    inputs, targets = sequences(4)
    network = table_network()
    params = params_of(network, clients=1)
    phase = Phase(frozenset(params.tree), epochs=2, batch_size=2, lr=1.0, momentum=0.5)
    engine = Engine(network, backend, task=TASK)
    trained, losses = engine.train(one_client(inputs, torch.full_like(targets, NO_TARGET)), params, phase, (0,))
    assert distance(trained.own, params.tree) == 0
    assert losses.tolist() == [0]


def test_a_character_network_sees_nothing_that_comes_later():
    network = CharGRU((LENGTH, VOCABULARY), VOCABULARY, hidden=7, output_shape=TASK.output_shape((LENGTH, VOCABULARY)))
    tokens = torch.randint(VOCABULARY, (3, LENGTH))
    outputs = network(tokens)
    assert outputs.shape == (3, LENGTH, VOCABULARY)
    for step in range(1, LENGTH):
        changed = tokens.clone()
        changed[:, step:] = (tokens[:, step:] + 1) % VOCABULARY
        others = network(changed)
        assert torch.equal(others[:, :step], outputs[:, :step])
        assert (others[:, step:] != outputs[:, step:]).any(-1).all()
        assert torch.equal(network(F.pad(tokens[:, :step], (0, LENGTH - step)))[:, :step], outputs[:, :step])
    assert torch.equal(network(F.pad(tokens, (0, 4)))[:, :LENGTH], outputs)
    last = CharGRU((LENGTH, VOCABULARY), VOCABULARY, hidden=7)
    torch.testing.assert_close(functional_call(last, dict(network.state_dict()), tokens), outputs[:, -1])
