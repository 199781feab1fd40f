"""The study's statistics: against scipy and statsmodels, against the paper's counts, and on planted preferences."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.stats import friedmanchisquare
from statsmodels.stats.anova import AnovaRM
from statsmodels.stats.inter_rater import fleiss_kappa as reference_kappa

from metaprobe.eval.metrics.bootstrap import cluster_weights, mean_interval
from metaprobe.records.errors import RecordError
from metaprobe_writing_assistant.study.analysis import analyse_study, choices_of
from metaprobe_writing_assistant.study.answers import Sheet
from metaprobe_writing_assistant.study.choice_tests import (
    chi_square,
    counts_of,
    cronbach_alpha,
    fleiss_kappa,
    friedman,
    likeness_of,
    paired_p,
    repeated_f,
    shares_of,
)
from metaprobe_writing_assistant.study.rendering import render_power, render_study
from metaprobe_writing_assistant.study.simulation import participants_needed, power_of, simulate_sheets
from metaprobe_writing_assistant.study.survey import ASPECTS, questions_of
from research.writing.study_page import PUBLISHED, answers_that_fit

CONDITIONS = ("metacrit", "multi", "single")
EQUAL = dict.fromkeys(CONDITIONS, 1 / 3)
PLANTED = {"metacrit": 0.55, "multi": 0.2, "single": 0.25}


def drawn(n: int, q: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 3, size=(n, q))


def test_friedman_is_that_of_scipy_with_ties() -> None:
    studies = np.stack([counts_of(drawn(20, 5, seed), 3) for seed in range(10)])
    statistics, ps = friedman(studies)
    for study, statistic, p in zip(studies, statistics, ps, strict=True):
        wanted = friedmanchisquare(*study.T)
        assert statistic == pytest.approx(wanted.statistic)
        assert p == pytest.approx(wanted.pvalue)


def test_f_is_that_of_statsmodels() -> None:
    shares = shares_of(counts_of(drawn(20, 5), 3))
    rows = [(i, j, shares[i, j]) for i in range(20) for j in range(3)]
    frame = pd.DataFrame(rows, columns=["who", "condition", "share"])
    table = AnovaRM(frame, "share", "who", within=["condition"]).fit().anova_table
    f, p = repeated_f(shares)
    assert f == pytest.approx(table["F Value"].iloc[0])
    assert p == pytest.approx(table["Pr > F"].iloc[0])


def test_kappa_is_that_of_statsmodels() -> None:
    choices = drawn(12, 6)
    table = counts_of(choices.T, 3)
    assert fleiss_kappa(choices, 3) == pytest.approx(reference_kappa(table))
    skipped = choices.copy()
    skipped[0, 0] = -1  # who left one question out is no rater of all
    assert fleiss_kappa(skipped, 3) == pytest.approx(fleiss_kappa(choices[1:], 3))


def test_alpha_is_one_for_equal_items_and_by_its_definition_else() -> None:
    items = (drawn(30, 4) == 0).astype(float)
    once = np.ones((1, 30), int)
    wanted = 4 / 3 * (1 - items.var(axis=0).sum() / items.sum(axis=1).var())
    assert cronbach_alpha(items, once)[0] == pytest.approx(wanted)
    equal = np.repeat(items[:, :1], 4, axis=1)
    assert cronbach_alpha(equal, once)[0] == pytest.approx(1)
    assert np.isnan(cronbach_alpha(np.ones((30, 4)), once)[0])
    twice = np.vstack([items, items[:5]])  # a multiplicity is the same as a copy
    weights = np.r_[np.full(5, 2), np.ones(25, int)][None]
    assert cronbach_alpha(items, weights)[0] == pytest.approx(cronbach_alpha(twice, np.ones((1, 35), int))[0])


PRINTED = [
    ((57, 53, 58), (33.9, 31.5, 34.5)),  # MetaCrit, appendix L.2: 168 answers on interactiveness
    ((116, 96, 124), (34.5, 28.6, 36.9)),  # 336 answers on intelligence
]


@pytest.mark.parametrize(("counts", "printed"), PRINTED)
def test_the_papers_counts_give_the_shares_that_it_prints(counts: tuple[int, ...], printed: tuple[float, ...]) -> None:
    """42 participants and all questions of the aspect; who chose what is not published, so it is dealt out in order."""
    aspect = {168: "interactiveness", 336: "intelligence"}[sum(counts)]
    questions = questions_of(aspect)
    deck = [name for name, count in zip(CONDITIONS, counts, strict=True) for _ in range(count)]
    deck = list(np.random.default_rng(0).permutation(deck))
    size = len(questions)
    sheets = [
        Sheet(f"P{i}", CONDITIONS, {q.id: str(c) for q, c in zip(questions, deck[i * size :][:size], strict=True)})
        for i in range(42)
    ]
    (found,) = analyse_study(sheets, resamples=100).aspects
    assert tuple(found.counts.values()) == counts
    assert tuple(round(100 * share.estimate, 1) for share in found.shares.values()) == pytest.approx(printed, abs=0.051)
    expected = sum(counts) / 3
    assert found.chi_square == pytest.approx(sum((count - expected) ** 2 for count in counts) / expected)


def test_the_printed_shares_of_table_5_fit_other_numbers_of_questions_than_table_13_has() -> None:
    """Holds the statement of docs/research/tables/writing-assistant.md on the paper's table."""
    critical, instructive = PUBLISHED["critical_thinking"], PUBLISHED["instructiveness"]
    assert answers_that_fit(critical, 45, 6) == answers_that_fit(instructive, 45, 5) == "no counts do"
    assert answers_that_fit(critical, 45, 8) == "150 / 95 / 115"
    assert answers_that_fit(instructive, 45, 4) == "71 / 51 / 58"
    assert answers_that_fit(PUBLISHED["interactiveness"], 42, 4) == "59 / 51 / 58"


