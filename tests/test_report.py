"""The report, from a comparison made up here: what a reader, a browser and a spreadsheet get of it."""

import csv
import io
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from metaprobe.eval.metrics import (
    Interval,
    auprc,
    aurc,
    auroc,
    brier_skill,
    cluster_weights,
    ece_debiased,
    interval,
    mean_interval,
    paired_difference,
    reliability_table,
)
from metaprobe.eval.report.model import (
    Accuracy,
    AccuracyRow,
    Audit,
    Comparison,
    LayerSweep,
    MethodResult,
    PolicyResult,
    Trajectories,
)
from metaprobe.eval.report.render import render_report
from metaprobe.eval.report.tables import METRICS, clear_winner, number, tables_csv, verdict
from metaprobe.eval.report.text import comparison_table
from metaprobe.eval.report.trajectory import trajectory_bands

METHOD_OF_ALL = "blend of all that is known of an answer"
HOSTILE = "<script>alert('$x_1$ & co')</script>"
SECTIONS = [
    "summary", "methods", "reliability", "risk", "layers", "trajectories", "accuracy", "choice", "audits", "notes",
    "provenance",
]  # fmt: skip
METHODS = {
    "verbalised confidence": ("explicit", 0.15),
    "verbalised difficulty": ("explicit", 0.05),
    "mean log-probability": ("log-probability", 0.7),
    "minimum log-probability": ("log-probability", 0.9),
    "first log-probability": ("log-probability", 0.5),
    "length": ("plain", 0.4),
    "prompt TF-IDF": ("plain", 0.8),
    "dimension x level": ("plain", 0.9),
    "cut by max_tokens": ("plain", 0.2),
    "LightGBM on log-probabilities": ("learned", 1.1),
    "hidden probe, last prompt token": ("learned", 1.3),
    METHOD_OF_ALL: ("learned", 1.6),
}


