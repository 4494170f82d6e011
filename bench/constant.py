"""What the API's rate of submissions is held against: a Flask endpoint that answers a constant."""

from __future__ import annotations

from flask import Flask, Response, jsonify

app = Flask("constant")


@app.post("/v1/jobs")
def answer() -> Response:
    return jsonify(status="ok")
