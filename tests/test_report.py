"""The report, from a comparison made up here: what a reader, a browser and a spreadsheet get of it."""

import re
from base64 import b64decode, b64encode
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest
from made_up_report import HOSTILE, METHODS, SOME, made_up, rendered
from matplotlib.figure import Figure as Canvas
from sklearn.metrics import roc_curve

from metaprobe.eval.metrics.ranked import risk_coverage
from metaprobe.eval.report import figures, write
from metaprobe.eval.report.figures import FAMILY_COLOURS, INK, PAPER, RIGHT_COLOUR, WRONG_COLOUR, draw
from metaprobe.eval.report.words import main_methods
from metaprobe.eval.report.write import comparison_table, report_files, sections
from metaprobe.eval.results import FAMILIES, Comparison, Finding, MethodResult

SECTIONS = ["glance", "methods", "calibration", "early", "systems", "limits"]


@pytest.fixture(scope="module")
def comparison():
    return made_up()


@pytest.fixture(scope="module")
def files():
    return rendered()


@pytest.fixture(scope="module")
def page(files):
    return files["report.html"].decode()


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
        self.urls += [attrs[key] for key in ("src", "href") if key in attrs]
        self.references += [attrs["aria-labelledby"]] if "aria-labelledby" in attrs else []
        if tag not in self.VOID:
            self.stack.append(tag)

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


def test_the_page_fetches_nothing_and_may_not(page, files):
    outline = Outline(page)
    assert all(attrs["src"].startswith("data:image/svg+xml;base64,") for attrs in outline.all("img"))
    assert {url for url in outline.urls if not url.startswith(("#", "data:"))} <= set(files)
    assert not re.search(r"@import|url\(|https?://", page)
    policy = next(attrs["content"] for attrs in outline.all("meta") if "http-equiv" in attrs)
    assert policy.startswith("default-src 'none'; img-src data:;")
    assert not re.search(r"script-src[^;]*'unsafe", policy)


def test_nothing_but_the_scripts_own_text_may_run(page):
    script = page[page.index("<script>") + len("<script>") : page.index("</script>")]
    assert f"script-src 'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" in page
    assert not any(name.startswith("on") for _, attrs in Outline(page).tags for name in attrs)


def test_each_of_the_seven_sections_is_there_with_its_heading_and_a_link_to_it(page):
    outline = Outline(page)
    assert [attrs["id"] for attrs in outline.all("section")] == SECTIONS
    assert [attrs["id"] for attrs in outline.all("h2")] == [f"{name}-heading" for name in SECTIONS]
    assert [f"#{name}" for name in SECTIONS] == [url for url in outline.urls if url[1:] in SECTIONS]
    said = [
        page.index(f"<dt>{heading}</dt>") for heading in ("Explicit or implicit", "Which signal", "How sure", "Next")
    ]
    order = [*said, page.index(" to decide which answers to check"), page.index("<nav"), page.index("<figure")]
    assert order == sorted(order)
    assert "<code>metaprobe " in page[order[3] : order[5]]


def test_figures_are_described_and_tables_can_be_scrolled_by_keyboard(comparison, page):
    outline = Outline(page)
    figures = [figure for section in sections(comparison) for figure in section.figures]
    assert len(outline.all("img")) == len(figures) == len(outline.all("figure")) == len(outline.all("figcaption")) > 10
    assert all(len(attrs["alt"]) > 30 for attrs in outline.all("img"))
    regions = [attrs for attrs in outline.all("div") if attrs.get("class") == "scroll"]
    assert len(regions) == len(outline.all("table")) == len(outline.all("caption")) > 12
    assert all(attrs["tabindex"] == "0" and attrs["role"] == "region" for attrs in regions)
    assert all(attrs["scope"] in ("col", "row") for attrs in outline.all("th"))
    assert {"html", "main", "header", "nav"} <= {tag for tag, _ in outline.tags}
    assert outline.all("html")[0]["lang"] == "en"


