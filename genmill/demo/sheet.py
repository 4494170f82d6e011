"""The contact sheet: every picture with its caption, whether it shows it, and how it was made; the texts below."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from genmill.demo.drive import Outcome
from genmill.demo.measure import is_in_grammar, shows_caption, whole_text

COLUMNS = 11
PICTURE, CELL_WIDTH, CELL_HEIGHT = 128, 156, 186
INSET = 44
MARGIN, HEADER, LINE = 28, 84, 22
TEXT_COLUMNS = 3

PAPER, INK, GREY, GOOD, BAD, RULE = "#fbfaf7", "#22211f", "#85827b", "#2e8b57", "#c43d3d", "#e3e0d8"


def draw_sheet(outcomes: Sequence[Outcome], figures: Mapping[str, float], inits: Mapping[int, Path]) -> Image.Image:
    """Jobs in their order; a small picture in a corner is the init image of an image to image job."""
    images = [outcome for outcome in outcomes if outcome.job.is_image]
    texts = [outcome for outcome in outcomes if not outcome.job.is_image]
    rows, text_rows = -(-len(images) // COLUMNS), -(-len(texts) // TEXT_COLUMNS)
    width = 2 * MARGIN + COLUMNS * CELL_WIDTH
    texts_top = HEADER + rows * CELL_HEIGHT
    sheet = Image.new("RGB", (width, texts_top + 24 + text_rows * LINE + MARGIN), PAPER)
    pen = ImageDraw.Draw(sheet)
    _draw_header(pen, figures)
    for place, outcome in enumerate(images):
        corner = (MARGIN + place % COLUMNS * CELL_WIDTH, HEADER + place // COLUMNS * CELL_HEIGHT)
        _draw_cell(sheet, pen, corner, outcome, inits.get(outcome.job.number))
    pen.line((MARGIN, texts_top + 4, width - MARGIN, texts_top + 4), fill=RULE)
    for place, outcome in enumerate(texts):
        column_width = (width - 2 * MARGIN) // TEXT_COLUMNS
        x, y = MARGIN + place % TEXT_COLUMNS * column_width, texts_top + 18 + place // TEXT_COLUMNS * LINE
        _draw_text(pen, (x, y), outcome)
    return sheet


def _draw_header(pen: ImageDraw.ImageDraw, figures: Mapping[str, float]) -> None:
    pen.text((MARGIN, 20), "genmill demo", font=_font(24), fill=INK)
    facts = (
        f"{figures['succeeded']:.0f} of {figures['jobs']:.0f} jobs",
        f"{figures['mean_batch']:.1f} images a forward on average, {figures['max_batch']:.0f} at most",
        f"{figures['speedup_vs_one_at_a_time']:.1f}x as fast as one at a time",
        f"{figures['fidelity']:.0%} show their caption",
    )
    pen.text((MARGIN, 52), "     ".join(facts), font=_font(13), fill=GREY)


def _draw_cell(
    sheet: Image.Image, pen: ImageDraw.ImageDraw, corner: tuple[int, int], outcome: Outcome, init: Path | None
) -> None:
    x, y = corner
    asked, caption = outcome.job.input, outcome.job.caption
    if outcome.bodies:
        sheet.paste(_picture(Image.open(io.BytesIO(outcome.bodies[0])), PICTURE), (x, y))
    else:
        pen.rectangle((x, y, x + PICTURE, y + PICTURE), outline=RULE)
        pen.text((x + 8, y + 8), str(outcome.view["state"]), font=_font(12), fill=BAD)
    if init is not None:
        place = (x + PICTURE - INSET + 6, y + PICTURE - INSET + 6)
        pen.rectangle((place[0] - 2, place[1] - 2, place[0] + INSET + 1, place[1] + INSET + 1), fill=PAPER)
        sheet.paste(_picture(Image.open(init), INSET), place)
    _draw_mark(pen, (x, y + PICTURE + 8), is_good=bool(outcome.bodies) and shows_caption(outcome))
    figure, ground = (f"{caption.colour} {caption.shape}", f"on {caption.ground}") if caption else ("", "")
    pen.text((x + 14, y + PICTURE + 5), f"{figure} {ground}", font=_font(11), fill=INK)
    size = f"{asked.get('width', 64)} px"
    made = f"{asked.get('scheduler', 'from image')}, {asked['steps']} steps, {size}"
    pen.text((x, y + PICTURE + 22), made, font=_font(10), fill=GREY)


def _draw_mark(pen: ImageDraw.ImageDraw, corner: tuple[int, int], *, is_good: bool) -> None:
    """A tick or a cross, drawn, since the default font has neither."""
    x, y = corner
    if is_good:
        pen.line((x, y + 4, x + 3, y + 8, x + 9, y), fill=GOOD, width=2)
    else:
        pen.line((x, y, x + 8, y + 8), fill=BAD, width=2)
        pen.line((x, y + 8, x + 8, y), fill=BAD, width=2)


def _draw_text(pen: ImageDraw.ImageDraw, corner: tuple[int, int], outcome: Outcome) -> None:
    """The prompt in ink, what the model wrote in grey."""
    x, y = corner
    if not outcome.has_succeeded:
        pen.text((x + 14, y), f"{outcome.job.input['prompt']} ({outcome.view['state']})", font=_font(12), fill=BAD)
        return
    _draw_mark(pen, (x, y + 4), is_good=is_in_grammar(outcome))
    prompt = str(outcome.job.input["prompt"])
    pen.text((x + 14, y), prompt, font=_font(12), fill=INK)
    written = whole_text(outcome).removeprefix(prompt)
    pen.text((x + 14 + pen.textlength(prompt, font=_font(12)), y), written[:60], font=_font(12), fill=GREY)


def _picture(image: Image.Image, side: int) -> Image.Image:
    return image.convert("RGB").resize((side, side), Image.Resampling.LANCZOS)


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)
