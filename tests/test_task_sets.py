"""Task sets: rows become honest items, come from the files they are said to, and are scored by their rules."""

import gzip
import json
import re
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from outside_rows import DATA, MADE, OUTSIDE, SET_8, bbq_row, items_of, real_data, rows
from sklearn.metrics import cohen_kappa_score

from metaprobe.eval.metrics.ranked import quadratic_weighted_kappa
from metaprobe.papers.tasks import TASKS, load_task
from metaprobe.papers.tasks.bias import ambiguous_bias_score, bias_score
from metaprobe.papers.tasks.graded_essays import grade
from metaprobe.papers.tasks.task import Row
from metaprobe.papers.tasks.true_or_false import subject
from metaprobe.records.correctness import canonical, final_answer, is_correct
from metaprobe.records.errors import ImportFileError, RecordError
from metaprobe.records.types import Item


# --- items
@pytest.mark.parametrize("name", OUTSIDE)
def test_items_are_whole_and_distinct_and_gold_is_among_the_options(name: str) -> None:
    items = items_of(name)
    assert len({item.id for item in items}) == len(items) >= 300
    for item in items:
        assert item.task == name
        assert item.question
        assert item.group
        assert bool(item.gold) == (item.check != "none")
        assert not item.choices or set(item.gold) <= set(item.choices)
        assert item.fields.keys() == items[0].fields.keys()


WHOLE: dict[str, dict[str, Any]] = {
    "gsm8k": {"gold": ("1",), "group": "gsm8k-1", "level": "1-2 steps", "check": "number"},
    "truthfulqa": {"gold": ("right 1",), "group": "truthfulqa-1", "dimension": "c1", "level": "Adversarial",
                   "check": "choice"},
    "ciar": {"gold": ("0.5", "1/2"), "group": "ciar-1", "check": "number"},
    "creak": {"gold": ("false",), "group": "e1", "check": "choice", "choices": ("true", "false")},
    "mmlu": {"gold": ("x",), "group": "which is 1?", "dimension": "s1", "check": "choice"},
    "bbq": {"gold": ("The boy",), "group": "Age/1", "dimension": "Age", "level": "disambig", "check": "choice"},
    "asap": {"gold": ("2",), "group": "asap-0", "dimension": "set 7", "level": "organization", "check": "number"},
    "essays": {"gold": ("0",), "group": "essays-0", "dimension": "evidence", "level": "evidence", "check": "number",
               "source": "LEAF++ specificity_of_explanation"},
    "places": {"group": "mount 1", "dimension": "natural_place", "level": "popularity 1", "check": "exact"},
    "true-false": {"gold": ("true",), "group": "ub1", "dimension": "cities", "check": "choice",
                   "choices": ("true", "false")},
    "factual-qa": {"gold": ("Ann Lee", "A. Lee"), "group": "who was number 1?", "dimension": "simpleqa",
                   "check": "exact"},
}  # fmt: skip


"""Fields of the second item of each set beside its question; a field that is not named is empty."""


@pytest.mark.parametrize("name", OUTSIDE)
def test_an_item_says_what_its_row_says_and_no_more(name: str) -> None:
    item = items_of(name, 3)[1]
    empty: dict[str, Any] = {"gold": (), "dimension": "", "level": "", "source": ""}
    for field, value in (empty | WHOLE[name]).items():
        if (name, field) != ("places", "gold"):
            assert getattr(item, field) == value, field
    assert item.split == TASKS[name].default_split


@pytest.mark.parametrize("name", OUTSIDE)
def test_the_gold_answer_is_right_and_nothing_is_wrong(name: str) -> None:
    for item in items_of(name, 40):
        if item.check != "none":
            assert is_correct(item, item.gold[0])
            assert is_correct(item, final_answer(item, f"Let me see.\nThe answer is {item.gold[0]}."))
            assert not is_correct(item, "")


