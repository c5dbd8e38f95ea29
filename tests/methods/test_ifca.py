from functools import partial

import pytest
import torch
from fakes.loops import cross_entropy, participants, samples_of, trained
from fakes.methods import built, distance, make_method, models_of, weighted_mean
from fakes.quadratics import Quadratics, built_at, network, point

from pfl_lightning.errors import PflError
from pfl_lightning.methods import IFCA
from pfl_lightning.models import LogisticRegression

pytestmark = pytest.mark.usefixtures("float64")


def test_four_rounds_of_half_of_the_clients_are_a_plain_loop(aggregator, pool_of, fit):
    data = pool_of(3)
    method = built(partial(IFCA, groups=3), data, epochs=2, weight_decay=0.0, aggregator=aggregator)
    models = models_of(method)
    fit(method, data, 4, bare=True)
    sizes = set()
    for index in range(4):
        members = [[] for _ in models]
        for _, own in participants(data, index):
            losses = [cross_entropy(method.network, model, *samples_of(own)) for model in models]
            group = losses.index(min(losses))
            model, _ = trained(method.network, models[group], own, (1, "train", index, "all"), epochs=2)
            members[group].append((model, int(own.counts)))
        sizes.add(tuple(map(len, members)))
        for group, found in enumerate(members):
            if found:
                every, counts = zip(*found, strict=True)
                models[group] = weighted_mean(every, torch.tensor(counts))
    assert any(max(each) == 2 for each in sizes)
    assert any(0 in each for each in sizes)
    for found, model in zip(models_of(method), models, strict=True):
        assert distance(model, found) < (1e-10 if aggregator is None else 1e-9)


def test_each_group_ends_at_the_mean_of_its_own_clients(fit):
    data = Quadratics([[0.0], [0.2], [1.0], [1.4]])
    make = partial(IFCA, network=network, lr=0.5, epochs=9, batch_size=9, weight_decay=0.0)
    method = built_at(make_method(make), data, [0.5])
    method.server.tree["1.fc.weight"].fill_(0.9)
    fit(method, data, 9, bare=True)
    assert (point(method)[0], method.server.tree["1.fc.weight"].item()) == pytest.approx((0.1, 1.2), abs=1e-3)
    examples = data.tables["train"].examples(torch.arange(4))
    chosen, _ = method.grouped(examples, method.received(examples.ids))
    assert chosen.tolist() == (examples.targets(examples.positions)[:, 0] > 0.5).tolist()


def test_more_groups_than_clients_are_one_line(ragged_data):
    with pytest.raises(PflError, match=r"^model.groups: 7 is not possible with 6 clients; allowed: 1 to 6$"):
        built(partial(IFCA, groups=7), ragged_data())


def test_a_network_that_always_begins_with_the_same_head_is_one_line(ragged_data, fit):
    zeros = partial(LogisticRegression, bias=False)
    with pytest.raises(PflError, match=r"^model.network: LogisticRegression always begins with the same head, and so "):
        fit(IFCA(groups=2, network=zeros), ragged_data(), 1, bare=True)
    fit(IFCA(groups=1, network=zeros), ragged_data(), 1, bare=True)
