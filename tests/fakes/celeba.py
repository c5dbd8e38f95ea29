"""CelebA: pictures of a level each, and two lists in different orders, with runs of blanks."""

import numpy as np
from PIL import Image

NAMES = ["5_o_Clock_Shadow", "Bald", "Smiling", "Young"]


def person(number, people):
    """Whom picture ``number``, from 1, shows: the first two show person 9, and the others the rest in turn."""
    return 9 if number <= 2 else 10 + number % (people - 1)


def attributes(number):
    return [int(number % 3 == 0), 0, number % 2, 1]


def level(number):
    return 6 * (number % 40)


def write_faces(folder, count):
    folder.mkdir(parents=True)
    for number in range(1, count + 1):
        pixels = np.full((218, 178, 3), level(number), np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:06}.jpg")


def write_celeba(root, people=24):
    """Six pictures for each person on average, two for person 9, and five at least for the others."""
    count = 6 * people
    write_faces(root / "celeba/img_align_celeba", count)
    rows = [
        f"{number:06}.jpg " + " ".join(f"{2 * value - 1:2}" for value in attributes(number))
        for number in range(1, count + 1)
    ]
    text = "\n".join([str(count), " ".join(NAMES) + " ", *rows, ""])
    (root / "celeba/list_attr_celeba.txt").write_text(text)
    shown = [f"{number:06}.jpg {person(number, people)}\n" for number in range(count, 0, -1)]
    (root / "celeba/identity_CelebA.txt").write_text("".join(shown))
