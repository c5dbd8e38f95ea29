from collections.abc import Sequence

import numpy as np


def converged_round(
    losses: Sequence[float], window: int = 5, improvement: float = 1e-3, patience: int = 10
) -> int | None:
    """The first round at which a loss has all but stopped to fall.

    The DePRL paper reports convergence times (Xiong et al., AAAI 2024, arXiv:2312.10815, Table 9) without a criterion;
    this one is ours: in each of the last ``patience`` rounds, the moving average over ``window`` rounds has improved by
    at most the share ``improvement``.

    Args:
        losses: Training losses of the rounds 1, 2, ...
        window: Rounds in the moving average.
        improvement: Share of the average of the round before.
        patience: Rounds in a row.

    Returns:
        A round, from ``window + patience`` on; None if the loss is still falling at the end, or is not finite.

    Examples:
        >>> converged_round([4.0, 3.0, 2.0, 1.0, 1.0, 1.0, 1.0], window=1, patience=3)
        7
    """
    if len(losses) < window + patience:
        return None
    averages = np.convolve(losses, np.full(window, 1 / window), mode="valid")  # of the rounds window, window + 1, ...
    stalled = (averages[1:] >= (1 - improvement) * averages[:-1]) & np.isfinite(averages[1:])
    ends = np.flatnonzero(np.lib.stride_tricks.sliding_window_view(stalled, patience).all(1))
    return int(ends[0]) + window + patience if len(ends) else None
