import pytest
import torch

from pfl_lightning.system import Constant, Hinge, Polynomial


@pytest.mark.parametrize(
    ("staleness", "shares"),
    [
        (Constant(), [1, 1, 1, 1]),
        (Polynomial(), [1, 0.5, 1 / 3, 0.25]),  # roots of 1, 4, 9, 16
        (Polynomial(2.0), [1, 1 / 16, 1 / 81, 1 / 256]),
        (Polynomial(0.0), [1, 1, 1, 1]),
        (Hinge(), [1, 1, 1 / 41, 1 / 111]),  # 4 are free
        (Hinge(slope=0.5, free=0), [1, 0.4, 0.2, 1 / 8.5]),
    ],
)
def test_shares_after_0_3_8_and_15_updates(staleness, shares):
    found = staleness(torch.tensor([0.0, 3.0, 8.0, 15.0], dtype=torch.float64))
    torch.testing.assert_close(found, torch.tensor(shares, dtype=torch.float64), rtol=1e-15, atol=0)
