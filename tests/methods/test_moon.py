from functools import partial

import pytest
from fakes.loops import plain_rounds
from fakes.methods import built, distance, row
from plain_methods import PlainMoon

from pfl_lightning.methods import MOON

pytestmark = pytest.mark.usefixtures("float64")


def test_two_rounds_are_a_plain_loop_with_features_of_three_models(backend, ragged_data, fit):
    data = ragged_data(val_fraction=0.0)
    method = built(partial(MOON, mu=2.0, temperature=0.3), data, weight_decay=0.0, epochs=2, backend=backend)
    plain = plain_rounds(PlainMoon, method, data, 2, mu=2.0, temperature=0.3, epochs=2)
    fit(method, data, 2, bare=True)
    assert distance(plain.network, method.network) < 1e-10
    for client, state in plain.states.items():
        assert distance(state, row(method, client)) < 1e-10
