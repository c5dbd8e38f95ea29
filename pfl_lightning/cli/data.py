"""``pfl data prepare`` and ``pfl data describe``."""

from inspect import isabstract
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from lightning.pytorch.cli import LightningArgumentParser
from matplotlib.backend_bases import FigureCanvasBase

from pfl_lightning.callbacks.figures import graph_figure
from pfl_lightning.cli.console import CONSOLE
from pfl_lightning.cli.fit import PflCLI
from pfl_lightning.cli.parser import PflParser
from pfl_lightning.data import FederatedDataModule
from pfl_lightning.data.progress import loading
from pfl_lightning.errors import PflError, one_line
from pfl_lightning.explain import nearest
from pfl_lightning.registry import choices
from pfl_lightning.report import partition_figure, partition_table, save_figure

USAGE = """pfl data prepare NAME --root DIR     download, check and convert the files of a data set; its options follow
                                     (NAME may be the import path of your own, such as my_data.MyData)
pfl data describe [options of fit]   show which client holds what, and the graph of a method without a server"""


def data_command(args: list[str]) -> None:
    """Run ``pfl data``.

    Args:
        args: What follows ``data``.

    Raises:
        SystemExit: With code 2 if there is no such subcommand, 0 after help.
        PflError: If the data cannot be loaded or split.
    """
    command = args[0] if args else None
    if command == "prepare":
        prepare(args[1:])
    elif command == "describe":
        DescribeCLI(args[1:], run=False)
    elif command in ("-h", "--help"):
        CONSOLE.print(USAGE, soft_wrap=False)
    else:
        what = f"{command} is not possible" if command else "a subcommand is missing"
        PflParser().error(f"data: {what}; allowed: prepare, describe")


def prepare(args: list[str]) -> None:
    """Prepare the files of a data set, and load them once to check them.

    Args:
        args: Name or import path, and options.

    Raises:
        SystemExit: With code 2 if there is no such data set or option.
        PflError: If the data cannot be loaded.
    """
    parser = PflParser(
        description="Downloads, checks and converts the files of a data set; an interrupted download resumes."
    )
    parser.add_argument("name", help="Name of the data set, see pfl list data, or import path of your own.")
    kind: Any = None
    if args and not args[0].startswith("-"):
        kind = _data_class(args[0], parser)
        parser.add_class_arguments(kind, as_group=False, skip={"partition", "participation", "speeds"})
    given = parser.parse_args(args).as_dict()
    name = given.pop("name")
    data = kind(**given)
    with loading(name):
        data.prepare_data()
        train, test = data.load_checked()
        data.pretrained()
    apart = "" if test is None else f" training and {len(test.targets):,} test"
    counts = f"{len(train.targets):,}{apart} samples"
    users = "" if (every := train.join(test).users) is None else f" of {len(every.unique()):,} users"
    goal = "a regression" if data.regression else f"{data.num_classes} classes"
    shape = f"{data.input_kind} of the shape {list(data.input_shape)}"
    CONSOLE.print(f"{name} in '{getattr(data, data.files_option)}': {counts}{users}; {shape}, {goal}")


def _data_class(name: str, parser: PflParser) -> type[FederatedDataModule]:
    """The class of a data set, by its name here or its import path; else the parser ends the command."""
    known, reason = choices()["data"], ""
    try:
        kind = known.get(name) or resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        kind, reason = None, f" ({one_line(error)})" * ("." in name)
    if not isinstance(kind, type) or not issubclass(kind, FederatedDataModule) or isabstract(kind):
        allowed = f"{', '.join(known)}, or the import path of a subclass of FederatedDataModule"
        meant = next((each for each in known if each.lower() == name.lower()), name)
        parser.error(f"data: no such class: {name}{reason}{nearest(meant, known)}; allowed: {allowed}")
    return kind


class DescribeCLI(PflCLI):
    """Reads the settings of a run, and shows its clients instead of training."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the file for the figure."""
        super().add_arguments_to_parser(parser)
        parser.add_argument(
            "--figure", type=str, default="partition.png", help="File for the figure; its extension chooses the format."
        )

    def instantiate_classes(self) -> None:
        """Build the data and the method's options, and describe the clients."""
        path = Path(self.config.figure)
        _check_figure(path)
        built = self.parser.instantiate_classes(self.config)
        self.datamodule = built.data
        self.datamodule.setup()
        counts = self.datamodule.class_counts()
        figures = {path: partition_figure(counts, type(self.datamodule).__name__)}
        if not self.datamodule.new_clients and (graph := graph_figure(built.model, self.datamodule)):
            figures[path.with_stem(f"{path.stem}_topology")] = graph
        CONSOLE.print(partition_table(counts), soft_wrap=False)
        for place, figure in figures.items():
            try:
                place.parent.mkdir(parents=True, exist_ok=True)
                save_figure(figure, place, dpi=150)
            except OSError as error:
                raise PflError(f"figure: {place} is not possible ({error.strerror}); allowed: a file") from error
            CONSOLE.print(f"Figure: {place}")


def _check_figure(path: Path) -> None:
    """Refuse a file for figures with an extension of no kind of figure.

    Raises:
        PflError: If it has one.
    """
    endings = FigureCanvasBase.get_supported_filetypes()
    if path.suffix[1:] not in endings:
        raise PflError(f"figure: {path} is not possible; allowed extensions: {', '.join(sorted(endings))}")
