"""Makes a class-per-folder tree of photo-like pictures, without a download.

Four classes are generated: clouded skies over hills, brick walls, balls on a table and woven cloth, each lit, coloured
and sized at random, so that a small network has to learn shapes. A fifth, ``photographs``, holds the real photographs
that scikit-image and scikit-learn ship, where they are installed, and crops of them. Most files are JPEG of varied
size, quality and chroma subsampling; some are progressive, some grey, a few are PNG. The same seed gives the same
pictures.

    python tools/demo_data.py FOLDER [--images N] [--seed S]
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

Pixels = np.ndarray


def smooth_noise(rng: np.random.Generator, height: int, width: int, roughness: float) -> Pixels:
    """Noise of many octaves, 0 to 1, shape (height, width); a higher roughness leaves more fine grain."""
    total = np.zeros((height, width), np.float32)
    octave, weight = 2, 1.0
    while octave < max(height, width):
        grid = rng.random((octave + 1, octave + 1), np.float32)
        total += weight * np.asarray(Image.fromarray(grid).resize((width, height), Image.Resampling.BICUBIC))
        octave, weight = octave * 2, weight * roughness
    total -= total.min()
    return total / max(float(total.max()), 1e-6)


def tinted(values: Pixels, dark: Pixels, light: Pixels) -> Pixels:
    """Values 0 to 1 as colours between two; shape (height, width, 3)."""
    return dark + values[..., None] * (light - dark)


def colour(rng: np.random.Generator, low: float, high: float) -> Pixels:
    """A random colour, shape (3,)."""
    return rng.uniform(low, high, 3).astype(np.float32)


def hills(rng: np.random.Generator, height: int, width: int) -> Pixels:
    """Ridges behind one another under a clouded sky."""
    clouds = smooth_noise(rng, height, width, 0.55)
    sky = np.array([0.35, 0.55, 0.85], np.float32) * rng.uniform(0.7, 1.1)
    picture = tinted(np.clip(clouds * 1.8 - 0.7, 0, 1), sky, np.full(3, 0.95, np.float32))
    rows = np.arange(height, dtype=np.float32)[:, None]
    ground = colour(rng, 0.1, 0.4) + np.array([0.0, 0.15, 0.0], np.float32)
    ridges = int(rng.integers(2, 5))
    for ridge in range(ridges):
        line = smooth_noise(rng, 2, width, 0.5)[0]
        top = height * (0.35 + 0.5 * ridge / ridges + 0.25 * (line - 0.5))
        haze = 0.6 * (1 - (ridge + 1) / ridges)
        grass = tinted(smooth_noise(rng, height, width, 0.8), ground * 0.6, ground * 1.5)
        covered = rows > top
        picture[covered] = (grass * (1 - haze) + sky * haze)[covered]
    return picture


def bricks(rng: np.random.Generator, height: int, width: int) -> Pixels:
    """A wall of offset blocks, each of its own shade."""
    block_height = rng.uniform(0.06, 0.16) * height
    block_width = block_height * rng.uniform(1.6, 3.0)
    slope = rng.uniform(-0.08, 0.08)
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    y += slope * x
    row = np.floor(y / block_height).astype(int)
    shifted = x + (row % 2) * block_width / 2
    column = np.floor(shifted / block_width).astype(int)
    shade = rng.random((64, 64), np.float32)[row % 64, column % 64]
    picture = tinted(0.6 * shade + 0.4 * smooth_noise(rng, height, width, 0.85), colour(rng, 0.15, 0.4), colour(rng, 0.5, 0.9))
    joint = ((y % block_height) < block_height * 0.1) | ((shifted % block_width) < block_height * 0.1)
    picture[joint] = 0.75 * colour(rng, 0.6, 1.0)
    return picture * (0.6 + 0.4 * smooth_noise(rng, height, width, 0.3))[..., None]


def balls(rng: np.random.Generator, height: int, width: int) -> Pixels:
    """Shaded spheres with highlights on a grained table."""
    picture = tinted(smooth_noise(rng, height, width, 0.7), colour(rng, 0.1, 0.4), colour(rng, 0.4, 0.8))
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    light = np.array([rng.uniform(-0.6, 0.6), -0.6, 0.7], np.float32)
    light /= np.linalg.norm(light)
    for _ in range(int(rng.integers(2, 7))):
        radius = rng.uniform(0.1, 0.25) * min(height, width)
        dx = (x - rng.uniform(0, width)) / radius
        dy = (y - rng.uniform(0, height)) / radius
        shadow = np.exp(-((dx - 0.4) ** 2 + (dy - 0.5) ** 2))
        picture *= (1 - 0.5 * shadow)[..., None]
        inside = dx**2 + dy**2 < 1
        dz = np.sqrt(np.clip(1 - dx**2 - dy**2, 0, 1))
        lit = np.clip(dx * light[0] + dy * light[1] + dz * light[2], 0, 1)
        ball = colour(rng, 0.2, 0.95) * (0.15 + 0.85 * lit)[..., None] + (lit**30)[..., None]
        picture[inside] = ball[inside]
    return picture


def cloth(rng: np.random.Generator, height: int, width: int) -> Pixels:
    """Woven stripes in two directions, wrinkled."""
    angle = rng.uniform(0, np.pi)
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    wrinkle = smooth_noise(rng, height, width, 0.4) * rng.uniform(20, 60)
    along = x * np.cos(angle) + y * np.sin(angle) + wrinkle
    across = -x * np.sin(angle) + y * np.cos(angle) + wrinkle
    thread = rng.uniform(4, 14)
    weave = 0.5 + 0.25 * np.sin(2 * np.pi * along / thread) + 0.25 * np.sin(2 * np.pi * across / thread)
    stripe = 0.5 + 0.5 * np.sign(np.sin(2 * np.pi * along / (thread * rng.uniform(6, 12))))
    picture = tinted(weave, colour(rng, 0.1, 0.4), colour(rng, 0.5, 0.9))
    picture = picture * (1 - 0.5 * stripe[..., None] * colour(rng, 0.2, 1.0))
    return picture * (0.5 + 0.5 * smooth_noise(rng, height, width, 0.5))[..., None]


GENERATED: dict[str, Callable[[np.random.Generator, int, int], Pixels]] = {
    "balls": balls,
    "bricks": bricks,
    "cloth": cloth,
    "hills": hills,
}


def as_photo(rng: np.random.Generator, picture: Pixels) -> Image.Image:
    """Adds the grain of a sensor and turns 0 to 1 into bytes."""
    grain = rng.normal(0, rng.uniform(0.005, 0.025), picture.shape).astype(np.float32)
    return Image.fromarray((np.clip(picture + grain, 0, 1) * 255).astype(np.uint8))


def save(rng: np.random.Generator, image: Image.Image, folder: Path, stem: str) -> None:
    """Writes one file, of a format and with settings as they occur in the wild."""
    draw = rng.random()
    if draw < 0.03:
        image.save(folder / f"{stem}.png")
        return
    if draw < 0.07:
        image = image.convert("L")
    options = {"quality": int(rng.integers(75, 97)), "progressive": bool(rng.random() < 0.08)}
    if image.mode == "RGB":
        options["subsampling"] = int(rng.choice([0, 1, 2], p=[0.6, 0.05, 0.35]))
    image.save(folder / f"{stem}.jpg", **options)


def photo_size(rng: np.random.Generator) -> tuple[int, int]:
    """(height, width) with a mean of about 200 000 pixels."""
    pixels = np.clip(rng.lognormal(np.log(180_000), 0.45), 20_000, 1_500_000)
    ratio = np.exp(rng.uniform(np.log(3 / 5), np.log(5 / 3)))
    return int(np.sqrt(pixels / ratio)), int(np.sqrt(pixels * ratio))


def shipped_photographs() -> Iterator[Path]:
    """Photographs inside installed packages, found without importing those."""
    wanted = {
        "skimage": ("data", ["astronaut.png", "chelsea.png", "coffee.png", "hubble_deep_field.jpg", "ihc.png",
                             "motorcycle_left.png", "retina.jpg", "rocket.jpg", "camera.png", "brick.png", "grass.png",
                             "gravel.png", "coins.png", "moon.png"]),
        "sklearn": ("datasets/images", ["china.jpg", "flower.jpg"]),
    }  # fmt: skip
    for package, (folder, names) in wanted.items():
        spec = importlib.util.find_spec(package)
        for place in spec.submodule_search_locations or [] if spec else []:
            yield from (path for name in names if (path := Path(place) / folder / name).is_file())


def write_photographs(rng: np.random.Generator, folder: Path, count: int) -> int:
    """Copies the shipped photographs and adds crops of them up to `count` files; returns how many were written."""
    originals = list(shipped_photographs())
    if not originals:
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    for path in originals:
        (folder / path.name).write_bytes(path.read_bytes())
    pictures = [Image.open(path).convert("RGB") for path in originals]
    for number in range(max(count - len(originals), 0)):
        picture = pictures[number % len(pictures)]
        share = rng.uniform(0.4, 0.9)
        width, height = (max(int(side * share), 32) for side in picture.size)
        left = int(rng.integers(0, max(picture.width - width, 0) + 1))
        top = int(rng.integers(0, max(picture.height - height, 0) + 1))
        crop = picture.crop((left, top, left + width, top + height))
        crop.thumbnail((900, 900))
        save(rng, crop, folder, f"crop-{number:04}")
    return max(count, len(originals))


def write_generated(job: tuple[Path, int, int, int]) -> None:
    """Writes picture `number` of the class at `place`; it depends on nothing but these and the seed."""
    folder, seed, place, number = job
    name, draw = list(GENERATED.items())[place]
    rng = np.random.default_rng([seed, place, number])
    save(rng, as_photo(rng, draw(rng, *photo_size(rng))), folder / name, f"{number:04}")


def write_tree(folder: Path, images: int, seed: int) -> dict[str, int]:
    """Writes the tree and returns how many pictures each class has; `images` is the least of all together."""
    classes = len(GENERATED) + (1 if any(shipped_photographs()) else 0)
    each = -(-images // classes)
    counts = {}
    for name in GENERATED:
        (folder / name).mkdir(parents=True, exist_ok=True)
        counts[name] = each
    with ProcessPoolExecutor() as pool:
        jobs = [(folder, seed, place, number) for place in range(len(GENERATED)) for number in range(each)]
        list(pool.map(write_generated, jobs, chunksize=8))
    if photographs := write_photographs(np.random.default_rng([seed, classes]), folder / "photographs", each):
        counts["photographs"] = photographs
    return counts


def main() -> None:
    """Writes the tree that the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, default=400, help="how many in all, at least (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    counts = write_tree(arguments.folder, arguments.images, arguments.seed)
    print(f"{sum(counts.values())} pictures: " + ", ".join(f"{count} {name}" for name, count in counts.items()))


if __name__ == "__main__":
    main()
