"""Helpers of the tests of the report's tables and figures."""

import csv
import io

from metaprobe.eval.metrics.bootstrap import Interval


def told(estimate):
    """An interval that no other estimate has."""
    return Interval(estimate, estimate - 0.05, estimate + 0.07, 400, 100)


def rows_of(table):
    return list(csv.DictReader(io.StringIO(table.csv())))


def interval_of(row, key):
    return tuple(float(row[name]) for name in (key, f"{key}_low", f"{key}_high"))


def ends(interval):
    return interval.estimate, interval.low, interval.high


def shown(table):
    """Keys of the columns that readers see."""
    return [column.key for column in table.heads]


def column(table, key):
    """The cells that readers see in a column."""
    at = shown(table).index(key)
    return [row[at] for row in table.shown]


def marks(table, key):
    return [cell.mark for cell in column(table, key)]
