import numpy as np
import pytest
from fakes.panels import failed, passed
from reproduction.claims import FAILS, HOLDS
from reproduction.deprl import speedup
from reproduction.deprl.speedup import CLIENTS, METHODS, Result


def results(convergence=lambda clients: 100 / clients, target=lambda clients: 80 / clients):
    """Times by number of clients, the same for all methods."""
    return {
        (method, n): Result(np.array([70.0, 72.0]), np.array([convergence(n)] * 2), np.array([target(n)] * 2))
        for n in CLIENTS
        for method in METHODS
    }


def test_times_have_to_fall_with_every_number_of_clients():
    assert failed(speedup.times_fall(results())) == []
    slower = results(convergence=lambda clients: 3.0 if clients == 32 else 2.0 if clients == 16 else 100 / clients)
    claims = list(speedup.times_fall(slower))
    assert failed(claims) == ["FedRep", "D-PSGD", "DisPFL", "DePRL"]
    assert all("convergence time" in claim.claim for claim in claims if claim.verdict != HOLDS)


def test_a_time_that_a_seed_never_reaches_fails():
    found = results()
    found["deprl", 32] = found["deprl", 32]._replace(target=np.array([1.0, np.nan]))
    (claim,) = [claim for claim in speedup.times_fall(found) if claim.verdict != HOLDS]
    assert claim.claim.startswith("DePRL: time to the accuracy")
    assert claim.measured.endswith("1.00 (never for 1 of 2 seeds)")
    assert speedup.nearly_linear(found).verdict == FAILS


@pytest.mark.parametrize(("last", "expected"), [(20 / 5.7, True), (20 / 5.5, False)])
def test_eight_times_as_many_clients_have_to_be_at_least_5_6_times_as_fast(last, expected):
    found = results(target=lambda clients: last if clients == 32 else 80 / clients)
    assert passed([speedup.nearly_linear(found)]) == [expected]


def test_the_table_has_the_papers_numbers_where_there_are_some(place):
    text = speedup.speedup_table(place("harbox", seeds=(1, 2)), results())
    assert all(cell in text for cell in ("71.00 ± 1.41 (95.98)", "25.00 ± 0.00 (319.3)", "20.00 ± 0.00 (55.2)"))
    assert "(" not in speedup.speedup_table(place("fashion_mnist"), results()).replace("(%)", "")


def test_the_picture_shows_speed_ups_beside_the_ideal():
    for axes in speedup.speedup_figure(results()).axes:
        for line in axes.lines:
            np.testing.assert_allclose(line.get_ydata(), [1, 2, 4, 8])
