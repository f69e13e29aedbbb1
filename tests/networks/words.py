#!/usr/bin/env python3
"""Printed words and photographs as networks of the catalogue take them, to calibrate and to evaluate with:

  python words.py lines OUT.npy 40 [SEED]          f32 [40, 3, 48, 320] for ppocr-v4-rec
  python words.py pages OUT.npy 24 [SEED]          f32 [24, 3, 320, 320] for ppocr-v4-det
  python words.py nsfw OUT.npy 30 PICTURES.tar     f32 [30, 224, 224, 3] for open-nsfw
  python words.py nudenet OUT.npy 30 PICTURES.tar  f32 [30, 3, 320, 320] for nudenet

Needs numpy and Pillow. The same seed gives the same words; SEED for photographs: how many to leave out first.
"""
import io
import sys
import tarfile

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

SYLLABLES = ("an be cor dis er fal gen hor in jet kno lum mar net ost par qui rem sta tor und ver wen xi yes zen "
             "tion ment able ness ing ful less ship dom est").split()


def word(rng):
    kind = rng.integers(0, 8)
    if kind == 0:
        return str(rng.integers(0, 100000))
    if kind == 1:
        return f"{rng.integers(1, 32)}.{rng.integers(1, 13)}.{rng.integers(1990, 2030)}"
    text = "".join(rng.choice(SYLLABLES) for _ in range(rng.integers(1, 4)))
    return text.upper() if kind == 2 else text.capitalize() if kind < 5 else text


def colours(rng):
    paper = rng.integers(180, 256, 3)
    ink = rng.integers(0, 100, 3)
    return (tuple(map(int, paper)), tuple(map(int, ink))) if rng.integers(0, 5) else (tuple(map(int, ink)), tuple(map(int, paper)))


def normal(picture):
    """Blue first, from -1 to 1, channels in front, as PaddleOCR has it."""
    return (np.asarray(picture, np.float32)[:, :, ::-1].transpose(2, 0, 1) / 255 - 0.5) / 0.5


def finish(rng, picture):
    if rng.integers(0, 3) == 0:
        picture = picture.filter(ImageFilter.GaussianBlur(float(rng.uniform(0.2, 1.0))))
    noisy = np.asarray(picture, np.float32) + rng.normal(0, rng.uniform(0, 8), np.asarray(picture).shape)
    return Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8))


def line(rng):
    paper, ink = colours(rng)
    picture = Image.new("RGB", (320, 48), paper)
    font = ImageFont.load_default(int(rng.integers(22, 38)))
    text, draw = word(rng), ImageDraw.Draw(picture)
    while draw.textlength(text, font) < 200:
        text += " " + word(rng)
    draw.text((int(rng.integers(2, 8)), 24), text, ink, font, anchor="lm")
    return normal(finish(rng, picture))


def page(rng):
    paper, ink = colours(rng)
    picture = Image.new("RGB", (320, 320), paper)
    draw, y = ImageDraw.Draw(picture), int(rng.integers(5, 30))
    while y < 290:
        size = int(rng.integers(12, 34))
        text = " ".join(word(rng) for _ in range(rng.integers(1, 6)))
        draw.text((int(rng.integers(4, 120)), y), text, ink, ImageFont.load_default(size))
        y += size + int(rng.integers(4, 40))
    return normal(finish(rng, picture))


def photographs(path, count, skip):
    with tarfile.open(path) as tar:
        files = sorted((m for m in tar.getmembers() if m.isfile()), key=lambda m: m.name)
        for member in files[skip::max(1, (len(files) - skip) // count)][:count]:
            yield Image.open(io.BytesIO(tar.extractfile(member).read())).convert("RGB")


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    kind, out, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if kind in ("lines", "pages"):
        rng = np.random.default_rng(int(sys.argv[4]) if len(sys.argv) > 4 else 1)
        samples = [(line if kind == "lines" else page)(rng) for _ in range(count)]
    elif kind == "nsfw":  # blue first, less the mean of ImageNet
        mean = np.array([104, 117, 123], np.float32)
        samples = [np.asarray(p, np.float32)[:, :, ::-1] - mean for p in photographs(sys.argv[4], count, int((sys.argv[5:] or [0])[0]))]
    else:
        samples = [np.asarray(p.resize((320, 320)), np.float32).transpose(2, 0, 1) / 255
                   for p in photographs(sys.argv[4], count, int((sys.argv[5:] or [0])[0]))]
    np.save(out, np.stack(samples).astype(np.float32))


if __name__ == "__main__":
    main()
