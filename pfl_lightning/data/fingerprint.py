import hashlib
from collections.abc import Collection

import torch
from torch import Tensor

from pfl_lightning.client.examples import Transform
from pfl_lightning.data.clients import ClientTable


def fingerprint_of(tables: Collection[ClientTable], transform: Transform) -> str:
    """Hash of all samples, who holds which, and the constants of what transforms them; 100 MB take about 0.2 s.

    Args:
        tables: The splits, which share the samples.
        transform: Turns raw inputs into network inputs.
    """
    samples = next(iter(tables)).samples
    held = [each for table in tables for each in (table.flat, table.counts)]
    constants = [value for value in vars(transform).values() if isinstance(value, Tensor)]
    digest = hashlib.blake2b(digest_size=16)
    for tensor in (samples.inputs, samples.targets, *held, *constants):
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
