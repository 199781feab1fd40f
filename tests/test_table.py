"""One table in its renderings: the same numbers for a terminal, a page, Markdown, a spreadsheet and a paper."""

import csv
import io
import re

import pytest

from metaprobe.checkpoints.table import (
    NOTHING,
    Column,
    Table,
    bounds,
    count,
    difference,
    estimate,
    format_interval,
    html_table,
    number,
    p_value,
    percent,
    rate,
    share,
    verdict,
    words,
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
                words(name),
                estimate(interval(0.7), strong=True),
                difference(interval(0.2)),
                count(1200),
                NOTHING,
                share(0.5),
            ),
            (words("b"), estimate(None), difference(interval(-0.2)), count(3), NOTHING, share(1.0)),
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
    wide = Table(columns=(COLUMNS[0], *columns), rows=((words("row"), *(words("x" * 20) for _ in columns)),))
    lines = wide.text(width=80)
    assert max(map(len, lines)) <= 80
    assert sum(line.startswith("row") for line in lines) == 3
    assert sum(line.count("x" * 20) for line in lines) == 9
    assert len(wide.text(width=None)) == 3
    assert Table.of(("name", "n"), [("y" * 60, 1)]).text(named=20)[2].split() == ["y" * 19 + "…", "1"]


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


def test_a_column_in_which_no_row_says_anything_is_hidden_and_an_empty_table_is_its_head() -> None:
    assert [column.key for column in table().heads] == ["method", "auroc", "gain", "n"]
    empty = Table(columns=COLUMNS, rows=())
    assert empty.csv().splitlines() == ["method,auroc,gain,n,never,secret"]
    assert len(empty.markdown()) == 2


@pytest.mark.parametrize("row", [(words("x"),), (words("x"), words("y"), words("z"))])
def test_a_row_with_more_or_fewer_cells_than_columns_is_refused(row: tuple) -> None:
    broken = Table(ident="t", columns=COLUMNS[:2], rows=(row,))
    for render in (broken.csv, broken.text, broken.markdown, broken.html):
        with pytest.raises(ValueError, match=r"cells|zip"):
            render()


def test_numbers_have_no_minus_before_nothing_and_say_when_there_are_none() -> None:
    assert [number(-0.001), number(-0.001, signed=True), number(float("nan")), number(0.716)] == [
        "0.00",
        "+0.00",
        "n/a",
        "0.72",
    ]
    assert percent(0.4444, 1) == "44.4\u00a0%"
    assert percent(float("nan")) == "n/a"
    assert rate(Interval(0.5, 0.444, 0.556, 9, 9)).note == "[44\u00a0%, 56\u00a0%]"
    assert [p_value(p) for p in (0.0009, 0.001, 0.01234, 1.0)] == ["< 0.001", "0.001", "0.012", "1.000"]
    assert format_interval(Interval(0.5, 0.4, 0.6, 9, 9), 1) == "0.5 [0.4, 0.6]"


def test_the_ends_of_a_difference_show_the_sign_that_its_verdict_goes_by() -> None:
    for low, high, shown, word in (
        (-0.00006, 0.61, "[-0.0001, +0.61]", "unclear"),
        (0.003, 0.061, "[+0.003, +0.06]", "better"),
        (-0.2, -0.05, "[-0.20, -0.05]", "worse"),
    ):
        found = Interval(0.03, low, high, 400, 97)
        assert (bounds(found, signed=True), verdict(found)) == (shown, word)
    assert bounds(Interval(0.003, 0.001, 0.2, 400, 97)) == "[0.00, 0.20]"


@pytest.mark.parametrize("name", ["=HYPERLINK(1)", "+1", "-1+2", "@SUM(1)", "\t=1"])
def test_a_spreadsheet_computes_nothing_from_a_name(name: str) -> None:
    table = Table(columns=(Column("m", "M", "text"), Column("s", "S")), rows=((words(name), share(-0.5)),))
    assert list(csv.DictReader(io.StringIO(table.csv()))) == [{"m": f"'{name}", "s": "-0.5"}]
