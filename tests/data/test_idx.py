import struct

import numpy as np
import pytest
from fakes.torchvision_data import write_idx

from pfl_lightning.data.idx import read_idx


@pytest.mark.parametrize("shape", [(), (4,), (2, 3)])
def test_bytes_come_back(tmp_path, shape):
    values = np.random.default_rng(0).integers(0, 256, (5, *shape), dtype=np.uint8)
    write_idx(tmp_path / "file", values)
    np.testing.assert_array_equal(read_idx(tmp_path / "file", shape), values)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "0 bytes"),
        (struct.pack(">4I", 0x803, 1, 2, 2) + b"1234", "samples of 2 x 2 instead of 2 x 3"),
        (struct.pack(">4I", 0x803, 2, 2, 3) + b"123456", "6 bytes instead of 12 for 2 samples"),
        (struct.pack(">4I", 0x803, 1, 2, 3) + b"1234567", "7 bytes instead of 6 for 1 samples"),
        (struct.pack(">4I", 0x803, 2**32 - 1, 2, 3), "0 bytes instead of 25,769,803,770 for"),
        (struct.pack(">4I", 0xD03, 1, 2, 3) + bytes(24), "no IDX file of bytes along 3 axes"),
        (struct.pack(">2I", 0x801, 16) + bytes(16), "no IDX file of bytes along 3 axes"),
    ],
    ids=["empty", "shape", "cut", "longer", "huge", "floats", "labels"],
)
def test_another_file_is_refused(tmp_path, content, words):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(ValueError, match=words):
        read_idx(tmp_path / "file", (2, 3))