@pytest.mark.parametrize("name", ["truthfulqa", "mmlu", "bbq"])
def test_options_are_lettered_and_their_order_follows_from_the_seed(name: str) -> None:
    items = items_of(name)
    places = Counter(item.choices.index(item.gold[0]) for item in items)
    assert min(places.values()) > len(items) / len(items[0].choices) / 2
    assert items == items_of(name)
    assert [item.choices for item in items] != [item.choices for item in items_of(name, seed=2)]
    for item in items[:20]:
        letter = chr(ord("A") + item.choices.index(item.gold[0]))
        assert f"{letter}) {item.gold[0]}" in item.question
        assert is_correct(item, letter)
        assert canonical(item, f"({letter})") == item.gold[0]


def test_asap_takes_the_third_rater_or_the_rounded_mean_and_hides_the_grade() -> None:
    items = {item.id: item for item in items_of("asap", 8)}
    assert items["asap-0/style"].gold == ("2",)  # 1 and 2
    assert items["asap-1/voice"].gold == ("5",)  # a third rater
    assert items["asap-2/style"].gold == ("3",)  # 3 and 2
    assert {(i.dimension, i.fields["low"], i.fields["high"]) for i in items.values()} == {
        ("set 7", "0", "3"),
        ("set 8", "1", "6"),
    }
    assert Counter(item.group for item in items.values()) == {f"asap-{n}": 6 if n % 2 else 4 for n in range(8)}
    item = items["asap-0/style"]
    assert item.fields.keys() == {"essay", "essay_prompt", "trait", "rubric", "low", "high"}
    assert "@PERSON1" in item.fields["essay"]
    assert item.fields["rubric"].count("\n") == 3


@pytest.mark.parametrize(
    ("statement", "about"),
    [
        ("The city of Rio de Janeiro is in Brazil.", "rio de janeiro"),
        ("It is the case either that the city of Baku is in India or that Ub is in Peru.", "baku"),
        ("The Spanish word 'con' does not mean 'to speak'.", "con"),
        ("Fifty-one is larger than sixty-one.", "fifty-one"),
        ("The platypus uses swimming for locomotion.", "platypus uses"),
        ("Edwin Herbert Hall lived in U.S.", "edwin herbert hall"),
    ],
)
def test_statements_about_one_subject_are_one_group(statement: str, about: str) -> None:
    assert subject(statement) == about


def test_arithmetic_is_right_and_graded_by_digits() -> None:
    items = load_task("arithmetic", seed=3)
    for item in items:
        a, sign, b = re.fullmatch(r"What is (\d+) ([+*-]) (\d+)\?", item.question).groups()  # type: ignore[union-attr]
        value = {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}[sign]
        assert item.gold == (str(value),)
        assert item.level == f"{len(a)} digits" == f"{len(b)} digits"
        assert not is_correct(item, str(value + 1))
        assert item.group == f"{min(int(a), int(b))} {sign} {max(int(a), int(b))}"  # 3 + 5 and 5 + 3 together
    assert len({item.question for item in items}) == len(items) == 1300
    assert items != load_task("arithmetic", seed=4)
    assert items == load_task("arithmetic", seed=3)
    cells = Counter((item.dimension, item.level) for item in items)
    assert cells == {
        (name, f"{digits} digits"): 100
        for name, most in (("addition", 5), ("subtraction", 5), ("multiplication", 3))
        for digits in range(1, most + 1)
    }


HUB = {"gsm8k", "truthfulqa", "mmlu"}


"""Sets of which a hub data set is known."""


@pytest.mark.parametrize("name", TASKS)
def test_every_task_has_a_line_in_the_docs_with_its_folder_its_files_its_splits_and_its_licence(name: str) -> None:
    page = (Path(__file__).parent.parent / "docs" / "own.md").read_text(encoding="utf-8")
    task = TASKS[name]
    line = next(line for line in page.splitlines() if line.startswith(f"| `{name}` |"))
    _, _, folder, splits, *_, licence, _ = (cell.strip() for cell in line.split("|"))
    assert licence == task.licence
    assert [part.split(":")[0].strip() for part in splits.split(";")] == list(task.splits), "the first is the default"
    files = list(dict.fromkeys(task.files.values()))
    where = f"`{task.folder}/{files[0] if len(files) == 1 else '{' + ','.join(files) + '}'}`"
    assert folder == where if name in MADE else (task.folder, folder[:5]) == ("", "none:")
    assert task.source.startswith("https://") or name not in MADE
    assert bool(task.hub) == (name in HUB)
    items = items_of(name, 20) if name in MADE else load_task(name)[:20]
    scores = task.score(items, [item.gold[0] if item.gold else "words" for item in items])
    assert set(scores) >= set(task.chance(items))


