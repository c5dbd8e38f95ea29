"""What differential privacy asks of a method."""

from pfl_lightning.errors import PflError
from pfl_lightning.server import PrivateSums, Sums, Weighting


def check_private(sums: Sums, weighting: Weighting, has_statistics: bool, chooses: bool) -> None:
    """Refuse what ``PrivateSums`` would not protect.

    Args:
        sums: The method's sums; others than private ones are possible with everything.
        weighting: Weights of the uploads.
        has_statistics: Whether uploads have statistics of BatchNorm.
        chooses: Whether the method chooses clients by what they hold.

    Raises:
        PflError: If something is not possible, or the library that counts the budget is missing.
    """
    if not isinstance(sums, PrivateSums):
        return
    if weighting != "uniform":
        raise PflError(f"model.weighting: {weighting} is not possible with PrivateSums; allowed: uniform")
    if has_statistics:
        raise PflError(
            "model.batch_norm: average is not possible with PrivateSums, which would clip statistics with the "
            "parameters; allowed: local, or a network without BatchNorm"
        )
    if chooses:
        raise PflError(
            "model.sums: PrivateSums is not possible with a method that chooses clients; allowed: SecureSums"
        )
    try:
        import dp_accounting  # noqa: F401
    except ImportError as error:
        raise PflError(f'model.sums: PrivateSums needs pip install "pfl_lightning[privacy]" ({error})') from error
