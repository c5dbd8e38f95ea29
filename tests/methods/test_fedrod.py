from functools import partial
from itertools import chain
from math import exp, log

import pytest
import torch
from fakes.cohorts import examples_of
from fakes.loops import batches, cross_entropy, participants, samples_of
from fakes.methods import assert_weighted_mean, built, distance, make_method, tensors, weighted_mean
from torch.func import functional_call
from torch.nn import functional as F

from pfl_lightning.client import LocalTraining
from pfl_lightning.methods import FedAvg, FedRoD, Sparsity
from pfl_lightning.methods.fedrod import log_counts
from pfl_lightning.models import MLP, LogisticRegression
from pfl_lightning.tasks import Classification

pytestmark = pytest.mark.usefixtures("float64")


def holding(*labels):
    """Clients with these labels, the largest client first."""
    examples = examples_of(counts=[len(each) for each in labels], shape=(4,))
    examples.samples.targets = torch.tensor([label for each in labels for label in each])
    return examples


# Balanced softmax: a class with n samples and the logit z has a share in proportion to n e^z


@pytest.mark.parametrize(
    ("counts", "shares"),
    [((1, 3, 6), (0.3429766920, 0.3785222214, 0.2785010866)), ((4, 0, 6), (0.8312531743, 0.0, 0.1687468257))],
    ids=str,
)
def test_shares_are_in_proportion_to_the_samples_of_a_class(counts, shares):
    logits = torch.tensor([2.0, 1.0, 0.0])
    labels = torch.arange(3).repeat_interleave(torch.tensor(counts)).tolist()
    shifted = logits + log_counts(holding(labels, [0]), torch.zeros(3))
    assert shifted[0].softmax(0).tolist() == pytest.approx(shares, abs=1e-10)
    assert F.cross_entropy(shifted[0], torch.tensor(0)).item() == pytest.approx(-log(shares[0]), abs=1e-9)
    assert shifted[1].softmax(0).tolist() == pytest.approx([1, 0, 0], abs=1e-10)


def test_a_single_logit_is_that_of_the_second_class_against_the_first():
    shift = log_counts(holding([0, 1, 1, 1], [1, 1], [0]), torch.zeros(1))
    # of e^.4 * 3 against 1
    assert (0.4 + shift)[0].sigmoid().item() == pytest.approx(3 * exp(0.4) / (1 + 3 * exp(0.4)), abs=1e-12)
    assert (0.4 + shift)[1:, 0].sigmoid().tolist() == pytest.approx([1, 0], abs=1e-12)


def test_two_classes_with_one_output_follow_the_gradient_of_the_balanced_loss():
    method = FedRoD(network=LogisticRegression, local=LocalTraining(batch_size=10, lr=0.1, epochs=2, weight_decay=0.0))
    method.build((4,), Classification().sized(2), 2)
    examples = holding([0, 1, 1, 1], [1, 1])
    trained, _ = method.local_update(examples, method.received(examples.ids), (0,))
    start = {name: tensor.detach() for name, tensor in method.network.named_parameters()}
    for client, (negative, positive) in enumerate([(1, 3), (0, 2)]):
        x, y = examples.gather(examples.positions)[client], examples.targets(examples.positions)[client]
        x, y = x[: negative + positive], y[: negative + positive]
        weight, bias = start["fc.weight"][0], start["fc.bias"][0]
        for _ in range(2):
            odds = positive * (x @ weight + bias).exp()
            error = odds / (negative + odds) - y
            weight, bias = weight - 0.1 * error @ x / len(x), bias - 0.1 * error.mean()
        assert trained.own["fc.weight"][client, 0].tolist() == pytest.approx(weight.tolist(), abs=1e-12)
        assert trained.own["fc.bias"][client].item() == pytest.approx(bias.item(), abs=1e-12)


def test_with_as_many_samples_of_each_class_clients_train_what_they_do_in_fedavg():
    examples, trained = holding([0, 1, 2] * 4, [2, 1, 0], [0, 1, 2]), []
    for make in (FedAvg, FedRoD):
        method = make_method(make, network=partial(MLP, hidden=(8, 5)), batch_size=4, lr=0.1, momentum=0.5, epochs=3)
        method.build((4,), Classification().sized(3), 3)
        trained.append(method.local_update(examples, method.received(examples.ids), (0,))[0].own)
    assert distance(*trained) < 1e-12


# Rounds


@pytest.mark.parametrize("smoothed", [0.0, 0.02])
def test_rounds_are_a_plain_loop(smoothed, ragged_data, fit):
    """The balanced loss and the two heads as the rule states them, with every gradient by autograd."""
    data = ragged_data(val_fraction=0.0)
    sparsity = Sparsity(weight=smoothed, smoothing=0.1, floor="off")
    options = {"momentum": 0.5, "weight_decay": 0.01, "epochs": 2, "sparsity": sparsity}
    method = built(partial(FedRoD, personal_epochs=2), data, hidden=(40, 5), **options)
    start = tensors(method.network)
    fit(method, data, 2, bare=True)
    shared, examples = start, data.make_round(0).examples
    heads = [{name: torch.zeros_like(start[name]) for name in ("fc3.weight", "fc3.bias")} for _ in examples.ids]
    for index in range(2):
        cohort = zip(participants(data, 0), heads, strict=True)
        every = [by_hand(method.network, shared, head, own, index, smoothed) for (_, own), head in cohort]
        clients, heads = [client for client, _ in every], [head for _, head in every]
        shared = weighted_mean(clients, examples.counts)
    assert_weighted_mean(method, start, clients, examples.counts)
    personal = dict(method.evaluate(examples, (0,)))["personal"]
    for row, head in enumerate(heads):
        for name, tensor in head.items():
            assert (personal.own[name][row] - (shared[name] + tensor)).abs().max() < 1e-10 * tensor.abs().max()
    assert any("dual" in choice for choice in method.engine.choices.values()) == (not smoothed)


def by_hand(network, shared, head, own, index, smoothed):
    """One client's model and personal head after a round."""
    log_share = samples_of(own)[1].bincount(minlength=3).log()  # -inf for a class without samples
    model, head = ({n: t.clone().requires_grad_() for n, t in tree.items()} for tree in (shared, head))

    def balanced(inputs, targets):
        return F.cross_entropy(functional_call(network, model, inputs) + log_share, targets) + extra(model)

    def plain(inputs, targets):
        both = {name: model[name].detach() + tensor for name, tensor in head.items()}
        return cross_entropy(network, {**model, **both}, inputs, targets) + extra(both)

    def extra(tree):
        ridge = sum(tensor.square().sum() for tensor in tree.values() if tensor.ndim > 1)
        return 0.005 * ridge + smoothed * sum((0.1 * (t / 0.1).cosh().log()).sum() for t in tree.values())

    for leaves, loss, part in ((model, balanced, "all"), (head, plain, "personal")):
        optimizer = torch.optim.SGD(leaves.values(), lr=0.1, momentum=0.5)
        for batch in chain(*batches(own, (1, "train", index, part), 2)):
            optimizer.zero_grad()
            loss(*batch).backward()
            optimizer.step()
    return tuple({name: tensor.detach() for name, tensor in tree.items()} for tree in (model, head))
