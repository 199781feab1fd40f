"""The report, from a comparison made up here: what a reader, a browser and a spreadsheet get of it."""

import csv
import io
import re
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser
from urllib.parse import unquote
from xml.etree import ElementTree

import numpy as np
import pytest
from made_up_report import HOSTILE, METHOD_OF_ALL, METHODS, made_up

from metaprobe.eval.metrics.bootstrap import Interval
from metaprobe.eval.metrics.selective import risk_coverage
from metaprobe.eval.metrics.strongest_control import ControlComparison, ControlDifference
from metaprobe.eval.report.first_screen import brief, verdict_words
from metaprobe.eval.report.inside import layers_section
from metaprobe.eval.report.layout import Column, Table, share, words
from metaprobe.eval.report.methods import METRICS, clear_winner, headline
from metaprobe.eval.report.render import report_files
from metaprobe.eval.report.sections import sections
from metaprobe.eval.report.systems import systems_section
from metaprobe.eval.report.text import comparison_table, shorten
from metaprobe.eval.results import Comparison, Finding, MethodResult
from metaprobe.eval.trajectory import trajectory_bands
from metaprobe.eval.wording import (
    bounds,
    control_named,
    format_interval,
    number,
    p_value,
    percent,
    percent_bounds,
    verdict,
)

SECTIONS = [
    "glance", "summary", "methods", "scores", "reliability", "risk", "seen", "difficulty", "efficiency", "layers",
    "trajectories", "accuracy", "choice", "systems", "routing", "audits", "notes", "provenance",
]  # fmt: skip


@pytest.fixture(scope="module")
def comparison():
    return made_up()


@pytest.fixture(scope="module")
def files(comparison):
    return report_files(comparison)


@pytest.fixture(scope="module")
def page(files):
    return files["report.html"]


@pytest.fixture(scope="module")
def tables(files):
    return {name.removeprefix("tables/"): text for name, text in files.items() if name.startswith("tables/")}


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
        self.references += [attrs[key] for key in ("aria-labelledby", "aria-details") if key in attrs]
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


def test_the_page_fetches_nothing_and_may_not(page):
    outline = Outline(page)
    assert all(
        url.startswith(("#", "data:text/csv;charset=utf-8,", "data:application/x-tex;charset=utf-8,"))
        for url in outline.urls
    )
    assert not re.search(r"@import|url\((?!#)", page)
    assert set(re.findall(r"https?://[^\s\"'<]+", page)) == {"http://www.w3.org/2000/svg"}
    policy = next(attrs["content"] for attrs in outline.all("meta") if "http-equiv" in attrs)
    assert policy.startswith("default-src 'none';")
    assert not re.search(r"script-src[^;]*'unsafe", policy)


def test_nothing_but_the_scripts_own_text_may_run(page):
    script = page[page.index("<script>") + len("<script>") : page.index("</script>")]
    assert f"script-src 'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" in page
    assert not any(name.startswith("on") for _, attrs in Outline(page).tags for name in attrs)


def test_every_section_is_there_with_its_heading_and_a_link_to_it(page):
    outline = Outline(page)
    assert [attrs["id"] for attrs in outline.all("section")] == SECTIONS
    assert [attrs["id"] for attrs in outline.all("h2")] == [f"{name}-heading" for name in SECTIONS]
    assert [f"#{name}" for name in SECTIONS] == [url for url in outline.urls if url[1:] in SECTIONS]


def test_sections_without_content_are_left_out():
    outline = Outline(
        report_files(Comparison(title="Nothing yet", summary=(), provenance={}, y=np.array([0, 1]), methods=()))[
            "report.html"
        ]
    )
    assert [attrs["id"] for attrs in outline.all("section")] == ["summary", "methods"]


