"""P(success) before asking: the ladder, the exported reader, and when the evidence is said to be insufficient."""

import datetime
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_once import MadeOnce
from tokenizers import Tokenizer, models, pre_tokenizers

import metaprobe
from metaprobe.checkpoints import CheckpointError, ContractMismatch, GoldenMismatch
from metaprobe.probes.prompt_reader import PromptLayout, PromptReader, PromptTokens
from metaprobe.records.errors import RecordError
from metaprobe.records.outcomes import AgentOutcome, QuestionOutcomes
from metaprobe.routing.question_surface import read_surface
from metaprobe.routing.success_estimator import MIN_CANDIDATE_LABELS, RATE, STATES, SURFACE, SuccessEstimator
from metaprobe.training.export import GraphBuilder
from metaprobe.training.recipes import prompt_states as states_module
from metaprobe.training.recipes import train_success as recipe
from metaprobe.training.recipes.prompt_states import ReaderFiles, cut_reader, export_reader, output_name, prompt_states
from metaprobe.training.recipes.train_success import success_graph, train_success
from metaprobe.training.success_fit import fit_logistic, fit_prior, fit_success, rate_tables, success_data
from metaprobe.training.success_options import SuccessOptions
from metaprobe.training.surface_fit import read_surfaces
from metaprobe.training.training_options import WrongOptions

TOPICS = "cat dog sun moon tree car".split()
HARD_REQUEST, EASY_REQUEST = "prove that cat dog sun moon 7", "greet the cat dog sun moon 7"


def worded(n: int = 240, *, seed: int = 0) -> list[QuestionOutcomes]:
    """Questions that begin with "prove" are hard for the small model; the large one is always better."""
    rng = np.random.default_rng(seed)
    made = []
    for i in range(n):
        hard = bool(rng.integers(0, 2))
        text = ("prove that " if hard else "greet the ") + " ".join(rng.choice(TOPICS, 4)) + f" {i}"
        agents = {
            name: AgentOutcome(score=float(rng.random() < (0.2 if hard else 0.85) + better))
            for name, better in (("small", 0.0), ("large", 0.12))
        }
        made.append(QuestionOutcomes(f"q{i}", f"q{i}", text, str(rng.choice(["a", "b"])), agents))
    return made


def by_words(out: Path) -> None:
    options = SuccessOptions(out=out, labels_until="2026-11-01", version=("small=v1",))
    train_success(worded(), options)


@pytest.fixture(scope="session")
def estimator(made_once: MadeOnce) -> SuccessEstimator:
    loaded = metaprobe.load(made_once("success by words", by_words))
    assert isinstance(loaded, SuccessEstimator)
    return loaded


def test_the_surface_is_taken_where_it_pays_and_dimensions_without_meaning_are_not(estimator: SuccessEstimator) -> None:
    assert estimator.rung == SURFACE
    ladder = estimator.checkpoint.manifest.contract["ladder"]
    assert ["not taken" in step for step in ladder] == [True, False]
    hard, easy = (estimator.estimate([{"role": "user", "content": text}]) for text in (HARD_REQUEST, EASY_REQUEST))
    for one, other in zip(hard, easy, strict=True):
        assert one.candidate == other.candidate
        assert one.p is not None
        assert other.p is not None
        assert one.p < other.p - 0.3


def test_a_rate_that_is_the_same_for_every_question_tells_no_answers_apart(tmp_path: Path) -> None:
    """Rates learned on the other folds are low where the fold holds many right answers: pooled they rank them last."""
    rng = np.random.default_rng(3)
    planted = [
        QuestionOutcomes(f"q{i}", f"q{i}", "", "", {"small": AgentOutcome(score=float(rng.random() < 0.6))})
        for i in range(120)
    ]
    checkpoint = train_success(planted, SuccessOptions(out=tmp_path / "constant"))
    told = checkpoint.manifest.metrics["small.auroc"]
    assert (told.estimate, told.low, told.high) == (0.5, 0.5, 0.5)


