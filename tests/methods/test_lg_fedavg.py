import torch

from pfl_lightning.methods import FedAvg, LGFedAvg


def test_the_first_round_shares_the_head_that_fedavg_finds(train):
    # all clients start from one model and train everything at once: only what is averaged differs
    local, common = (train(make, 1, momentum=0.0) for make in (LGFedAvg, FedAvg))
    assert local.shared == {"fc2.weight", "fc2.bias", "fc3.weight", "fc3.bias"}
    assert set(local.clients.names) == {"fc1.weight", "fc1.bias"}
    for name in local.shared:
        assert torch.equal(local.network.state_dict()[name], common.network.state_dict()[name])
    assert not torch.equal(local.clients.stack("fc1.weight")[0], common.network.state_dict()["fc1.weight"])
