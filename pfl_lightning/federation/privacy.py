"""What differential privacy asks of a method."""

from pfl_lightning.errors import PflError
from pfl_lightning.server import Aggregator, DPAggregator, Weighting


def check_private(aggregator: Aggregator, weighting: Weighting, has_statistics: bool, chooses: bool) -> None:
    """Refuse what ``DPAggregator`` would not protect.

    Args:
        aggregator: The method's aggregator; others than ``DPAggregator`` go with everything.
        weighting: Weights of the uploads.
        has_statistics: Whether uploads have statistics of BatchNorm.
        chooses: Whether the method chooses clients by what they hold.

    Raises:
        PflError: If something is not possible, or the library that counts the budget is missing.
    """
    if not isinstance(aggregator, DPAggregator):
        return
    if weighting != "uniform":
        raise PflError(f"model.weighting: {weighting} is not possible with DPAggregator; allowed: uniform")
    if has_statistics:
        raise PflError(
            "model.batch_norm: average is not possible with DPAggregator, which would clip statistics with the "
            "parameters; allowed: local, or a network without BatchNorm"
        )
    if chooses:
        raise PflError(
            "model.aggregator: DPAggregator is not possible with a method that chooses clients; allowed: "
            "SecureAggregator"
        )
    try:
        import dp_accounting  # noqa: F401
    except ImportError as error:
        raise PflError(
            f'model.aggregator: DPAggregator needs pip install "pfl_lightning[privacy]" ({error})'
        ) from error
