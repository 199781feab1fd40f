"""One table in its renderings: the same numbers for a terminal, a page, Markdown, a spreadsheet and a paper."""

import csv
import io
import re

import pytest

from metaprobe.checkpoints.rendered_table import (
    EMPTY_CELL,
    Column,
    Table,
    bounds,
    count_cell,
    difference_cell,
    difference_word,
    estimate_cell,
    html_table,
    share_cell,
    text_cell,
)
from metaprobe.eval.metrics.bootstrap import Interval
from metaprobe.eval.report.write import latex

HOSTILE = "<script>alert('$x_1$ & co | 50 %')</script>"
COLUMNS = (
    Column("method", "Method", "text"),
    Column("auroc", "AUROC", "interval", "higher"),
    Column("gain", "Gain", "interval"),
    Column("n", "Answers"),
    Column("never", "Never"),
    Column("secret", "Secret", shown=False),
)


def interval(value: float) -> Interval:
    return Interval(value, value - 0.05, value + 0.07, 400, 100)


def table(name: str = HOSTILE) -> Table:
    return Table(
        ident="t",
        caption=f"100 % of {name}.",
        columns=COLUMNS,
        rows=(
            (
                text_cell(name),
                estimate_cell(interval(0.7), strong=True),
                difference_cell(interval(0.2)),
                count_cell(1200),
                EMPTY_CELL,
                share_cell(0.5),
            ),
            (
                text_cell("b"),
                estimate_cell(None),
                difference_cell(interval(-0.2)),
                count_cell(3),
                EMPTY_CELL,
                share_cell(1.0),
            ),
        ),
    )


def test_text_is_aligned_and_marks_what_is_strong() -> None:
    head, rule, first, second = table("a").text()
    assert head.split() == ["Method", "AUROC", "↑", "Gain", "Answers"]
    assert set(rule) == {"-"}
    assert "0.70 [0.65, 0.77]*" in first
    assert "+0.20 [+0.15, +0.27] better" in first
    assert "-0.20 [-0.25, -0.13] worse" in second
    assert r"\x1b[2Ja" in table("\x1b[2Ja").text()[2]  # nor may a name clear the screen
    assert first.index("+0.20") == second.index("-0.20") == head.index("Gain")


def test_text_that_is_too_wide_goes_on_below_with_the_names_again() -> None:
    columns = tuple(Column(f"c{at}", f"column {at}") for at in range(9))
    wide = Table(columns=(COLUMNS[0], *columns), rows=((text_cell("row"), *(text_cell("x" * 20) for _ in columns)),))
    lines = wide.text(width=80)
    assert max(map(len, lines)) <= 80
    assert sum(line.startswith("row") for line in lines) == 3
    assert sum(line.count("x" * 20) for line in lines) == 9
    assert len(wide.text(width=None)) == 3
    assert Table.of(("name", "n"), [("y" * 60, 1)]).text(name_chars=20)[2].split() == ["y" * 19 + "…", "1"]


def test_csv_has_every_number_in_full_and_every_column() -> None:
    first, second = csv.DictReader(io.StringIO(table().csv()))
    assert list(first) == "method auroc auroc_low auroc_high gain gain_low gain_high n never secret".split()
    assert first["method"] == HOSTILE
    assert [float(first[key]) for key in ("auroc", "auroc_low", "auroc_high")] == [0.7, 0.7 - 0.05, 0.7 + 0.07]
    assert (first["n"], first["secret"], first["never"]) == ("1200", "0.5", "")
    assert (second["auroc"], second["auroc_low"]) == ("", "")


def test_markdown_breaks_at_no_pipe() -> None:
    lines = table("a | b").markdown()
    assert lines[0] == "| Method | AUROC ↑ | Gain | Answers |"
    assert lines[2].startswith(r"| a \| b | **0.70 [0.65, 0.77]** | +0.20 [+0.15, +0.27] better |")
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {5}


def test_html_escapes_says_which_way_is_better_and_keeps_what_sorts() -> None:
    html = table().html()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    assert "(higher is better)</span>" in html
    assert '<td class="n" data-value="0.7"><strong>0.70</strong> <span class="note">[0.65, 0.77]</span></td>' in html
    assert '<span class="mark m-worse">worse</span>' in html
    assert html.count("<th ") == 4 + 2
    assert html.count('scope="row"') == 2
    shown = html_table("<script>", [("<img>", "a & b")], head=("<i>", "x"))
    assert "<script>" not in shown
    assert "<img>" not in shown
    assert "<thead>" not in html_table("t", [("a", "b")])


def test_latex_prints_markup_as_it_is_and_has_the_rules_of_booktabs() -> None:
    text = latex(table())
    assert r"\$x\_1\$ \& co | 50 \%" in text
    assert [text.count(rule) for rule in (r"\toprule", r"\midrule", r"\bottomrule", r"\hline")] == [1, 1, 1, 0]
    assert text.startswith("% 100 % of <script>")  # a comment
    assert "0.70 [0.65, 0.77] & +0.20 [+0.15, +0.27] better & 1,200" in text
    twice = Table.of(("a", "a", "b"), [(1, 2, 3)])
    assert r"1 & 2 & 3 \\" in latex(twice)


def test_the_ends_of_a_difference_show_the_sign_that_its_verdict_goes_by() -> None:
    for low, high, shown, word in (
        (-0.00006, 0.61, "[-0.0001, +0.61]", "unclear"),
        (0.003, 0.061, "[+0.003, +0.06]", "better"),
        (-0.2, -0.05, "[-0.20, -0.05]", "worse"),
    ):
        found = Interval(0.03, low, high, 400, 97)
        assert (bounds(found, signed=True), difference_word(found)) == (shown, word)
    assert bounds(Interval(0.003, 0.001, 0.2, 400, 97)) == "[0.00, 0.20]"


@pytest.mark.parametrize("name", ["=HYPERLINK(1)", "+1", "-1+2", "@SUM(1)", "\t=1"])
def test_a_spreadsheet_computes_nothing_from_a_name(name: str) -> None:
    table = Table(columns=(Column("m", "M", "text"), Column("s", "S")), rows=((text_cell(name), share_cell(-0.5)),))
    assert list(csv.DictReader(io.StringIO(table.csv()))) == [{"m": f"'{name}", "s": "-0.5"}]
