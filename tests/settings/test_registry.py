from inspect import isabstract

import pytest
from lightning.pytorch import Callback

from pfl_lightning import callbacks, data, methods, models, server, system, tasks, uplink
from pfl_lightning.settings.registry import IN_EVERY_RUN, KINDS, choices

ROOMS = {
    each.__name__.rpartition(".")[2]: vars(each)
    for each in (callbacks, data, methods, models, server, system, tasks, uplink)
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_the_source_tells_the_classes_of_the_imported_package(kind):
    room = ROOMS[kind.room]
    base = (models.Network, models.HuggingFaceModel) if kind.room == "models" else room.get(kind.base, Callback)
    exported = {name: room[name] for name in room["__all__"] if isinstance(room[name], type)}
    known = {name: each for name, each in exported.items() if issubclass(each, base) and not isabstract(each)}
    hidden = {*IN_EVERY_RUN} if kind.with_base else {*IN_EVERY_RUN, kind.base}
    assert choices()[kind.option_name] == {name: known[name] for name in known.keys() - hidden}
    assert choices()[kind.option_name]
