"""Screenshots of a `Desktop`, drawn with Pillow: every widget in its own pixel box."""

from __future__ import annotations

import base64
import functools
import io
from typing import TYPE_CHECKING

from practicum.environments.gui_screens import CAPTION, HEIGHT, ROWS_SHOWN, SCROLL_BAR, WIDTH, Box, Desktop, Widget
from practicum.errors import UserError

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw
    from PIL.ImageFont import FreeTypeFont, ImageFont

FONT_SIZE = 14
DESK, PAPER, INK, GREY, EDGE, SHADOW = "#5b7f95", "#f4f4f2", "#1c1c1c", "#e2e2df", "#8a8a86", "#3f5b6c"
BLUE, PALE, DULL, WHITE = "#2c5aa0", "#cfe0f7", "#7c8894", "#ffffff"


def require_pillow() -> None:
    """Raise UserError if Pillow is not installed."""
    try:
        import PIL.Image  # noqa: F401
    except ImportError:
        raise UserError("Screenshots need the package Pillow: pip install 'practicum[gui]'.") from None


@functools.lru_cache(maxsize=1)
def _font() -> FreeTypeFont | ImageFont:
    from PIL import ImageFont

    return ImageFont.load_default(FONT_SIZE)


def text_width(text: str) -> float:
    """Return the width of a text in a screenshot, in pixels."""
    return _font().getlength(text)


def screenshot(desktop: Desktop) -> str:
    """Return the screen as a data URI of a PNG."""
    require_pillow()
    from PIL import Image, ImageDraw

    image = Image.new("RGB", (WIDTH, HEIGHT), DESK)
    draw = ImageDraw.Draw(image)
    for widget in desktop.layers():
        _PAINTERS[widget.kind](draw, widget, desktop)
    data = io.BytesIO()
    image.save(data, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(data.getvalue()).decode("ascii")


def _write(draw: ImageDraw, box: Box, text: str, colour: str = INK, anchor: str = "lm", pad: int = 8) -> None:
    """Draw a text in a box: `lm` from the left, `mm` centred, `rm` from the right."""
    x = {"l": box[0] + pad, "m": (box[0] + box[2]) // 2, "r": box[2] - pad}[anchor[0]]
    draw.text((x, (box[1] + box[3]) // 2), text, fill=colour, font=_font(), anchor=anchor)


def _inside(box: Box) -> Box:
    """Return the box for Pillow, which includes the last pixel; ours excludes it."""
    return box[0], box[1], box[2] - 1, box[3] - 1


def _body(draw: ImageDraw, widget: Widget, desktop: Desktop) -> None:
    left, top, right, bottom = _inside(widget.box)
    draw.rectangle((left + 4, top + 4, right + 4, bottom + 4), fill=SHADOW)
    draw.rectangle((left, top, right, bottom), fill=PAPER, outline=INK)


def _window(draw: ImageDraw, widget: Widget, desktop: Desktop) -> None:
    draw.rectangle(_inside(widget.box), fill=BLUE if widget.on else DULL, outline=INK)
    _write(draw, widget.box, widget.label, WHITE)


def _button(draw: ImageDraw, widget: Widget, desktop: Desktop) -> None:
    draw.rounded_rectangle(_inside(widget.box), radius=4, fill=GREY, outline=EDGE)
    _write(draw, widget.box, widget.label, anchor="mm")


def _field(draw: ImageDraw, widget: Widget, desktop: Desktop) -> None:
    left, top, right, bottom = widget.box
    _write(draw, (desktop.windows[widget.window]["box"][0], top, left, bottom), widget.label, anchor="rm")
    draw.rectangle(_inside(widget.box), fill=WHITE, outline=BLUE if widget.on else EDGE, width=2 if widget.on else 1)
    text = widget.value
    while text_width(text) > right - left - 20:
        text = text[1:]  # the end of a long text stays visible
    edge = left + 8 + round(text_width(text))
    if widget.on and desktop.marked and text:
        draw.rectangle((left + 7, top + 4, edge, bottom - 5), fill=PALE)
    _write(draw, widget.box, text)
    if widget.on:
        draw.line((edge + 1, top + 5, edge + 1, bottom - 6), fill=INK)


def _checkbox(draw: ImageDraw, widget: Widget, desktop: Desktop) -> None:
    left, top, _, bottom = widget.box
    x, y = left + 2, (top + bottom) // 2
    draw.rectangle((x, y - 7, x + 14, y + 7), fill=WHITE, outline=INK)
    if widget.on:
        draw.line((x + 3, y, x + 6, y + 4, x + 12, y - 5), fill=BLUE, width=3)
    _write(draw, widget.box, widget.label, pad=24)


def _list(draw: ImageDraw, widget: Widget, desktop: Desktop) -> None:
    left, top, right, bottom = _inside(widget.box)
    _write(draw, (left, top - CAPTION, right, top), widget.label, pad=0)
    draw.rectangle((left, top, right, bottom), fill=WHITE, outline=EDGE)
    rows, first = len(desktop.widget(widget.key)["rows"]), desktop.scrolled[widget.key]
    bar = right - SCROLL_BAR + 1
    draw.rectangle((bar, top, right, bottom), fill=GREY, outline=EDGE)
    height = bottom - top
    start = top + height * first // rows
    draw.rectangle((bar + 2, start + 2, right - 2, start + height * min(ROWS_SHOWN, rows) // rows - 2), fill=EDGE)


def _row(draw: ImageDraw, widget: Widget, desktop: Desktop) -> None:
    left, top, right, bottom = widget.box
    if widget.on:
        draw.rectangle((left + 1, top + 1, right - 1, bottom - 1), fill=PALE)
    _write(draw, widget.box, widget.label)


def _menu(draw: ImageDraw, widget: Widget, desktop: Desktop) -> None:
    left, top, right, bottom = _inside(widget.box)
    edge = desktop.windows[widget.window]["box"][2] - 2
    draw.rectangle((left + 1, top, edge, bottom), fill=GREY)  # the bar extends to the window's edge
    if widget.on:
        draw.rectangle((left + 1, top, right, bottom), fill=PALE)
    _write(draw, widget.box, widget.label, anchor="mm")


def _item(draw: ImageDraw, widget: Widget, desktop: Desktop) -> None:
    draw.rectangle(_inside(widget.box), fill=WHITE, outline=EDGE)
    _write(draw, widget.box, widget.label)


_PAINTERS = {
    "body": _body,
    "window": _window,
    "button": _button,
    "field": _field,
    "checkbox": _checkbox,
    "list": _list,
    "row": _row,
    "menu": _menu,
    "item": _item,
}
