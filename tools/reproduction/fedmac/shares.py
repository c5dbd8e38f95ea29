"""FedMac's Figure 5: which classes the clients of CINIC-10 hold."""

from pfl_lightning.report import partition_figure, save_figure
from reproduction.claims import Claim, fact, ours
from reproduction.runs import Place, split_data

LEAST = 0.5  # of an equal share, for every client


def fig5_claims(place: Place) -> list[Claim]:
    """Draw the clients' classes; that every client has at least half of an equal share is a check of our own."""
    counts = split_data(place.options).class_counts()
    save_figure(partition_figure(counts, "CINIC-10"), place.folder / "fig5.png")
    sizes = counts["train"].sum(1)
    smallest = float(sizes.min() / sizes.mean())
    text = "training samples of the smallest client, as a share of the mean"
    return ours([fact(text, f"{smallest:.2f}", f"at least {LEAST}", smallest >= LEAST)])