def made_up(n=400, resamples=100, model=HOSTILE):
    """A comparison with every section, from scores of planted quality."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, n)
    weights = cluster_weights(rng.integers(0, n // 4, n), resamples=resamples)
    score = {name: strength * y + rng.normal(0, 1, n) for name, (_, strength) in METHODS.items()}
    stated, baseline = score["verbalised confidence"], score["dimension x level"]
    methods = []
    for name, (family, strength) in METHODS.items():
        # With unit normal noise the log odds are linear in the score: these are the true probabilities.
        p = 1 / (1 + np.exp(-strength * (score[name] - strength / 2)))
        methods.append(
            MethodResult(
                name=name,
                family=family,
                coverage=0.83 if family == "explicit" else 1.0,
                auroc=interval(auroc, y, p, weights),
                auprc=interval(auprc, y, p, weights),
                ece=interval(ece_debiased, y, p, weights),
                brier_skill=interval(brier_skill, y, p, weights),
                aurc=interval(aurc, y, p, weights),
                diff_stated=None if score[name] is stated else paired_difference(auroc, y, p, stated, weights),
                diff_baseline=None if score[name] is baseline else paired_difference(auroc, y, p, baseline, weights),
                probability=p,
                reliability=reliability_table(y, p),
            )
        )
    layers = tuple(range(31))
    peak = 0.55 + 0.25 * np.exp(-((np.array(layers) - 17) ** 2) / 90)
    answers = [[-rng.gamma(1, 0.9 - 0.5 * label, rng.integers(1, 60)) for label in y if label == k] for k in (0, 1)]
    return Comparison(
        title=f"What {model} knows about its own answers",
        summary=(
            "Stated confidence says little: AUROC 0.53 [0.48, 0.58].",
            f"The probabilities of its tokens, and above all the hidden states of {model}, say more.",
        ),
        provenance={
            "model": model,
            "revision": "12fd25f77366fa6b3b4b768ec3050bf629380bac",
            "dtype": "bfloat16",
            "items": "700",
            "command": "metaprobe compare out/runs --out out/report --resamples 1000 --seed 0",
            "versions": "python 3.11.7, numpy 2.4.6, torch 2.13.0",
        },
        y=y,
        methods=tuple(methods),
        best_baseline="dimension x level",
        accuracy=tuple(
            AccuracyRow(d, level, {"direct": Accuracy(0.6 - 0.2 * i, 50), "step by step": Accuracy(0.5, 48)})
            for d in ("logical reasoning", "knowledge retrieval", "code generation")
            for i, level in enumerate(("easy", "medium", "hard"))
        ),
        sweeps=tuple(
            LayerSweep(
                probe=probe,
                layers=layers,
                positions=("prompt_last", "answer_first", "answer_mean"),
                selection_auroc=peak[:, None] - [0, 0.03, 0.05] + rng.normal(0, 0.008, (31, 3)),
                chosen_layer=17,
                chosen_position="prompt_last",
                test_auroc=Interval(0.77, 0.73, 0.81, n, n // 4),
            )
            for probe in ("difficulty", "confidence")
        ),
        trajectories=Trajectories(correct=trajectory_bands(answers[1]), wrong=trajectory_bands(answers[0])),
        choices=tuple(
            PolicyResult(
                policy=policy,
                accuracy=mean_interval(y if share else 1 - y, weights),
                tokens_per_question=12 + 130 * share,
                step_by_step=share,
                reliability=reliability_table(y, methods[-1].probability) if policy == "learned" else (),
            )
            for policy, share in {"always direct": 0, "always step by step": 1, "learned": 0.4, "oracle": 0.3}.items()
        ),
        audits=(
            Audit("Length alone", True, "AUROC 0.61, below the best method by 0.18."),
            Audit("Cut answers", False, "22 % of answers were cut by max_tokens."),
        ),
        notes=("Five dimensions, one small model.", "Averaging layers did not help."),
    )


@pytest.fixture(scope="module")
def comparison():
    return made_up()


@pytest.fixture(scope="module")
def page(comparison):
    return render_report(comparison)


class Outline(HTMLParser):
    """Ids, links, captions and nesting of a page."""

    VOID = frozenset({"meta", "link", "br", "hr", "img", "input"})

    def __init__(self, page):
        super().__init__()
        self.ids, self.urls, self.references, self.tags, self.stack, self.text = [], [], [], [], [], {}
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.tags.append((tag, attrs))
        self.ids += [attrs["id"]] if "id" in attrs else []
        self.urls += [attrs[key] for key in ("src", "href", "xlink:href") if key in attrs]
        self.references += [attrs[key] for key in ("aria-labelledby",) if key in attrs]
        self.references += re.findall(r"url\(#([^)]+)\)", " ".join(value or "" for value in attrs.values()))
        if tag not in self.VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        if self.stack:
            self.text[self.stack[-1]] = self.text.get(self.stack[-1], "") + data

    def all(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]


def test_the_page_is_well_formed_and_every_id_is_unique_and_every_reference_found(page):
    outline = Outline(page)
    assert not outline.stack
    assert len(outline.ids) == len(set(outline.ids))
    assert {url[1:] for url in outline.urls if url.startswith("#")} <= set(outline.ids)
    assert set(outline.references) <= set(outline.ids)


def test_the_page_fetches_nothing(page):
    assert all(url.startswith("#") for url in Outline(page).urls)
    assert not re.search(r"@import|url\((?!#)", page)
    assert set(re.findall(r"https?://[^\s\"'<]+", page)) == {"http://www.w3.org/2000/svg"}


def test_every_section_is_there_with_its_heading_and_a_link_to_it(page):
    outline = Outline(page)
    assert [attrs["id"] for attrs in outline.all("section")] == SECTIONS
    assert [attrs["id"] for attrs in outline.all("h2")] == [f"{name}-heading" for name in SECTIONS]
    assert [f"#{name}" for name in SECTIONS] == [url for url in outline.urls if url[1:] in SECTIONS]


def test_sections_without_content_are_left_out():
    outline = Outline(
        render_report(
            Comparison(
                title="Nothing yet", summary=(), provenance={}, y=np.array([0, 1]), methods=(), best_baseline="none"
            )
        )
    )
    assert [attrs["id"] for attrs in outline.all("section")] == ["summary", "methods"]


def test_figures_are_described_and_tables_can_be_scrolled_by_keyboard(page):
    outline = Outline(page)
    drawings = [attrs for attrs in outline.all("svg") if attrs.get("role") == "img"]
    assert len(drawings) == 12 + 4 + 2 + 1 + 1
    assert all(len(attrs["aria-label"]) > 30 for attrs in drawings)
    regions = [attrs for attrs in outline.all("div") if attrs.get("class") == "scroll"]
    assert len(regions) == len(outline.all("table")) == len(outline.all("caption")) == 3
    assert all(attrs["tabindex"] == "0" and attrs["role"] == "region" for attrs in regions)
    assert {"html", "main", "header", "nav"} <= {tag for tag, _ in outline.tags}
    assert outline.all("html")[0]["lang"] == "en"


def test_markup_in_a_model_name_is_shown_and_not_run(page):
    assert HOSTILE not in page
    assert Outline(page).text["h1"] == f"What {HOSTILE} knows about its own answers"
    assert len(Outline(page).all("script")) == 1


def test_markup_in_a_method_name_is_shown_and_not_run(comparison):
    base = comparison.methods[0]
    fields = {name: getattr(base, name) for name in base.__slots__}
    evil = MethodResult(**fields | {"name": '"><img src=x onerror=alert(1)>'})
    outline = Outline(
        render_report(
            Comparison(title="t", summary=(), provenance={}, y=comparison.y, methods=(evil,), best_baseline=evil.name)
        )
    )
    assert not outline.all("img")
    assert len(outline.ids) == len(set(outline.ids))


def test_figures_take_their_colours_from_the_page(page):
    body = page[page.index("<body>") :]
    assert not re.search(r"#[0-9a-f]{6}\b", body)
    assert "currentColor" in body
    used = set(re.findall(r"var\((--s\d)\)", body))
    style = page[: page.index("</style>")]
    light, dark = style.split("@media (prefers-color-scheme: dark)")
    assert used
    assert all(f"{name}:" in part for name in used for part in (light, dark))


def test_the_same_comparison_gives_the_same_bytes(comparison, page):
    assert render_report(comparison) == page


def test_a_number_is_bold_only_if_its_interval_overlaps_no_other(comparison, page):
    auroc_column = METRICS[0]
    assert clear_winner(comparison.methods, auroc_column) == METHOD_OF_ALL
    close = [m for m in comparison.methods if m.name in ("minimum log-probability", "dimension x level")]
    assert close[0].auroc.estimate != close[1].auroc.estimate
    assert clear_winner(close, auroc_column) is None
    apart = [m for m in comparison.methods if m.name in ("verbalised confidence", "prompt TF-IDF", METHOD_OF_ALL)]
    assert clear_winner(apart, auroc_column) == METHOD_OF_ALL
    aurc_column = METRICS[-1]
    assert not aurc_column.higher_is_better
    assert clear_winner(apart, aurc_column) == METHOD_OF_ALL
    assert clear_winner(apart[:1], auroc_column) is None
    bold = re.findall(r"<strong>(\d\.\d\d) <span", page)
    assert number(comparison.methods[-1].auroc.estimate) in bold
    assert len(bold) == sum(clear_winner(comparison.methods, column) is not None for column in METRICS)


def test_the_sign_of_a_difference_is_said_in_words(page):
    assert verdict(Interval(0.1, 0.05, 0.2, 10, 10)) == "better"
    assert verdict(Interval(-0.1, -0.2, -0.05, 10, 10)) == "worse"
    assert verdict(Interval(0.1, -0.1, 0.2, 10, 10)) == "unclear"
    words = re.findall(r'class="verdict v-(\w+)">(\w+)<', page)
    assert {word for word, _ in words} == {"better", "worse", "unclear"}
    assert all(style == word for style, word in words)


def test_numbers_have_no_minus_before_nothing_and_say_when_there_are_none():
    assert number(-0.001) == "0.00"
    assert number(-0.001, signed=True) == "+0.00"
    assert number(float("nan")) == "n/a"
    assert number(0.716) == "0.72"


def test_csv_tables_give_back_every_number(comparison):
    tables = {name: list(csv.DictReader(io.StringIO(text))) for name, text in tables_csv(comparison).items()}
    assert list(tables) == [
        "methods.csv", "reliability.csv", "layers.csv", "accuracy.csv", "choices.csv", "audits.csv", "provenance.csv",
    ]  # fmt: skip
    for row, method in zip(tables["methods.csv"], comparison.methods, strict=True):
        assert row["method"] == method.name
        for column in METRICS:
            value = getattr(method, column.field)
            assert (float(row[column.field]), float(row[f"{column.field}_low"])) == (value.estimate, value.low)
        assert (row["diff_stated"] == "") == (method.diff_stated is None)
    assert len(tables["layers.csv"]) == 2 * 31 * 3
    assert [row["layer"] for row in tables["layers.csv"] if row["chosen"] == "1"] == ["17", "17"]
    assert tables["provenance.csv"][0] == {"key": "model", "value": HOSTILE}


def test_the_text_table_is_aligned_and_fits_110_columns(comparison):
    text = comparison_table(comparison)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 110
    assert re.search(r"^verbalised confidence +83% +0\.\d\d \[0\.\d\d, 0\.\d\d\] ", text, flags=re.MULTILINE)
    head = next(line for line in lines if line.startswith("method"))
    rows = lines[lines.index(head) + 2 : lines.index(head) + 2 + len(METHODS)]
    assert all(row[head.index("AUROC")] == "0" and row[head.index("AUROC") - 1] == " " for row in rows)
    assert all(row[head.index("vs stated")] in "+-" for row in rows)


def test_trajectories_of_any_length_weigh_the_same():
    bands = trajectory_bands([[-1.0], [-3.0, -1.0], np.linspace(-3, -1, 101)], points=5)
    assert bands.n == 3
    np.testing.assert_allclose(bands.position, [0, 25, 50, 75, 100])
    np.testing.assert_allclose(bands.mean, np.mean([[-1] * 5, *[[-3, -2.5, -2, -1.5, -1]] * 2], axis=0))
    assert np.all(bands.p10 <= bands.p25)
    assert np.all(bands.p75 <= bands.p90)
    np.testing.assert_allclose(trajectory_bands([[-2.0, -1.0]]).p90, np.linspace(-2, -1, 50))


@pytest.mark.parametrize(("answers", "message"), [([], "no answers"), ([[-1], []], "answer 1"), ([[np.nan]], "1 not")])
def test_trajectories_refuse_what_has_no_course(answers, message):
    with pytest.raises(ValueError, match=message):
        trajectory_bands(answers)


def test_a_comparison_refuses_methods_of_one_name_or_another_length(comparison):
    given = {"title": "t", "summary": (), "provenance": {}, "best_baseline": "b"}
    with pytest.raises(ValueError, match="names of their own"):
        Comparison(**given, y=comparison.y, methods=comparison.methods[:1] * 2)
    with pytest.raises(ValueError, match="400 probabilities for 3 labels"):
        Comparison(**given, y=np.array([0, 1, 1]), methods=comparison.methods)
