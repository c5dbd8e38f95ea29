import numpy as np
import pytest
from reproduction.claims import FAILS, HOLDS, INCONCLUSIVE, OURS
from reproduction.kinds import claims_of, row_of
from reproduction.rows import verdicts

HIGH, LOW = np.array([2.0, 4.0]), np.array([1.0, 3.0])
TEXTS = {"claim": "c", "expected": "e"}


@pytest.fixture
def decide(results):
    """The claims of a row about made-up values."""
    return lambda row, values, **settings: [claim for _, claim in claims_of([TEXTS | row], results(values, **settings))]


@pytest.mark.parametrize(
    ("row", "verdict", "measured"),
    [
        ({"kind": "falls", "of": ["high", "low"]}, HOLDS, "3.00 ± 1.41, 2.00 ± 1.41"),
        ({"kind": "falls", "of": ["low", "high"]}, FAILS, "2.00 ± 1.41, 3.00 ± 1.41"),
        ({"kind": "falls", "of": ["low", "low"]}, FAILS, "2.00 ± 1.41, 2.00 ± 1.41"),
        ({"kind": "rises", "of": ["low", "high"]}, HOLDS, "2.00 ± 1.41, 3.00 ± 1.41"),
        ({"kind": "rises", "of": ["low", "never"]}, FAILS, "2.00 ± 1.41, 1.00 (never for 1 of 2 seeds)"),
        ({"kind": "rises", "of": ["low", "high", "low"], "until": 2, "digits": 0}, HOLDS, "2 ± 1, 3 ± 1, 2 ± 1"),
        ({"kind": "rises", "of": ["low", "high"], "below": 99}, HOLDS, "2.00 ± 1.41, 3.00 ± 1.41"),
        ({"kind": "rises", "of": ["low", "high"], "below": 2}, INCONCLUSIVE, "2.00 ± 1.41, 3.00 ± 1.41"),
        ({"kind": "above", "left": "high", "right": "low"}, HOLDS, "3.00 ± 1.41, 2.00 ± 1.41"),
        ({"kind": "above", "left": "low", "right": "high"}, FAILS, "2.00 ± 1.41, 3.00 ± 1.41"),
        ({"kind": "above", "left": "low", "right": "high", "margin": 1.5, "shown": "gap"}, HOLDS, "-1.00 ± 0.00"),
        ({"kind": "above", "left": "low", "right": "high", "margin": "low", "shown": "left"},
         INCONCLUSIVE, "2.00 ± 1.41"),
        ({"kind": "above", "left": "high", "right": ["low", "high"]}, FAILS, "3.00 ± 1.41, 2.00 ± 1.41, 3.00 ± 1.41"),
        ({"kind": "above", "left": "high", "right": ["low", "high"], "any": True, "shown": "gap"},
         HOLDS, "1.00 ± 0.00, 0.00 ± 0.00"),
        ({"kind": "below", "left": "low", "right": 99, "shown": "left"}, HOLDS, "2.00 ± 1.41"),
        ({"kind": "below", "left": "high", "right": "low"}, FAILS, "3.00 ± 1.41, 2.00 ± 1.41"),
        ({"kind": "within", "left": "high", "right": "low", "band": 1.1, "shown": "gap"}, HOLDS, "1.00 ± 0.00"),
        ({"kind": "within", "left": "low", "right": "high", "band": 0.9, "shown": "left"}, FAILS, "2.00 ± 1.41"),
        ({"kind": "below", "left": "low / high", "right": 9, "shown": "left"}, HOLDS, "0.62 ± 0.18"),
        ({"kind": "below", "left": {"of": "high", "minus": "low"}, "right": 2, "shown": "left"}, HOLDS, "1.00 ± 0.00"),
        ({"kind": "above", "left": "high", "right": "low", "lost_from": 2.5}, HOLDS, "3.00 ± 1.41 (lost), 2.00 ± 1.41"),
        ({"kind": "above", "left": "high", "right": "low", "labels": ["a", 1], "between": "; "},
         HOLDS, "a: 3.00 ± 1.41; 1: 2.00 ± 1.41"),
        ({"kind": "near", "of": ["high", "low"], "wanted": [3, "low"], "bands": [99, 0.1]}, HOLDS,
         "3.00 ± 1.41, 2.00 ± 1.41"),
        ({"kind": "near", "of": ["high", "low"], "wanted": [3, "high"], "bands": [99, 0.1]}, FAILS,
         "3.00 ± 1.41, 2.00 ± 1.41"),
        ({"kind": "near", "of": ["fact"], "wanted": [7.0], "bands": [0.6]}, HOLDS, "7.50"),
        ({"kind": "near", "of": ["fact"], "wanted": [7.0], "bands": [0.4]}, FAILS, "7.50"),
        ({"kind": "above", "left": "high", "right": "low", "shown": ["low", "low"]}, HOLDS, "2.00 ± 1.41, 2.00 ± 1.41"),
    ],
    ids=str,
)  # fmt: skip
def test_what_a_row_compares_and_shows(row, verdict, measured, decide):
    (claim,) = decide(row, {"high": HIGH, "low": LOW, "never": np.array([1.0, np.nan])}, numbers={"fact": 7.5})
    assert (claim.word, claim.measured) == (verdict, measured)