# --- what guessing reaches
def guess(item: Item, items: list[Item], rng: Random) -> str:
    if item.choices:
        return rng.choice(item.choices)
    if "low" in item.fields:
        return str(rng.randint(int(item.fields["low"]), int(item.fields["high"])))
    return Counter(other.gold[0] for other in items if other.gold).most_common(1)[0][0] if item.gold else "words"


def assert_chance_is_reached(name: str, items: list[Item]) -> None:
    task, rng = TASKS[name], Random(7)
    scores = task.score(items, [guess(item, items, rng) for item in items])
    for metric, level in task.chance(items).items():
        # Twice the 95 % interval, about four standard errors: some thirty are checked here.
        found = scores[metric]
        assert 2 * found.low - found.estimate <= level <= 2 * found.high - found.estimate, (metric, level, found)


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_guesser_reaches_chance_on_made_up_items(name: str) -> None:
    assert_chance_is_reached(name, items_of(name))


@pytest.mark.slow
@real_data
@pytest.mark.parametrize("name", OUTSIDE)
def test_a_guesser_reaches_chance_on_the_real_items(name: str) -> None:
    assert_chance_is_reached(name, load_task(name, limit=300, data=DATA))


def test_chance_is_computed_from_the_items() -> None:
    two = Item(id="a", question="?", gold=("x",), choices=("x", "y"), check="choice")
    four = Item(id="b", question="?", gold=("x",), choices=("x", "y", "z", "w"), check="choice")
    free = [Item(id=f"n{i}", question="?", gold=(gold,), check="number") for i, gold in enumerate("1123")]
    chance = TASKS["mmlu"].chance
    assert chance([two, four]) == {"accuracy": 0.375}
    assert chance(free) == {"accuracy": 0.5}
    assert chance([*free, two]) == {"accuracy": 0.5}
    graded = Item(id="g", question="?", gold=("2",), check="number", fields={"low": "1", "high": "4"})
    assert chance([graded]) == {"accuracy": 0.25}


def test_questions_that_begin_with_the_same_passage_are_one_group() -> None:
    passage = "word " * 40  # 200 characters
    made = [
        Row({**MADE["mmlu"](n), "id": str(n), "question": begin + end}, "")
        for n, (begin, end) in enumerate([(passage, "Who?"), (passage.upper(), "Where?"), (passage[:-5] + "else ", "")])
    ]
    first, second, third = (item.group for item in TASKS["mmlu"].made(made, 1, "test"))
    assert first == second != third


def test_creak_groups_join_entities_that_a_pair_contrasts() -> None:
    entities = [("a", "p1"), ("b", "p1"), ("b", "p2"), ("c", "p2"), ("d", None), ("D", None)]
    made = [
        Row({"id": str(i), "claim": "It is.", "label": "true", "entity": entity, "pair_id": pair}, "")
        for i, (entity, pair) in enumerate(entities)
    ]
    groups = [item.group for item in TASKS["creak"].made(made, 1, "contrast")]
    assert len(set(groups[:4])) == 1
    assert len(set(groups)) == 2


# --- Data of a task set are found where they may lie, and what is wrong with them is named by file, line and field


def write(folder: Path, name: str, n: int = 4, *, split: str | None = None, suffix: str = ".jsonl") -> Path:
    task = TASKS[name]
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row.values) + "\n" for row in rows(name, n))
    path = folder / f"{task.files[split or task.default_split]}{suffix}"
    path.write_bytes(gzip.compress(text.encode()) if suffix.endswith(".gz") else text.encode())
    return path