def test_figures_are_described_and_tables_can_be_scrolled_by_keyboard(comparison, page):
    outline = Outline(page)
    every = sections(comparison)
    figures = [figure for section in every for figure in (*section.figures, *section.folded)]
    drawings = [attrs for attrs in outline.all("svg") if attrs.get("role") == "img"]
    assert len(drawings) == len(figures) == len(outline.all("figure")) == len(outline.all("figcaption")) > 30
    assert all(len(attrs["aria-label"]) > 30 for attrs in drawings)
    regions = [attrs for attrs in outline.all("div") if attrs.get("class") == "scroll"]
    assert len(regions) == len(outline.all("table")) == len(outline.all("caption")) > 20
    assert all(attrs["tabindex"] == "0" and attrs["role"] == "region" for attrs in regions)
    assert all(attrs["scope"] in ("col", "row") for attrs in outline.all("th"))
    assert {"html", "main", "header", "nav"} <= {tag for tag, _ in outline.tags}
    assert outline.all("html")[0]["lang"] == "en"


def test_every_figure_has_a_table_that_says_the_same(comparison):
    every = sections(comparison)
    idents = {table.ident for section in every for table in (*section.tables, *section.data)}
    for section in every:
        for figure in (*section.figures, *section.folded):
            assert figure.table in idents or (not figure.table and (section.data or section.tables)), figure.ident


def test_every_table_can_be_saved_from_the_page(tables, page):
    links = {attrs["download"]: attrs["href"] for attrs in Outline(page).all("a") if "download" in attrs}
    assert {name for name in links if name.endswith(".csv")} == set(tables)
    assert all(unquote(links[name]).removeprefix("data:text/csv;charset=utf-8,") == tables[name] for name in tables)


def test_files_beside_the_report_are_its_figures_with_colours_title_and_legend(files, page):
    drawings = [text for name, text in files.items() if name.startswith("figures/")]
    assert len(drawings) == len(Outline(page).all("figure"))
    for text in drawings:
        root = ElementTree.fromstring(text)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert "var(" not in text  # colours of its own: no style sheet goes with it
        assert "display" not in {key for part in root.iter() for key in part.attrib}
    told = ElementTree.fromstring(files["figures/seen.svg"])
    assert {"AUROC against tokens seen", "LightGBM, first tokens"} <= {part.text for part in told.iter()}
    (_, top, _, height) = map(float, told.attrib["viewBox"].split())
    baselines = [float(part.attrib["y"]) for part in told.iter() if "y" in part.attrib and part.text]
    assert top < min(baselines) < 0 < max(baselines) < top + height


def test_markup_in_a_model_name_is_shown_and_not_run(page):
    assert HOSTILE not in page
    assert Outline(page).text["h1"] == f"What {HOSTILE} knows about its own answers"
    assert len(Outline(page).all("script")) == 1


def test_markup_in_a_method_name_is_shown_and_not_run(comparison):
    base = comparison.methods[0]
    fields = {name: getattr(base, name) for name in base.__slots__}
    evil = MethodResult(**fields | {"name": '"><img src=x onerror=alert(1)>'})
    outline = Outline(
        report_files(Comparison(title="t", summary=(), provenance={}, y=comparison.y, methods=(evil,)))["report.html"]
    )
    assert not outline.all("img")
    assert len(outline.ids) == len(set(outline.ids))


def test_markup_in_any_other_name_is_shown_and_not_run(comparison):
    sweep, costs, difficulty = comparison.sweeps[0], comparison.routing[0], comparison.difficulty
    hostile = replace(
        comparison,
        methods=(),
        notes=(HOSTILE,),
        audits=(Finding(HOSTILE, False, HOSTILE),),
        sweeps=(replace(sweep, probe=HOSTILE, positions=(HOSTILE, "b", "c"), choices=((17, HOSTILE),)),),
        role_trajectories=tuple(replace(found, role=HOSTILE + found.role) for found in comparison.role_trajectories),
        routing=(replace(costs, title=HOSTILE, unit=HOSTILE, points=(replace(costs.points[0], name=HOSTILE),)),),
        similarity=(replace(comparison.similarity[0], variant=HOSTILE, by=HOSTILE),),
        difficulty=replace(difficulty, by=HOSTILE, strata=(replace(difficulty.strata[0], name=HOSTILE),) * 2),
    )
    page = report_files(hostile)["report.html"]
    assert HOSTILE not in page
    assert len(Outline(page).all("script")) == 1
    assert "".join(Outline(page).text.values()).count(HOSTILE) > 10


