"""CINIC-10: folders of PNG files."""

import io

import numpy as np
from PIL import Image

CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def random_files(counts):
    """Contents of the PNG files by their names, with so many for each class, one of them grey; and their pixels."""
    random, files, pixels = np.random.default_rng(0), {}, {}
    for split, count in counts.items():
        for name in (f"{split}/{label}/{number}.png" for label in CLASSES for number in range(count)):
            shape = (32, 32) if name == "train/cat/0.png" else (32, 32, 3)
            pixels[name] = random.integers(0, 256, shape, dtype=np.uint8)
            content = io.BytesIO()
            Image.fromarray(pixels[name]).save(content, "PNG")
            files[name] = content.getvalue()
    return files, pixels


def write_cinic10(root):
    for name, content in random_files({"train": 12, "valid": 1, "test": 6})[0].items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