def test_beside_the_page_lie_all_tables_and_drawings(comparison, files, page):
    shown = sections(comparison)
    tables = {table.ident for section in shown for table in (*section.tables, *(table for _, table in section.more))}
    numbers = {name for section in shown for name, rows in section.files.items() if rows}
    figures = {figure.ident for section in shown for figure in section.figures}
    assert {name.removesuffix(".csv") for name in files if name.endswith(".csv")} == {
        f"tables/{name}" for name in tables | numbers
    }
    assert {name for name in files if name.endswith(".tex")} == {f"tables/{name}.tex" for name in tables}
    assert {name for name in files if name.startswith("figures/")} == {
        f"figures/{name}.{form}" for name in figures for form in ("svg", "pdf")
    }
    assert set(files) - {"report.html"} - {n for n in files if n.endswith(".tex")} == {
        url for url in Outline(page).urls if not url.startswith(("#", "data:"))
    }
    drawn = [b64decode(attrs["src"].partition(",")[2]) for attrs in Outline(page).all("img")]
    assert drawn == [files[f"figures/{figure.ident}.svg"] for section in shown for figure in section.figures]


def test_drawings_are_svg_and_pdf_with_text_and_without_a_date(files):
    for name, content in files.items():
        if name.endswith(".svg"):
            root = ElementTree.fromstring(content)
            assert root.tag == "{http://www.w3.org/2000/svg}svg"
            assert any((part.text or "").strip() for part in root.iter("{http://www.w3.org/2000/svg}text")), name
        elif name.endswith(".pdf"):
            assert content.startswith(b"%PDF-")
            assert b"/Type3" not in content
            assert b"CreationDate" not in content
    legend = {part.text for part in ElementTree.fromstring(files["figures/seen.svg"]).iter()}
    assert "LightGBM, first tokens" in legend


def test_the_same_comparison_gives_the_same_bytes_whatever_the_users_matplotlibrc_says(comparison, files, monkeypatch):
    import matplotlib as mpl

    monkeypatch.setitem(mpl.rcParams, "axes.linewidth", 7.0)
    monkeypatch.setitem(mpl.rcParams, "lines.marker", "s")
    for figure in (figure for section in sections(comparison)[:1] for figure in section.figures):
        again = draw(figure)
        assert all(again[form] == files[f"figures/{figure.ident}.{form}"] for form in ("svg", "pdf"))


def test_markup_in_any_name_is_shown_and_not_run(comparison, monkeypatch):
    monkeypatch.setattr(write, "draw", lambda figure: {"svg": b"<svg/>"})  # the page holds drawings in base64
    sweep, difficulty = comparison.sweeps[0], comparison.difficulty
    base = comparison.methods[0]
    evil = MethodResult(**{name: getattr(base, name) for name in base.__slots__} | {"name": '"><img src=x onerror=1>'})
    hostile = replace(
        comparison,
        methods=(evil,),
        notes=(HOSTILE,),
        audits=(Finding(HOSTILE, False, HOSTILE),),
        sweeps=(replace(sweep, probe=HOSTILE, positions=(HOSTILE, "b", "c"), choices=((17, HOSTILE),)),),
        coupling=tuple(replace(row, monitor=HOSTILE) for row in comparison.coupling),
        difficulty=replace(difficulty, by=HOSTILE, strata=(replace(difficulty.strata[0], name=HOSTILE),) * 2),
    )
    page = report_files(hostile)["report.html"].decode()
    assert HOSTILE not in page
    outline = Outline(page)
    assert len(outline.all("script")) == 1
    assert outline.text["h1"] == f"What {HOSTILE} knows about its own answers"
    assert all(attrs["src"].startswith("data:image") for attrs in outline.all("img"))
    assert "".join(outline.text.values()).count(HOSTILE) > 8
    assert len(outline.ids) == len(set(outline.ids))


def test_the_text_table_fits_110_columns_and_marks_the_winner(comparison):
    several_runs = tuple(replace(m, within_runs=SOME) for m in comparison.methods)
    assert "Within runs" in comparison_table(replace(comparison, methods=several_runs))
    text = comparison_table(comparison)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 110
    assert re.search(r"^verbalised confidence +83\s% +0\.\d\d \[0\.\d\d, 0\.\d\d\] ", text, flags=re.MULTILINE)
    head = next(line for line in lines if line.startswith("Method"))
    rows = lines[lines.index(head) + 2 : lines.index(head) + 2 + len(METHODS)]
    assert all(row[head.index("AUROC")] == "0" and row[head.index("AUROC") - 1] == " " for row in rows)
    assert next(line for line in lines if line.startswith("blend")).count("*") == 1
    assert f"{len(comparison.y)} answers, {100 * comparison.base_rate:.1f}% right" in text
    bare = tuple(replace(m, stated=None) for m in comparison.methods)
    assert "Within runs" not in comparison_table(replace(comparison, methods=bare))


