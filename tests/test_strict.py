import pytest
from torch import nn

from pfl_lightning.strict import is_class, makes_network


def networks() -> list[nn.Module]:
    """No network."""


@pytest.mark.parametrize(("value", "expected"), [(dict, True), (nn.Linear, True), (list[int], False), ("dict", False)])
def test_a_generic_type_is_no_class(value, expected):
    assert is_class(value) is expected


def test_a_function_that_makes_several_networks_makes_none():
    assert not makes_network(networks)
