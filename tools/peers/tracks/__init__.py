"""Other libraries' own commands beside ours, each with the network, data and options that its authors chose."""

from peers.tracks import flute, niid_bench, pfl_research, pfllib
from peers.tracks.track import Track

TRACKS: dict[str, Track] = {
    "pfllib": pfllib.TRACK,
    "niid_bench": niid_bench.TRACK,
    "pfl_research": pfl_research.TRACK,
    "flute": flute.TRACK,
}
