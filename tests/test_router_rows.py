"""The router's rows: one question's are those of many, and no state is taken for another."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import norm

from metaprobe.records.outcomes import AgentOutcome, QuestionOutcomes
from metaprobe.routing.learned import ANY
from metaprobe.routing.learned_state import ROW, AskedAgent, Candidates, rows
from metaprobe.routing.learned_stored import BUCKETS, WordScores, word_buckets
from metaprobe.routing.same_answers import agreement, content
from metaprobe.training.router.data import outcomes_of, pasts_of
from metaprobe.training.router.fit import Board
from metaprobe.training.router.rows import Views, batch_rows, views_of

AGENTS = 6
ANSWERS = ("Nile", "the Nile", "the Nile river", "Amazon", "")


def team(n: int = 60, seed: int = 0) -> list[QuestionOutcomes]:
    """Six agents: one never states a confidence, one costs nothing, the others by length; answers agree in part."""
    rng = np.random.default_rng(seed)
    return [
        QuestionOutcomes(
            f"{i}",
            f"{i}",
            question="x" * chars,
            dimension=("easy", "hard", "")[i % 3],
            agents={
                f"a{a}": AgentOutcome(
                    str(rng.choice(ANSWERS)),
                    float(rng.random() < 0.3 + 0.1 * a),
                    None if a == 2 or rng.random() < 0.2 else float(rng.random()),
                    0.00001 * a * chars,
                )
                for a in range(AGENTS)
            },
        )
        for i, chars in enumerate(rng.integers(0, 30, n).tolist())
    ]


@pytest.mark.parametrize("count", range(AGENTS + 1))
def test_one_question_has_the_rows_that_many_have_however_many_were_asked(count: int) -> None:
    questions = team()
    data = outcomes_of(questions)
    pasts = pasts_of(data)
    rng = np.random.default_rng(count)
    text = np.where(rng.random(data.score.shape) < 0.1, np.nan, rng.normal(size=data.score.shape))
    views, seen = views_of(data, pasts, text), set()
    for i, question in enumerate(questions):
        mask = np.isin(np.arange(AGENTS), rng.permutation(AGENTS)[:count])
        panel = Candidates.of(data.agents, [pasts[a].get(question.dimension) or pasts[a][ANY] for a in data.agents])
        asked = [
            (column, AskedAgent(question.agents[agent].answer, question.agents[agent].confidence))
            for column, agent in enumerate(data.agents)
            if mask[column]
        ]
        one, prices = rows(panel, asked, text[i].tolist(), len(question.question))
        many = batch_rows(views, np.full(AGENTS, i), np.tile(mask, (AGENTS, 1)), np.arange(AGENTS))
        np.testing.assert_allclose(np.array(one), many, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(1000 * np.array(prices), views.price[i], rtol=1e-9)
        seen |= {name for name, column in zip(ROW, many.T, strict=True) if np.isfinite(column).any()}
    if count > 2:
        assert seen == set(ROW), "every column had a number somewhere"


@pytest.mark.parametrize("agents", [3, 50, 70])
def test_questions_of_a_large_team_are_not_taken_for_one_another(agents: int) -> None:
    """As bits of one integer, questions 0 and 16,384 of 50 agents were one state; 70 agents fit in none at all."""
    last = 1 << 14
    number, nothing = np.zeros((last + 1, agents)), np.zeros((1, agents, agents), dtype=np.float32)
    views = Views(*[number] * 6, agreement=np.broadcast_to(nothing, (last + 1, agents, agents)))

    def head(X: NDArray[np.float32], question: NDArray[np.int64]) -> NDArray[np.float64]:
        return question + X[:, ROW.index("others")] / 1000.0

    board = Board(views, outcomes_of(team(1)), head, max_asked=2)
    question = np.array([0, last, 0, last, 0])
    mask = np.zeros((5, agents), dtype=bool)
    mask[2:4, 0] = mask[4, -1] = True
    expected = question[:, None] + (mask.sum(axis=1, keepdims=True) - mask) / 1000
    np.testing.assert_allclose(board.success(question, mask), expected, atol=1e-6)


def test_answers_agree_by_what_they_end_with() -> None:
    assert agreement(content("so 3 + 4 = 7\n#### 1,007"), content("#### $1007")) == 1
    assert agreement(content("B"), content("B.")) == 1
    assert agreement(content("A"), content("B")) == 0
    assert agreement(content(""), content("")) == 0
    assert 0 < agreement(content("the Nile river"), content("the river Amazon")) < 1


def test_a_past_is_shrunk_to_the_overall_rate_kept_from_0_and_1_and_never_cheaper_for_a_longer_question() -> None:
    questions = [
        QuestionOutcomes(
            f"{i}",
            f"{i}",
            question="x" * (i + 1),
            dimension="easy" if i < 4 else "hard",
            agents={
                "half": AgentOutcome("", float(i < 4), 0.1 if i % 2 else 0.9, 0.01 - 0.0001 * i),
                "always": AgentOutcome("", 1.0, None, 0.01),
            },
        )
        for i in range(16)
    ]
    pasts = pasts_of(outcomes_of(questions))
    share = (4 + 5 * 0.25) / (4 + 5)
    assert pasts["half"]["easy"].rate == pytest.approx(np.log(share / (1 - share)))
    assert pasts["always"][ANY].rate == pytest.approx(np.log(0.98 / 0.02))
    assert pasts["half"][ANY].price_per_char == 0
    assert pasts["half"][ANY].price(1) == pasts["half"][ANY].price(1000)
    assert pasts["half"][ANY].knots == (0.1, 0.9)
    assert pasts["half"][ANY].scores == pytest.approx((norm.ppf(0.25), norm.ppf(0.75))), "by mid-ranks of ties"


def test_a_question_without_a_known_word_says_nothing_of_anyone() -> None:
    table = np.zeros((BUCKETS, 3), dtype=np.float32)
    squares = np.zeros(BUCKETS, dtype=np.float32)
    ((nile,), (river,)) = word_buckets("Nile"), word_buckets("river")
    table[nile], squares[nile] = (1.0, -2.0, 0.5), 4.0
    table[river], squares[river] = (3.0, 0.0, 0.5), 5.0
    scores = WordScores(table, squares)
    assert scores.of("NILE, nile?") == pytest.approx((0.5, -1.0, 0.25)), "once, in lower case, over its length"
    assert scores.of("the Nile is a river") == pytest.approx((4 / 3, -2 / 3, 1 / 3))
    for nothing in ("", "?!", "of the Amazon"):
        assert scores.of(nothing) is None
    untaught = WordScores(table[:0], squares[:0])
    assert untaught.of("the Nile") is untaught.of("") is None


def test_of_a_question_the_first_400_words_and_their_pairs_are_read() -> None:
    words = [f"w{i}" for i in range(401)]
    assert word_buckets(" ".join(words)).tolist() == word_buckets(" ".join(words[:400])).tolist()
    assert set(word_buckets(" ".join(words[:400]))) > set(word_buckets(" ".join(words[:399])))
    pair = set(word_buckets("red blood")) - set(word_buckets("red")) - set(word_buckets("blood"))
    assert len(pair) == 1
    assert not pair & set(word_buckets("blood red"))
