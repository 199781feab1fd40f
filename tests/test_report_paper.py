"""What of a report goes into a paper: LaTeX that a compiler takes, with the CSV's numbers; PDF as wide as a column."""

import csv
import io
import re
import shutil
import subprocess
from dataclasses import replace

import pytest
from made_up_report import HOSTILE, METHOD_OF_ALL, made_up

from metaprobe.eval.metrics.bootstrap import Interval
from metaprobe.eval.report.drawing import COLUMN_IN, PAGE_IN
from metaprobe.eval.report.latex import escaped, latex, printable
from metaprobe.eval.report.layout import Column, Figure, Legend, Spread, Table, difference, estimate, share, words
from metaprobe.eval.report.methods import method_table
from metaprobe.eval.report.palette import FAMILY, INK
from metaprobe.eval.report.paper_files import paper_files
from metaprobe.eval.report.pdf import column_pdf, page_pdf
from metaprobe.eval.report.sections import sections
from metaprobe.eval.wording import number


@pytest.fixture(scope="module")
def comparison():
    made = made_up()
    few = tuple(m for m in made.methods if m.name in ("verbalised confidence", "length", METHOD_OF_ALL))
    return replace(made, methods=(*few, made.methods[3]), sweeps=made.sweeps[:1])


@pytest.fixture(scope="module")
def files(comparison):
    return paper_files(comparison)


TWO = Column("method", "Method", "text"), Column("auroc", "AUROC", "interval", "higher")


def a_table(*rows, columns=TWO):
    return Table(ident="t", caption="100 % & more.", columns=columns, rows=rows)


def test_what_latex_would_read_as_a_command_is_printed_as_it_is():
    assert escaped(r"50 % of $x_1$ & {a} #2 ~ ^ \b") == (
        r"50 \% of \$x\_1\$ \& \{a\} \#2 \textasciitilde{} \textasciicircum{} \textbackslash{}b"
    )
    assert escaped("< 0.001") == r"\textless{} 0.001"
    assert escaped("95\u00a0% – “so” ≤ 1 × 2…") == r"95~\% -- ``so'' $\leq$ 1 $\times$ 2\ldots{}"


def test_a_minus_is_one_and_a_hyphen_stays():
    assert escaped("-0.04 [-0.11, +0.02]") == "$-$0.04 [$-$0.11, +0.02]"
    assert escaped("smollm2-135m, log-probability, 1-2") == "smollm2-135m, log-probability, 1-2"


def test_a_table_has_the_rules_of_booktabs_and_an_entry_for_each_column():
    table = a_table((words("a_b"), estimate(Interval(0.7, 0.6, 0.8, 9, 9))), (words("c"), estimate(None)))
    text = latex(table)
    assert [text.count(rule) for rule in (r"\toprule", r"\midrule", r"\bottomrule", r"\hline", "|")] == [1, 1, 1, 0, 0]
    assert text.index(r"\caption{100 \% \& more.}") < text.index(r"\begin{tabular}{@{}lr@{}}") < text.index(r"\toprule")
    assert text.index(r"Method & AUROC $\uparrow$ \\") < text.index(r"\midrule") < text.index(r"a\_b & 0.70 \\")
    assert text.index(r"a\_b & 0.70 \\") < text.index(r" & {\scriptsize [0.60, 0.80]} \\") < text.index(r"c & -- \\")
    assert r"\label{tab:t}" in text


def test_a_long_name_goes_on_in_the_lines_below():
    name = "all that is known of an answer and then some"
    lines = latex(a_table((words(name), estimate(Interval(0.7, 0.6, 0.8, 9, 9))))).splitlines()
    at = lines.index(r"\midrule")
    first, second, third = (line.removesuffix(r" \\").split(" & ")[0] for line in lines[at + 1 : at + 4])
    assert f"{first} {second} {third}".strip() == name
    assert max(map(len, (first, second, third))) <= 22


def test_numbers_in_latex_are_those_of_the_csv(comparison):
    table = method_table(comparison)
    rows = list(csv.DictReader(io.StringIO(table.csv)))
    body = latex(table).split(r"\midrule")[1].split(r"\bottomrule")[0].replace("$-$", "-")
    printed = re.findall(r"[-+]?\d\.\d+", body)
    expected = []
    for row in rows:
        keys = (
            "auroc",
            "within_runs",
            "diff_stated",
            "diff_control",
            "auprc",
            "ece_stated",
            "ece",
            "brier_skill",
            "aurc",
        )
        given = [key for key in keys if row[key]]
        expected += [number(float(row[key]), signed=key.startswith("diff")) for key in given]
        expected += [end for key in given for end in ends(row, key)]
    # The CSV is rounded already: a half may fall to either side.
    assert [float(value) for value in printed] == pytest.approx([float(value) for value in expected], abs=0.0101)
    assert [f"{100 * float(row['coverage']):.0f}~\\%" for row in rows] == re.findall(r"\d+~\\%", body)


def ends(row, key):
    return [number(float(row[f"{key}_{end}"]), 5) for end in ("low", "high")]