def test_intervals_hold_planted_shares_as_often_as_they_say() -> None:
    """300 studies of 48 readers whose own answers resemble each other: 95 % intervals of a share and a difference."""
    held = np.zeros(2)
    weights = cluster_weights(range(48), 400)
    for seed in range(300):
        sheets = simulate_sheets({"critical_thinking": PLANTED}, 48, likeness=0.3, seed=seed)
        shares = shares_of(counts_of(choices_of(sheets, CONDITIONS, "critical_thinking"), 3))
        share, difference = mean_interval(shares[:, 0], weights), mean_interval(shares[:, 0] - shares[:, 2], weights)
        held += share.low <= 0.55 <= share.high, difference.low <= 0.30 <= difference.high
    assert np.all(held / 300 >= 0.92)
    assert np.all(held / 300 <= 0.985)


@pytest.mark.parametrize("alike", [0.0, 0.3])
def test_no_preference_is_seen_where_none_was_planted(alike: float) -> None:
    """At most 5 % of 2000 studies (plus three standard errors); the uncorrected chi-square sees far more."""
    assert power_of([1 / 3] * 3, 42, questions=6, likeness=alike) <= 0.05 + 3 * (0.05 * 0.95 / 2000) ** 0.5
    plain = corrected = pairs = 0
    for seed in range(300):
        sheets = simulate_sheets({"critical_thinking": EQUAL}, 42, likeness=alike, seed=seed)
        choices = choices_of(sheets, CONDITIONS, "critical_thinking")
        counts = counts_of(choices, 3)
        effect = 1 + 5 * likeness_of(choices, 3)
        plain += chi_square(counts.sum(axis=0))[1] < 0.05
        corrected += chi_square(counts.sum(axis=0), effect)[1] < 0.05
        pairs += paired_p(shares_of(counts)[:, 0] - shares_of(counts)[:, 1]) < 0.05
    most = 300 * (0.05 + 3 * (0.05 * 0.95 / 300) ** 0.5)
    assert corrected <= most
    assert pairs <= most
    assert plain > 2 * most if alike else plain <= most


def test_a_planted_preference_is_found_with_its_size_and_its_likeness() -> None:
    aspects = {**dict.fromkeys(ASPECTS, EQUAL), "critical_thinking": PLANTED}
    analysis = analyse_study(simulate_sheets(aspects, 240, likeness=0.3), resamples=300)
    found = {one.aspect: one for one in analysis.aspects}
    critical = found["critical_thinking"]
    assert critical.p_holm < 0.001
    assert critical.shares["metacrit"].low < 0.55 < critical.shares["metacrit"].high
    assert critical.likeness == pytest.approx(0.3, abs=0.06)
    none = found["instructiveness"]  # five questions
    totals = np.array(list(none.counts.values()))
    assert none.p_corrected == pytest.approx(chi_square(totals, 1 + 4 * none.likeness)[1])
    assert none.p_answers == pytest.approx(chi_square(totals)[1])
    best = {(pair.first, pair.second): pair for pair in critical.pairs}[("metacrit", "multi")]
    assert best.p_holm < 0.001
    assert best.difference.low < 0.35 < best.difference.high
    assert all(one.p_holm > 0.05 for name, one in found.items() if name != "critical_thinking")
    assert analysis.p_positions > 0.05


