"""Tiny ImageNet's folders: three classes, the first picture grey, and the test pictures listed in another order."""

import numpy as np
from PIL import Image

WNIDS = ["n02124075", "n01443537", "n04067472"]  # as in the real file, in no order
GREY = 40


def save(path, level, mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(level).integers(-8, 8, (64, 64, 3))
    tinted = level + noise + [8, 0, -8]
    Image.fromarray(tinted.astype(np.uint8)).convert(mode).save(path)


def level(label, number):
    """The grey level of a picture, which tells what it is."""
    return GREY + 60 * label + 3 * (number % 20)


def write_tiny_imagenet(root, count=12, tested=6):
    """Test picture ``number`` is of the class ``number % 3``."""
    folder = root / "tiny-imagenet-200"
    for label, wnid in enumerate(WNIDS):
        for number in range(count):
            mode = "L" if label == number == 0 else "RGB"
            save(folder / f"train/{wnid}/images/{wnid}_{number}.JPEG", level(label, number), mode)
        (folder / f"train/{wnid}/{wnid}_boxes.txt").write_text(f"{wnid}_0.JPEG\t0\t0\t63\t63\n")
    for number in range(tested):
        save(folder / f"val/images/val_{number}.JPEG", level(number % 3, number))
    lines = [f"val_{number}.JPEG\t{WNIDS[number % 3]}\t0\t32\t44\t62\n" for number in reversed(range(tested))]
    (folder / "val/val_annotations.txt").write_text("".join(lines))
    save(folder / "test/images/test_0.JPEG", 0)
    (folder / "wnids.txt").write_text("\n".join(WNIDS))
    words = ["n00001740\tentity", "n01443537\tgoldfish, Carassius auratus", "n02124075\tEgyptian cat"]
    (folder / "words.txt").write_text("\n".join(words) + "\n")
