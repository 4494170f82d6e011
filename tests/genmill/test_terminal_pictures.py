"""Previews on a terminal: two pixels a cell, and only where they can be seen."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
from PIL import Image
from rich.console import Console

from genmill.cli import screen as screens
from genmill.cli.pictures import decoded, half_blocks, has_colours
from genmill.events import Narrator, Place, Preview, Snapshot
from genmill.jobs import JobState
from tests.genmill.conftest import JOB_ID, Api, Run, view

RED, BLUE = (255, 0, 0), (0, 0, 255)
PREVIEWED = {"urls": {"preview": f"http://api.test/v1/jobs/{JOB_ID}/preview"}}


def terminal(**options: Any) -> Console:
    given = {
        "force_terminal": True,
        "color_system": "truecolor",
        "width": 80,
        "height": 24,
        "no_color": False,
    } | options
    return Console(file=io.StringIO(), **given)


def two_halves(size: tuple[int, int]) -> Image.Image:
    """Red above blue."""
    image = Image.new("RGB", size, RED)
    image.paste(BLUE, (0, size[1] // 2, *size))
    return image


def webp(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", lossless=True)
    return buffer.getvalue()


def cells(image: Image.Image, columns: int, rows: int) -> list[list[tuple[Any, Any]]]:
    """(upper colour, lower colour) of each cell, by rows."""
    grid: list[list[tuple[Any, Any]]] = [[]]
    for text, style, _ in half_blocks(image, columns, rows).segments:
        if text == "\n":
            grid.append([])
        else:
            assert text == "▀"
            assert style is not None
            grid[-1].append((tuple(style.color.triplet), tuple(style.bgcolor.triplet)))  # type: ignore[union-attr,arg-type]
    return grid[:-1]


def test_a_cell_shows_two_pixels() -> None:
    assert cells(two_halves((2, 2)), 80, 24) == [[(RED, BLUE), (RED, BLUE)]]
    assert cells(two_halves((1, 4)), 80, 24) == [[(RED, RED)], [(BLUE, BLUE)]]


@pytest.mark.parametrize(
    ("size", "room", "grid"),
    [((128, 128), (80, 20), (40, 20)), ((256, 64), (80, 20), (80, 10)), ((64, 256), (80, 20), (10, 20)),
     ((8, 8), (80, 20), (8, 4)), ((3, 3), (80, 20), (3, 2)), ((500, 1), (40, 20), (40, 1)),
     ((64, 64), (1, 1), (1, 1))],
)  # fmt: skip
def test_it_fits_and_keeps_its_shape(size: tuple[int, int], room: tuple[int, int], grid: tuple[int, int]) -> None:
    found = cells(two_halves(size), *room)
    assert (len(found[0]), len(found)) == grid


def test_only_a_terminal_of_many_colours_shows_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    assert has_colours(terminal())
    assert not has_colours(terminal(force_terminal=False))
    assert not has_colours(terminal(color_system="256"))
    assert not has_colours(terminal(no_color=True))
    monkeypatch.setenv("NO_COLOR", "1")
    assert not has_colours(terminal(no_color=None))


def test_what_is_no_image_is_none() -> None:
    whole = webp(two_halves((64, 64)))
    assert decoded(whole) is not None
    assert decoded(b"no image") is None
    assert decoded(whole[: len(whole) // 2]) is None


Attach = Callable[..., io.StringIO]


@pytest.fixture
def attach(monkeypatch: pytest.MonkeyPatch) -> Attach:
    """Makes stderr such a terminal; returns what is drawn."""

    def make(**options: Any) -> io.StringIO:
        console = terminal(**options)
        monkeypatch.setattr(screens, "Console", lambda **given: Console(**given) if "width" in given else console)
        assert isinstance(console.file, io.StringIO)
        return console.file

    return make


def told(*images: bytes) -> bytes:
    narrator = Narrator(Place())
    events = narrator.hear(Snapshot(JobState.RUNNING, 1))
    for step, image in enumerate(images, start=1):
        events += narrator.hear(Snapshot(JobState.RUNNING, 1, (step, 20), Preview(1, step, image)))
    events += narrator.end(JobState.SUCCEEDED, 1, view())
    return "".join(event.encode() for event in events).encode()


@pytest.fixture
def previewed(api: Api) -> Api:
    """A job with a preview, one that is broken, and another."""
    red, blue = (webp(Image.new("RGB", (16, 16), colour)) for colour in (RED, BLUE))
    api.answers[("GET", f"/v1/jobs/{JOB_ID}/events")] = told(red, b"broken", blue)
    api.answers[("GET", f"/v1/jobs/{JOB_ID}")] = view(**PREVIEWED)
    api.answers[("POST", "/v1/jobs")] = (202, view("queued", outputs=[], **PREVIEWED))
    return api


@pytest.mark.parametrize("command", [("jobs", "watch", JOB_ID), ("submit", "shapes", "a", "--preview")])
def test_previews_are_shown_as_they_come(command: tuple[str, ...], previewed: Api, run: Run, attach: Attach) -> None:
    drawn = attach()
    code, out, _ = run(*command)
    assert (code, out.split()[:2]) == (0, [JOB_ID, "succeeded"])
    shown = drawn.getvalue()
    assert "▀" in shown
    red, blue = ("38;2;" + ";".join(map(str, colour)) for colour in (RED, BLUE))
    assert 0 < shown.index(red) < shown.index(blue)
    if command[0] == "submit":
        assert previewed.sent[0][2]["preview"] is True


@pytest.mark.parametrize(
    ("flags", "options"),
    [((), {"force_terminal": False}), ((), {"no_color": True}), ((), {"color_system": "256"}), (("--json",), {})],
)
def test_elsewhere_there_are_none(
    flags: tuple[str, ...], options: dict[str, Any], previewed: Api, run: Run, attach: Attach
) -> None:
    drawn = attach(**options)
    code, out, _ = run("jobs", "watch", JOB_ID, *flags)
    assert code == 0
    assert "▀" not in drawn.getvalue() + out