def test_without_data_the_error_says_where_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("METAPROBE_DATA", raising=False)
    for name in OUTSIDE:
        with pytest.raises(RecordError) as caught:
            load_task(name)
        for part in (TASKS[name].source, TASKS[name].licence, TASKS[name].folder, "METAPROBE_DATA", "--data"):
            assert part in str(caught.value)


def test_data_lie_in_a_folder_in_a_folder_of_sets_or_where_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "gsm8k", "gsm8k", suffix=".jsonl.gz")
    monkeypatch.setenv("METAPROBE_DATA", str(tmp_path))
    found = load_task("gsm8k")
    assert len(found) == 4
    assert found == load_task("gsm8k", data=tmp_path) == load_task("gsm8k", data=str(tmp_path / "gsm8k"))
    assert {item.split for item in found} == {"train"}


def test_a_split_is_a_file_or_a_field(tmp_path: Path) -> None:
    write(tmp_path, "gsm8k", 3, split="test")
    assert len(load_task("gsm8k", data=tmp_path, split="test")) == 3
    path = write(tmp_path / "creak", "creak", 6)
    lines = [json.loads(x) | {"split": ("dev", "train")[n % 2]} for n, x in enumerate(path.read_text().splitlines())]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    assert [item.id for item in load_task("creak", data=tmp_path, split="train")] == ["creak-1", "creak-3", "creak-5"]
    with pytest.raises(RecordError, match="no rows of split 'contrast'"):
        load_task("creak", data=tmp_path, split="contrast")


@pytest.mark.parametrize(
    ("task", "change", "says"),
    [
        ("gsm8k", {"final": "many"}, "train.jsonl:2: field 'final' is 'many'; expected a number"),
        ("gsm8k", {"question": " "}, "train.jsonl:2: field 'question' is ' '; expected a text"),
        ("creak", {"label": "maybe"}, "data.jsonl:2: field 'label' is 'maybe'; expected one of true, false"),
        ("mmlu", {"answer": 7}, "data.jsonl:2: field 'answer' is 7; expected a whole number from 0 to 3"),
        ("mmlu", {"choices": "abc"}, "data.jsonl:2: field 'choices' is 'abc'; expected a list of texts"),
        ("truthfulqa", {"mc1_labels": [1, 1, 0]}, "data.jsonl:2: field 'mc1_labels'.*expected 2 times 0 and one 1"),
        (
            "asap",
            {"rater1_traits": SET_8(9)},
            "data.jsonl:2: in 'rater1_traits': field 'ideas_content' is 9; expected a",
        ),
        ("asap", {"rater1_traits": SET_8(7)}, "'ideas_content' is 7; expected a whole number from 1 to 6"),
        ("bbq", {"id": "b0"}, "the id 'b0' is used twice"),
        ("mmlu", {"answer": float("inf")}, "field 'answer' is inf; expected a whole number from 0 to 3"),
        ("mmlu", {"answer": True}, "field 'answer' is True; expected a whole number from 0 to 3"),
        ("gsm8k", {"n_steps": 0}, "a whole number from 1 to 99"),
        ("places", {"popularity_decile": 10}, "a whole number from 0 to 9"),
        ("asap", {"rater2_traits": None}, "data.jsonl:2: expected the grades of two raters"),
        ("asap", {"essay_set": 6}, "a whole number from 7 to 8"),
        ("essays", {"traits": None}, "data.jsonl:2: field 'traits' is missing"),
        ("essays", {"traits": {"clarity_of_topic": 6}}, "'clarity_of_topic' is 6; expected a whole number from 1 to 5"),
        ("bbq", {"label": 3}, "a whole number from 0 to 2"),
    ],
)
def test_a_bad_line_is_named_with_file_line_field_and_what_was_expected(
    task: str, change: dict[str, Any], says: str, tmp_path: Path
) -> None:
    path = write(tmp_path, task)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[1] |= change
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    with pytest.raises(ImportFileError, match=says):
        load_task(task, data=tmp_path)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"data": "nowhere"}, "nowhere holds no train.jsonl"),
        ({"split": "dev"}, "no split 'dev'; expected train or test"),
    ],
)
def test_a_wrong_folder_or_split_is_refused(options: dict[str, str], says: str) -> None:
    with pytest.raises(RecordError, match=says):
        load_task("gsm8k", **options)


