import warnings
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from pfl_lightning.bounds import Clients, ClosedUnitInterval, PositiveInt
from pfl_lightning.client.examples import Transform
from pfl_lightning.data.datamodule import FederatedDataModule
from pfl_lightning.data.holdout import Split
from pfl_lightning.data.labelled import LabelledData
from pfl_lightning.data.own.inputs import encode_inputs
from pfl_lightning.data.own.raw_data import Array, Layout, RawData, joined, shown, warn_of_likeness
from pfl_lightning.data.own.targets import Targets, TargetType, encode_targets
from pfl_lightning.data.own.texts import next_tokens, tokenize
from pfl_lightning.data.partitions.dirichlet import Dirichlet
from pfl_lightning.data.partitions.partition import Partition, Parts
from pfl_lightning.data.partitions.users import NaturalUsers
from pfl_lightning.errors import PflError, nearest, one_line
from pfl_lightning.tasks import Task


class OwnData(FederatedDataModule):
    """Data of your own: a subclass reads arrays, and all else follows from them.

    What the inputs and the targets are, their shape and the number of classes are taken from the arrays (see
    ``RawData``), and the clients' names too. ``understood`` says what was taken, and what could be two things is
    refused with the option that decides.

    Args:
        num_clients: Number of clients. Default: all clients of the data that have samples for training and testing, or
            20 if it says nothing of clients or another partition than ``NaturalUsers`` is chosen.
        partition: How samples are split among clients. Default: as the data has them (``NaturalUsers``), or
            ``Dirichlet`` if it says nothing of clients.
        val_clients: See ``FederatedDataModule``; or names of clients of the data, which are then for validation alone.
        test_clients: The same for testing.
        standardize: Shift and scale each channel of images or series, or each feature, to mean 0 and standard deviation
            1 over all samples but those of the data's own test part; features that are 0 or 1 stay as they are, and
            pixels in a row or numbers of more than four axes have one mean and deviation. Networks learn the numbers of
            a regression standardised, too, while scores are in their own unit. Otherwise pixels are scaled to [0, 1],
            and other numbers are left as they are.
        layout: What the axes of the inputs are: samples N, features F, tokens or steps L, channels C, height H and
            width W. Default: NF or NL (whole numbers from 0, but not uint8) for two axes, NHW for uint8 with three,
            and NCHW or NHWC if few channels or equal sides tell which; uint8 ``[N, F]`` of 64 pixels or more are
            pictures in a row if F is a square or three times one. Channels of images come first in the networks.
        target_type: What the targets are: classes, labels (several of each sample), numbers, survival (event and
            time), or tokens (texts, whose tokens are learned one after the other; inputs, if there are any, are prompts
            that stand before them). Default: as their type and shape say, see ``encode_targets``.
        tokenizer: For inputs that are texts or pairs of texts, and targets that are tokens: folder of a tokenizer of
            ``transformers``, such as that of a ``HuggingFaceModel``, or its name on huggingface.co. Needs
            ``uv pip install "pfl_lightning[huggingface]"``.
        max_length: Tokens of each text: longer ones are cut, shorter ones padded. Texts without a prompt whose tokens
            are learned are not cut, but become several samples.
        kwargs: See ``FederatedDataModule``.

    Attributes:
        class_names: Name of each class or label; empty for a regression; after ``setup``.
        client_names: The data's own name of each client, ``[eval_clients]``; empty unless clients are those of the
            data; after ``setup``.

    Raises:
        PflError: If tokens are to be learned without a tokenizer.
    """

    usual_partition: ClassVar[type[Partition]] = Dirichlet

    def __init__(
        self,
        num_clients: Clients | None = None,
        partition: Partition | None = None,
        val_clients: ClosedUnitInterval | list[str] = 0.0,
        test_clients: ClosedUnitInterval | list[str] = 0.0,
        standardize: bool = True,
        layout: Layout | None = None,
        target_type: TargetType | None = None,
        tokenizer: str | None = None,
        max_length: PositiveInt = 128,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            num_clients=num_clients,
            partition=partition,
            val_clients=0.0 if isinstance(val_clients, list) else val_clients,
            test_clients=0.0 if isinstance(test_clients, list) else test_clients,
            **kwargs,
        )
        named = {"val_clients": val_clients, "test_clients": test_clients}
        self.named_clients = {option: names for option, names in named.items() if isinstance(names, list)}
        self._takes_all_clients = num_clients is None
        self._takes_default_partition = partition is None
        self.standardize = standardize
        self.layout = layout
        self.target_type = target_type
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.class_names: tuple[str, ...] = ()
        if target_type == "tokens" and tokenizer is None:
            raise PflError("data.tokenizer must be that of the network with data.target_type: tokens, got null")

    @property
    def learns_tokens(self) -> bool:
        """Whether targets are texts whose tokens are learned."""
        return self.target_type == "tokens"

    @abstractmethod
    def read(self) -> Sequence[RawData | None]:
        """Read the training and the test samples, or all samples and None if they are not split.

        Samples for validation can be the third, beside test samples.

        Raises:
            PflError: If they cannot be read.
        """

    def load(self) -> tuple[LabelledData, LabelledData | None]:
        """Read the samples, and take all that they say of themselves.

        Raises:
            PflError: If they cannot be read, or networks cannot learn from them.
        """
        splits = [split for split in self.read() if split is not None]
        try:
            of_targets: Targets | None = None
            vocabulary = 0
            if self.learns_tokens:
                splits, of_targets = next_tokens(splits, str(self.tokenizer), self.max_length)
                vocabulary = of_targets.task.outputs
            raw = [split.inputs for split in splits]
            if self.tokenizer is not None and of_targets is None:
                raw, vocabulary = self._tokens(raw)
            layout = self.layout or splits[0].layout
            encoded = encode_inputs(raw, self.standardize, layout)
            inputs = encoded.splits
            self._inputs = encoded._replace(splits=[])
            self.input_kind = encoded.kind
            of_targets = of_targets or encode_targets(splits, self.target_type, self.standardize)
            targets, self._task, self.class_names, target_words = of_targets
            clients, self._names = encode_clients([split.clients for split in splits])
            self.num_classes = self._task.outputs
            self._notes = {"task": target_words, "inputs": encoded.understood, **splits[0].notes}
            data = [*map(LabelledData, inputs, targets, clients)]
            for split in data:
                split.check_lengths()
        except (ValueError, TypeError) as error:
            raise PflError(f"{self.error_prefix}: {one_line(error)}") from error
        self.input_shape = tuple(inputs[0].shape[1:])
        if self.input_kind == "tokens":
            self.input_shape += (vocabulary or 1 + max(int(split.max()) for split in inputs),)
        train, test, val = (*data, None, None)[:3]
        assert train is not None
        if val is not None:
            train = train.join(val)
            self.own_validation = len(val.targets)
        self._official = test and len(test.targets)
        if clients[0] is not None:
            self._choose_clients(train, test)
        self._hold_out_named_clients()
        return train, test

    @property
    def task(self) -> Task:
        """Classes, labels or real numbers; after ``load``."""
        return self._task

    @property
    def understood(self) -> str:
        """What the data were taken for, a line each; after ``setup``."""
        counts = ", ".join(f"{int(table.counts.sum()):,} {split}" for split, table in self.tables.items())
        own = "no test samples of their own" if self._official is None else f"{self._official:,} test samples"
        clients = f"{self.eval_clients} made by {type(self.partition).__name__}"
        if self.client_names:
            named = [f"{client} = {name}" for client, name in enumerate(self.client_names)]
            clients = f"{len(named)} of {len(self._names)} in the data: {shown(named)}"
        notes = self._notes | {"samples": f"{counts}; the data have {own}", "clients": clients}
        return "\n".join(f"  {word:<8}{text}" for word, text in notes.items())

    def transform(self) -> Transform:
        """Standardise pixels, or leave the numbers as they were read."""
        return self._inputs.transform

    def network_inputs(self, raw: Any) -> Tensor:
        """What a network takes for new samples, scaled as those for training; after ``setup``.

        Args:
            raw: Samples in the form of those that were given for training, ``[samples, ...]``; with a ``tokenizer``
                texts.

        Raises:
            ValueError: If they have another form, or tokens are learned.
        """
        if self.learns_tokens:
            raise ValueError("inputs of data.target_type: tokens are windows of texts; the tokenizer makes others")
        return self._inputs.of_new(raw if self.tokenizer is None else self._tokens([raw])[0][0])

    def _tokens(self, splits: Sequence[Any]) -> tuple[list[Array], int]:
        assert self.tokenizer is not None
        return tokenize(splits, self.tokenizer, self.max_length)

    def assign(self, samples: LabelledData, official: int | None) -> tuple[dict[Split, Parts], dict[Split, Parts]]:
        """Assign samples to clients and splits; see ``FederatedDataModule``."""
        run, parts = super().assign(samples, official)
        if isinstance(self.partition, NaturalUsers):
            users = samples.labels(self.task).users
            assert users is not None, "NaturalUsers refuses other samples"
            samples_of = [np.concatenate(splits) for splits in zip(*parts.values(), strict=True)]
            self.client_names = tuple(self._names[users[indices[0]]] for indices in samples_of)
        return run, parts

    @classmethod
    def default_values(cls) -> dict[str, Any]:
        """What arguments that are left out become; clients and partition follow from the data."""
        values = super().default_values()
        return {name: values[name] for name in ("participation", "speeds")}

    def _choose_clients(self, train: LabelledData, test: LabelledData | None) -> None:
        """Take the data's own clients, unless the options say otherwise, and all of them."""
        if self._takes_default_partition:
            self.partition = NaturalUsers()
        if self._takes_all_clients and isinstance(self.partition, NaturalUsers):
            labels = train.join(test).labels(self.task)
            # clients that are named for testing need no samples for training
            official = None if test is None or "test_clients" in self.named_clients else len(train.targets)
            parts = self.held_out.split(len(labels.classes), official, self.own_validation)
            splits = [labels.take(part) for part in parts]
            users = self.partition.eligible(splits)
            self.num_clients = max(1, len(users))
            if left_out := len(self._names) - len(users):
                warnings.warn(
                    f"data: {left_out} clients of the data take no part: they lack a training or a test sample, or "
                    f"have fewer than {self.partition.min_samples} in all",
                    stacklevel=2,
                )

    def _hold_out_named_clients(self) -> None:
        """Make the clients that options name the last ones: those for validation, then those for testing.

        Raises:
            PflError: If a name is none of the data, or clients are not those of the data.
        """
        last = []
        for option, names in self.named_clients.items():
            if not isinstance(self.partition, NaturalUsers) or not self._names:
                reason = "clients of the data (data.client or clients) and the partition NaturalUsers"
                raise PflError(f"data.{option}: {', '.join(names)} needs {reason}; allowed: a share")
            for name in names:
                if name not in self._names or self._names.index(name) in last:
                    raise PflError(
                        f"data.{option}: {name} is no client of the data, or named twice{nearest(name, self._names)}; "
                        f"allowed: {shown(self._names)}"
                    )
                last.append(self._names.index(name))
        if not last:
            return
        if len(last) >= self.num_clients:
            raise PflError(f"data.num_clients must be more than the {len(last)} clients that never train")
        assert isinstance(self.partition, NaturalUsers)
        self.partition.last = last
        tested = len(self.named_clients.get("test_clients", ()))
        validated = len(last) - tested
        self.held_out = replace(
            self.held_out,
            test_clients=tested / self.num_clients or self.held_out.test_clients,
            val_clients=validated / (self.num_clients - tested) or self.held_out.val_clients,
        )


def encode_clients(splits: Sequence[Any]) -> tuple[list[Tensor | None], tuple[str, ...]]:
    """The client that has each sample, as a number.

    Args:
        splits: Those of the training samples, and those for testing if there are any; see ``RawData``.

    Returns:
        int64 ``[samples]`` of each split, and the clients' names in sorted order; None and nothing if unknown.

    Raises:
        ValueError: If they are neither whole numbers nor text, or known for a part of the samples only.
    """
    if all(split is None for split in splits):
        return [None] * len(splits), ()
    if any(split is None for split in splits):
        raise ValueError("clients are required of both training and test samples, or of neither")
    clients, sizes = joined(splits, "clients")
    if clients.dtype.kind == "f":
        raise ValueError("clients must be whole numbers or text, got floats")
    names, numbers = np.unique(clients, return_inverse=True)
    warn_of_likeness("clients", [*map(str, names)])
    return list(torch.from_numpy(numbers).split(sizes)), tuple(map(str, names))
