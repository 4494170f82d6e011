"""The models' card holds what was measured."""

import json

import pytest

from training.evaluate import CARD, RESULTS, card_tables, fill_card


def test_the_card_shows_the_kept_figures() -> None:
    text = CARD.read_text()
    assert fill_card(text, card_tables(json.loads(RESULTS.read_text()))) == text


def test_tables_go_between_their_markers_and_replace_what_stood_there() -> None:
    text = "before\n<!-- a:begin -->\nold\n<!-- a:end -->\nafter\n"
    assert fill_card(text, {"a": "| new |"}) == "before\n<!-- a:begin -->\n| new |\n<!-- a:end -->\nafter\n"


def test_a_table_without_a_place_is_an_error() -> None:
    with pytest.raises(ValueError, match="no place for b"):
        fill_card("<!-- a:begin -->\n<!-- a:end -->", {"b": ""})


def test_the_kept_figures_are_good_enough_to_ship() -> None:
    figures = json.loads(RESULTS.read_text())
    assert figures["shapes"]["fidelity"][0]["count"] >= 200
    assert figures["shapes"]["fidelity"][0]["whole"] >= 0.90
    assert all(min(kept.values()) >= 0.97 for kept in figures["shapes"]["autoencoder"].values())
    assert figures["shapes"]["bytes"] <= 12_000_000
    assert figures["captions"]["in_grammar"] >= 0.95
