"""The report, from a comparison made up here: what a reader, a browser and a spreadsheet get of it."""

import re
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser
from urllib.parse import unquote
from xml.etree import ElementTree

import numpy as np
import pytest
from made_up_report import HOSTILE, METHOD_OF_ALL, made_up, rendered

from metaprobe.eval.method_results import Finding, MethodResult
from metaprobe.eval.metrics.bootstrap import Interval
from metaprobe.eval.metrics.selective import risk_coverage
from metaprobe.eval.report.first_screen import brief
from metaprobe.eval.report.inside import layers_section
from metaprobe.eval.report.layout import Column, Table, share, words
from metaprobe.eval.report.methods import METRICS, clear_winner
from metaprobe.eval.report.render import report_files
from metaprobe.eval.report.sections import sections
from metaprobe.eval.report.systems import systems_section
from metaprobe.eval.results import Comparison
from metaprobe.eval.wording import (
    bounds,
    number,
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
def files():
    return rendered()


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


STRONGEST = "minimum log-probability"
"""Of the controls of the comparison that is made up."""
