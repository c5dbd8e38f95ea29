"""The heads of all clients: as many as there are clients, each with what ``Method.client`` has."""

from functools import partial

import pytest
import torch
from fakes.methods import make_method, rows
from torch import nn

from pfl_lightning.client.layers import part
from pfl_lightning.errors import PflError
from pfl_lightning.methods import DPSGD, DePRL, FedAvg, FedMac, FedPer, FedRep, LGFedAvg
from pfl_lightning.models import MLP

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize("method", [FedRep, FedPer, DePRL, DPSGD, partial(FedRep, head=2)])
def test_the_head_of_a_client_predicts_from_features_as_its_model_does(method, train, ragged_data):
    trained = train(partial(method, network=partial(MLP, hidden=(8, 5))), 2)
    heads = trained.heads
    inputs = torch.randn(5, *ragged_data().input_shape)
    assert len(heads) == len(list(heads)) == trained.num_clients
    outputs = []
    for client, head in enumerate(heads):
        model = trained.client(client)
        features = part(model, 0, trained.engine.body_layers())(inputs)
        outputs.append(head(features))
        assert isinstance(head, nn.Module)
        assert not head.training
        assert outputs[-1].equal(model(inputs))
    assert not outputs[0].equal(outputs[1]), "clients have heads of their own"
    assert heads[-1](features).equal(outputs[-1])


def test_changing_a_head_changes_no_client(train):
    method = train(FedRep, 1)
    before = rows(method)
    for parameter in method.heads[2].parameters():
        parameter.data.fill_(7.0)
    assert all(stack.equal(before[name]) for name, stack in rows(method).items())
    assert max(float(parameter.detach().max()) for parameter in method.heads[2].parameters()) < 7


def test_an_index_is_that_of_a_client(train):
    heads = train(FedRep, 1).heads
    with pytest.raises(IndexError):
        heads[len(heads)]
    for wrong in ("1", 1.5, slice(2)):
        with pytest.raises(TypeError):
            heads[wrong]
    with pytest.raises(TypeError, match="item assignment"):
        heads[0] = heads[1]


@pytest.mark.parametrize("kind", [FedAvg, FedMac, LGFedAvg])
def test_methods_whose_clients_keep_no_heads_get_one_line(kind, train):
    with pytest.raises(PflError, match=rf"^heads: clients of {kind.__name__} keep no heads; allowed: [^\n]*$"):
        train(kind, 1).heads  # noqa: B018


def test_a_method_without_clients_has_no_heads():
    with pytest.raises(PflError, match=r"^client: FedRep has no clients yet; allowed: after training, or load_method$"):
        make_method(FedRep).heads  # noqa: B018
