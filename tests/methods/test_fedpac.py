from functools import partial
from itertools import combinations

import pytest
import torch
from fakes.loops import cross_entropy, descended, features, near_prototypes, participants, samples_of
from fakes.methods import built, distance, row, rows, tensors, weighted_mean

from pfl_lightning.errors import PflError
from pfl_lightning.methods import FedPAC, FedRep

pytestmark = pytest.mark.usefixtures("float64")

HEAD = ("fc3.weight", "fc3.bias")


def best_mix(index, means, variances):
    """The weights of the clients' heads for one of them, by trying which are not 0."""
    found = []
    for count in range(1, len(means) + 1):
        for chosen in map(list, combinations(range(len(means)), count)):
            gaps = torch.stack([(means[index] - means[j]).flatten() for j in chosen])
            noise = torch.tensor([variances[j] + 1e-14 for j in chosen])  # that of a client with one sample is 0
            form = gaps @ gaps.T + noise.diag()
            some = torch.linalg.solve(form, torch.ones(count))
            some = some / some.sum()
            if (some >= 0).all():
                weights = torch.zeros(len(means))
                weights[chosen] = some
                found.append((float(some @ form @ some), weights))
    return min(found, key=lambda pair: pair[0])[1]


def test_a_run_that_diverges_ends_with_a_line(train):
    with pytest.raises(PflError, match="FedPAC diverged by round"):
        train(FedPAC, 3, lr=1e30)


def test_three_rounds_of_half_of_the_clients_are_a_plain_loop(pool_of, fit):
    data = pool_of(3)
    method = built(partial(FedPAC, strength=0.7, head_epochs=2, head_lr=0.2), data, weight_decay=0.0, momentum=0.0)
    start = tensors(method.network)
    body, heads = dict(start), [{name: start[name] for name in HEAD}] * 6
    prototypes, mixes = {}, []

    def trained(model, names, own, key, known, **rule):
        def loss(moving, inputs, targets):
            tensors = {**model, **moving}
            near = near_prototypes(tensors, inputs, targets, known)
            return cross_entropy(method.network, tensors, inputs, targets) + 0.7 * near

        return {**model, **descended({name: model[name] for name in names}, loss, own, key, **rule)}

    fit(method, data, 3, bare=True)
    for index in range(3):
        clients, seen, models, means, variances = participants(data, index), [], [], [], []
        for client, own in clients:
            model, (inputs, targets) = {**body, **heads[client]}, samples_of(own)
            z, n = features(model, inputs), len(targets)
            means.append(torch.stack([z[targets == y].sum(0) / n for y in range(3)]))
            variances.append(float((z.square().sum(1).mean() - means[-1].square().sum()) / n))
            key = (1, "train", index)
            model = trained(model, HEAD, own, (*key, "head"), {}, lr=0.2, epochs=2)
            model = trained(model, set(model) - {*HEAD}, own, (*key, "body"), prototypes)
            models.append(model)
            seen += zip(features(model, inputs), targets.tolist(), strict=True)
        for place, (client, _) in enumerate(clients):
            mixes.append(best_mix(place, means, variances))
            heads[client] = {
                name: sum(a * model[name] for a, model in zip(mixes[-1], models, strict=True)) for name in HEAD
            }
        body = weighted_mean(models, data.make_round(index).examples.counts)
        known = {label for _, label in seen}
        prototypes |= {y: torch.stack([z for z, label in seen if label == y]).mean(0) for y in known}
    assert min(float(weights.max()) for weights in mixes) < 0.8, "heads are mixed"
    for name in method.shared:
        assert (method.network.state_dict()[name] - body[name]).abs().max() < 1e-9
    for client, head in enumerate(heads):
        assert distance(head, row(method, client)) < 1e-9
    for label, prototype in prototypes.items():
        assert (method.server.tree["prototypes"][label] - prototype).abs().max() < 1e-9


def test_one_client_a_round_without_the_term_is_fedrep(pool_of, train):
    def run(make):
        return train(make, 3, pool_of(1), batch_size=99, momentum=0.0)

    pac, rep = run(partial(FedPAC, strength=0.0, head_epochs=2)), run(partial(FedRep, head_epochs=2))
    assert distance(pac.network, rep.network) < 1e-12
    assert distance(rows(rep), rows(pac)) < 1e-12