def test_the_gain_over_the_rates_is_that_over_chance(estimator: SuccessEstimator) -> None:
    metrics = estimator.checkpoint.manifest.metrics
    for name in ("small", "large"):
        gain = metrics[f"{name}.auroc_over_candidate_rate"].estimate
        assert gain == pytest.approx(metrics[f"{name}.auroc"].estimate - 0.5, abs=1e-6)


def test_p_lies_in_its_interval_and_candidates_keep_their_order(estimator: SuccessEstimator) -> None:
    for one in estimator.estimate(HARD_REQUEST, ["small", "large"]):
        assert one.p is not None
        assert one.interval is not None
        assert 0 <= one.interval[0] <= one.p <= one.interval[1] <= 1
        assert one.evidence == "measured"
        assert one.coverage == 240
        assert one.labels_until == "2026-11-01"
        assert estimator.checkpoint.digest[:16] in one.source
    assert [one.candidate for one in estimator.estimate("x", ["small", "large"])] == ["small", "large"]


@pytest.mark.parametrize(
    ("given", "noun"),
    [
        ({"candidates": ["other"]}, "other"),
        ({"versions": {"small": "v2"}}, "v2"),
        ({"versions": {"large": "v1"}}, "not told"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "image_url"),
        ({"messages": "  "}, "no text"),
    ],
)
def test_what_is_not_known_is_insufficient_and_has_no_number(
    estimator: SuccessEstimator, given: dict[str, object], noun: str
) -> None:
    made = estimator.estimate(**{"messages": HARD_REQUEST} | given)  # type: ignore[arg-type]
    (told,) = [one for one in made if noun in one.reason][:1]
    assert told.evidence == "insufficient"
    assert told.p is None
    assert told.interval is None


def test_labels_too_old_or_without_a_date_are_insufficient(estimator: SuccessEstimator, tmp_path: Path) -> None:
    aged = SuccessEstimator.load(estimator.checkpoint.path, max_age=30)
    assert aged.estimate(EASY_REQUEST, today=datetime.date(2026, 12, 1))[0].evidence == "measured"
    late = aged.estimate(EASY_REQUEST, today=datetime.date(2026, 12, 2))[0]
    assert late.evidence == "insufficient"
    assert "31 days" in late.reason
    train_success(worded(80), SuccessOptions(out=tmp_path / "c"))
    undated = metaprobe.load(tmp_path / "c", max_age=30).estimate(EASY_REQUEST)[0]
    assert undated.evidence == "insufficient"
    assert "labels_until" in undated.reason.replace("-", "_")


def test_a_new_label_of_one_candidate_renews_the_labels_of_no_other(tmp_path: Path) -> None:
    """All labels are of January, but for one of the small candidate."""
    january, march = (datetime.datetime(2026, month, 2, tzinfo=datetime.UTC).timestamp() for month in (1, 3))
    outcomes = [replace(one, answered=january) for one in worded(80)]
    outcomes[0] = replace(outcomes[0], agents={"small": outcomes[0].agents["small"]}, answered=march)
    made = train_success(outcomes, SuccessOptions(out=tmp_path / "c"))
    aged = metaprobe.load(made.path, max_age=30).estimate(EASY_REQUEST, today=datetime.date(2026, 3, 3))
    by_name = {one.candidate: one for one in aged}
    assert {name: one.labels_until for name, one in by_name.items()} == {"large": "2026-01-02", "small": "2026-03-02"}
    assert by_name["small"].evidence == "measured"
    assert by_name["large"].evidence == "insufficient"
    assert "'large' is 60 days old" in by_name["large"].reason


def test_too_few_labels_of_one_candidate_are_insufficient_for_it_alone(tmp_path: Path) -> None:
    outcomes = worded(120)
    thin = []
    for at, one in enumerate(outcomes):
        agents = {
            name: outcome for name, outcome in one.agents.items() if name == "small" or at < MIN_CANDIDATE_LABELS - 1
        }
        thin.append(QuestionOutcomes(one.id, one.group, one.question, "", agents))
    train_success(thin, SuccessOptions(out=tmp_path / "c"))
    by_name = {one.candidate: one for one in metaprobe.load(tmp_path / "c").estimate(EASY_REQUEST)}
    assert by_name["large"].evidence == "insufficient"
    assert "29 labels" in by_name["large"].reason
    assert by_name["small"].evidence == "measured"


