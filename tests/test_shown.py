"""What commands print for people: the numbers of their JSON, with what is not known."""

from typing import Any

import pytest

from metaprobe.shown import alarm_table, estimate_table, promotion_table, rollback_table, router_table


def interval(estimate: float) -> dict[str, float]:
    return {"estimate": estimate, "low": estimate - 0.1, "high": estimate + 0.1}


FIGURES: dict[str, Any] = {
    "questions": 40,
    "groups": 20,
    "agents": ["small", "large"],
    "accuracy": interval(0.8),
    "cost_per_1000": interval(0.5),
    "controls": {
        "small": {
            "accuracy": interval(0.6),
            "cost_per_1000": interval(0.25),
            "router_minus_control": {"accuracy": interval(0.2)},
            "p_holm": 0.004,
        }
    },
    "verdict": {"word": "better", "strongest_control": "small"},
}


def test_the_router_stands_beside_its_controls_and_the_verdict_below() -> None:
    shown = list(router_table(FIGURES))
    assert shown[0] == "40 questions of 20 groups, agents small, large"
    assert shown[3].split() == "router 0.800 0.700 to 0.900 0.5000 0.4000 to 0.6000 - -".split()
    assert shown[4].split()[:2] == ["small", "0.600"]
    assert "+0.200 +0.100 to +0.300" in shown[4]
    assert shown[4].endswith("0.004")
    assert shown[5] == "Against the strongest control, small: better."


def test_an_estimate_from_logged_decisions_says_whether_it_may_be_relied_on() -> None:
    logged = {**FIGURES, "controls": {}, "verdict": None, "logged": True, "reliable": False}
    logged["accuracy"] = {"ips": interval(0.7), "doubly_robust": interval(0.75)}
    shown = "\n".join(router_table(logged))
    assert "router (ips)" in shown
    assert "router (doubly_robust)" in shown
    assert "may not be relied on" in shown


@pytest.mark.parametrize("key", ["reason", "reasons"])
def test_a_refusal_says_why(key: str) -> None:
    given: dict[str, Any] = {"promoted": False, "gain": interval(-0.1), "digest": "d", key: "too few"}
    given[key] = [given[key]] if key == "reasons" else given[key]
    shown = list(promotion_table(given))
    assert shown[0] == "refused"
    assert shown[-1] == "reason: too few"
    assert next(rollback_table({"digest": "d", "path": "p", "was": "w"})) == "rolled back w"


@pytest.mark.parametrize("several", [False, True])
def test_whatever_is_unknown_is_shown_as_such_and_a_row_a_line(several: bool) -> None:
    known = {"of": "accuracy", "labels": 9, "rows": 40, "assumption": "labels are right", "reason": "", "value": 0.5}
    known |= {
        "low": 0.4,
        "high": 0.6,
        "next_halving": 10**9,
        "method": "powered",
        "part": "all",
        "checkpoint": "c" * 64,
    }
    unknown = dict.fromkeys(("value", "low", "high", "next_halving")) | {"reason": "there are no labels"}
    parts = ["all", "a model of a long name " * 4] if several else ["all"]
    lines = [known | {"part": part} | more for part in parts for more in ({}, unknown)]
    shown = list(estimate_table(lines))
    rows = shown[2 : 2 + len(lines)]
    assert all((" -  " in row) == (line["value"] is None) for row, line in zip(rows, lines, strict=True))
    assert all((str(line["part"])[:20] in row) == several for row, line in zip(rows, lines, strict=True))
    assert "there are no labels" in " ".join(shown)
    assert "labels are right" in " ".join(shown)


def test_an_alarm_and_figures_without_some_of_their_fields_are_shown() -> None:
    for alarm in ({}, {"stream": "tokens", "what": "mean tokens", "moved": "higher", "text": "why"}):
        shown = list(alarm_table([{**alarm, "began": 1.7e9, "before": None, "after": 0.5}]))
        assert len(shown) >= 3
        assert "2023-11-14" in shown[2]
    for figures in ({}, {"accuracy": interval(0.5)}, {"cost_per_1000": {"estimate": None, "low": None, "high": 0.1}}):
        assert any("router" in row for row in router_table(figures))