def test_figures_take_their_colours_from_the_page(page):
    body = page[page.index("<body>") : page.index("<script>")]
    assert not re.search(r"#[0-9a-f]{6}\b", body)
    assert "currentColor" in body
    used = set(re.findall(r"var\((--[\w-]+)\)", body))
    style = page[: page.index("</style>")]
    light, dark = style.split("@media (prefers-color-scheme: dark)")
    assert {f"--{family}" for family in {method.family for method in made_up(resamples=2).methods}} <= used
    assert all(f"{name}:" in part for name in used for part in (light, dark))


def test_the_same_comparison_gives_the_same_bytes(comparison, page):
    assert report_files(comparison)["report.html"] == page


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
    bold = re.findall(r"<strong>(\d\.\d\d) <span", page[: page.index('id="scores"')])
    assert number(comparison.methods[-1].auroc.estimate) in bold
    assert len(bold) == sum(clear_winner(comparison.methods, column) is not None for column in METRICS)


@pytest.mark.parametrize(("high", "clear"), [(0.59, True), (0.6, False)])
def test_intervals_that_touch_have_no_clear_winner(comparison, high, clear):
    first = replace(comparison.methods[0], name="first", auroc=Interval(0.7, 0.6, 0.8, 400, 97))
    second = replace(first, name="second", auroc=Interval(0.5, 0.4, high, 400, 97))
    assert clear_winner((second, first), METRICS[0]) == ("first" if clear else None)


@pytest.mark.parametrize(("groups", "few"), [(99, True), (100, False)])
def test_below_100_groups_more_are_asked_for(comparison, groups, few):
    methods = tuple(replace(m, auroc=Interval(0.7, 0.6, 0.8, 400, groups)) for m in comparison.methods)
    told = brief(replace(comparison, methods=methods))
    assert any("groups are few" in sentence for sentence in told.sure) == few
    assert any(sentence.startswith("Collect more questions") for sentence in told.do) == few


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [(0.51, 0.6, "95 % interval 51 to 60)"), (0.5, 0.6, "which may be luck"), (0.4, 0.5, "which may be luck"),
     (0.4, 0.49, "so it is worse than guessing")],
)  # fmt: skip
def test_what_an_interval_leaves_open_the_words_do_too(comparison, low, high, said):
    methods = tuple(replace(m, auroc=Interval(0.5, low, high, 400, 97), within_runs=None) for m in comparison.methods)
    found = brief(replace(comparison, methods=methods)).found
    assert found[0].rstrip(".").endswith(said)
    assert sum(said in sentence for sentence in found) == 3  # what is stated, the strongest control, what is learned


def test_what_half_of_the_answers_would_be_wrong_is_said_of_the_learned_method_or_else_the_control(comparison):
    def kept(found):
        return next(sentence for sentence in brief(found).found if sentence.startswith("Keeping only"))

    curve = risk_coverage(comparison.y, comparison.methods[-1].probability)
    wrong = 100 * np.interp(0.5, curve.coverage, curve.risk)
    assert f"that {METHOD_OF_ALL} trusts most, {wrong:.0f}\u00a0% of them are wrong" in kept(comparison)
    assert f"against {100 * (1 - comparison.base_rate):.0f}\u00a0% of all" in kept(comparison)
    unlearned = replace(comparison, methods=comparison.methods[:9], headline="")
    assert f"that {STRONGEST} trusts most" in kept(unlearned)
    assert not any("learned method" in sentence for sentence in brief(unlearned).found)
    assert brief(replace(comparison, methods=())).parts == ()
    inside = next(sentence for sentence in brief(comparison).found if sentence.startswith("The learned method"))
    assert inside.endswith("of two answers of one run 60 times.")


def test_a_learned_method_without_a_control_that_tells_is_to_be_compared_first(comparison):
    guessing = Interval(0.5, 0.45, 0.55, 400, 97)
    methods = tuple(
        m if m.name == METHOD_OF_ALL else replace(m, auroc=guessing)
        for m in (replace(m, controls=None) for m in comparison.methods)
    )
    advice = brief(replace(comparison, methods=methods)).do
    assert advice[0].startswith("The learned method is better than guessing; compare it with a free number")
    assert "Do not rely on what the model says of its own confidence." in advice


