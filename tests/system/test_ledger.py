from pfl_lightning.system import Ledger


def test_rounds_add_up_but_both_directions_are_those_of_the_last():
    ledger = Ledger()
    ledger.record(up=10, down=7, entries=2.5, values=2.0, samples=3)
    ledger.record(up=1, down=2, entries=0.5, values=0.5, samples=4)
    assert ledger.scalars() == {"bits/up": 1, "bits/down": 2, "bits/total": 20, "samples/total": 7}
    assert (ledger.entries, ledger.values) == (0.5, 0.5)
