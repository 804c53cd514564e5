"""Make the images of tests/data/images and golden.json, which says what Pillow makes of each.

Run with Pillow, NumPy and (for the arithmetic-coded file) jpegtran: python tests/data/make_golden.py
The files are committed, so the tests need none of these. A case has a file and either the reference pixels, as a PNG of
plain RGB, or the fault class that decoding must give; a resample has a box, an output size and reference pixels.
"""

import io
import json
import shutil
import struct
import subprocess
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

OUT = Path(__file__).parent / "images"
cases = []
resamples = []


def photo(width, height, seed=0):
    """Something like a photo: soft colour fields, an edge, a little grain."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    planes = []
    for channel in range(3):
        a, b, c, d = rng.uniform(0.02, 0.11, 4)
        plane = 128 + 60 * np.sin(a * x + channel) + 50 * np.cos(b * y - channel) + 20 * np.sin(c * x + d * y)
        planes.append(plane)
    pixels = np.stack(planes, axis=-1)
    pixels[(x - width / 2) ** 2 + (y - height / 3) ** 2 < (min(width, height) / 4) ** 2] += [70, -60, 30]
    pixels += rng.normal(0, 3, pixels.shape)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def write(name, data):
    (OUT / name).write_bytes(data)


def reference(name, image):
    path = f"{name}.reference.png"
    image.convert("RGB").save(OUT / path, optimize=True)
    return path


def decode(name, data, *, difference=0, pixels=None):
    """A case whose pixels are Pillow's (or, where our rule differs, the given ones)."""
    write(name, data)
    image = pixels if pixels is not None else Image.open(io.BytesIO(data)).convert("RGB")
    cases.append({"file": name, "pixels": reference(name, image), "difference": difference})


def refuse(name, data, fault, words):
    """A case that must be refused with a class and words; Pillow refuses those marked as truncated, too."""
    write(name, data)
    if fault == "truncated":
        try:
            Image.open(io.BytesIO(data)).convert("RGB")
        except (OSError, SyntaxError):
            pass
        else:
            raise AssertionError(f"Pillow takes {name}")
    cases.append({"file": name, "fault": fault, "words": words})


def resample(name, box, size, mirrored=False):
    """Pillow's crop, bilinear resize and mirror; box is left, top, width, height, size is height, width.

    Pillow up to 12 makes the horizontal pass first; 13 makes the vertical one first for some shapes, which moves last
    bits. Two calls with one pass each give the older order in every version.
    """
    left, top, width, height = box
    crop = Image.open(OUT / name).convert("RGB").crop((left, top, left + width, top + height))
    image = crop.resize((size[1], height), Image.Resampling.BILINEAR).resize((size[1], size[0]), Image.Resampling.BILINEAR)
    direct = crop.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    assert np.abs(np.asarray(image, dtype=int) - np.asarray(direct, dtype=int)).max() <= 1
    if mirrored:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    pixels = reference(f"resample-{len(resamples)}", image)
    resamples.append({"file": name, "box": box, "size": size, "mirrored": mirrored, "pixels": pixels})


def save(image, format, **options):
    out = io.BytesIO()
    image.save(out, format, **options)
    return out.getvalue()


def patch(data, old, new):
    assert data.count(old) >= 1, (old, len(data))
    return data.replace(old, new, 1)


def without_segment(data, marker):
    start = data.index(bytes([0xFF, marker]))
    (length,) = struct.unpack(">H", data[start + 2 : start + 4])
    return data[:start] + data[start + 2 + length :]