def test_audits_that_failed_are_counted_by_what_they_mean(comparison):
    audits = (Finding("a", True, "d"), Finding("b", False, "d"), Finding("c", False, "d"))
    said = brief(replace(comparison, audits=audits)).sure
    assert "1 of 3 audits passed." in said
    assert "2 of the audits failed in a way that makes numbers weaker than they look." in said
    assert not any("audits" in sentence for sentence in brief(replace(comparison, audits=())).sure)


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


def test_the_ends_of_a_difference_show_the_sign_that_its_verdict_goes_by():
    for low, high, shown in ((-0.00006, 0.61, "[-0.0001, +0.61]"), (0.003, 0.061, "[+0.003, +0.06]")):
        assert bounds(Interval(0.03, low, high, 400, 97), signed=True) == shown
    assert bounds(Interval(0.0, 0.0, 1e-9, 400, 97), signed=True) == "[+0.00, +0.00]"
    assert bounds(Interval(0.003, 0.001, 0.2, 400, 97)) == "[0.00, 0.20]"


def test_the_caption_of_the_coupling_table_explains_the_columns_that_are_there(comparison):
    def caption(**changed):
        rows = tuple(replace(row, **changed) for row in comparison.coupling)
        (found,) = [t for t in systems_section(replace(comparison, coupling=rows)).tables if t.ident == "coupling"]
        return found.caption

    ends = [f"{what}_{when}" for what in ("fixed", "broken") for when in ("flagged", "unflagged", "difference")]
    assert all(word in caption() for word in ("Mended", "Broken", "difference"))
    assert caption(**dict.fromkeys(ends)) == "Does the monitor detect which first answers are wrong?"


def test_a_chosen_layer_that_is_not_the_highest_says_which_rule_chose_it(comparison):
    def notes(layer):
        sweep = replace(comparison.sweeps[0], choices=((layer, "prompt_last"),) * 3)
        return [figure.note for figure in layers_section([sweep]).figures]

    sweep = comparison.sweeps[0]
    best = sweep.layers[int(sweep.selection_auroc[:, sweep.positions.index("prompt_last")].argmax())]
    assert all("one-standard-error rule, not the highest" in note for note in notes(3))
    assert not any("not the highest" in note for note in notes(best))


def test_the_report_names_what_the_checkpoint_reads_where_folds_chose_otherwise(comparison):
    sweep = comparison.sweeps[0]
    section = layers_section([sweep])
    assert sweep.chosen == (17, "prompt_last")
    told = "Chosen by 3 folds: layer 17 at prompt_last in 2, layer 12 at answer_first in 1"
    assert any(f"{told}. The checkpoint reads layer 18 at answer_mean" in figure.note for figure in section.figures)
    unknown = layers_section([replace(sweep, shipped=None)])
    assert any(figure.note.endswith(told) for figure in unknown.figures)
    assert "may read another layer than most folds did" in section.intro


def test_a_column_in_which_no_row_says_anything_is_not_on_the_page_and_is_in_the_csv():
    columns = (Column("who", "Who", "text"), Column("fixed", "Fixed"), Column("seen", "Seen"))
    rows = ((words("a"), share(None), share(0.0)), (words("b"), share(None), share(None)))
    table = Table(ident="t", caption="", columns=columns, rows=rows)
    assert [column.key for column in table.heads] == ["who", "seen"]
    assert [[column.key for column, _ in row] for row in table.shown] == [["who", "seen"]] * 2
    assert table.csv.splitlines()[0] == "who,fixed,seen"


