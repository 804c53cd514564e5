"""Make the images of tests/data/choices and choices.json: how they decode where the job has a choice.

Run with Pillow, NumPy, cjpeg and djpeg (libjpeg-turbo-progs): python tests/data/make_choices.py
The files are committed, so the tests need none of these. References are made by Pillow; those of the fast transform by
djpeg. A case has a file (of this folder, or of ../images), what the job says of decoding, how far the image is reduced,
and reference pixels as a PNG of plain RGB, or the fault class that decoding must give.
"""

import io
import json
import struct
import subprocess
import zlib
from pathlib import Path

import numpy as np
from PIL import Image, ImageFile, ImageOps

HERE = Path(__file__).parent
OUT = HERE / "choices"
cases = []
references = {}


def photo(width, height, seed=0):
    """Something like a photo: soft colour fields, an edge, a little grain."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    a, b, c, d = rng.uniform(0.02, 0.11, 4)
    planes = [128 + 60 * np.sin(a * x + k) + 50 * np.cos(b * y - k) + 20 * np.sin(c * x + d * y) for k in range(3)]
    pixels = np.stack(planes, axis=-1)
    pixels[(x - width / 2) ** 2 + (y - height / 3) ** 2 < (min(width, height) / 4) ** 2] += [70, -60, 30]
    return Image.fromarray((pixels + rng.normal(0, 3, pixels.shape)).clip(0, 255).astype(np.uint8))


def case(name, image=None, *, data=None, reduction=1, fault=None, words="", difference=0, **decode):
    """A case over `data`, or over a file that is there already."""
    if data is not None:
        (OUT / name).write_bytes(data)
    entry = {"file": name, "decode": decode, "reduction": reduction}
    if image is None:
        cases.append({**entry, "fault": fault, "words": words})
        return
    image = image.convert("RGB")
    key = (image.size, image.tobytes())
    if key not in references:
        references[key] = f"reference-{len(references)}.png"
        image.save(OUT / references[key], optimize=True)
    cases.append({**entry, "pixels": references[key], "difference": difference})


def opened(data):
    return Image.open(io.BytesIO(data))


def at(name):
    """Bytes of a file of ../images."""
    return (HERE / "images" / name).read_bytes()


def save(image, format, **options):
    out = io.BytesIO()
    image.save(out, format, **options)
    return out.getvalue()


def tool(name, *options, data):
    return subprocess.run([name, *options], input=data, check=True, capture_output=True).stdout


def jpegs():
    source = save(photo(83, 61), "PPM")
    kinds = {
        "444": ["-sample", "1x1"],
        "422": ["-sample", "2x1"],
        "440": ["-sample", "1x2"],
        "420": ["-sample", "2x2"],
        "411": ["-sample", "4x1"],
        "410": ["-sample", "4x2"],
        "441": ["-sample", "1x4"],
        "wide-tables": ["-quality", "3"],
        "420-restart": ["-sample", "2x2", "-restart", "4B"],
        "420-progressive": ["-sample", "2x2", "-progressive"],
        "411-progressive": ["-sample", "4x1", "-progressive"],
        "420-arithmetic": ["-sample", "2x2", "-arithmetic"],
        "444-arithmetic-progressive": ["-sample", "1x1", "-arithmetic", "-progressive"],
        "rgb": ["-rgb"],
        "grey": ["-grayscale"],
    }
    for kind, options in kinds.items():
        data = tool("cjpeg", "-quality", "88", *options, data=source)
        case(f"{kind}.jpg", opened(data), data=data)
        for reduction in (2, 4, 8):
            image = opened(data)
            image.draft(image.mode, (83 // reduction, 61 // reduction))
            assert image.size == (-(-83 // reduction), -(-61 // reduction)), image.size
            case(f"{kind}.jpg", image, reduction=reduction, mode="scaled")
        fast = opened(tool("djpeg", "-dct", "fast", "-nosmooth", "-pnm", data=data))
        case(f"{kind}.jpg", fast, mode="fast")
    for name in ("cmyk.jpg", "ycck.jpg"):
        image = opened(at(name))
        image.draft("CMYK", (24, 20))
        assert image.size == (24, 20)
        case(f"../images/{name}", image, reduction=2, mode="scaled")


def lenient():
    ImageFile.LOAD_TRUNCATED_IMAGES = True
    for name in ("truncated.jpg", "no-end.jpg", "420.jpg"):
        case(f"../images/{name}", opened(at(name)), truncated="lenient")
    whole = (OUT / "420-progressive.jpg").read_bytes()
    cut = whole[: len(whole) * 3 // 5]
    case("cut-progressive.jpg", opened(cut), data=cut, truncated="lenient")
    ImageFile.LOAD_TRUNCATED_IMAGES = False
    case("cut-progressive.jpg", fault="truncated", words="end-of-image")
    case("../images/truncated-header.jpg", fault="truncated", truncated="lenient")
    case("../images/truncated.png", fault="truncated", truncated="lenient")


def turned():
    image = photo(45, 31, 7)
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x112] = orientation
        data = save(image, "JPEG", quality=90, exif=exif)
        name = f"orientation-{orientation}.jpg"
        case(name, ImageOps.exif_transpose(opened(data)), data=data, orientation="apply")
        case(name, opened(data), orientation="ignore")
    for format, options in (("PNG", {}), ("WEBP", {"lossless": True})):
        exif = Image.Exif()
        exif[0x112] = 8
        data = save(image, format, exif=exif, **options)
        name = f"orientation-8.{format.lower()}"
        case(name, ImageOps.exif_transpose(opened(data)), data=data, orientation="apply")
        case(name, opened(data))
    # Pillow turns TIFF by itself.
    data = save(image, "TIFF", exif=exif)
    case("orientation-8.tif", opened(data), data=data, orientation="apply")
    case("orientation-8.tif", image)
    plain = save(image, "JPEG", quality=90)
    for number, body in enumerate((b"garbage", b"II\x2a\0\xff\xff\xff\xff", b"MM\0\x2a\0\0\0\x08\xff\xff", b"II\x2a\0")):
        segment = b"Exif\0\0" + body
        data = plain[:2] + b"\xff\xe1" + struct.pack(">H", len(segment) + 2) + segment + plain[2:]
        case(f"garbage-exif-{number}.jpg", opened(plain), data=data, orientation="apply")


def over(image, background):
    """Pillow's way to lay a picture over a colour."""
    image = image.convert("RGBA")
    canvas = Image.new("RGB", image.size, background)
    canvas.paste(image, mask=image.getchannel("A"))
    return canvas


