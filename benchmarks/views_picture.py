"""Draws docs/images/views.png: what each operation of the strong view does to an image, and whole views of it.

    python benchmarks/views_picture.py [--data-dir CIFAR10_FILES] [--row 0] [--output docs/images/views.png]

Without files of CIFAR-10 the image is scikit-learn's sample photograph `china.jpg`, cut to a square and scaled to 48 pixels.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from selfens.core.views import COLORS, GEOMETRIC, OPERATIONS, Views, ViewsConfig, apply_operations, cut_out

STRENGTHS = (-1.0, -0.5, 0.0, 0.5, 1.0)
TILE, GAP, LABEL, HEAD = 96, 4, 104, 26
COLUMNS = 2  # of operations; each has one tile per strength
SIDE = 48  # of the sample photograph
BACKGROUND, INK = (255, 255, 255), (40, 40, 40)


def photograph() -> Tensor:
    """[3, side, side] from 0 to 1."""
    from sklearn.datasets import load_sample_image

    pixels = load_sample_image("china.jpg")[:, :427]
    small = Image.fromarray(pixels).resize((SIDE, SIDE), Image.Resampling.LANCZOS)
    return torch.from_numpy(np.array(small)).permute(2, 0, 1) / 255


def of_cifar(data_dir: str, row: int) -> Tensor:
    from selfens.data.sources import load, options_for

    return torch.from_numpy(load(options_for("cifar10", folder=data_dir)).raw[row]) / 255


def at_strengths(image: Tensor, name: str) -> Tensor:
    """[strengths, 3, side, side] the operation at each strength."""
    strengths = torch.tensor(STRENGTHS)
    which = torch.full((len(STRENGTHS),), OPERATIONS.index(name))
    return apply_operations(image.expand(len(STRENGTHS), -1, -1, -1), which, strengths, pixels=True)


def examples(image: Tensor, count: int) -> dict[str, Tensor]:
    """[count, 3, side, side] random views of the image, by their names."""
    torch.manual_seed(4)
    images, options = image.expand(count, -1, -1, -1), ViewsConfig(flip=True, translation=4)
    weak, strong = Views(tuple(image.shape), options, pixels=True).make(images, ("weak", "strong"))
    cut = cut_out(images, torch.rand(2, count), options.cutout, 0.5)
    return {"cutout": cut, "weak view": weak, "strong view": strong}


class Picture:
    def __init__(self, rows: int, tiles: int) -> None:
        self.image = Image.new("RGB", (tiles * (TILE + GAP) + COLUMNS * LABEL + GAP, rows), BACKGROUND)
        self.draw = ImageDraw.Draw(self.image)
        self.font: ImageFont.FreeTypeFont | ImageFont.ImageFont = ImageFont.load_default(13)

    def text(self, x: int, y: int, words: str, anchor: str) -> None:
        self.draw.text((x, y), words, fill=INK, font=self.font, anchor=anchor)

    def tile(self, x: int, y: int, pixels: Tensor) -> None:
        bytes_ = (pixels.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).numpy()
        self.image.paste(Image.fromarray(bytes_).resize((TILE, TILE), Image.Resampling.NEAREST), (x, y))

    def row(self, x: int, y: int, name: str, tiles: Tensor) -> None:
        self.text(x + LABEL - 10, y + TILE // 2, name, "rm")
        for number, pixels in enumerate(tiles):
            self.tile(x + LABEL + number * (TILE + GAP), y, pixels)


def draw(image: Tensor) -> Image.Image:
    names = [name for name in (*GEOMETRIC, *COLORS) if name != "identity"]
    each = -(-len(names) // COLUMNS)
    width = LABEL + len(STRENGTHS) * (TILE + GAP)
    below = examples(image, COLUMNS * len(STRENGTHS) + 1)
    height = 2 * HEAD + (each + len(below)) * (TILE + GAP) + GAP
    picture = Picture(height, COLUMNS * len(STRENGTHS))
    for column in range(COLUMNS):
        for number, strength in enumerate(STRENGTHS):
            middle = column * width + LABEL + number * (TILE + GAP) + TILE // 2
            picture.text(middle, HEAD // 2, f"{strength:+g}" if strength else "0", "mm")
    for number, name in enumerate(names):
        column, line = divmod(number, each)
        picture.row(column * width, HEAD + line * (TILE + GAP), name.replace("_", " "), at_strengths(image, name))
    top = HEAD + each * (TILE + GAP)
    picture.text(LABEL, top + HEAD // 2, "drawn at random:", "lm")
    for line, (name, tiles) in enumerate(below.items()):
        picture.row(0, top + HEAD + line * (TILE + GAP), name, tiles)
    return picture.image


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", help="where CIFAR-10's files are")
    parser.add_argument("--row", type=int, default=0, help="which image of CIFAR-10")
    parser.add_argument("--output", type=Path, default=Path("docs/images/views.png"))
    given = parser.parse_args()
    image = of_cifar(given.data_dir, given.row) if given.data_dir else photograph()
    draw(image).quantize(256).save(given.output, optimize=True)  # a third of the size


if __name__ == "__main__":
    main()
