import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from pfl_lightning.client import Samples
from pfl_lightning.data.clients import ClientTable

SAMPLES = Samples(torch.arange(40.0)[:, None], torch.arange(40) % 3, lambda raw, bits=None: raw)


def table(counts):
    order = np.random.default_rng(0).permutation(40)
    parts = np.split(order[: sum(counts)], np.cumsum(counts)[:-1])
    return ClientTable(SAMPLES, parts), parts


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.data())
def test_examples_are_those_of_the_clients_in_their_order_and_padding_can_be_looked_up(counts, data):
    clients, parts = table(counts)
    ids = data.draw(st.lists(st.integers(0, len(counts) - 1), max_size=10))
    examples = clients.examples(torch.tensor(ids, dtype=torch.int64))
    assert len(clients) == len(counts)
    assert examples.ids.tolist() == ids
    assert examples.counts.tolist() == [counts[client] for client in ids]
    assert examples.index.shape == (len(ids), max((counts[client] for client in ids), default=0))
    places = torch.arange(examples.longest).expand(len(ids), -1)
    inputs, targets = examples.gather(places)[..., 0], examples.targets(places)
    for client, row, labels in zip(ids, inputs, targets, strict=True):
        assert row[: counts[client]].tolist() == parts[client].tolist()
        assert labels[: counts[client]].tolist() == (parts[client] % 3).tolist()
