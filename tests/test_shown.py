"""What commands print for people: the numbers of their JSON, with what is not known."""

from typing import Any

import pytest

from metaprobe.shown import alarm_table, asking_table, estimate_table, promotion_table, rollback_table


def interval(estimate: float) -> dict[str, float]:
    return {"estimate": estimate, "low": estimate - 0.1, "high": estimate + 0.1}


FIGURES: dict[str, Any] = {
    "questions": 40,
    "groups": 20,
    "agents": ["small", "large"],
    "budgets": {
        "0.5": {
            "by": "tuned cascade",
            "asked": 1.25,
            "accuracy": interval(0.8),
            "cost_per_1000": interval(0.5),
            "ways": {"one agent": {"accuracy": interval(0.6), "cost_per_1000": 0.25, "panel_over_it": interval(0.2)}},
            "best_single": {"agent": "large", "accuracy": interval(0.7), "cost_per_1000": 2.0},
            "oracle": {"accuracy": 0.9, "cost_per_1000": 0.3},
        }
    },
}


def test_the_panel_stands_beside_every_way_at_each_budget() -> None:
    shown = list(asking_table(FIGURES))
    assert shown[0] == "40 questions of 20 groups, agents small, large"
    assert shown[1] == "budget 0.5 US dollars for 1,000 questions; 1.25 agents asked of each"
    assert shown[4].split() == "panel (tuned cascade) 0.800 0.700 to 0.900 0.5".split()
    assert shown[5].split() == "one agent 0.600 0.500 to 0.700 0.25 +0.200 +0.100 to +0.300".split()
    assert shown[6].split() == "best agent, large 0.700 2".split()
    assert shown[7].split() == "oracle 0.900 0.3".split()


@pytest.mark.parametrize("reliable", [False, True])
def test_an_estimate_from_logged_decisions_says_whether_it_may_be_relied_on(reliable: bool) -> None:
    accuracy = {"ips": interval(0.7), "doubly_robust": interval(0.75)}
    shown = list(asking_table({**FIGURES, "logged": True, "reliable": reliable, "accuracy": accuracy}))
    assert shown[3].split()[:2] == ["ips", "0.700"]
    assert shown[4].split()[:2] == ["doubly_robust", "0.750"]
    assert ("too few" in shown[-1]) != reliable


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


def test_an_alarm_without_some_of_its_fields_is_shown() -> None:
    for alarm in ({}, {"stream": "tokens", "what": "mean tokens", "moved": "higher", "text": "why"}):
        shown = list(alarm_table([{**alarm, "began": 1.7e9, "before": None, "after": 0.5}]))
        assert len(shown) >= 3
        assert "2023-11-14" in shown[2]
