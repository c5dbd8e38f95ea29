import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pfl_lightning.data.datamodule import FederatedDataModule
from pfl_lightning.data.datasets.leaf import load_leaf
from pfl_lightning.data.download import Remote, find_or_fetch
from pfl_lightning.data.labelled import LabelledData
from pfl_lightning.data.partitions.users import NaturalUsers
from pfl_lightning.data.transforms import Tokens
from pfl_lightning.errors import PflError
from pfl_lightning.tasks import NO_TARGET, NextToken, Task

LETTERS = " ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
LEAF_ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
WINDOW = 20  # characters
LEAF_WINDOW = 80

ARCHIVE = Remote(
    (
        "https://www.gutenberg.org/files/100/old/1994-01-100.zip",  # LEAF's address
        "https://www.gutenberg.org/files/100/old/old/1994-01-100.zip",
        "https://mirror.ossplanet.net/mirror/gutenberg/1/0/100/old/1994-01-100.zip",
    ),
    "1994-01-100.zip",
    "b8d60664a90939fa7b5d9f4dd064a1d5",
)
RAW_PLACES = ("data/raw_data/raw_data.txt", "raw_data/raw_data.txt", "raw_data.txt")
RAW_RECIPE = (
    "put Project Gutenberg's complete works of 1994 there (etext 100, 1994-01-100.zip or t8.shakespeare.txt), "
    "as raw_data.txt"
)
LEAF_RECIPE = (
    "make them with github.com/TalwalkarLab/leaf: in its folder data/shakespeare run "
    "'pfl data prepare Shakespeare --root .' (LEAF's own download has moved) and "
    "'./preprocess.sh -s niid --sf 1.0 -k 0 -t sample --tf 0.8', and give that folder as data.root"
)

AUTHOR = "by William Shakespeare"
CUE = re.compile(r"  ([a-zA-Z][a-zA-Z ]*)\. (.*)")
INDENT = "    "
# this play is printed without indentation
ODD_PLAY = "THE COMEDY OF ERRORS"
ODD_CUE = re.compile(r"([a-zA-Z][a-zA-Z ]*)\. (.*)")
FEWEST_LINES = 3  # LEAF drops roles with fewer


