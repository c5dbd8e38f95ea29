"""Claims as rows of settings: the kind of comparison, what is compared, by what margin, and the sentence.

Every row has the texts ``claim`` and ``expected``. ``shown`` says what stands as measured: a side, the gap,
or other series; ``labels`` precede it.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from reproduction.claims import OURS, Claim, Floats, any_of, counted, paired, spread, within
from reproduction.items import Spec, expanded, listed
from reproduction.kinds import KINDS
from reproduction.results import Results

Values = Callable[[Any, Any], Floats]


def claims_of(rows: Sequence[str | Spec], results: Results) -> Iterator[tuple[str, Claim]]:
    """The claims of some rows with their group; a row that is a text stands for the paper's rows of this name."""
    for row in rows:
        if isinstance(row, str):
            yield from claims_of(results.part.item.common["claims"][row], results)
            continue
        for block in expanded(row, results.part.variables):
            if all(map(results.has, block.get("needs", ()))):
                yield from ((block.get("group", ""), claim) for claim in decided(block, results))


def decided(row: Spec, results: Results) -> list[Claim]:
    """The claims of a row; those of the usual kinds stand beside the same numbers of the paper, if it prints them."""
    if row["kind"] in KINDS:
        claims = KINDS[row["kind"]](row, results)
    else:
        claims = [compared(row, results.values)]
        if "printed" not in row and results.printed:
            claims = [_beside_printed(claims[0], row, results)]
    printed = OURS if row.get("ours") else row.get("printed")
    return [claim._replace(printed=printed) if printed is not None else claim for claim in claims]


def compared(row: Spec, values: Values) -> Claim:
    """A claim that values rise or fall in a row, that one is above or below others, or that two are near each other."""
    measure = row.get("measure")
    if row["kind"] in ("rises", "falls"):
        series = [values(one, measure) for one in row["of"]]
        sign = 1 if row["kind"] == "rises" else -1
        differences = [sign * (after - before) for before, after in pairwise(series[: row.get("until")])]
        if "below" in row:
            differences.append(row["below"] - series[-1])
        return paired(row["claim"], text_of(row, series), row.get("expected", row["kind"]), *differences)
    left = values(row["left"], measure)
    rights = [values(one, measure) for one in listed(row["right"])]
    gaps = [left - right for right in rights]
    if isinstance(row.get("shown"), list):
        shown = [values(one, measure) for one in row["shown"]]
    else:
        shown = {"left": [left], "right": rights, "gap": gaps, "all": [left, *rights]}[row.get("shown", "all")]
    if row["kind"] == "within":
        differences = [side for gap in gaps for side in within(gap, row["band"])]
    else:
        sign = 1 if row["kind"] == "above" else -1
        differences = [sign * gap + values(row.get("margin", 0), measure) for gap in gaps]
    decide = any_of if row.get("any") else paired
    return decide(row["claim"], text_of(row, shown), row["expected"], *differences)


def text_of(row: Spec, series: Sequence[Floats]) -> str:
    """Values as means over the seeds with their spreads."""
    texts = [spread(values, row.get("digits", 2)) for values in series]
    if "lost_from" in row:  # a ratio of times that is no gain any more
        losses = [values.mean() >= row["lost_from"] for values in series]
        texts = [text + " (lost)" * bool(is_lost) for text, is_lost in zip(texts, losses, strict=True)]
    if "labels" in row:
        return "; ".join(f"{label}: {text}" for label, text in zip(row["labels"], texts, strict=True))
    return str(row.get("between", ", ")).join(texts)


def verdicts(groups: Sequence[tuple[str, Claim]]) -> str:
    """How many claims of each group have each verdict, as lines of Markdown."""
    names = dict.fromkeys(group for group, _ in groups if group)
    words = {name: [claim.word for group, claim in groups if group == name] for name in names}
    return "".join(f"- {name}: {counted(each)}\n" for name, each in words.items())


def _beside_printed(claim: Claim, row: Spec, results: Results) -> Claim:
    try:
        theirs = compared(row, results.printed_values)
    except KeyError:  # the paper does not print all of them
        return claim
    return claim._replace(printed=theirs.measured)