@real_data
def test_a_limit_spreads_over_sets_and_traits_of_asap() -> None:
    some = load_task("asap", limit=300, data=DATA)
    assert set(Counter((item.dimension, item.level) for item in some).values()) == {30}
    assert some == load_task("asap", limit=300, data=DATA)


ORIGINALS: dict[str, dict[str, Any]] = {
    "gsm8k": {"question": "How many?", "answer": "2 + 2 = <<2+2=4>>4\nSo 4.\n#### 1,004"},
    "truthfulqa": {"question": "Why?", "mc1_targets": {"choices": ["so", "not so"], "labels": [1, 0]}},
    "mmlu": {"question": "Which?", "choices": ["1", "2", "3", "4"], "answer": 2, "subject": "anatomy"},
    "creak": {"ex_id": "train_1", "sentence": "Ice is hot.", "label": "false", "entity": "Ice"},
    "bbq": {
        "example_id": 1, "question_index": 3, "question_polarity": "neg", "context_condition": "disambig",
        "category": "Age", "context": "They met.", "question": "Who?", "ans0": "The old man", "ans1": "The boy",
        "ans2": "Unknown", "label": 0, "additional_metadata": {"stereotyped_groups": ["old"]},
        "answer_info": {"ans0": ["man", "old"], "ans1": ["boy", "nonOld"], "ans2": ["Unknown", "unknown"]},
    },
}  # fmt: skip


"""Rows as the hub or the source repository has them."""


@pytest.mark.parametrize("name", ORIGINALS)
def test_rows_are_read_in_the_columns_of_their_source_as_well(name: str, tmp_path: Path) -> None:
    task = TASKS[name]
    path = tmp_path / f"{task.files[task.default_split]}.jsonl"
    path.write_text(json.dumps(ORIGINALS[name]) + "\n", encoding="utf-8")
    items = load_task(name, data=tmp_path)
    assert len(items) == 1
    assert all(item.task == name and item.split == task.default_split for item in items)
    if name == "gsm8k":
        assert (items[0].gold, items[0].level) == (("1004",), "1-2 steps")


def test_a_hub_data_set_is_loaded_through_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    hub = tmp_path / "hub"
    hub.mkdir()
    (hub / "test.jsonl").write_text(json.dumps(ORIGINALS["gsm8k"]) + "\n", encoding="utf-8")
    (item,) = load_task("gsm8k", data=f"hf:{hub}", split="test")
    assert (item.id, item.gold, item.split) == ("gsm8k-test-0", ("1004",), "test")
    with pytest.raises(RecordError, match=r"could not be loaded.*nosuch"):
        load_task("gsm8k", data=f"hf:{hub}", split="nosuch")


# --- Bias scores and agreement with human grades follow the published formulas and find what was planted


# --- bias
def test_bbq_scores_of_answerers_whose_bias_is_known() -> None:
    items, score = items_of("bbq"), TASKS["bbq"].score
    unknown = "Can't be determined"
    biased = score(items, [item.fields["biased"] for item in items])
    assert (biased["s_DIS"].estimate, biased["s_AMB"].estimate) == (1, 1)
    assert biased["accuracy, ambiguous"].estimate == 0
    opposed = score(items, [item.fields["unbiased"] for item in items])
    assert (opposed["s_DIS"].estimate, opposed["s_AMB"].estimate) == (-1, -1)
    silent = score(items, [unknown] * len(items))
    assert silent["accuracy, ambiguous"].estimate == 1
    assert silent["s_AMB"].estimate == 0
    assert np.isnan(silent["s_DIS"].estimate)
    assert score(items, [item.gold[0] for item in items])["accuracy, disambiguated"].estimate == 1


def test_the_biased_option_of_bbq_is_the_target_of_a_negative_question_and_the_other_of_a_non_negative_one() -> None:
    for item, row in zip(items_of("bbq", 8), rows("bbq", 8), strict=True):
        target = row.values["choices"][row.values["answer_groups"].index("old")]
        negative = row.values["question_polarity"] == "neg"
        assert item.fields["biased" if negative else "unbiased"] == target


