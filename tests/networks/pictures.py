#!/usr/bin/env python3
"""Inputs that look like pictures to a network, made with numpy alone.

  python pictures.py OUT.npy HEIGHT WIDTH     a page of writing, f32 [1, 3, HEIGHT, WIDTH] from -1 to 1
"""
import sys

import numpy as np


def writing(random, batch, height, width):
    """Dark strokes in lines on a bright page: noise has no text, and a network that finds none gives zeros."""
    image = np.full((batch, 3, height, width), 1.0, np.float32)
    for top in range(8, height - 24, 32):
        for left in range(8, width - 12, 12):
            for _ in range(3):
                y, x = top + random.integers(0, 14), left + random.integers(0, 6)
                tall = random.integers(0, 2)
                image[:, :, y:y + (10 if tall else 3), x:x + (3 if tall else 8)] = -1.0
    return image + random.normal(0, 0.02, image.shape).astype(np.float32)


def seal(random, batch, height, width):
    """A red ring with strokes around its inside, as on a seal."""
    y, x = np.mgrid[:height, :width].astype(np.float32)
    far = min(height, width) * 0.45
    radius, angle = np.hypot(y - height / 2, x - width / 2) / far, np.arctan2(y - height / 2, x - width / 2)
    cell = np.floor((angle / np.pi + 1) * 12).astype(np.int64) % 24  # one sign in each
    inside = ((angle / np.pi + 1) * 12) % 1
    strokes = np.zeros((height, width), bool)
    for sign in range(24):
        for _ in range(3):
            low, left = 0.58 + 0.2 * random.random(), 0.15 + 0.4 * random.random()
            tall = random.integers(0, 2)
            strokes |= ((cell == sign) & (radius > low) & (radius < low + (0.25 if tall else 0.05)) & (inside > left)
                        & (inside < left + (0.12 if tall else 0.5)))
    ink = strokes | ((radius > 0.93) & (radius < 1.0))
    image = np.ones((batch, 3, height, width), np.float32)
    image[:, 0, ink], image[:, 1, ink], image[:, 2, ink] = -0.6, -0.8, 0.7  # blue, green, red
    return image + random.normal(0, 0.02, image.shape).astype(np.float32)


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    np.save(sys.argv[1], writing(np.random.default_rng(1), 1, int(sys.argv[2]), int(sys.argv[3])))


if __name__ == "__main__":
    main()