def test_csv_tables_give_back_every_number(comparison, tables):
    tables = {name: list(csv.DictReader(io.StringIO(text))) for name, text in tables.items()}
    assert {
        "methods.csv", "controls.csv", "methods-more.csv", "pairs.csv", "scores.csv", "reliability.csv", "risk.csv",
        "seen.csv", "within-strata.csv", "strata.csv", "overconfidence.csv", "efficiency.csv", "layers.csv",
        "trajectories.csv", "accuracy.csv",
        "choices.csv", "stages.csv", "coupling.csv", "agreement.csv", "failures.csv", "similarity.csv",
        "routing.csv", "audits.csv", "provenance.csv",
    } <= set(tables)  # fmt: skip
    for row, method in zip(tables["methods.csv"], comparison.methods, strict=True):
        assert row["method"] == method.name
        for column in METRICS:
            value = getattr(method, column.field)
            assert (float(row[column.field]), float(row[f"{column.field}_low"])) == (value.estimate, value.low)
        assert (row["diff_stated"] == "") == (method.diff_stated is None)
    assert len(tables["layers.csv"]) == 2 * 31 * 3
    assert [row["layer"] for row in tables["layers.csv"] if row["chosen"] == "1"] == ["17", "17"]
    assert [(row["layer"], row["position"]) for row in tables["layers.csv"] if row["shipped"] == "1"] == [
        ("18", "answer_mean")
    ] * 2
    assert sorted(row["folds"] for row in tables["layers.csv"] if row["folds"] != "0") == ["1", "1", "2", "2"]
    stated = [row for row in tables["reliability.csv"] if row["kind"] == "as stated"]
    assert {row["method"] for row in stated} == {"verbalised confidence"}
    assert tables["methods.csv"][0]["ece_stated"] == str(comparison.methods[0].stated.ece.estimate)
    assert {row["control"] for row in tables["controls.csv"]} == {control.name for control in comparison.controls}
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


def test_the_text_table_has_the_columns_that_some_method_fills(comparison):
    first, *rest = comparison.methods
    only = replace(comparison, methods=(first, *(replace(m, within_runs=None) for m in rest)))
    assert "within runs ^" in comparison_table(only)
    bare = tuple(replace(m, within_runs=None, stated=None) for m in comparison.methods)
    text = comparison_table(replace(comparison, methods=bare))
    assert "within runs" not in text
    assert "ECE, as stated" not in text
    shown = next(line for line in comparison_table(comparison).splitlines() if line.startswith("blend"))
    assert shown.count("*") == 1  # the winner's AUROC
    assert f"{len(comparison.y)} answers, {100 * comparison.base_rate:.1f}% right" in text
    assert shorten("a" * 24) == "a" * 24
    assert shorten("a  b" + "c" * 30) == "a b" + "c" * 20 + "…"


def test_shares_and_probabilities_by_chance_are_written_as_they_are_read():
    assert percent_bounds(Interval(0.5, 0.444, 0.556, 9, 9)) == "[44\u00a0%, 56\u00a0%]"
    assert percent(0.4444, 1) == "44.4\u00a0%"
    assert percent(float("nan")) == "n/a"
    assert [p_value(p) for p in (0.0009, 0.001, 0.01234, 1.0)] == ["< 0.001", "0.001", "0.012", "1.000"]
    assert format_interval(Interval(0.5, 0.4, 0.6, 9, 9), 1) == "0.5 [0.4, 0.6]"
    assert control_named("P(true)") == "the further question P(true)"
    assert control_named("run identity") == "the plain predictor run identity"
    assert control_named("length") == "the free number length"


def test_the_text_table_fits_with_ends_next_to_zero_too(comparison):
    tiny = Interval(-0.25, -0.00006, 0.00004, 400, 97)
    methods = tuple(replace(m, diff_stated=tiny, diff_control=tiny) for m in comparison.methods)
    text = comparison_table(replace(comparison, methods=methods))
    assert "[-0.0001, +0.00004] unclear" in text
    assert max(map(len, text.splitlines())) <= 110


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
    given = {"title": "t", "summary": (), "provenance": {}}
    with pytest.raises(ValueError, match="names of their own"):
        Comparison(**given, y=comparison.y, methods=comparison.methods[:1] * 2)
    with pytest.raises(ValueError, match="400 probabilities for 3 labels"):
        Comparison(**given, y=np.array([0, 1, 1]), methods=comparison.methods)