def test_words_of_a_candidate_do_not_fade_where_other_candidates_alone_have_labels(tmp_path: Path) -> None:
    """Each question was answered by one model, like in a log."""
    outcomes = worded(400)
    small = [replace(one, agents={"small": one.agents["small"]}) for one in outcomes[:200]]
    large = [replace(one, agents={"large": one.agents["large"]}) for one in outcomes[200:]]
    for name, learned in (("alone", small), ("beside", [*small, *large])):
        train_success(learned, SuccessOptions(out=tmp_path / name))
    p = {
        (name, text): metaprobe.load(tmp_path / name).estimate(text, ["small"])[0].p
        for name in ("alone", "beside")
        for text in (HARD_REQUEST, EASY_REQUEST)
    }
    gap = {name: p[name, EASY_REQUEST] - p[name, HARD_REQUEST] for name in ("alone", "beside")}
    assert gap["alone"] > 0.3
    assert abs(gap["beside"] - gap["alone"]) < 0.15


def test_arguments_of_another_type_are_refused(estimator: SuccessEstimator) -> None:
    for wrong in ({"messages": []}, {"messages": 3}, {"messages": [3]}, {"messages": "x", "candidates": "small"}):
        with pytest.raises(RecordError):
            estimator.estimate(**wrong)  # type: ignore[arg-type]
    with pytest.raises(RecordError, match="max_age"):
        SuccessEstimator.load(estimator.checkpoint.path, max_age=-1)


def test_max_age_is_for_estimators_alone(estimator: SuccessEstimator) -> None:
    with pytest.raises(ContractMismatch, match="max_age"):
        metaprobe.load("bundled:quality", max_age=3)


def test_a_checkpoint_whose_parts_do_not_fit_is_refused(estimator: SuccessEstimator, tmp_path: Path) -> None:
    shutil.copytree(estimator.checkpoint.path, tmp_path / "c")
    spread = tmp_path / "c" / "spread.f32"
    spread.write_bytes(spread.read_bytes()[:-4])
    with pytest.raises(CheckpointError):
        SuccessEstimator.load(tmp_path / "c")


def test_a_table_is_learned_from_and_only_the_named_candidates_are(tmp_path: Path) -> None:
    rows = [f"{one.question},{one.agents['small'].score},{one.agents['large'].score},0.5" for one in worded(80)]
    (tmp_path / "t.csv").write_text("\n".join(["prompt,small,large,dimension", *rows]))
    train_success(tmp_path / "t.csv", SuccessOptions(out=tmp_path / "c", candidate=("large", "small")))
    assert metaprobe.load(tmp_path / "c").candidates == ("large", "small")
    train_success(worded(80), SuccessOptions(out=tmp_path / "d", candidate=("small",)))
    assert metaprobe.load(tmp_path / "d").candidates == ("small",)


def test_repeated_questions_are_of_one_group_so_that_shuffled_labels_teach_nothing(tmp_path: Path) -> None:
    outcomes, told = worded(200), []
    order = np.random.default_rng(4).permutation(len(outcomes))
    shuffled = [replace(one, agents=outcomes[other].agents) for one, other in zip(outcomes, order, strict=True)]
    thrice = [
        replace(
            one,
            id=f"{one.id}-{copy}",
            group=f"{one.id}-{copy}",
            question=one.question.upper() if copy else one.question,
        )
        for one in shuffled
        for copy in range(3)
    ]
    assert len(set(success_data(thrice).groups)) <= 200
    made = train_success(thrice, SuccessOptions(out=tmp_path / "c", on_line=told.append))
    assert any("were joined" in line for line in told)
    estimator = metaprobe.load(made.path)
    assert isinstance(estimator, SuccessEstimator)
    assert estimator.rung == RATE


