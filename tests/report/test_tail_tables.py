from math import isnan, sqrt

import numpy as np
import pytest

from pfl_lightning.report import curves_of, error_markdown, error_rows, read_run

ERRORS = {1: [0.1, 0.2, 0.3, 0.6], 2: [0.1, 0.2, 0.3, 0.8]}  # of four clients, by seed
LESS_TAIL = {1: [0.2, 0.3, 0.4, 0.4], 2: [0.2, 0.3, 0.4, 0.5], 3: [0.0, 0.0, 0.0, 0.0]}


@pytest.fixture
def delta_fl(write_run):
    """Makes run folders of Delta-FL from errors by seed."""

    def make(conformity, errors, **settings):
        return [
            write_run(
                f"{conformity}-{seed}",
                {"global": [[1 - error for error in clients]]},
                "DeltaFL",
                seed=seed,
                model={"conformity": conformity},
                **settings,
            )
            for seed, clients in errors.items()
        ]

    return make


def rows(folders):
    return error_rows(curves_of(list(map(read_run, folders))))


def test_the_table_of_errors_has_means_over_seeds_of_statistics_over_clients(delta_fl):
    (curve,) = curves_of(list(map(read_run, delta_fl(1.0, ERRORS))))
    (row,) = error_rows([curve])
    for name, percentile in (("p10", 10), ("p50", 50), ("p90", 90), ("worst", 100)):
        values = [np.percentile(errors, percentile) for errors in ERRORS.values()]
        assert row[name] == pytest.approx(np.mean(values)), name
        assert row[f"{name}_seed_std"] == pytest.approx(np.std(values, ddof=1)), name
    # means .3 and .35; the worst of four clients is more than a tenth of them
    assert (row["mean"], row["mean_seed_std"]) == pytest.approx((0.325, 0.05 / sqrt(2)))
    assert row["superquantile 10 %"] == pytest.approx(0.7)
    assert "minus" not in error_markdown([row], curve.quantity), "one curve has nothing to be compared with"


def test_what_the_tail_gains_and_the_mean_pays_is_paired_by_seed(delta_fl):
    folders = delta_fl(0.5, LESS_TAIL) + delta_fl(1.0, ERRORS)
    tail, reference = rows(folders)
    # means .325 - .3 and .35 - .35 of the seeds 1 and 2; seed 3 has no partner
    assert tail["mean difference"] == pytest.approx(0.0125)
    assert tail["mean difference_seed_std"] == pytest.approx(0.025 / sqrt(2))
    # p90 lies at .7 between the third and the fourth client: .4 and .47, of the reference .51 and .65
    assert tail["p90 difference"] == pytest.approx((0.4 - 0.51 + 0.47 - 0.65) / 2)
    assert reference["p90 difference"] == 0
    text = error_markdown([tail, reference], curves_of([read_run(folders[0])])[0].quantity)
    assert "minus that of Delta-FL, conformity=1.0 with the same seed" in text
    assert "| Delta-FL, conformity=0.5 | +1.3 ± 1.8 | -14.5 ± 4.9 | " in text


def test_curves_without_a_common_seed_have_no_difference(delta_fl):
    tail, _ = rows(delta_fl(0.5, {3: [0.5]}) + delta_fl(1.0, ERRORS))
    assert isnan(tail["mean difference"])


def test_training_losses_are_weighted_by_samples(delta_fl, evaluate):
    folders = [
        evaluate(folder, "train", [[1.0, 2.0, 9.0]], samples=samples, first=4)
        for folder, samples in zip(delta_fl(1.0, ERRORS), ([50, 40, 10], [10, 10, 20]), strict=True)
    ]
    (row,) = rows(folders)
    # 2 is where 90 of 100 samples are reached, and 9 where 36 of 40 are
    assert row["train loss mean"] == pytest.approx((2.2 + 5.25) / 2)
    assert row["train loss p90"] == pytest.approx((2 + 9) / 2)


def test_losses_of_a_regression_need_no_correct_predictions(write_run):
    folder = write_run("run", {"global": [[1.5, 2.5]]}, "DeltaFL", quantity="loss")
    (curve,) = curves_of([read_run(folder)])
    (row,) = error_rows([curve])
    assert (row["mean"], row["worst"]) == (2.0, 2.5)
    assert error_markdown([row], curve.quantity).startswith("Clients' test loss at the last evaluation")