def png(width, height, bit_depth, color, rows):
    """A PNG that Pillow cannot write."""

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, bit_depth, color, 0, 0, 0)
    body = zlib.compress(b"".join(b"\0" + row for row in rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def jpegs():
    small = photo(83, 61)
    for name, subsampling in (("444", 0), ("422", 1), ("420", 2)):
        decode(f"{name}.jpg", save(small, "JPEG", quality=90, subsampling=subsampling))
    for width, height in ((1, 1), (1, 37), (37, 1), (17, 33), (33, 17), (16, 16)):
        decode(f"420-{width}x{height}.jpg", save(photo(width, height), "JPEG", quality=85, subsampling=2))
    decode("grey.jpg", save(small.convert("L"), "JPEG", quality=90))
    decode("rgb.jpg", save(small, "JPEG", quality=90, keep_rgb=True))
    progressive = save(photo(96, 72), "JPEG", quality=85, progressive=True, subsampling=2)
    decode("progressive.jpg", progressive)
    scans = [place for place in range(len(progressive)) if progressive[place : place + 2] == b"\xff\xda"]
    decode("progressive-first-scans.jpg", progressive[: scans[2]] + b"\xff\xd9")
    restart = save(small, "JPEG", quality=90, subsampling=2, restart_marker_blocks=2)
    decode("restart.jpg", restart)
    (OUT / "transposed.tmp").write_bytes(save(small, "JPEG", quality=90, subsampling=1))
    if shutil.which("jpegtran"):
        tran = lambda *options: subprocess.run(
            ["jpegtran", *options, OUT / "transposed.tmp"], check=True, capture_output=True
        ).stdout
        write("440.jpg", tran("-transpose"))
        write("arithmetic.jpg", tran("-arithmetic"))
    (OUT / "transposed.tmp").unlink()
    for name in ("440.jpg", "arithmetic.jpg"):
        decode(name, (OUT / name).read_bytes())

    inks = Image.merge("CMYK", (*photo(48, 40, 1).split(), photo(48, 40, 2).convert("L")))
    cmyk = save(inks, "JPEG", quality=95)
    decode("cmyk.jpg", cmyk)
    decode("cmyk-no-marker.jpg", without_segment(cmyk, 0xEE))
    ycck = bytearray(cmyk)
    ycck[cmyk.index(b"Adobe") + 11] = 2
    decode("ycck.jpg", bytes(ycck))

    whole = save(small, "JPEG", quality=90, subsampling=2)
    tables = whole.index(b"\xff\xdb")
    decode("junk-before-marker.jpg", whole[:tables] + bytes(5) + whole[tables:])
    decode("junk-after-end.jpg", whole + b"\0\0junk after the end" * 3)
    decode("two-images.jpg", whole + save(photo(20, 20), "JPEG"))
    decode("bad-icc.jpg", save(small, "JPEG", icc_profile=b"garbage" * 20))
    exif = Image.Exif()
    exif[0x112] = 6
    decode("orientation.jpg", save(photo(64, 48), "JPEG", exif=exif))
    # Twelve one bits are no code of the standard tables.
    damage = len(whole) * 2 // 3
    decode("damaged.jpg", whole[:damage] + b"\xff\0" * 6 + whole[damage + 12 :])
    decode("early-end.jpg", whole[: len(whole) // 2] + b"\xff\xd9")
    renumbered = bytearray(restart)
    renumbered[restart.index(b"\xff\xd3") + 1] = 0xD5
    decode("restart-out-of-turn.jpg", bytes(renumbered))

    refuse("truncated.jpg", whole[: len(whole) * 2 // 3], "truncated", "end-of-image")
    refuse("truncated-header.jpg", whole[:100], "truncated", "")
    refuse("no-end.jpg", whole[:-2], "truncated", "end-of-image")
    frame = whole.index(b"\xff\xc0")
    refuse("12-bit.jpg", whole[: frame + 4] + b"\x0c" + whole[frame + 5 :], "unsupported", "12 bits")
    refuse("lossless.jpg", whole[: frame + 1] + b"\xc3" + whole[frame + 2 :], "unsupported", "SOF3")
    refuse("hierarchical.jpg", whole[: frame + 1] + b"\xc5" + whole[frame + 2 :], "unsupported", "SOF5")
    huge = whole[: frame + 5] + struct.pack(">HH", 65000, 65000) + whole[frame + 9 :]
    refuse("huge.jpg", huge, "too-large", "65000x65000")
    refuse("no-frame.jpg", whole[:frame] + whole[frame + 19 :], "corrupt", "")


def others():
    small = photo(41, 29, 3)
    alpha = photo(41, 29, 4).convert("L")
    rgba = small.copy()
    rgba.putalpha(alpha)
    grey_alpha = Image.merge("LA", (small.convert("L"), alpha))
    palette = small.quantize(64)
    decode("rgb.png", save(small, "PNG"))
    decode("named-wrongly.jpg", save(photo(8, 8), "PNG"))
    decode("rgba.png", save(rgba, "PNG"))
    decode("grey.png", save(small.convert("L"), "PNG"))
    decode("grey-alpha.png", save(grey_alpha, "PNG"))
    decode("palette.png", save(palette, "PNG"))
    decode("palette-transparent.png", save(palette, "PNG", transparency=bytes(range(0, 256, 4))))
    decode("palette-2-bit.png", save(small.quantize(4), "PNG", bits=2))
    decode("1-bit.png", save(small.convert("1"), "PNG"))
    decode("icc.png", save(small, "PNG", icc_profile=b"garbage" * 20))
    wide = np.asarray(small).astype(np.uint16) * 257 - np.arange(41, dtype=np.uint16)[None, :, None] % 200
    rows = [row.astype(">u2").tobytes() for row in wide]
    decode("rgb-16.png", png(41, 29, 16, 2, rows))
    grey = wide[:, :, 0]
    decode(
        "grey-16.png",
        png(41, 29, 16, 0, [row.astype(">u2").tobytes() for row in grey]),
        pixels=Image.fromarray((grey >> 8).astype(np.uint8)),
    )
    two = np.stack([grey, wide[:, :, 1]], axis=-1)
    decode("grey-alpha-16.png", png(41, 29, 16, 4, [row.astype(">u2").tobytes() for row in two]))
    four = np.concatenate([wide, wide[:, :, :1]], axis=-1)
    decode("rgba-16.png", png(41, 29, 16, 6, [row.astype(">u2").tobytes() for row in four]))

    frames = [Image.new("RGB", (12, 9), color) for color in ("red", "lime", "blue")]
    decode("animated.gif", save(frames[0], "GIF", save_all=True, append_images=frames[1:]))
    decode("animated.webp", save(frames[0], "WEBP", save_all=True, append_images=frames[1:], lossless=True))
    decode("photo.gif", save(palette, "GIF"))
    decode("transparent.gif", save(palette, "GIF", transparency=palette.getpixel((0, 0))))
    decode("lossless.webp", save(small, "WEBP", lossless=True))
    decode("lossy.webp", save(photo(64, 48), "WEBP", quality=80), difference=1)
    decode("alpha.webp", save(rgba, "WEBP", lossless=True, exact=True))
    decode("rgb.bmp", save(small, "BMP"))
    decode("palette.bmp", save(palette, "BMP"))
    decode("1-bit.bmp", save(small.convert("1"), "BMP"))
    decode("rgb.tif", save(small, "TIFF"))
    decode("lzw.tif", save(small, "TIFF", compression="tiff_lzw"))
    decode("deflate.tif", save(rgba, "TIFF", compression="tiff_adobe_deflate"))
    decode("grey.tif", save(small.convert("L"), "TIFF"))
    decode("rgb.ppm", save(small, "PPM"))

    for format in ("GIF", "BMP", "TIFF", "WEBP", "PPM"):
        whole = save(small, format, **({"lossless": True} if format == "WEBP" else {}))
        refuse(f"truncated.{format.lower()}", whole[: len(whole) * 2 // 3], "truncated", "")
    whole = save(small, "PNG")
    refuse("truncated.png", whole[: len(whole) // 2], "truncated", "Png")
    refuse("bomb.png", png(30000, 30000, 1, 0, [b""]), "too-large", "30000x30000")
    refuse("damaged.png", whole[:60] + b"\x5a" * 12 + whole[72:], "corrupt", "Png")
    refuse("heic.jpg", b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "unsupported", "HEIF")
    refuse("text.jpg", b"<html>404 not found</html>", "corrupt", "<html>")
    refuse("empty.jpg", b"", "empty", "no bytes")


def resizes():
    write("photo-444.jpg", save(photo(300, 220, 5), "JPEG", quality=80, subsampling=0))
    write("photo-420.jpg", save(photo(257, 199, 6), "JPEG", quality=80, subsampling=2))
    for name, box, size in (
        ("photo-444.jpg", [0, 0, 300, 220], [64, 64]),
        ("photo-444.jpg", [31, 17, 120, 99], [80, 96]),
        ("photo-444.jpg", [133, 50, 40, 30], [56, 72]),
        ("photo-444.jpg", [299, 219, 1, 1], [5, 7]),
        ("photo-420.jpg", [0, 0, 257, 199], [96, 96]),
        ("photo-420.jpg", [17, 15, 201, 33], [33, 64]),
        ("photo-420.jpg", [101, 64, 64, 64], [64, 64]),
        ("photo-420.jpg", [250, 3, 7, 190], [40, 21]),
        ("photo-420.jpg", [15, 16, 225, 180], [31, 9]),
        ("rgb.png", [3, 2, 30, 20], [24, 24]),
        ("cmyk.jpg", [5, 6, 33, 31], [20, 24]),
    ):
        resample(name, box, size)
        resample(name, box, size, mirrored=True)


OUT.mkdir(exist_ok=True)
jpegs()
others()
resizes()
(OUT / "golden.json").write_text(json.dumps({"cases": cases, "resamples": resamples}, indent=1) + "\n")
print(len(cases), "cases,", len(resamples), "resamples,", sum(f.stat().st_size for f in OUT.iterdir()), "bytes")
