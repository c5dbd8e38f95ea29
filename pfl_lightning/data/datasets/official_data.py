from typing import Any

from pfl_lightning.data.own.own_data import OwnData


class OfficialData(OwnData):
    """A public data set in its official files: a subclass reads them, and says what inputs and targets are.

    Args:
        root: Folder with the data set's files.
        kwargs: See ``OwnData``.
    """

    def __init__(self, root: str = "data", **kwargs: Any) -> None:
        super().__init__(root=root, layout=None, target_type=None, tokenizer=None, max_length=1, **kwargs)
