"""Helpers of `test_report_tables.py` and `test_report_method_tables.py`."""

import csv
import io

from metaprobe.eval.metrics.bootstrap import Interval


def told(estimate):
    """An interval that no other estimate has."""
    return Interval(estimate, estimate - 0.05, estimate + 0.07, 400, 100)


def table_of(section, ident):
    (found,) = [table for table in (*section.tables, *section.data) if table.ident == ident]
    return found


def rows_of(table):
    return list(csv.DictReader(io.StringIO(table.csv)))


def interval_of(row, key):
    return tuple(float(row[name]) for name in (key, f"{key}_low", f"{key}_high"))


def ends(interval):
    return interval.estimate, interval.low, interval.high


def shown(table):
    """Keys of the columns that the page has."""
    return [column.key for column in table.heads]


def marks(table, key):
    """What the page says of each row's cell of a column."""
    return [cell.mark for row in table.shown for column, cell in row if column.key == key]