def png(width, height, bit_depth, color, rows, chunks=()):
    """A PNG that Pillow cannot write."""

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, bit_depth, color, 0, 0, 0)
    body = zlib.compress(b"".join(b"\0" + row for row in rows))
    middle = b"".join(chunk(*one) for one in chunks)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + middle + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def transparent():
    colour = (10, 200, 77)
    for name in ("rgba.png", "grey-alpha.png", "palette-transparent.png", "transparent.gif", "alpha.webp", "rgb.png",
                 "deflate.tif"):  # fmt: skip
        case(f"../images/{name}", over(opened(at(name)), colour), background=colour)
    # Upper bytes of 16 bits, as Pillow reads them.
    for name in ("rgba-16.png", "grey-alpha-16.png"):
        case(f"../images/{name}", over(opened(at(name)), colour), background=colour)
    levels = np.arange(15 * 9, dtype=np.uint8).reshape(9, 15)
    for bits in (1, 2, 4):
        values = levels % 2**bits
        spread = (values[..., None] >> np.arange(bits - 1, -1, -1)) & 1
        rows = [row.tobytes() for row in np.packbits(spread.reshape(9, -1).astype(bool), axis=1)]
        data = png(15, 9, bits, 0, rows)
        case(f"grey-{bits}-bit.png", opened(data), data=data)
        keyed = png(15, 9, bits, 0, rows, [(b"tRNS", struct.pack(">H", 1))])
        case(f"grey-{bits}-bit-keyed.png", opened(keyed), data=keyed)
        seen = Image.fromarray(values * (255 // (2**bits - 1))).convert("RGB")
        seen.paste(colour, mask=Image.fromarray(np.where(values == 1, np.uint8(255), np.uint8(0))))
        case(f"grey-{bits}-bit-keyed.png", seen, background=colour)
        palette = bytes(range(3, 3 + 3 * 2**bits))
        data = png(15, 9, bits, 3, rows, [(b"PLTE", palette)])
        case(f"palette-{bits}-bit.png", opened(data), data=data)
    small = np.asarray(photo(15, 9))
    keyed = png(15, 9, 8, 2, [row.tobytes() for row in small], [(b"tRNS", struct.pack(">HHH", *small[0, 0].tolist()))])
    case("rgb-keyed.png", opened(keyed), data=keyed)
    case("rgb-keyed.png", over(opened(keyed), colour), background=colour)


OUT.mkdir(exist_ok=True)
jpegs()
lenient()
turned()
transparent()
(OUT / "choices.json").write_text(json.dumps(cases, indent=1) + "\n")
print(len(cases), "cases,", sum(file.stat().st_size for file in OUT.iterdir()), "bytes")
