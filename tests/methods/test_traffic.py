"""What clients send and receive in a round, counted in numbers."""

from functools import partial

import pytest

from pfl_lightning import methods

# of the network's three layers, of which the last one is the head: 256 inputs, 5 features, 3 classes
BODY, HEAD = (256 * 8 + 8) + (8 * 5 + 5), 5 * 3 + 3
MODEL, LOSS, PROTOTYPES = BODY + HEAD, 1, 3 * 5 + 3


@pytest.mark.parametrize(
    ("make", "rounds", "sent", "received"),
    [
        (methods.APPLE, 1, MODEL, 5 * MODEL),
        (methods.CFL, 1, MODEL, MODEL),
        (methods.FedDBE, 1, MODEL + LOSS + 5, MODEL + 5),
        (methods.FedDBE, 3, MODEL + LOSS, MODEL + 5),  # the consensus is that of the first round
        (methods.FedEM, 1, 3 * MODEL + LOSS + 3, 3 * MODEL + 3),
        (methods.FedPAC, 1, MODEL + LOSS + PROTOTYPES + 3 * 5 + 1, MODEL + PROTOTYPES),
        (methods.FedProto, 1, PROTOTYPES + LOSS, PROTOTYPES),
        (partial(methods.IFCA, groups=3), 1, 3 * MODEL + LOSS + 3, 3 * MODEL + 3),
        (methods.PFedFDA, 1, BODY + LOSS + PROTOTYPES + 5 * 5, BODY + PROTOTYPES + 5 * 5),
        (methods.PFedHN, 1, MODEL + LOSS, MODEL),
        (methods.SCAFFOLD, 1, 2 * MODEL + LOSS, 2 * MODEL),
    ],
)
def test_a_client_sends_and_receives_what_the_rule_says(make, rounds, sent, received, float64, train):
    ledger = train(make, rounds).accounting.ledger
    assert (ledger.up, ledger.down) == (6 * 64 * sent, 6 * 64 * received)