def test_bbq_finds_the_target_by_name_where_the_group_does_not_tell_and_gives_up_where_nothing_does() -> None:
    row = bbq_row(1) | {"id": "n", "answer_groups": ["Africa", "Europe", "unknown"], "stereotyped_groups": ["old"]}
    assert TASKS["bbq"].made([Row(row, "")], 1, "test")[0].fields["biased"] == "The old man"
    row["stereotyped_groups"] = ["Kenyan"]
    assert TASKS["bbq"].made([Row(row, "")], 1, "test")[0].fields == {"biased": "", "unbiased": ""}


def test_bias_scores_follow_the_published_formulas() -> None:
    lean = [1, 1, 1, -1, 0, 0]  # 3 biased of 4 not unknown: 2 * 3/4 - 1
    assert bias_score([0] * 6, lean) == pytest.approx(0.5)
    assert ambiguous_bias_score([0, 0, 0, 0, 1, 1], lean) == pytest.approx((1 - 2 / 6) * 0.5)
    with pytest.raises(ValueError, match="lean must hold -1, 0 and 1 only; 1 of 2"):
        bias_score([0, 1], [2, -1])
    for metric in (bias_score, ambiguous_bias_score):
        with pytest.raises(ValueError, match=r"same shape; got \(2,\) and \(3,\)"):
            metric([0, 1], [0, 1, 1])
    with pytest.raises(ValueError, match="1 of 2 grades are missing"):
        quadratic_weighted_kappa([2, float("nan")], [2, 2])
    assert ambiguous_bias_score([1, 1], [0, 0]) == 0  # all say "unknown", as is right: nobody leans
    assert np.isnan(bias_score([1, 1], [0, 0]))


@pytest.mark.parametrize("metric", [bias_score, ambiguous_bias_score, quadratic_weighted_kappa])
def test_weights_are_repetitions(metric: Any) -> None:
    rng = np.random.default_rng(3)
    y, score = rng.integers(0, 2, 50), rng.integers(-1, 2, 50)
    weight = rng.integers(0, 4, (3, 50))
    for value, row in zip(metric(y, score, weight), weight, strict=True):
        assert value == pytest.approx(metric(np.repeat(y, row), np.repeat(score, row)))


# --- agreement with human grades
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=40))
def test_kappa_is_that_of_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    human, judge = (list(side) for side in zip(*pairs, strict=True))
    assume(len({*human, *judge}) > 1)
    theirs = cohen_kappa_score(human, judge, weights="quadratic", labels=range(6))
    assert quadratic_weighted_kappa(human, judge) == pytest.approx(theirs, abs=1e-12)


def test_asap_sets_are_scored_apart_and_unreadable_grades_left_out() -> None:
    items = items_of("asap", 40)
    scores = TASKS["asap"].score(items, [item.gold[0] if item.dimension == "set 8" else "9" for item in items])
    assert scores["quadratic weighted kappa, set 8"].estimate == pytest.approx(1)
    assert "quadratic weighted kappa, set 7" not in scores
    edges = {"0": "set 7", "3": "set 7", "1": "set 8", "6": "set 8", "-1": "", "4": "set 8", "7": "", "2.5": ""}
    for answer, dimension in edges.items():
        legal = {item.dimension for item in items if grade(item, answer) is not None}
        assert (dimension in legal) if dimension else not legal
    assert scores["accuracy"].estimate == pytest.approx(0.6)


# --- GSM8K as others scored it
@real_data
def test_scoring_agrees_with_the_recorded_labels_of_four_models_on_gsm8k() -> None:
    items = {item.id: item for item in load_task("gsm8k", split="test", data=DATA)}
    differ = checked = 0
    with gzip.open(DATA / "gsm8k" / "model_solutions.jsonl.gz", "rt", encoding="utf-8") as file:
        for record in map(json.loads, file):
            item = items[record["id"]]
            for model in record["models"].values():
                checked += 1
                differ += is_correct(item, final_answer(item, model["solution"])) != bool(model["correct"])
    assert checked > 2000
    assert differ == 0
