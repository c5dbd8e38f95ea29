from pfl_lightning.errors import PflError
from pfl_lightning.memory import machine_bytes


def check_size(numbers: int, **options: int) -> None:
    """Refuse to draw a data set that memory cannot hold.

    Args:
        numbers: How many 64-bit numbers are drawn.
        options: The options that they follow from.

    Raises:
        PflError: If they need more memory than the machine has.
    """
    needed, there = (count / 2**30 for count in (8 * numbers, machine_bytes()))
    if needed > there / 2:  # the other half is for the same numbers as tensors
        given = ", ".join(f"data.{name}: {value}" for name, value in options.items())
        raise PflError(
            f"{given}: not possible together, they take {needed:.0f} GiB; allowed: up to half of this machine's "
            f"{there:.0f} GiB"
        )