@pytest.mark.slow
def test_only_what_fits_a_page_is_latex(comparison, files):
    shown = [table for section in sections(comparison) for table in (*section.tables, *section.data)]
    written = {name for name in files if name.endswith(".tex")}
    assert written == {f"tables/{table.ident}.tex" for table in shown if printable(table)}
    assert "tables/methods.tex" in written
    assert "tables/trajectories.tex" not in written  # 66 rows
    row = (words("a"), *[estimate(Interval(0.7, 0.6, 0.8, 9, 9))] * 30)
    wide = a_table(
        row, columns=(Column("method", "Method", "text"), *(Column(f"c{i}", "AUROC", "interval") for i in range(30)))
    )
    assert not printable(wide)
    with pytest.raises(ValueError, match="table t is too wide or too long for a page of a paper; use its CSV"):
        latex(wide)
    assert not printable(a_table(*[(words("a"), estimate(None))] * 41))
    prose = Column("value", "Value", "prose")
    assert not printable(a_table((words("a"), words("x" * 41)), columns=(Column("k", "K", "text"), prose)))
    assert printable(a_table((words("a"), words("x " * 41)), columns=(Column("k", "K", "text"), prose)))


def test_a_table_of_few_columns_is_as_wide_as_one_column_of_a_paper():
    few = a_table((words("a"), estimate(Interval(0.7, 0.6, 0.8, 9, 9))))
    assert r"\begin{table}" in latex(few)
    columns = (Column("method", "Method", "text"), *(Column(f"c{i}", "Difference", "interval") for i in range(6)))
    many = a_table((words("a"), *[difference(Interval(0.7, 0.6, 0.8, 9, 9))] * 6), columns=columns)
    assert r"\begin{table*}" in latex(many)
    assert r"\end{table*}" in latex(many)


@pytest.mark.slow
def test_braces_and_environments_of_every_table_are_closed_and_rows_equally_long(files):
    tables = {name: content.decode() for name, content in files.items() if name.endswith(".tex")}
    assert len(tables) > 15
    for name, text in tables.items():
        bare = re.sub(r"\\[{}]", "", text)
        depths = [0]
        for letter in bare:
            depths.append(depths[-1] + (letter == "{") - (letter == "}"))
        assert min(depths) == 0 == depths[-1], name
        assert re.findall(r"\\begin\{(.*?)\}", text) == re.findall(r"\\end\{(.*?)\}", text)[::-1], name
        body = text.split(r"\toprule")[1].split(r"\bottomrule")[0]
        counts = {len(re.findall(r"(?<!\\)&", line)) for line in body.splitlines() if line.endswith(r"\\")}
        assert len(counts) == 1, name
        assert text.isascii(), name


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no LaTeX on this machine")
def test_latex_compiles(files, tmp_path):
    inputs = []
    for name, content in files.items():
        if name.endswith(".tex"):
            (tmp_path / name.removeprefix("tables/")).write_bytes(content)
            inputs.append(rf"\input{{{name.removeprefix('tables/')}}}\clearpage")
    head = r"\documentclass[twocolumn]{article}\usepackage{booktabs}\begin{document}"
    (tmp_path / "all.tex").write_text("\n".join([head, *inputs, r"\end{document}"]))
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace")
    assert done.returncode == 0, done.stdout[-2000:]


def size_in(pdf):
    """Width and height of a PDF's page, in inches."""
    found = re.search(rb"/MediaBox \[ ?0 0 ([\d.]+) ([\d.]+) ?\]", pdf)
    return float(found[1]) / 72, float(found[2]) / 72


def a_figure(**changed):
    made = {"ident": "f", "title": "Title", "label": "Said of it.", "paint": lambda ax: ax.plot([0, 1], [0, 1])}
    return Figure(**made | changed)


@pytest.mark.slow
def test_figures_are_as_wide_as_a_column_and_those_side_by_side_as_two(comparison, files):
    figures = [figure for section in sections(comparison) for figure in section.figures]
    pdfs = {name: content for name, content in files.items() if name.endswith(".pdf")}
    single = {f"figures/{figure.ident}.pdf" for figure in figures}
    assert set(pdfs) - single == {"figures/page-glance.pdf", "figures/page-roc-and-risk.pdf"}
    for name, content in pdfs.items():
        assert content.startswith(b"%PDF-")
        width, _ = size_in(content)
        assert width == pytest.approx(COLUMN_IN if name in single else PAGE_IN, abs=0.01), name
        assert b"/Type3" not in content


def test_a_pdf_grows_with_its_legend_and_is_the_same_each_time():
    plain = column_pdf(a_figure())
    lines = tuple(Legend(FAMILY["learned"], "a method with a long name", at) for at in range(4))
    named = column_pdf(a_figure(legend=lines))
    assert size_in(named)[1] == pytest.approx(size_in(plain)[1] + 4 * 0.16, abs=0.01)
    short = tuple(Legend(INK, "a", at) for at in range(2))
    assert size_in(column_pdf(a_figure(legend=short)))[1] == pytest.approx(size_in(plain)[1] + 0.16, abs=0.01)
    assert column_pdf(a_figure(legend=lines)) == named
    assert b"CreationDate" not in named


def test_drawings_of_one_file_have_letters_and_a_drawing_alone_has_none():
    several = page_pdf(Spread(ident="s", columns=((a_figure(),), (a_figure(),))))
    assert (b"-Bold" in several, b"-Bold" in column_pdf(a_figure())) == (True, False)


def test_drawings_above_each_other_are_no_higher_than_the_one_beside_them():
    tall = page_pdf(Spread(ident="s", columns=((a_figure(), a_figure()), (a_figure(height=2.0),))))
    assert size_in(tall) == pytest.approx((PAGE_IN, 2 * 2.4), abs=0.01)


@pytest.mark.slow
def test_markup_of_a_name_is_printed_and_not_run(files):
    text = latex(a_table((words(HOSTILE), share(0.5)), columns=(Column("m", "M", "text"), Column("s", "S"))))
    assert r"\textless{}script\textgreater{}" in text
    assert r"\$x\_1\$" in text
    assert "$x" not in text.replace(r"\$", "")
