import torch

from pfl_lightning.system import Ledger, model_bits
from pfl_lightning.system.ledger import dense_bits, sparse_bits

PARAMETERS = 784 * 100 + 100 + 100 * 10 + 10  # of the network whose bits FedMac's Figure 6 shows


def test_the_formula_gives_the_numbers_of_the_paper():
    half, lowest = PARAMETERS // 2, 39357  # densities of 50 and 49.5 %
    assert dense_bits(PARAMETERS) == 5_088_640
    assert sparse_bits(PARAMETERS, half) / dense_bits(PARAMETERS) == 0.5234375
    assert sparse_bits(PARAMETERS, lowest) == 2_638_511
    assert sparse_bits(PARAMETERS, PARAMETERS) - dense_bits(PARAMETERS) == PARAMETERS


def test_models_have_the_bits_of_their_entries_and_values():
    models = {"w": torch.tensor([[[1.0, 0.0]], [[0.0, 0.0]]]), "b": torch.tensor([[0.0], [3.0]])}
    assert model_bits(models, pruned=False) == 6 * 64
    assert model_bits(models, pruned=True) == 2 * 64 + 4 + 6


def test_rounds_add_up_but_both_directions_are_those_of_the_last():
    ledger = Ledger()
    ledger.record(up=10, down=7, paper=2.5)
    ledger.record(up=1, down=2, paper=0.5)
    assert ledger.scalars() == {"bits/up": 1, "bits/down": 2, "bits/total": 20, "bits/paper": 3.0, "samples/total": 0}
