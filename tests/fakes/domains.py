"""Domains as folders of classes: PACS, Office-Caltech10 and DomainNet, with the lists that are beside them."""

import numpy as np
from PIL import Image

PACS = ["art_painting", "cartoon", "photo", "sketch"]
KINDS = ["dog", "elephant", "giraffe", "guitar", "horse", "house", "person"]
OFFICE = ["amazon", "caltech", "dslr", "webcam"]
OBJECTS = ["back_pack", "bike", "calculator", "headphones", "keyboard"]
OBJECTS += ["laptop_computer", "monitor", "mouse", "mug", "projector"]
DOMAINS = ["clipart", "infograph", "painting", "quickdraw", "real", "sketch"]
TEN = ["bird", "feather", "headphones", "ice_cream", "teapot", "tiger", "whale", "windmill", "wine_glass", "zebra"]


def write_domains(root, domains, classes, count=4, ending="jpg"):
    """Pictures of sizes of their own; those of sketches are grey."""
    random = np.random.default_rng(0)
    for domain in domains:
        for label, name in enumerate(classes):
            folder = root / domain / name
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(0, 60, (30 + label, 40, 3)) + 15 * label
                picture = Image.fromarray(pixels.astype(np.uint8)).convert("L" if domain == "sketch" else "RGB")
                picture.save(folder / f"{domain}_{number:03}.{ending}")


def write_pacs(root):
    """With lists, whose labels count from 1."""
    write_domains(root, PACS, KINDS)
    (root / "photo_train_kfold.txt").write_text("photo/dog/photo_000.jpg 1\n")


def write_office_caltech(root):
    write_domains(root, OFFICE, OBJECTS, count=3)


def write_domainnet(root):
    """The ten classes of FedBN and two of the others, and a list."""
    write_domains(root, DOMAINS, [*TEN, "aircraft_carrier", "zigzag"], count=3)
    (root / "real_train.txt").write_text("real/aircraft_carrier/real_000.jpg 0\n")
