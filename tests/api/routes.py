"""The app's routes, as the tests walk them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from flask import Flask

PUBLIC = {"/healthz", "/readyz", "/openapi.json", "/v1/outputs/<path:key>"}
"""Answer without a key; of outputs the link is signed."""


class Route(NamedTuple):
    method: str
    rule: str
    parameters: tuple[str, ...]

    def path(self, values: Mapping[str, str]) -> str:
        return re.sub(r"<(?:\w+:)?(\w+)>", lambda found: values.get(found[1], "x"), self.rule)


def routes(app: Flask) -> Iterator[Route]:
    for rule in app.url_map.iter_rules():
        for method in sorted((rule.methods or set()) - {"OPTIONS"}):
            yield Route(method, rule.rule, tuple(re.findall(r"<(?:\w+:)?(\w+)>", rule.rule)))