def test_a_row_is_repeated_and_conditions_leave_it_out(decide):
    row = {"kind": "above", "left": "{name}", "right": 0, "claim": "{name} at {scale}"}
    names = {"foreach": {"name": ["high", "low"]}}
    assert [claim.claim for claim in decide(row | names, {"high": HIGH, "low": LOW})] == [
        "high at small",
        "low at small",
    ]
    assert decide(row | names | {"if": {"scale": ["two_cores", "full"]}}, {}) == []
    assert decide(row | names | {"needs": ["FedRep"]}, {}) == []


def test_every_seed_is_compared_by_the_measure_of_its_row_or_its_series(decide):
    def value(measure, seconds=0):
        return {"final": 1.0, "seconds": 5.0 + seconds}[measure]

    left = {"of": "a", "measure": {"seconds": {"seconds": 3}}}
    (claim,) = decide({"kind": "above", "left": left, "right": "a", "measure": "seconds"}, {"a": value})
    assert claim.measured == "8.00 ± 0.00, 5.00 ± 0.00"
    (claim,) = decide({"kind": "above", "left": left, "right": "a"}, {"a": value})  # the paper's is final
    assert claim.measured == "8.00 ± 0.00, 1.00 ± 0.00"


def test_claims_stand_beside_the_same_numbers_of_the_paper_if_it_prints_all_of_them(decide):
    row, values = {"kind": "above", "left": "high", "right": "low"}, {"high": HIGH, "low": LOW}
    printed = {"high": 7.5, "low": "6.25 ± 0.5"}
    assert [claim.printed for claim in decide(row, values, printed=printed)] == ["7.50, 6.25"]
    assert [claim.printed for claim in decide(row, values, printed={"high": 7.5})] == [""]
    assert [claim.printed for claim in decide(row | {"printed": "0.52"}, values, printed=printed)] == ["0.52"]
    assert [claim.printed for claim in decide(row | {"ours": True}, values, printed=printed)] == [OURS]


def test_verdicts_are_counted_by_group(results):
    rows = [TEXTS | {"kind": "above", "left": "a", "right": right, "group": "g"} for right in (0, 50, 0)]
    rows += [TEXTS | {"kind": "above", "left": "a", "right": 0, "group": group} for group in ("h", "")]
    groups = list(claims_of(rows, results({"a": HIGH + 50})))
    assert verdicts(groups) == "- g: 2 holds, 1 inconclusive\n- h: 1 holds\n"


def test_a_row_that_is_a_text_stands_for_rows_of_the_paper(results):
    names = [
        "deprl,topology=Ring",
        "d-psgd,topology=Ring",
        "dispfl,topology=Ring",
        "fedavg",
        "fedrep",
        "ditto",
        "fedrod",
    ]
    values = {f"{name},alpha={alpha}": HIGH - (name != names[0]) for name in names for alpha in (0.1, 0.3, 0.5)}
    groups = list(claims_of(["best_on_the_ring"], results(values)))
    assert [(group, claim.word) for group, claim in groups] == [("DePRL above all others", HOLDS)] * 3


def test_a_claim_is_decided_by_numbers_alone():
    row = TEXTS | {"kind": "falls", "of": [2, 1]}
    assert row_of(row).compare(lambda series: np.array([float(series)] * 3)).word == HOLDS
