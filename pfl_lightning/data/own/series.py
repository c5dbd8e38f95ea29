from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pfl_lightning.bounds import OpenUnitInterval, PositiveInt
from pfl_lightning.data.holdout import USUAL_TEST_FRACTION, held_out_size
from pfl_lightning.data.own.own_data import OwnData
from pfl_lightning.data.own.raw_data import Array, FromPython, RawData, shown
from pfl_lightning.data.own.table import REMEDY, check_names, frame_or_file, is_number_column, read_frame
from pfl_lightning.data.partitions.partition import Partition
from pfl_lightning.data.partitions.users import NaturalUsers
from pfl_lightning.data.reading import reading
from pfl_lightning.errors import PflError
from pfl_lightning.tasks import Regression

if TYPE_CHECKING:  # it takes half a second to import
    from pandas import DataFrame


class Series(OwnData):
    """Forecasts: series of numbers in a CSV file, a line for each time; what follows a window of times is the target.

    An input is a window, ``[window, columns]``, and its target the next ``horizon`` values, ``[horizon]``, or of
    several targets ``[horizon * targets]``, time by time. Of each client's windows the last ones are for testing, and
    of those before them the last ones for validation. Windows that share a time with a window for testing train
    nothing, so that no value is in both.

    Args:
        file: The file, with a line of names; or from Python a ``DataFrame`` of pandas.
        target: Name of the column to forecast, or names of several. Default: without a client all columns of numbers.
        client: Name of the column that tells whose series a line belongs to. Default: each target is the series of a
            client of its own.
        time: Name of the column that lines are sorted by: numbers, or dates (ISO 8601). Default: the order of lines.
        features: With a client, names of further columns that windows have. Default: none.
        window: Number of times that a network sees.
        horizon: Number of times that it forecasts.
        season: Number of times after which a series is like itself, such as 24 of hours; the forecast "last season"
            needs it.
        own_scale: Whether each client's series are shifted and scaled to mean 0 and deviation 1 over its times before
            those for testing; scores are in this unit, too. For series that differ in size.
        test_fraction: Share of each client's windows that is for testing.
        kwargs: See ``OwnData``.

    Raises:
        PflError: If columns have two roles, there are features without a client, or a season is longer than a window.
    """

    files_option = "file"
    usual_partition: ClassVar[type[Partition]] = NaturalUsers

    def __init__(
        self,
        file: str | FromPython,
        target: str | list[str] | None = None,
        client: str | None = None,
        time: str | None = None,
        features: Sequence[str] = (),
        window: PositiveInt = 24,
        horizon: PositiveInt = 1,
        season: PositiveInt | None = None,
        own_scale: bool = False,
        test_fraction: OpenUnitInterval = USUAL_TEST_FRACTION,
        **kwargs: Any,
    ) -> None:
        super().__init__(layout="NLC", target_type="numbers", tokenizer=None, max_length=1, **kwargs)
        targets = [target] if isinstance(target, str) else target
        roles = [*(targets or ()), *features, *(name for name in (client, time) if name is not None)]
        if twice := {name for name in roles if roles.count(name) > 1}:
            raise PflError(f"data: column '{min(twice)}' must have one role of target, features, client and time")
        if client is None and features:
            raise PflError("data.features must be empty without data.client, where each target is a client's series")
        if client is not None and targets is None:
            raise PflError("data.target is required with data.client")
        if season is not None and season > window:
            raise PflError(f"data.season must be at most data.window, {window}, got {season}")
        self.frame, self.file = frame_or_file(file)
        self.targets = targets
        self.client = client
        self.time = time
        self.features = features
        self.window = window
        self.horizon = horizon
        self.season = season
        self.own_scale = own_scale
        self.last_share = test_fraction
        self.overlap = window + horizon - 1

    def read(self) -> tuple[RawData, RawData]:
        """Cut the series into windows.

        Raises:
            PflError: If the file cannot be read, a column is not there or holds no numbers, a value is missing, or no
                series is long enough.
        """
        with reading(Path(self.file), REMEDY, key="data.file"):
            table = read_frame(self.frame, self.file, self.client)
            names = [name for name in (self.client, self.time) if name is not None]
            targets = self.targets or [name for name in table if name not in names and is_number_column(table[name])]
            values = [*targets, *self.features]
            check_names(table, [*names, *values], self.file)
            for name in values:
                if not is_number_column(table[name]):
                    raise PflError(f"data: column '{name}' must be numbers, got '{table[name].iloc[0]}'")
            series = self._series(table, targets, values)
        cuts = {name: self._cut(name, numbers) for name, numbers in series.items()}
        whole = {name: cut for name, cut in cuts.items() if cut is not None}
        if not whole:
            longest = max(map(len, series.values()))
            raise PflError(
                f"data.window: {self.window} and data.horizon {self.horizon} need series of "
                f"{2 * (self.window + self.horizon)} times or more, got {longest:,}"
            )
        few = len(series) - len(whole)
        words = f"{self.window} times of {shown(values if self.client else ['each series'])}, then {self.horizon}"
        lengths = [len(numbers) for numbers in series.values()]
        notes = {"windows": words, "series": f"{len(series)} of {min(lengths):,} to {max(lengths):,} times"}
        notes["series"] += f"; {few} too short" * bool(few)
        if self.own_scale:
            notes["scale"] = "each client's own; scores are in its deviations"
        parts = [_stacked({name: cut[place] for name, cut in whole.items()}) for place in range(2)]
        self._guesses = {
            name: torch.cat([torch.from_numpy(part.guesses[name]) for part in parts]) for name in parts[0].guesses
        }
        train, test = (RawData(part.inputs, part.targets, part.clients, (), "NLC", notes) for part in parts)
        return train, test

    def guesses(self) -> Mapping[str, Tensor]:
        """Forecasts without training: the last value, that of a season ago, and the client's mean in training."""
        task = self.task
        assert isinstance(task, Regression)
        return {name: task.learned(numbers.float()) for name, numbers in self._guesses.items()}

    def _series(self, table: "DataFrame", targets: Sequence[str], values: Sequence[str]) -> dict[str, Array]:
        """The numbers of each client in the order of time, ``[times, columns]``, those to forecast first."""
        if self.time is not None:
            table = self._in_order(table, self.time)
        if self.client is None:
            return {name: table[[name]].to_numpy(np.float64) for name in targets}
        groups = table.groupby(self.client, sort=True)
        return {str(name): group[[*values]].to_numpy(np.float64) for name, group in groups}

    def _in_order(self, table: "DataFrame", time: str) -> "DataFrame":
        """The lines in the order of time.

        Raises:
            PflError: If a series has two lines of one time, or dates have another form.
        """
        import pandas as pd

        when = table[time]
        if not is_number_column(when):
            try:
                when = pd.to_datetime(when, format="ISO8601")
            except ValueError as error:
                wanted = "numbers or dates such as 2026-01-31 18:30"
                raise PflError(f"data.time: column '{time}' must be {wanted}, got '{when.iloc[0]}'") from error
        table = table.assign(**{time: when}).sort_values(time, kind="stable")
        again = table.duplicated([time] if self.client is None else [self.client, time])
        if again.any():
            raise PflError(
                f"data.time: a series has two lines of {table[time][again].iloc[0]}; data.client tells series apart"
            )
        return table

    def _cut(self, name: str, numbers: Array) -> "tuple[Windows, Windows] | None":
        """The windows of a series for training and testing; None if it is too short to have both."""
        count = len(numbers) - self.overlap
        tested = held_out_size(count, self.last_share)
        trained = count - tested - self.overlap
        if trained < 1 or tested < 1:
            return None
        seen = numbers[: trained + self.overlap]
        if self.own_scale:
            deviation = seen.std(0)
            numbers = (numbers - seen.mean(0)) / np.where(deviation > 0, deviation, 1)
            seen = numbers[: len(seen)]
        columns = 1 if self.targets is None or self.client is None else len(self.targets)
        every = np.lib.stride_tricks.sliding_window_view(numbers, self.window + self.horizon, axis=0).swapaxes(1, 2)
        inputs = every[:, : self.window]
        targets = every[:, self.window :, :columns].reshape(count, -1)
        guesses = {"last value": np.tile(inputs[:, -1, :columns], self.horizon)}
        if self.season is not None:
            places = self.window - self.season + np.arange(self.horizon) % self.season
            guesses["last season"] = inputs[:, places, :columns].reshape(count, -1)
        guesses["mean"] = np.broadcast_to(np.tile(seen[:, :columns].mean(0), self.horizon), targets.shape)
        clients = np.full(count, name)
        parts = (slice(trained), slice(count - tested, None))
        train, test = (
            Windows(inputs[part], targets[part], clients[part], {key: each[part] for key, each in guesses.items()})
            for part in parts
        )
        return train, test


class Windows(NamedTuple):
    """Windows of one or several series.

    Attributes:
        inputs: ``[windows, window, columns]``.
        targets: ``[windows, numbers]``.
        clients: Whose they are, ``[windows]``.
        guesses: Forecasts without training by name, like the targets.
    """

    inputs: Array
    targets: Array
    clients: Array
    guesses: dict[str, Array]


def _stacked(windows: Mapping[str, Windows]) -> Windows:
    """The windows of all series, one after the other."""
    inputs, targets, clients, guesses = zip(*windows.values(), strict=True)
    together = {name: np.concatenate([each[name] for each in guesses]) for name in guesses[0]}
    return Windows(np.concatenate(inputs), np.concatenate(targets), np.concatenate(clients), together)