def test_a_candidate_without_a_label_on_the_dimension_is_doubted(tmp_path: Path) -> None:
    outcomes = []
    for one in worded(400):
        right = {name: AgentOutcome(score=float((name == "large") == (one.dimension == "a"))) for name in one.agents}
        if one.dimension == "b":
            del right["small"]
            right["large"] = AgentOutcome(score=float(len(outcomes) % 5 == 0))
        else:
            right["small"] = AgentOutcome(score=float(len(outcomes) % 4 == 0))
        outcomes.append(replace(one, agents=right))
    estimator = metaprobe.load(train_success(outcomes, SuccessOptions(out=tmp_path / "c")).path)
    assert isinstance(estimator, SuccessEstimator)
    said = {one.candidate: one.reason for one in estimator.estimate(outcomes[0].question, dimension="b")}
    assert "no label of 'small'" in said["small"]
    assert "no label of" not in said["large"]


@pytest.mark.parametrize(
    "options", [{"labels_until": "yesterday"}, {"labels_until": "2999-01-01"}, {"version": ("small",)}]
)
def test_options_of_another_form_are_refused(options: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(WrongOptions):
        SuccessOptions(out=tmp_path, **options)  # type: ignore[arg-type]


def test_logged_decisions_and_candidates_that_never_vary_are_left_out() -> None:
    outcomes = worded(60)
    logged = QuestionOutcomes("l", "l", "x", "", outcomes[0].agents, "small", {"small": 0.5, "large": 0.5})
    always = [
        QuestionOutcomes(one.id, one.group, one.question, "", {**one.agents, "sure": AgentOutcome(score=1.0)})
        for one in outcomes
    ]
    data = success_data([*always, logged])
    assert data.candidates == ("large", "small")
    assert len(data.questions) == 60
    assert "left out, always right or always wrong: sure" in data.notes
    with pytest.raises(RecordError, match="groups"):
        success_data(outcomes[:20])


@given(st.integers(0, 2**31), st.integers(0, 6))
@settings(max_examples=25, deadline=None)
def test_a_fit_ends_where_the_gradient_of_its_loss_is_zero(seed: int, d: int) -> None:
    rng = np.random.default_rng(seed)
    X, offset = rng.normal(size=(40, d)), rng.normal(size=(40, 3))
    Y = rng.random((40, 3))
    Y[rng.random((40, 3)) < 0.2] = np.nan
    W, known = fit_logistic(X, offset, Y, 2.0), np.isfinite(Y)
    p = 1 / (1 + np.exp(-(X @ W[:, :-1].T + W[:, -1] + offset)))
    error = np.where(known, np.nan_to_num(Y) - p, 0.0)
    assert np.abs(X.T @ error - 2.0 * W[:, :-1].T).max(initial=0.0) < 1e-3
    assert np.abs(error.sum(axis=0)).max() < 1e-3


def test_a_dimension_with_few_labels_stays_near_the_overall_rate() -> None:
    data = success_data(worded(100))
    table = rate_tables(data, by_dimension=True)
    assert table.shape == (2, 3)
    assert np.abs(rate_tables(data, by_dimension=False) - table[:, -1:]).max() < 1e-12


# The interval.

WORDS = [f"{a}{b}" for a in ("bal", "cor", "dim", "fen", "gar", "hol", "kip", "lum") for b in ("ta", "re", "so", "nu")]
PLANTED = {
    # Standard deviations over questions of the effects of dimensions and of words, least share held, widest interval.
    "rates alone": (0.0, 0.0, 0.9, 0.4),
    "dimensions": (1.0, 0.0, 0.9, 0.4),
    "words": (0.0, 0.8, 0.8, 0.65),
    "dimensions and words": (0.7, 0.7, 0.8, 0.6),
}


def planted(n: int, by_dimension: float, by_words: float, seed: int) -> tuple[list[QuestionOutcomes], np.ndarray]:
    """Returns questions of made-up words with labels of three candidates, and the probabilities (n, 3) they follow."""
    rng = np.random.default_rng(seed)
    drawn = [rng.choice(len(WORDS), 6, replace=False) for _ in range(n)]
    words, kinds = np.array([np.isin(np.arange(len(WORDS)), one) for one in drawn], float), rng.integers(0, 4, n)
    effects = [words @ rng.normal(size=(len(WORDS), 3)), rng.normal(size=(4, 3))[kinds]]
    by_word, by_kind = ((effect - effect.mean(axis=0)) / effect.std(axis=0) for effect in effects)
    p = 1 / (1 + np.exp(-(np.array([-0.5, 0.3, 1.0]) + by_words * by_word + by_dimension * by_kind)))
    right = rng.random(p.shape) < p
    return [
        QuestionOutcomes(
            f"q{row}",
            f"q{row}",
            " ".join(WORDS[place] for place in drawn[row]),
            f"kind {kinds[row]}",
            {f"m{column}": AgentOutcome(score=float(right[row, column])) for column in range(3)},
        )
        for row in range(n)
    ], p


@pytest.mark.parametrize("world", PLANTED)
def test_the_interval_holds_planted_probabilities_as_often_as_it_says(world: str, tmp_path: Path) -> None:
    by_dimension, by_words, least, widest = PLANTED[world]
    held, width = [], []
    for seed in range(3):
        outcomes, truth = planted(450, by_dimension, by_words, seed)
        learned = train_success(outcomes[:250], SuccessOptions(out=tmp_path / f"{seed}"))
        estimator = SuccessEstimator(learned)
        for one, expected in zip(outcomes[250:], truth[250:], strict=True):
            for made, p in zip(estimator.estimate(one.question, dimension=one.dimension), expected, strict=True):
                if made.interval is not None:
                    held.append(made.interval[0] <= p <= made.interval[1])
                    width.append(made.interval[1] - made.interval[0])
    assert len(held) > 1000
    assert np.mean(held) > least
    assert np.mean(width) < widest


def test_the_interval_is_wider_where_the_request_holds_what_no_label_shows(estimator: SuccessEstimator) -> None:
    def width(text: str, dimension: str | None) -> float:
        (one,) = estimator.estimate(text, ["small"], dimension)
        assert one.interval is not None
        return one.interval[1] - one.interval[0]

    known = width(EASY_REQUEST, "a")
    assert width("greet xylograph quorums vexing 7", "a") > 1.1 * known
    assert width(EASY_REQUEST, None) > known


def test_labels_that_stand_several_times_make_no_interval_narrower(tmp_path: Path) -> None:
    outcomes = planted(150, 0.0, 0.0, 3)[0]
    copies = [replace(one, id=f"{one.id}-{copy}") for one in outcomes for copy in range(4)]
    widths = []
    for name, learned in (("once", outcomes), ("copies", copies)):
        made = metaprobe.load(train_success(learned, SuccessOptions(out=tmp_path / name)).path)
        found = [made.estimate(one.question, dimension=one.dimension)[0].interval for one in outcomes[:40]]
        widths.append(np.mean([high - low for low, high in found]))
    assert widths[1] > 0.8 * widths[0]


# The surface of questions.


def test_a_request_is_read_as_the_labelled_questions_were() -> None:
    data = success_data(worded(120))
    texts = [*data.questions[:40], "", "Naïve – 日本, 7\n\nB: \ud800", "long " * 5000]
    prior, _ = fit_prior(data, read_surfaces(data.questions), SURFACE, by_dimension=False, seed=0)
    assert prior.span is not None
    assert np.abs(prior.span.surface.words).max() > 0.1
    stored = read_surface(prior.span.surface.to_bytes(), len(prior.span.surface.centre))
    coordinates, outside = prior.span.coordinates(read_surfaces(texts))
    read = [stored.coordinates(text) for text in texts]
    assert np.abs(coordinates - [row for row, _ in read]).max() < 1e-4
    assert np.abs(outside - [share for _, share in read]).max() < 1e-4


def test_forms_of_a_word_that_no_label_has_are_known_by_their_pieces(estimator: SuccessEstimator) -> None:
    hard, easy = (
        estimator.estimate(f"{words} cat dog sun moon 7", ["small"])[0].p for words in ("proven thats", "greeted them")
    )
    assert hard is not None
    assert easy is not None
    assert hard < easy


def test_a_step_above_the_surface_sees_what_it_says_of_questions_it_did_not_learn_from() -> None:
    """Labels that no text explains are still fitted on the questions themselves."""
    rng = np.random.default_rng(5)
    outcomes = [replace(one, agents={"s": AgentOutcome(score=float(rng.random() < 0.5))}) for one in worded(200)]
    data = success_data(outcomes)
    rows = read_surfaces(data.questions)
    prior, left_out = fit_prior(data, rows, SURFACE, by_dimension=False, seed=0)

    def gap(logit: np.ndarray) -> float:
        return float(logit[data.score[:, 0] == 1].mean() - logit[data.score[:, 0] == 0].mean())

    assert gap(prior.log_odds(data, rows)) > 0.05
    assert gap(left_out) < 0.5 * gap(prior.log_odds(data, rows))


def test_states_replace_the_surface_where_they_are_ahead_of_it_and_surely_ahead_of_the_rates() -> None:
    data, rng = success_data(worded(150)), np.random.default_rng(0)
    hard = np.array([question.startswith("prove") for question in data.questions])
    gains = []
    for noise in (0.3, 1.0, 2.0, 4.0):
        states = {"mean1": hard[:, None] + noise * rng.normal(size=(len(hard), 4))}
        fitted = fit_success(data, states)
        (over_surface,) = [step for step in fitted.steps if (step.name, step.over) == (STATES, SURFACE)]
        gains.append(over_surface)
        assert (fitted.rung == STATES) == (over_surface.gain.estimate > 0)
    assert any(step.gain.estimate > 0 and not step.taken for step in gains)
    assert any(step.gain.estimate <= 0 for step in gains)


@pytest.mark.parametrize("text", ["Prove That CAT DOG, SUN, MOON, TREE, CAR, 1, 2, 3, 4, 5", "prove that cat\n" * 40])
def test_a_request_of_another_form_is_insufficient_and_a_comma_more_is_not(
    estimator: SuccessEstimator, text: str
) -> None:
    (other,) = estimator.estimate(text, ["small"])
    assert other.p is None
    assert "form" in other.reason
    assert estimator.estimate("prove that, cat dog", ["small"])[0].evidence == "measured"


def test_a_checkpoint_of_another_surface_is_refused(estimator: SuccessEstimator) -> None:
    checkpoint = estimator.checkpoint
    older = {name: value for name, value in checkpoint.manifest.contract.items() if name != "base"}
    for contract, extra in (
        (older, checkpoint.extra),
        (checkpoint.manifest.contract, checkpoint.extra | {"surface.f32": checkpoint.extra["surface.f32"][:-4]}),
        (checkpoint.manifest.contract, checkpoint.extra | {"forms.f32": checkpoint.extra["forms.f32"][:-4]}),
        ({**checkpoint.manifest.contract, "rung": STATES, "base": STATES}, checkpoint.extra),
    ):
        with pytest.raises(ContractMismatch, match="train it again"):
            SuccessEstimator(replace(checkpoint, manifest=replace(checkpoint.manifest, contract=contract), extra=extra))


# The reader of prompts. A handmade graph stands for the language model: embeddings, and their mean.

EASY = [f"e{i}" for i in range(200)]
HARD = [f"h{i}" for i in range(200)]
FOREIGN = [f"f{i}" for i in range(50)]
VOCABULARY = ["<unk>", ":", *EASY, *HARD, *FOREIGN]


def embeddings() -> np.ndarray:
    """Returns (V, 8): easy and hard words differ in the first unit, foreign ones in the last."""
    table = np.random.default_rng(0).normal(size=(len(VOCABULARY), 8)).astype(np.float32)
    table[:, 0] = [{"e": 2.0, "h": -2.0}.get(word[0], 0.0) for word in VOCABULARY]
    table[:, -1] = [20.0 if word[0] == "f" else 0.0 for word in VOCABULARY]
    return table


def handmade_files() -> ReaderFiles:
    graph = GraphBuilder()
    mask = graph.add("Unsqueeze", graph.cast("attention_mask", np.float32), graph.constant([2]))
    states = graph.add("Gather", graph.number(embeddings()), "input_ids")
    total = graph.add("ReduceSum", graph.add("Mul", states, mask), graph.constant([1]), keepdims=0)
    count = graph.add("Max", graph.add("ReduceSum", mask, graph.constant([1]), keepdims=0), graph.number(1.0))
    graph.add("Div", total, count, name="mean1")
    graph.add("Mul", "mean1", graph.number(0.0), name="mean2")
    helper, kinds = graph.onnx.helper, graph.onnx.TensorProto
    inputs = [
        helper.make_tensor_value_info(name, kinds.INT64, [None, None]) for name in ("input_ids", "attention_mask")
    ]
    outputs = [helper.make_tensor_value_info(name, kinds.FLOAT, [None, 8]) for name in ("mean1", "mean2")]
    made = helper.make_graph(graph.nodes, "reader", inputs, outputs, initializer=graph.initializers())
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(VOCABULARY)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    layout = PromptLayout((1,), (1,))
    return ReaderFiles(model.SerializeToString(), tokenizer.to_str().encode(), layout, "handmade", "sha256:0", (1, 2))


def test_a_cut_graph_gives_what_the_whole_one_gives_and_is_smaller() -> None:
    files = handmade_files()
    graph, prompts = cut_reader(files.graph, "mean1"), ["e1 h2", "f3"]
    small = PromptReader(graph, PromptTokens(files.tokenizer, files.layout))
    assert len(graph) < len(files.graph)
    assert [one.name for one in small.session.outputs] == ["mean1"]
    assert np.array_equal(small.read(prompts)["mean1"], files.reader().read(prompts)["mean1"])


def test_a_graph_that_reads_no_tokens_is_refused() -> None:
    files = handmade_files()
    with pytest.raises(ContractMismatch, match="input_ids"):
        PromptReader(success_graph(None, np.ones((2, 2))), PromptTokens(files.tokenizer, files.layout))


@given(st.lists(st.integers(3, 99), max_size=40), st.integers(1, 6), st.integers(1, 6))
def test_of_a_long_prompt_head_and_tail_are_read(tokens: list[int], head: int, tail: int) -> None:
    read = PromptLayout((1,), (2,), head, tail).ids(tokens)
    assert read[0] == 1
    assert read[-1] == 2
    expected = tokens if len(tokens) <= head + tail else tokens[:head] + tokens[-tail:]
    assert read[1:-1] == expected


def test_the_same_prompt_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, read = handmade_files().reader(), []
    whole = PromptReader.read
    monkeypatch.setattr(PromptReader, "read", lambda self, prompts: read.append(len(prompts)) or whole(self, prompts))
    assert np.array_equal(reader.state("e1"), reader.state("e1"))
    assert read == [1]


def test_an_interrupted_reading_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METAPROBE_CACHE", str(tmp_path))
    monkeypatch.setattr(states_module, "SHARD", 8)
    files, whole, read = handmade_files(), PromptReader.read, list[int]()

    def interrupted(self: PromptReader, prompts: list[str]) -> object:
        if len(read) == 2:
            raise KeyboardInterrupt
        read.append(len(prompts))
        return whole(self, prompts)

    prompts = [f"e{i} h{i}" for i in range(30)]
    monkeypatch.setattr(PromptReader, "read", interrupted)
    with pytest.raises(KeyboardInterrupt):
        prompt_states(files, prompts)
    counted = list[int]()
    monkeypatch.setattr(PromptReader, "read", lambda self, many: counted.append(len(many)) or whole(self, many))
    states = prompt_states(files, prompts)
    assert read == [8, 8]
    assert sum(counted) == 14
    expected = whole(files.reader(), prompts)["mean1"]
    assert np.abs(states["mean1"] - expected).max() < 0.01
    assert np.array_equal(prompt_states(files, prompts[::-1])["mean1"], states["mean1"][::-1])


def read_by_states(out: Path) -> None:
    """Right answers follow the kind of the words, of which hardly any occurs twice: words alone tell nothing."""
    rng, outcomes = np.random.default_rng(3), []
    for i in range(200):
        easy = bool(rng.integers(0, 2))
        question = " ".join(rng.choice(EASY if easy else HARD, 3))
        agents = {name: AgentOutcome(score=float(rng.random() < (0.95 if easy else 0.05))) for name in ("s", "t")}
        outcomes.append(QuestionOutcomes(f"q{i}", f"q{i}", question, "", agents))
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("METAPROBE_CACHE", str(out.parent / "cache"))
        patched.setattr(recipe, "reader_files", lambda model, samples: handmade_files())
        train_success(outcomes, SuccessOptions(out=out, read_by="embedded"))


@pytest.fixture(scope="session")
def reading(made_once: MadeOnce) -> SuccessEstimator:
    return SuccessEstimator.load(made_once("success by states", read_by_states))


def test_states_are_taken_and_tell_new_words_apart(reading: SuccessEstimator) -> None:
    contract = reading.checkpoint.manifest.contract
    assert contract["rung"] == STATES
    assert contract["reader"]["output"] == "mean1"  # the other output is constant
    assert all(audit.passed for audit in reading.checkpoint.manifest.audits.values())
    easy, hard = (reading.estimate(text)[0] for text in ("e3 e77 e11", "h3 h77 h11"))
    assert easy.p is not None
    assert hard.p is not None
    assert hard.p < 0.2 < 0.8 < easy.p
    assert easy.coverage > 3


def test_the_interval_of_a_step_of_states_holds_the_planted_probability(reading: SuccessEstimator) -> None:
    rng, held, width = np.random.default_rng(8), [], []
    for words, p in ((EASY, 0.95), (HARD, 0.05)):
        for _ in range(30):
            for one in reading.estimate(" ".join(rng.choice(words, 3))):
                if one.interval is not None:
                    held.append(one.interval[0] <= p <= one.interval[1])
                    width.append(one.interval[1] - one.interval[0])
    assert len(held) > 90
    assert np.mean(held) > 0.85
    assert np.mean(width) < 0.5


def test_a_foreign_request_is_told_apart_and_a_seen_one_is_not(reading: SuccessEstimator) -> None:
    rng = np.random.default_rng(9)
    seen = [reading.estimate(" ".join(rng.choice(rng.choice([EASY, HARD]), 3)))[0] for _ in range(60)]
    assert np.mean([one.evidence == "measured" for one in seen]) > 0.9
    foreign = [reading.estimate(" ".join(rng.choice(FOREIGN, 3)))[0] for _ in range(20)]
    assert all(one.evidence == "insufficient" and "outside" in one.reason and one.p is None for one in foreign)


@pytest.mark.parametrize(
    ("key", "value", "noun"), [("sample_ids", [1, 2], "tokenizers"), ("sample_state", [1.0] * 8, "state")]
)
def test_a_reader_that_reads_otherwise_than_at_training_is_refused(
    reading: SuccessEstimator, key: str, value: object, noun: str
) -> None:
    manifest = reading.checkpoint.manifest
    changed = {**manifest.contract, "reader": {**manifest.contract["reader"], key: value}}
    with pytest.raises(GoldenMismatch, match=noun):
        SuccessEstimator(replace(reading.checkpoint, manifest=replace(manifest, contract=changed)))


@pytest.mark.slow
def test_the_exported_graph_gives_the_states_of_the_model(tmp_path: Path) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.manual_seed(0)
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(VOCABULARY)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 6, "num_attention_heads": 2}
    config = transformers.LlamaConfig(vocab_size=len(VOCABULARY), **sizes, num_key_value_heads=2, initializer_range=0.3)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<unk>", eos_token="<unk>")
    fast.chat_template = "{% for m in messages %}e1 {{ m['content'] }} h1{% endfor %}"
    fast.save_pretrained(tmp_path)
    prompts = ["e2 e3 h4", "f1", "e1 " * 9]
    model = transformers.LlamaForCausalLM.from_pretrained(tmp_path).eval()
    whole, rounded = (export_reader(str(tmp_path), prompts, rounded=rounded) for rounded in (False, True))
    reader = whole.reader()
    read, integers = reader.read(prompts), rounded.reader().read(prompts)
    for row, ids in enumerate(reader.tokens.ids(prompts)):
        with torch.no_grad():
            hidden = model.model(torch.tensor([ids]), output_hidden_states=True).hidden_states
        for layer in whole.layers:
            states = hidden[layer][0].numpy()
            mean, last = (read[output_name(layer, pooling)][row] for pooling in ("mean", "last"))
            assert np.abs(mean - states[len(whole.layout.prefix) :].mean(axis=0)).max() < 1e-4
            assert np.abs(last - states[-1]).max() < 1e-4
            assert np.corrcoef(last, integers[output_name(layer, "last")][row])[0, 1] > 0.98
