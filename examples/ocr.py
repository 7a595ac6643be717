"""Read the text of a photographed page: a detector finds its lines, a recogniser reads them.

The models are PP-OCRv4's, as the wheel of rapidocr-onnxruntime has them; the photograph is scikit-image's (the extra
`models` installs both). Height and width are symbolic: each model is loaded once, and the arrays of a call say how
large they are. The picture ``out/ocr.svg`` frames the lines and shows what was read.

    python examples/ocr.py [IMAGE]
"""

import base64
import io
import sys
from html import escape
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
from PIL import Image
from rich.progress import track
from scipy import ndimage

import tileweave as tw

OUT = Path("out")
LIKELY, SURE = 0.3, 0.5  # of a pixel that belongs to text, and of a line on average
GROWTH = 1.6  # the detector is trained on shrunken lines; their boxes grow by area * this / perimeter
HEIGHT, STEP = 48, 320  # of the recogniser's lines; widths are filled up to a multiple, so that few plans are made

Box = tuple[int, int, int, int]


def inside(package: str, pattern: str) -> Path:
    """A file of an installed package, which is not imported."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise SystemExit(f"{package} is not installed: pip install 'tileweave[models]'")
    return sorted(Path(spec.origin).parent.rglob(pattern))[-1]


def pixels(image: Image.Image, width: int, height: int) -> np.ndarray:
    """An image as the models take it: [channels, height, width] between -1 and 1, blue first."""
    values = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR), np.float32)
    return (values[:, :, ::-1] / 127.5 - 1).transpose(2, 0, 1)


def lines_of(chances: np.ndarray, scale: tuple[float, float]) -> list[Box]:
    """Boxes around what is likely text, from the top: left, top, right, bottom."""
    likely = ndimage.binary_dilation(chances > LIKELY, np.ones((2, 2)))
    labels, _ = ndimage.label(likely, np.ones((3, 3)))
    found: list[Box] = []
    for number, (rows, columns) in enumerate(ndimage.find_objects(labels), 1):
        high, wide = rows.stop - rows.start, columns.stop - columns.start
        part = labels[rows, columns] == number
        if min(high, wide) < 4 or chances[rows, columns][part].mean() < SURE:
            continue
        grow = high * wide * GROWTH / (2 * (high + wide))
        sides = (columns.start - grow, rows.start - grow, columns.stop + grow, rows.stop + grow)
        x, y = scale
        left, top, right, bottom = (round(side * by) for side, by in zip(sides, (x, y, x, y), strict=True))
        found.append((max(left, 0), max(top, 0), right, bottom))
    return sorted(found, key=lambda box: box[1])


def text_of(scores: np.ndarray, characters: list[str]) -> tuple[str, float]:
    """The best character at each place, without repetitions and blanks, and how sure they are on average."""
    best = scores.argmax(1)
    kept = (best != 0) & np.concatenate(([True], best[1:] != best[:-1]))
    sure = float(scores.max(1)[kept].mean()) if kept.any() else 0.0
    return "".join(characters[k] for k in best[kept]), sure


def picture(image: Image.Image, found: list[tuple[Box, str]]) -> str:
    """The photograph with its lines framed, and beside it what was read."""
    data = io.BytesIO()
    image.save(data, "PNG")
    link = "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()
    wide, high = image.size
    rows = [f'<image href="{link}" width="{wide}" height="{high}"/>']
    for (left, top, right, bottom), text in found:
        frame = f'x="{left}" y="{top}" width="{right - left}" height="{bottom - top}"'
        rows.append(f'<rect {frame} fill="none" stroke="#c22"/>')
        rows.append(f'<text x="{wide + 12}" y="{(top + bottom) / 2 + 5:.0f}" font-size="14">{escape(text)}</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{2 * wide + 24}" height="{high}" font-family="sans-serif">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *rows, "</svg>"])


def main() -> None:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else inside("skimage", "page.png")
    image = Image.open(path).convert("RGB")
    wide, high = image.size

    # where: the detector's chance of text for every pixel of the page, at twice its size
    detector = tw.load(inside("rapidocr_onnxruntime", "*det_infer.onnx"))
    page = pixels(image, *(max(32, round(2 * n / 32) * 32) for n in (wide, high)))[None]
    plan = detector.plan().at(**detector.extents(page))
    print("\n".join(plan.explain().splitlines()[:8]), "\n ..")
    print(f"{len(plan.steps)} steps, {plan.flops / 1e9:.1f} Gflop, at most {max(plan.peak_bytes) / 2**20:.0f} MiB")
    chances = tw.run(plan, bind={"x": page}, progress=True)[0, 0]
    boxes = lines_of(chances, (wide / chances.shape[1], high / chances.shape[0]))

    # what: every line at the recogniser's height, as wide as it comes
    reader_path = inside("rapidocr_onnxruntime", "*rec_infer.onnx")
    names = {item.key: item.value for item in onnx.load(reader_path).metadata_props}
    characters = ["", *names["character"].splitlines(), " "]
    reader = tw.load(reader_path)
    plans = reader.plan()
    found = []
    for box in track(boxes, description="reading"):
        left, top, right, bottom = box
        width = max(16, round(HEIGHT * (right - left) / (bottom - top)))
        line = np.zeros((1, 3, HEIGHT, -(-width // STEP) * STEP), np.float32)
        line[0, :, :, :width] = pixels(image.crop(box), width, HEIGHT)
        text, sure = text_of(tw.run(plans, bind={"x": line})[0], characters)
        if sure > SURE:
            found.append((box, text))
            print(f"  {text}  ({sure:.2f})")
    print(f"{len(found)} lines of {len(boxes)} boxes; {len(plans.made)} widths were planned")
    OUT.mkdir(exist_ok=True)
    (OUT / "ocr.svg").write_text(picture(image, found), encoding="utf-8")
    (OUT / "ocr.txt").write_text("".join(text + "\n" for _, text in found), encoding="utf-8")


if __name__ == "__main__":
    main()
