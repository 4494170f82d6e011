"""`genmill submit`: one job from the command line, and its outputs as files."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from PIL import Image

from genmill.cli.jobs import details
from genmill.cli.options import open_client, with_client, with_json
from genmill.cli.screen import Exit, Screen
from genmill.cli.streaming import show_events
from genmill.cli.watching import exit_code, watch
from genmill.client import Client, JobHandle
from genmill.inputs import SchedulerName
from genmill.jobs import JobState
from genmill.keys import JobClass
from genmill.registry import ModelKind

FIELDS = {
    "negative": "negative_prompt", "images": "num_images", "frames": "num_frames", "init": "init_image",
    "mask": "mask_image",
}  # fmt: skip
"""Options whose names differ from the input's fields."""


class JsonObject(click.ParamType):  # type: ignore[type-arg]  # generic in click's stubs alone
    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        if isinstance(value, dict):
            return value
        try:
            read = json.loads(value)
        except ValueError as err:
            self.fail(f"not JSON: {err}", param, ctx)
        if not isinstance(read, dict):
            self.fail("must be a JSON object", param, ctx)
        return read


class LoraChoice(click.ParamType):  # type: ignore[type-arg]  # generic in click's stubs alone
    """NAME or NAME:WEIGHT."""

    name = "lora"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        name, _, weight = str(value).partition(":")
        try:
            return {"name": name, "weight": float(weight)} if weight else {"name": name}
        except ValueError:
            self.fail(f"{weight!r} is not a number", param, ctx)


class ControlChoice(click.ParamType):  # type: ignore[type-arg]  # generic in click's stubs alone
    """NAME:IMAGE or NAME:IMAGE:SCALE. An image that is a URL or a data URI has colons of its own."""

    name = "control"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        name, _, rest = str(value).partition(":")
        image, _, last = rest.rpartition(":")
        scale = _number(last)
        if scale is None or _PORT_OR_SCHEME.fullmatch(image):
            image, scale = rest, None
        if not name or not image:
            self.fail("must be NAME:IMAGE or NAME:IMAGE:SCALE", param, ctx)
        return {"name": name, "image": image} | ({} if scale is None else {"scale": scale})


_PORT_OR_SCHEME = re.compile(r"|file|data|https?://[^/]*")
"""What stands before a colon that does not begin a scale."""


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


@click.command(short_help="Submit a job, and wait for its outputs where asked.")
@click.argument("model")
@click.argument("prompt")
@click.option("--negative", help="What the image should not show.")
@click.option("--width", type=int, help="Pixels.")
@click.option("--height", type=int, help="Pixels.")
@click.option("--steps", type=int, help="Denoising steps.")
@click.option("--guidance", type=float, help="How closely to follow the prompt.")
@click.option("--scheduler", type=click.Choice([name.value for name in SchedulerName]), help="The sampler.")
@click.option("--seed", type=int, help="Same seed, same result. Drawn and recorded when not given.")
@click.option("--images", type=int, help="How many images.")
@click.option("--frames", type=int, help="For video models: frames of each video.")
@click.option("--fps", type=int, help="For video models: frames a second.")
@click.option("--init", help="Image to start from: a file, a URL or a data URI.")
@click.option("--strength", type=float, help="How far to leave the init image, above 0 to 1.")
@click.option("--mask", help="Where to paint the init image anew: white. A file, a URL or a data URI.")
@click.option(
    "--lora", "loras", type=LoraChoice(), multiple=True, help="NAME[:WEIGHT] of an adapter; may be repeated."
)
@click.option("--control", type=ControlChoice(), help="NAME:IMAGE[:SCALE] of a ControlNet and the image to follow.")
@click.option("--max-tokens", type=int, help="For texts: the most tokens to write.")
@click.option("--temperature", type=float, help="For texts.")
@click.option("--top-p", type=float, help="For texts.")
@click.option("--stop", multiple=True, help="For texts: stop before this; may be repeated.")
@click.option("--input", "more", type=JsonObject(), help="More fields of the input, as a JSON object.")
@click.option(
    "--priority", type=click.Choice([c.value for c in JobClass]),
    help="p0 is the most urgent class; without it p1, or what the tenant may use below it.",
)  # fmt: skip
@click.option("--webhook", help="URL to be called when the job has ended.")
@click.option("--ttl", "ttl_s", type=int, help="Seconds after which a job that has not started expires.")
@click.option("--deadline", "deadline_s", type=float, help="Seconds within which the job should have ended.")
@click.option("--best-effort", is_flag=True, help="Take and run the job even where it misses its deadline.")
@click.option("--reproducible", is_flag=True, help="Share no forward with others: the same bits each time, slower.")
@click.option("--depends-on", multiple=True, help="Id of a job that has to succeed first; may be repeated.")
@click.option("--metadata", type=JsonObject(), help="JSON object that comes back with the job.")
@click.option("--idempotency-key", help="The same key submits once, however often it is sent.")
@click.option("--stream", is_flag=True, help="Show the text as it is written, or how far the pictures are.")
@click.option(
    "--preview", is_flag=True,
    help="Show how the picture looks as it is made, on a terminal of 16 million colours; else how far it is.",
)  # fmt: skip
@click.option("--wait", is_flag=True, help="Wait for the job's end; the exit code tells how it ended.")
@click.option("--timeout", "timeout_s", type=float, help="Seconds to wait at most.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False),
    help="Where to write the result; waits for it. Its suffix tells the image format; several images get numbers "
    "before the suffix.",
)  # fmt: skip
@with_client
@with_json
def submit(  # noqa: PLR0913 - one parameter for each option
    model: str, prompt: str, *, priority: str | None, webhook: str | None, ttl_s: int | None, deadline_s: float | None,
    best_effort: bool, reproducible: bool, metadata: dict[str, Any] | None, idempotency_key: str | None, stream: bool,
    preview: bool, wait: bool, depends_on: tuple[str, ...],
    timeout_s: float | None, output: Path | None, url: str | None, api_key: str | None, screen: Screen,
    more: dict[str, Any] | None, **fields: Any,
) -> Exit:  # fmt: skip
    """Submit a job: PROMPT for MODEL, see `genmill models`. A PROMPT of `-` is read from stdin.

    Prints the job's id, or with --wait or -o how it ended; with --stream --json its events, one a line.
    """
    asked = build_input(sys.stdin.read().rstrip("\n") if prompt == "-" else prompt, fields, more or {})
    with open_client(url, api_key, screen) as client:
        check_output(output, model, client)
        job = client.submit(
            model, asked, priority=priority, webhook=webhook, ttl_s=ttl_s, deadline_s=deadline_s,
            best_effort=best_effort, reproducible=reproducible, stream=stream, preview=preview,
            metadata=metadata, depends_on=depends_on, idempotency_key=idempotency_key,
        )  # fmt: skip
        if not (wait or output or stream or preview):
            screen.show(job.data, lambda: job.id)
            return Exit.OK
        with _told_that_it_goes_on(job, screen):
            if stream or (preview and not screen.is_json):
                show_events(job, timeout_s, screen)
            else:
                watch(job, timeout_s, screen)
        written = write_outputs(job, output) if output and job.state is JobState.SUCCEEDED else []
    document = {**job.data, "files": [str(path) for path in written]} if output else job.data
    if not (stream and screen.is_json):
        screen.show(document, lambda: "\n".join(map(str, written)) or details(job, is_text_shown=stream))
    return exit_code(job)


