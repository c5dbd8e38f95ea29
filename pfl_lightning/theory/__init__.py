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
from pfl_lightning.theory.times import (
    equal_stages_ratio,
    expected_order_statistic,
    expected_time,
    speedup_bound,
    stage_sizes,
)

__all__ = [
    "contraction",
    "equal_stages_ratio",
    "expected_order_statistic",
    "expected_time",
    "next_distance",
    "orthonormal",
    "principal_angle_distance",
    "speedup_bound",
    "stage_floor",
    "stage_length",
    "stage_length_bound",
    "stage_sizes",
    "switching_distance",
]