def test_a_preference_for_what_came_first_is_seen_as_one() -> None:
    sheets = simulate_sheets({"critical_thinking": EQUAL}, 60)
    first = [replace(one, answers=dict.fromkeys(one.answers, one.order[0])) for one in sheets]
    analysis = analyse_study(first, resamples=100)
    assert analysis.p_positions < 0.001
    assert analysis.positions[1].estimate == 1
    assert analysis.aspects[0].p > 0.05  # balanced orders keep it out of the conditions
    assert len(analysis.orders) == 6


def test_signs_are_flipped_exactly_where_participants_are_few() -> None:
    assert paired_p(np.full(5, 0.2)) == pytest.approx(2 / 32)
    assert paired_p(np.zeros(8)) == 1
    assert np.isnan(paired_p(np.array([0.2, 0.1])))
    assert paired_p(np.full(20, 0.2)) == pytest.approx(1 / 10000, rel=0.5)


def test_answers_left_out_take_nothing_away_from_the_others() -> None:
    sheets = simulate_sheets({"critical_thinking": PLANTED, "instructiveness": EQUAL}, 30)
    silent = Sheet("SILENT", sheets[0].order, dict.fromkeys(sheets[0].answers), sheets[0].simulated_by)
    before, after = (analyse_study(given, resamples=100) for given in (sheets, [*sheets, silent]))
    assert after.participants == before.participants + 1
    assert [one.participants for one in after.aspects] == [30, 30]
    assert [one.shares for one in after.aspects] == [one.shares for one in before.aspects]


def test_a_single_participant_gets_shares_and_no_p() -> None:
    (only,) = simulate_sheets({"critical_thinking": PLANTED}, 1)
    (found,) = analyse_study([only], resamples=50).aspects
    assert np.isnan(found.p)
    assert all(np.isnan(pair.p) for pair in found.pairs)
    assert "| p, corrected for the aspects | - |" in render_study(analyse_study([only], resamples=50))


def test_sheets_of_two_studies_and_sheets_without_answers_are_refused() -> None:
    one, other = Sheet("A", ("x", "y"), {"ct1": "x"}), Sheet("B", ("x", "z"), {"ct1": "x"})
    with pytest.raises(RecordError, match=r"different conditions: x \+ y, x \+ z"):
        analyse_study([one, other])
    with pytest.raises(RecordError, match="none of the 1 sheets holds an answer"):
        analyse_study([Sheet("A", ("x", "y"), {"ct1": None})])


def test_power_grows_with_participants_and_the_fewest_that_reach_it_do() -> None:
    needed = participants_needed([0.5, 0.2, 0.3], questions=6, likeness=0.2, studies=800)
    assert needed.participants is not None
    assert needed.participants % 6 == 0
    assert needed.curve[needed.participants] >= 0.8 > needed.curve[needed.participants - 6]
    found = list(needed.curve.values())
    assert found == sorted(found)
    alike = participants_needed([0.5, 0.2, 0.3], questions=6, likeness=0.6, studies=800)
    assert alike.participants > needed.participants  # answers that repeat each other say less
    assert f"needs {needed.participants} participants" in render_power(needed)


def test_a_difference_too_small_to_find_is_said_to_be() -> None:
    none = participants_needed([1 / 3, 1 / 3, 1 / 3], questions=6, studies=50)
    assert none.participants is None
    assert "is too small for" in render_power(none)
    with pytest.raises(RecordError, match="expected power and alpha between 0 and 1"):
        participants_needed([0.5, 0.5], questions=0)


def test_the_table_has_the_rows_of_the_papers_and_marks_simulated_readers() -> None:
    shown = render_study(analyse_study(simulate_sheets(dict.fromkeys(ASPECTS, PLANTED), 24), resamples=100))
    assert shown.startswith("**SIMULATED: 24 simulated readers")
    for row in ("metacrit, % of choices", "Fleiss' kappa", "Cronbach's alpha, multi", "F ", "p of F"):
        assert f"| {row}" in shown