class Shakespeare(FederatedDataModule):
    """The next character in Shakespeare's plays; every role of every play is a user.

    ``raw`` reads the complete works as LEAF does, and cuts each role's text into windows of 20 characters with the
    21st as the target; the alphabet is space, A-Z and a-z, and every other character is a space. Delta-FL's devices:
    ``test_clients: 0.5``, ``NaturalUsers`` with ``min_samples: 101``. ``leaf`` reads the windows of 80 characters that
    LEAF writes, in its own alphabet of 80, and its own split.

    With ``targets: all`` each character of a text is a target once, by what stands before it in its window: samples are
    the windows that follow one another without overlap, and the last one, in which only the rest has targets.

    Like LEAF, ``raw`` takes lines of the licence in The Comedy of Errors for a role called WITH PERMISSION.

    Paper: Caldas et al., "LEAF: A Benchmark for Federated Settings", 2018, arXiv:1812.01097; used by Delta-FL,
    arXiv:2002.11223.

    Args:
        text: What to read, ``raw`` or ``leaf``.
        targets: Of which characters of a window the next one is predicted: of the ``last`` one, or of ``all``.
        kwargs: See ``FederatedDataModule``.
    """

    usual_partition = NaturalUsers
    input_kind = "tokens"

    def __init__(
        self, text: Literal["raw", "leaf"] = "raw", targets: Literal["last", "all"] = "last", **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.text = text
        self.targets = targets
        alphabet, window = (LETTERS, WINDOW) if text == "raw" else (LEAF_ALPHABET, LEAF_WINDOW)
        # windows of one text begin one character apart; of those that follow one another, the last begins earlier
        self.overlap = window if targets == "last" else 1
        self.num_classes = len(alphabet)
        self.input_shape = (window, len(alphabet))

    @property
    def task(self) -> Task:
        """Classes, or the next token at every step."""
        return super().task if self.targets == "last" else NextToken().sized(self.num_classes)

    def prepare_data(self) -> None:
        """Download the raw text if it is missing.

        Raises:
            PflError: If that fails; it says what to do by hand.
        """
        if self.text == "raw":
            self._raw_file()

    def load(self) -> tuple[LabelledData, LabelledData | None]:
        """Read the raw text, or LEAF's files.

        Raises:
            PflError: If they are missing or cannot be read.
        """
        train, test = self._load_windows()
        if self.targets == "all":
            return whole(train), None if test is None else whole(test)
        return train, test

    def _load_windows(self) -> tuple[LabelledData, LabelledData | None]:
        """All windows of training and test samples, each with the character that follows."""
        if self.text == "leaf":
            return load_leaf(Path(self.root), LEAF_RECIPE, encode, "shakespeare", version=2)
        path = self._raw_file()
        texts = read_roles(path.read_text(encoding="utf-8", errors="replace"))
        texts = {user: text for user, text in texts.items() if len(text) > WINDOW}
        if not texts:
            raise PflError(f"data.root: no roles in '{path}', so it is another edition; {RAW_RECIPE}")
        return windows([texts[user] for user in sorted(texts)]), None

    def transform(self) -> Tokens:
        """Characters as numbers."""
        return Tokens()

    def _raw_file(self) -> Path:
        """The raw text, which is downloaded if it is missing."""
        return find_or_fetch([Path(self.root) / place for place in RAW_PLACES], ARCHIVE, "100.txt")


def read_roles(text: str) -> dict[str, str]:
    """What every role of every play says, by LEAF's rules.

    Args:
        text: The complete works.

    Returns:
        One line of text for each user, by LEAF's name for it: play and role with underscores.
    """
    spoken: dict[str, list[str]] = defaultdict(list)
    for title, play in _plays(text):
        roles = _roles(play, odd=title == ODD_PLAY)
        if len(roles) < 2:  # a poem
            continue
        for role, lines in roles.items():
            if len(lines) >= FEWEST_LINES:
                spoken[re.sub(r"\W+", "_", f"{title}_{role}".replace(" ", "_"))] += lines
    return {user: re.sub("  +", " ", " ".join([*lines, ""])) for user, lines in spoken.items()}


def windows(texts: Sequence[str]) -> LabelledData:
    """All windows of 20 characters of each text, with the character that follows.

    Args:
        texts: One text for each user, of more than 20 characters.

    Returns:
        Inputs uint8 ``[windows, 20]``, targets and users ``[windows]``.
    """
    table = _token_table(LETTERS, others=0)
    tokens = [torch.from_numpy(table[np.frombuffer(text.encode("ascii", "replace"), np.uint8)]) for text in texts]
    rows = torch.cat([text.unfold(0, WINDOW + 1, 1) for text in tokens])
    users = torch.arange(len(texts)).repeat_interleave(torch.tensor([len(text) - WINDOW for text in texts]))
    return LabelledData(rows[:, :-1].contiguous(), rows[:, -1].long(), users)


def whole(data: LabelledData) -> LabelledData:
    """Of windows that begin one character apart, those that follow one another, with a target at each character.

    Where a text does not end with such a window, its last one is taken too, with targets where those before have none.

    Args:
        data: All windows of each text, with the character that follows.

    Returns:
        Inputs uint8 and targets int16 ``[samples, window]``, -100 where there is none, and users ``[samples]``.
    """
    assert data.users is not None, "every text has a user"
    length = data.inputs.shape[1]
    counts = data.users.unique_consecutive(return_counts=True)[1]
    starts = counts.cumsum(0) - counts
    # places of windows in their text, [windows]
    places = torch.arange(len(data.users)) - starts.repeat_interleave(counts)
    begun = places % length  # by so many characters a window begins after one that is taken
    chosen = (begun == 0) | (places == (counts - 1).repeat_interleave(counts))
    inputs = data.inputs[chosen]
    following = torch.cat([inputs[:, 1:], data.targets[chosen, None]], 1).short()
    known = torch.arange(length) < (-begun[chosen] % length)[:, None]
    return LabelledData(inputs, following.masked_fill(known, NO_TARGET), data.users[chosen])


def encode(inputs: list[Any], targets: list[Any]) -> tuple[Tensor, Tensor]:
    """Tokens of LEAF's strings.

    Args:
        inputs: Strings of 80 characters.
        targets: The next characters.

    Returns:
        Places in LEAF's alphabet: uint8 ``[samples, 80]`` and int64 ``[samples]``.
    """
    return _leaf_tokens(inputs, LEAF_WINDOW), _leaf_tokens(targets, 1).flatten().long()


def _leaf_tokens(strings: list[str], length: int) -> Tensor:
    characters = np.frombuffer("".join(strings).encode("latin-1"), np.uint8)
    table = _token_table(LEAF_ALPHABET, others=len(LEAF_ALPHABET))  # no token of the network, so it is refused
    return torch.from_numpy(table[characters]).view(len(strings), length)


def _token_table(alphabet: str, others: int) -> NDArray[np.uint8]:
    """Token of each of the 256 characters of Latin-1."""
    table = np.full(256, others, dtype=np.uint8)
    table[[ord(letter) for letter in alphabet]] = np.arange(len(alphabet))
    return table


def _plays(text: str) -> Iterator[tuple[str, list[str]]]:
    """Title and lines of every work but the first, which is the sonnets: some of their lines look like cues."""
    lines = text.splitlines()[1:]  # some copies name the author in the first line already
    starts = [number for number, line in enumerate(lines) if AUTHOR in line]
    for start, end in pairwise([*starts[1:], len(lines)]):
        above = reversed(lines[max(0, start - 7) : max(0, start - 1)])
        yield next((line.strip() for line in above if line.strip()), ""), lines[start + 1 : end]


def _roles(lines: Sequence[str], odd: bool) -> dict[str, list[str]]:
    """Lines of each role of a play, indented or not; odd if it is the one without indentation."""
    cue, indent = (ODD_CUE, "") if odd else (CUE, INDENT)
    roles: dict[str, list[str]] = defaultdict(list)
    speaker = ""
    for line in lines:
        if match := cue.match(line):
            speaker = match[1].upper()
            if odd and speaker.startswith("ACT "):
                speaker = ""
            else:
                roles[speaker].append(match[2])
        elif odd and line.startswith("<"):  # the licence
            speaker = ""
        elif speaker and line.startswith(indent):
            roles[speaker].append(line)
    return roles
