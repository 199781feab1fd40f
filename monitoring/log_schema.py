"""The tables of a score log, as SQL that SQLite and PostgreSQL both take. `{serial}` differs between the two."""

FIRST = """
CREATE TABLE IF NOT EXISTS writers (writer TEXT PRIMARY KEY, stored BIGINT NOT NULL)
"""
"""How many entries each process has stored: against what it had accepted, this says what a kill has lost."""

_CONTEXTS = """
CREATE TABLE IF NOT EXISTS contexts (
    id {serial}, model TEXT NOT NULL, checkpoint TEXT NOT NULL, task TEXT NOT NULL, finish_reason TEXT NOT NULL,
    action TEXT NOT NULL, tags TEXT NOT NULL, UNIQUE (model, checkpoint, finish_reason, action, tags)
)
"""
"""What many answers share is written once: a digest in every row would be half of the log."""

_SCORES = """
CREATE TABLE IF NOT EXISTS scores (
    id {serial}, request_id TEXT NOT NULL, time DOUBLE PRECISION NOT NULL, context BIGINT NOT NULL,
    score DOUBLE PRECISION, flagged SMALLINT, critical DOUBLE PRECISION, heads TEXT, reason TEXT,
    prompt_tokens BIGINT, tokens BIGINT, tokens_saved BIGINT, cost_usd DOUBLE PRECISION, latency_s DOUBLE PRECISION,
    shadow_of TEXT, logprobs BYTEA, question TEXT, answer TEXT, callers_id TEXT, key_name TEXT NOT NULL DEFAULT ''
)
"""
_LABELS = """
CREATE TABLE IF NOT EXISTS labels (
    id {serial}, request_id TEXT NOT NULL, value DOUBLE PRECISION, who TEXT NOT NULL, time DOUBLE PRECISION NOT NULL,
    source TEXT NOT NULL DEFAULT '', key_name TEXT NOT NULL DEFAULT '', waits DOUBLE PRECISION
)
"""
"""Everything that was ever said of an answer; of one request, what came last from the strongest source counts.
`waits`: when a label came whose answer was not in the log; see `monitoring.waiting_labels`."""

_SAMPLES = """
CREATE TABLE IF NOT EXISTS samples (
    request_id TEXT PRIMARY KEY, propensity DOUBLE PRECISION NOT NULL, sheet TEXT NOT NULL,
    time DOUBLE PRECISION NOT NULL
)
"""
_SHEETS = """
CREATE TABLE IF NOT EXISTS sheets (
    sheet TEXT PRIMARY KEY, time DOUBLE PRECISION NOT NULL, since DOUBLE PRECISION NOT NULL,
    until DOUBLE PRECISION NOT NULL, model TEXT NOT NULL, tags TEXT NOT NULL, base DOUBLE PRECISION NOT NULL,
    slope DOUBLE PRECISION NOT NULL, stored_until BIGINT NOT NULL, checkpoint TEXT NOT NULL DEFAULT ''
)
"""
"""By which rule a sheet was drawn, so that a later one over the same answers knows how likely they had been before.
`stored_until`: number of the last answer that could be drawn; those that were stored later could not."""

_EVENTS = """
CREATE TABLE IF NOT EXISTS events (
    id {serial}, time DOUBLE PRECISION NOT NULL, kind TEXT NOT NULL, details TEXT NOT NULL
)
"""

_IDENTITY = """
CREATE TABLE IF NOT EXISTS identity (identity TEXT PRIMARY KEY)
"""
"""One row, by which a file that has read a log part of the way knows it again."""

_MARKS = """
CREATE TABLE IF NOT EXISTS marks (name TEXT PRIMARY KEY, value BIGINT NOT NULL)
"""
"""Numbers that outlive the rows they are of: see `monitoring.log_numbers` and `monitoring.pruning`."""

SUMS = (
    "answers scored score_sum doubt_sum flagged abstained stopped escalated cut tokens tokens_saved cost_usd "
    "priced spared"
).split()
"""Sums that are kept for each hour; `priced` are answers whose cost is known, `spared` those with `tokens_saved`."""

_HOURS = f"""
CREATE TABLE IF NOT EXISTS hours (
    hour BIGINT NOT NULL, model TEXT NOT NULL, checkpoint TEXT NOT NULL, task TEXT NOT NULL, shadow SMALLINT NOT NULL,
    {", ".join(f"{name} DOUBLE PRECISION NOT NULL DEFAULT 0" for name in SUMS)},
    PRIMARY KEY (hour, model, checkpoint, task, shadow)
)
"""
_BINS = """
CREATE TABLE IF NOT EXISTS bins (
    day BIGINT NOT NULL, model TEXT NOT NULL, checkpoint TEXT NOT NULL, task TEXT NOT NULL, shadow SMALLINT NOT NULL,
    bin SMALLINT NOT NULL, answers BIGINT NOT NULL, score_sum DOUBLE PRECISION NOT NULL, flagged BIGINT NOT NULL,
    PRIMARY KEY (day, model, checkpoint, task, shadow, bin)
)
"""
"""Scores by the day in bins of one hundredth: what a page shows is read from here, however many answers there are."""

FURTHER = (
    _CONTEXTS,
    _SCORES,
    "CREATE UNIQUE INDEX IF NOT EXISTS scores_by_request ON scores (request_id)",
    "CREATE INDEX IF NOT EXISTS scores_by_time ON scores (time)",
    "CREATE INDEX IF NOT EXISTS scores_flagged ON scores (score) WHERE flagged = 1",
    _LABELS,
    "CREATE INDEX IF NOT EXISTS labels_by_request ON labels (request_id)",
    _SAMPLES,
    _SHEETS,
    _EVENTS,
    _IDENTITY,
    _MARKS,
    _HOURS,
    _BINS,
    "CREATE INDEX IF NOT EXISTS scores_by_callers_id ON scores (callers_id) WHERE callers_id IS NOT NULL",
    "CREATE INDEX IF NOT EXISTS labels_waiting ON labels (waits) WHERE waits IS NOT NULL",
)