@contextmanager
def _told_that_it_goes_on(job: JobHandle, screen: Screen) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        if not screen.is_json:
            screen.say(f"job {job.id} goes on: genmill jobs watch {job.id}, or genmill jobs cancel {job.id}")
        raise


def build_input(prompt: str, fields: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """The job's input: only what was given, so that the model's defaults hold for the rest."""
    given = {FIELDS.get(name, name): value for name, value in fields.items() if value not in (None, ())}
    _check_file(given.get("init_image"), "--init")
    _check_file(given.get("mask_image"), "--mask")
    _check_file(given.get("control", {}).get("image"), "--control")
    return {"prompt": prompt, **given, **more}


def _check_file(image: str | None, option: str) -> None:
    if image and "://" not in image and not image.startswith(("data:", "file:")) and not Path(image).is_file():
        raise click.BadParameter(f"there is no file {image}", param_hint=option)


def check_output(output: Path | None, model: str, client: Client) -> None:
    """Raises click.BadParameter for a name whose suffix is no format that pictures are written in, where the model
    makes pictures. A text is written under any name."""
    if output is None or not output.suffix or format_of(output):
        return
    kinds = {name: found["kind"] for found in client.models() for name in (found["id"], *found["aliases"])}
    if kinds.get(model) == ModelKind.IMAGE:
        detail = f"no picture is written as {output.suffix}: name it .png, .jpg, .webp or .gif"
        raise click.BadParameter(detail, param_hint="--output")


def format_of(path: Path) -> str | None:
    """Pillow's name of the format that a file's suffix asks for; None where it writes no such format."""
    found = Image.registered_extensions().get(path.suffix.lower())
    return found if found in Image.SAVE else None


def write_outputs(job: JobHandle, output: Path) -> list[Path]:
    """The text, the image or the video at `output`; several images beside it, numbered."""
    output.parent.mkdir(parents=True, exist_ok=True)
    if job.text is not None:
        output.write_text(job.text, encoding="utf-8")
        return [output]
    bodies = job.download()
    names = [output] if len(bodies) == 1 else [output.with_stem(f"{output.stem}-{n}") for n in range(len(bodies))]
    for path, body, shown in zip(names, bodies, job.outputs, strict=True):
        path.write_bytes(in_format_of(path, body, shown.get("content_type")))
    return names


def in_format_of(path: Path, body: bytes, content_type: str | None) -> bytes:
    """An image or a video in the format that the name's suffix asks for; as it is without one. Raises
    click.BadParameter for a video where that format holds none."""
    wanted = format_of(path)
    if wanted is None or Image.MIME.get(wanted) == content_type:
        return body
    image, buffer = Image.open(io.BytesIO(body)), io.BytesIO()
    is_video = getattr(image, "n_frames", 1) > 1
    if is_video and wanted not in Image.SAVE_ALL:
        raise click.BadParameter(f"{wanted} holds no video: name it .webp or .gif", param_hint="--output")
    image.save(buffer, wanted, save_all=is_video)
    return buffer.getvalue()