def test_a_comparison_refuses_methods_of_one_name_or_another_length(comparison):
    given = {"title": "t", "provenance": {}}
    with pytest.raises(ValueError, match="names of their own"):
        Comparison(**given, y=comparison.y, methods=comparison.methods[:1] * 2)
    with pytest.raises(ValueError, match="400 probabilities for 3 labels"):
        Comparison(**given, y=np.array([0, 1, 1]), methods=comparison.methods)


# Figures draw the numbers of the comparison, where the axes and the words beside them say


def painted(figure):
    ax = Canvas().subplots()
    figure.paint(ax)
    return ax


def legend(ax):
    return dict(zip(*ax.get_legend_handles_labels()[::-1], strict=True))


def lines(ax):
    """(x, y) of each line that is drawn, in the order of drawing."""
    found = [(np.asarray(line.get_xdata(), float), np.asarray(line.get_ydata(), float)) for line in ax.lines]
    return [pair for pair in found if len(pair[0])]


def level_lines(ax):
    """Heights of the lines that run from one side to the other."""
    return [y[0] for x, y in lines(ax) if len(x) == 2 and y[0] == y[1] and x.tolist() == [0, 1]]


def test_roc_and_risk_are_drawn_from_the_main_methods_curves(comparison):
    mains = main_methods(comparison)
    roc, risk = map(painted, figures.roc_and_risk_figures(comparison, mains))
    chance, *curves = lines(roc)
    assert [part.tolist() for part in chance] == [[0, 100], [0, 100]]
    for method, (x, y) in zip(mains, curves, strict=True):
        assert {*x} <= {*(100 * roc_curve(comparison.y, method.probability, drop_intermediate=False)[0])}
        assert (x[0], y[0], x[-1], y[-1]) == (0, 0, 100, 100)
    for method, (x, y) in zip(mains, lines(risk)[:-1], strict=True):
        assert x[0] == pytest.approx(2.0)  # below, it is the luck of a handful of answers
        assert y == pytest.approx(100 * np.interp(x / 100, *risk_coverage(comparison.y, method.probability)))
        assert 100 <= len(x) <= 120
    assert level_lines(risk)[0] == pytest.approx(100 * (1 - comparison.base_rate))
    assert [name.rpartition(" (")[0] for name in legend(roc)] == [method.name for method in mains]
    assert len({(key.get_color(), str(key.get_linestyle())) for key in legend(roc).values()}) == len(mains)
    one_kind = replace(comparison, y=np.ones(len(comparison.y), dtype=int))
    assert [figure.ident for figure in figures.roc_and_risk_figures(one_kind, mains)] == ["risk"]


def test_every_axis_says_what_it_is_and_a_colour_means_one_thing(comparison):
    family_of = {method.name: method.family for method in (*comparison.methods, *comparison.seen.methods)}
    family_of |= {"router (round)": "learned", "control (triangle)": "plain"} | {family: family for family in FAMILIES}
    family_of |= dict.fromkeys(("prompt_last", "answer_first", "answer_mean"), "learned")  # positions a probe reads
    for section in sections(comparison):
        for figure in section.figures:
            ax = painted(figure)
            assert ax.get_xlabel(), figure.ident
            assert ax.get_ylabel() or figure.ident == "forest", figure.ident  # methods stand at its ticks
            for text, key in legend(ax).items():
                name = text if text in family_of else text.rpartition(" (")[0]
                if name in family_of:
                    assert key.get_color() == FAMILY_COLOURS[family_of[name]], (figure.ident, text)
                elif text not in ("recalibrated", "as stated", "within runs"):
                    assert key.get_color() in (INK, RIGHT_COLOUR, WRONG_COLOUR), (figure.ident, text)
                    assert (key.get_color() == WRONG_COLOUR) == text.startswith("wrong")
                    assert (key.get_color() == RIGHT_COLOUR) == text.startswith(("right", "oracle"))
    assert len({*FAMILY_COLOURS.values(), RIGHT_COLOUR, WRONG_COLOUR, INK, PAPER}) == len(FAMILIES) + 4