def over_controls(comparison, gains):
    """Where the learned method has these differences to its controls: name -> (estimate, low, high, p after Holm)."""

    def control(name, found):
        estimate, low, high, p = found
        strength = next(m.auroc.estimate for m in comparison.methods if m.name == name)
        return ControlDifference(name, strength, Interval(estimate, low, high, 400, 97), p, p)

    found = [control(name, gain) for name, gain in gains.items()]
    found.sort(key=lambda control: -control.estimate)
    against = ControlComparison(0.8, tuple(found))
    methods = tuple(replace(m, controls=against) if m.name == METHOD_OF_ALL else m for m in comparison.methods)
    return replace(comparison, methods=methods, exported="The nearest is X.")


BETTER, TIE, WORSE = (0.06, 0.03, 0.09, 0.001), (0.01, -0.02, 0.04, 0.4), (-0.03, -0.05, -0.01, 0.01)
STRONGEST = "minimum log-probability"
"""Of the controls of the comparison that is made up."""


def test_the_strongest_control_is_named_and_advice_goes_by_the_difference_to_it(comparison):
    assert comparison.controls[0].name == STRONGEST
    better = brief(over_controls(comparison, {STRONGEST: BETTER, "length": BETTER})).do
    assert better[0] == (
        f"Use the learned method ({METHOD_OF_ALL}) to decide which answers to check: it beats each of 2 controls, the "
        f"strongest of them (the free number {STRONGEST}) by +0.06 [+0.03, +0.09] AUROC. The nearest is X."
    )


@pytest.mark.parametrize(("gain", "says"), [(TIE, "is not shown to do better"), (WORSE, "does worse")])
def test_where_a_free_number_does_as_well_it_is_to_be_used_and_named(comparison, gain, says):
    advice = brief(over_controls(comparison, {STRONGEST: gain, "length": BETTER})).do
    assert advice[0] == f"Use the free number {STRONGEST} to decide which answers to check."
    assert advice[1].startswith(f"The learned method {says} than the free number {STRONGEST} here (")


def test_a_gain_whose_interval_is_above_0_but_which_falls_to_holm_is_no_gain(comparison):
    fallen = (0.03, 0.001, 0.06, 0.09)
    assert brief(over_controls(comparison, {STRONGEST: fallen})).do[0].startswith("Use the free number")


def test_a_weaker_control_that_is_not_beaten_is_named_too(comparison):
    advice = brief(over_controls(comparison, {STRONGEST: BETTER, "prompt TF-IDF": TIE})).do
    assert "beats the strongest control (the free number minimum log-probability) by +0.06" in advice[0]
    assert "is not shown to beat the plain predictor prompt TF-IDF" in advice[0]


def test_a_gain_that_is_gone_within_runs_is_said_beside_the_advice(comparison):
    pooled = over_controls(comparison, {STRONGEST: BETTER})
    inside = next(m for m in over_controls(comparison, {"length": TIE}).methods if m.name == METHOD_OF_ALL).controls
    methods = tuple(replace(m, controls_within=inside) if m.name == METHOD_OF_ALL else m for m in pooled.methods)
    advice = brief(replace(pooled, methods=methods)).do
    assert advice[0].startswith("Use the learned method")
    assert advice[1].startswith("Among answers of one run it is not shown to beat the free number length (+0.01")


def test_nothing_is_advised_where_no_score_tells_anything(comparison):
    guessing = tuple(replace(m, auroc=Interval(0.5, 0.45, 0.55, 400, 97)) for m in comparison.methods)
    assert brief(replace(comparison, methods=guessing)).do[0].startswith("Do not rely on any of these scores")


CHOSEN = {"mean log-probability": 3, "prompt TF-IDF": 2}


def with_chosen_row(comparison):
    """The comparison with a row of controls that the folds chose in advance."""
    row = replace(
        next(m for m in comparison.methods if m.name == "mean log-probability"),
        name="best plain baseline",
        auroc=Interval(0.61, 0.55, 0.66, 400, 97),
    )
    return replace(comparison, methods=(*comparison.methods, row), best_baseline=row.name, baselines=CHOSEN)


