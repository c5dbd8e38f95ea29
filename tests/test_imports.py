import pytest
from torch import nn

from pfl_lightning.imports import makes_network


def network() -> nn.Sequential:
    """A network."""


def networks() -> list[nn.Module]:
    """No network."""


@pytest.mark.parametrize(("made", "expected"), [(network, True), (networks, False), (nn.Linear, False), (len, False)])
def test_a_function_makes_a_network_if_it_says_so(made, expected):
    assert makes_network(made) is expected
