import torch
from fakes.methods import built, tensors
from reproduction.details.variants import FullBatchFedAvg

from pfl_lightning.methods import FedAvg


def test_only_full_mini_batches_train(train, ragged_data):
    start = tensors(built(FullBatchFedAvg, ragged_data()).network)

    def moved(make, size):
        after = tensors(train(make, 1, batch_size=size, weight_decay=0.0).network)
        return {name: tensor - start[name] for name, tensor in after.items()}

    usual = moved(FedAvg, 1)
    for name, change in moved(FullBatchFedAvg, 1).items():
        torch.testing.assert_close(change, usual[name])
    for change in moved(FullBatchFedAvg, 1000).values():  # nobody has so many samples
        torch.testing.assert_close(change, torch.zeros_like(change))
