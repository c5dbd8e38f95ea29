from pfl_lightning.theory.linear import (
    contraction,
    next_distance,
    orthonormal,
    principal_angle_distance,
    stage_floor,
    stage_length,
    stage_length_bound,
    switching_distance,
)
from pfl_lightning.theory.superquantile import (
    circumcentre,
    extreme_mixtures,
    gaussian_losses,
    narrowed,
    superquantile_loss,
    superquantile_minimizer,
    worst_mixture,
)
from pfl_lightning.theory.times import (
    equal_stages_ratio,
    expected_order_statistic,
    expected_time,
    speedup_bound,
    stage_sizes,
)

__all__ = [
    "circumcentre",
    "contraction",
    "equal_stages_ratio",
    "expected_order_statistic",
    "expected_time",
    "extreme_mixtures",
    "gaussian_losses",
    "narrowed",
    "next_distance",
    "orthonormal",
    "principal_angle_distance",
    "speedup_bound",
    "stage_floor",
    "stage_length",
    "stage_length_bound",
    "stage_sizes",
    "superquantile_loss",
    "superquantile_minimizer",
    "switching_distance",
    "worst_mixture",
]