def test_the_controls_chosen_in_advance_keep_their_row_and_decide_nothing(comparison):
    chosen = with_chosen_row(comparison)
    told = "mean log-probability in 3 of 5 folds, prompt TF-IDF in 2"
    assert told in report_files(chosen)["report.html"]
    assert told in " ".join(comparison_table(chosen).split())
    assert STRONGEST in comparison_table(chosen)
    assert any(told in found and "61 times in 100" in found for found in brief(chosen).found)
    assert [control.name for control in chosen.controls] == [control.name for control in comparison.controls]
    assert brief(chosen).do == brief(comparison).do


def test_stated_confidence_is_shown_as_stated_and_recalibrated(comparison, page):
    stated, plain = comparison.methods[0], comparison.methods[2]
    assert stated.stated.ece.estimate > 0.2 > plain.ece.estimate
    said = " ".join(brief(comparison).found)
    assert f"{number(stated.stated.ece.estimate)} as stated, {number(stated.ece.estimate)} recalibrated" in said
    (figure,) = [
        figure
        for s in sections(comparison)
        for figure in s.figures
        if figure.title == "Reliability: verbalised confidence"
    ]
    assert [entry.text for entry in figure.legend] == ["recalibrated", "as stated"]
    assert "ECE, as stated" in page
    assert "ECE, recalibrated" in page
    assert "ECE, as stated v  ECE, recalibrated v" in re.sub(r" {2,}", "  ", comparison_table(comparison))


def test_stated_confidence_that_tells_something_is_weighed_against_the_learned_method(comparison):
    def last_advice(low, high):
        auroc, gain = Interval(0.7, 0.65, 0.75, 400, 300), Interval(0.05, low, high, 400, 300)
        methods = [replace(m, auroc=auroc, diff_stated=m.diff_stated and gain) for m in comparison.methods]
        return brief(replace(comparison, methods=tuple(methods))).do[-1]

    assert last_advice(0.01, 0.09).endswith("but less than the learned method.")
    assert last_advice(-0.01, 0.11).endswith("asking it may do.")


def test_an_invalid_audit_of_the_data_withholds_all_advice(comparison):
    spoiled = replace(comparison, audits=(Finding("splits share no group", False, "3 shared", "invalid"),))
    assert brief(spoiled).do == ("Do not act on these numbers before the audits that failed are settled.",)
    assert any("splits share no group; the numbers cannot be believed" in said for said in brief(spoiled).sure)


def test_an_invalid_audit_of_one_method_withholds_the_advice_about_that_method_alone(comparison):
    learned = headline(comparison).name
    plain = brief(comparison).do
    other = next(m.name for m in comparison.methods if m.family == "learned" and m.name != learned)
    failed = Finding(f"{other}: beats length", False, "+0.00", "invalid", method=other)
    assert brief(replace(comparison, audits=(failed,))).do == (
        *plain,
        f"Do not rely on {other} before the audits that it failed are settled: {failed.name}.",
    )
    assert verdict_words(replace(comparison, audits=(failed,))) == verdict_words(comparison)
    sure = " ".join(brief(replace(comparison, audits=(failed,))).sure)
    assert f"Failed: {failed.name}; the numbers of {other} cannot be believed." in sure

    own = Finding(f"{learned}: beats length", False, "+0.00", "invalid", method=learned)
    advice = brief(replace(comparison, audits=(own,))).do
    assert not any("Use the learned method" in said for said in advice)
    assert any(said.startswith("Use the ") for said in advice)  # a control does not fail with it
    assert advice[-1] == f"Do not rely on {learned} before the audits that it failed are settled: {own.name}."
    first = verdict_words(replace(comparison, audits=(own,)))[0]
    assert first == f"Do not act on the numbers of {learned} before the audits that it failed are settled: {own.name}."


def test_failed_audits_come_first_and_are_named_in_words(page):
    audits = page[page.index('id="audits"') : page.index('id="notes"')]
    assert audits.index("✗ failed") < audits.index("✓ passed")
    assert "the numbers are weaker than they look" in audits
