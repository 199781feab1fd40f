"""Audits of the data: splits that leak, repeated questions and answers, rare classes, disputed labels.

A split maps a role (`train`, `selection`, `calibration`, `test`) to row indices. Several splits are the outer folds of
one study. Rows of all roles but `test` count as seen.

Similar questions are found by the Jaccard similarity of word 3-grams, exactly, among tens of thousands of texts. If
questions were not stored, repeated answers are found by their log-probabilities, token by token.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints import Severity
from metaprobe.checkpoints.rendered_table import format_interval
from metaprobe.eval.metrics.bootstrap import cluster_weights, interval
from metaprobe.eval.metrics.ranked import quadratic_weighted_kappa
from metaprobe.eval.results import Finding
from metaprobe.records.extras import require
from metaprobe.records.types import Run

Ints = NDArray[np.int64]
Split = Mapping[str, Ints]

TEST_ROLE = "test"
"""Role of the rows that are judged."""

RARE_CLASS_SHARE = 0.1
"""A class with less than this share of the answers is rare."""
TOLERATED_SHARE = 0.01
"""Share of test questions that may resemble a seen question."""
LARGE_LEAK_SHARE = 0.05
"""A leak that touches more than this share of the tested answers is `invalid`, a smaller leak is `weak`."""
PROGRAM = "program"
"""Source of labels that a program gave."""
MODERATE_KAPPA = 0.4
"""Kappa of two label sources below which their agreement is called low. Landis and Koch 1977, doi:10.2307/2529310, call
agreement above this kappa "moderate", and below it "fair".
"""
MIN_SHARED_LABELS = 30
"""Fewest answers judged by both sources for which kappa is computed."""
TEXTS_PER_BLOCK = 128
"""Number of texts that are compared with all n texts at a time. At most TEXTS_PER_BLOCK * n pairs are in memory."""
MAX_COMPARED_PAIRS = 10_000_000
"""Number of pairs after which no further text is compared."""
MIN_SIMILARITY = 0.8
"""Texts of at least this Jaccard similarity are nearly the same."""

MIN_REWORDED_COSINE = 0.4
"""Least cosine of character n-grams for which two word problems with the same numbers are taken as one. In the recorded
stores different problems reach 0.3, and rewordings by hand 0.6.
"""
MAX_ALIKE_TEXTS = 5
"""A text that resembles more other texts than this, numbers aside, is taken as made from a template."""
MIN_QUESTION_NUMBERS, MIN_QUESTION_WORDS = 2, 8
"""Fewest numbers and words of a question that is searched for rewordings: "44 + 69" is not "69 + 44" reworded."""

Indices = NDArray[np.intp]
MIN_SERIES_TOKENS = 5
"""Fewest tokens of an answer whose log-probabilities are compared with those of others."""
LOGPROB_DECIMALS = 4
"""Decimals of a log-probability, in nats, on which two servers or two formats agree."""
MIN_DISTINCT_LOGPROBS = 3
"""Fewest distinct values of a series that is compared. Sure answers to different questions are all series of zeros."""
MIN_TWINS = 20
"""Fewest answers that occur more than once for which the labels of twins are compared."""
MAX_DISAGREEING_SHARE = 0.1
"""Labels are called noisy if more than this share of twins has different labels."""

_NUMBER = re.compile(r"\d+")


def group_overlap(groups: NDArray[np.str_], splits: Sequence[Split]) -> Finding:
    """Checks that no group has rows in two roles of one split. A group in two roles is a leak, whatever its size."""
    overlaps: list[str] = []
    for split in splits:
        for first, second in combinations(split, 2):
            shared = np.intersect1d(groups[split[first]], groups[split[second]])
            overlaps += [f"{group} in {first} and {second}" for group in shared.tolist()]
    detail = f"{len(overlaps)} overlaps, such as {'; '.join(overlaps[:2])}" if overlaps else "no group is in two roles"
    split_count_text = f"{len(splits)} split{'s' * (len(splits) != 1)}"
    return Finding("splits share no group", not overlaps, f"{detail} ({split_count_text})", "invalid")


def repeated_questions(questions: NDArray[np.str_], splits: Sequence[Split], *, y: Ints | None = None) -> Finding:
    """Checks that no question is in two roles of one split, whatever its group. Case, spacing and punctuation are
    ignored.

    A single repeated question fails the audit, and the detail says how many answers that touches. If labels `y` of 0
    and 1 are given, it also says by how much AUROC can move at most. The severity is `leak_reach`'s. Choices are not
    part of the question here: "Which of these is true?" with other choices is taken as the same question.

    Args:
        questions: the questions (n,).
        splits: the splits.
        y: labels of 0 and 1; None if unknown.
    """
    texts, text_index = np.unique([normalise(question) for question in questions.tolist()], return_inverse=True)
    not_empty = texts != ""
    repeated = np.zeros(len(texts), dtype=bool)
    touched_rows: list[Ints] = []
    for split in splits:
        is_repeated = np.sum([_occurs(text_index[rows], len(texts)) & not_empty for rows in split.values()], axis=0) > 1
        repeated |= is_repeated
        rows = _tested_rows(split)
        touched_rows.append(rows[is_repeated[text_index[rows]]])
    count, (reach_text, severity) = int(repeated.sum()), leak_reach(touched_rows, splits, y)
    detail = f"{count} of {int(not_empty.sum())} questions are in two roles"
    if count:
        examples = "; ".join(_shortened(text) for text in texts[repeated][:2].tolist())
        detail += f", such as {examples}; {reach_text}. Give what is asked the same way one group"
    return Finding("no question in two roles", not count, detail, severity)


def near_duplicates(
    questions: NDArray[np.str_],
    splits: Sequence[Split],
    *,
    y: Ints | None = None,
    seed: int = 0,
) -> Finding:
    """Checks that at most 1 % of the test questions have a near-duplicate among the seen questions.

    A near-duplicate has the same numbers in the same order, and a Jaccard similarity of word 3-grams of at least
    `MIN_SIMILARITY`. Questions that differ only in digits ("what is 3 + 5", "what is 4 + 9") are different questions
    with different answers. A fold that holds one of them tells nothing about the answer to the other. The two do share
    how hard their template is. That can be learned without any signal of the model, as the prompt-only control shows.
    So they are counted in the detail and do not fail the split. To be judged on new templates, give a template's
    questions one group.

    If the audit fails, the detail says how many answers that touches. If labels `y` are given, it also says by how much
    AUROC can move at most. The severity is `leak_reach`'s. Time and memory are bounded: if there are very many
    candidates, a sample of questions, drawn by `seed`, stands for all.

    Args:
        questions: the questions (n,).
        splits: the splits.
        y: labels of 0 and 1; None if unknown.
        seed: seed of the sample.
    """
    texts, text_index = np.unique([normalise(question) for question in questions.tolist()], return_inverse=True)
    template_index = np.unique([_NUMBER.sub("0", text) for text in texts.tolist()], return_inverse=True)[1]
    not_empty = texts != ""
    # Which questions are tested and which are seen, in each split.
    in_test = np.array([_occurs(text_index[_tested_rows(split)], len(texts)) & not_empty for split in splits])
    in_seen = np.array([_occurs(text_index[_seen_rows(split)], len(texts)) for split in splits])
    # Which tested questions leak: identical questions first, then near-duplicates.
    leaking = in_test & in_seen  # (splits, texts)
    checked = np.zeros(len(texts), dtype=bool)
    examples: list[str] = []
    for rows, i, j in nearly_identical(texts.tolist(), seed=seed):
        checked[rows] = True
        for fold in range(len(splits)):
            leaks = in_test[fold, i] & in_seen[fold, j]
            leaking[fold, i[leaks]] = True
            examples += _shortened_pairs(texts[i[leaks][:2]], texts[j[leaks][:2]])
    # How many answers that touches, and the words of the finding.
    touched_rows = [
        (rows := _tested_rows(split))[is_leaking[text_index[rows]]]
        for split, is_leaking in zip(splits, leaking, strict=True)
    ]
    reach_text, severity = leak_reach(touched_rows, splits, y)
    leaking, in_test = leaking & checked, in_test & checked
    template_count = sum(
        int(np.isin(template_index[row_test], template_index[row_seen]).sum())
        for row_test, row_seen in zip(in_test, in_seen, strict=True)
    )
    count, total = int(leaking.sum()), int(in_test.sum())
    detail = (
        f"{count} of {total} test questions ({_share_text(count, total)}) have a near-duplicate among the seen ones"
        f" (Jaccard of word 3-grams >= {MIN_SIMILARITY:g}, same numbers)"
    )
    if not checked[not_empty].all():
        detail += f"; {int(checked.sum())} of {len(texts)} questions drawn for the check"
    if examples:
        detail += f", such as {'; '.join(examples[:2])}"
    if count:
        detail += f"; {reach_text}"
    if template_count > count:
        detail += (
            f"; {_share_text(template_count, total)} share their template with a seen one: they differ in digits at "
            "most"
        )
    return Finding("no near-duplicate questions", count <= TOLERATED_SHARE * total, detail, severity)


def reworded_questions(questions: NDArray[np.str_], splits: Sequence[Split], *, y: Ints | None = None) -> Finding:
    """Checks that at most 1 % of the test questions repeat a seen question in other words.

    Compares questions of at least 2 numbers and 8 words with the same numbers and operators, in any order, by the
    cosine of character n-grams (`reworded_pairs`). Questions without numbers cannot be judged in this way. The severity
    of a failure is that of `near_duplicates`.

    Args:
        questions: the questions (n,).
        splits: the splits.
        y: labels of 0 and 1; None if unknown.
    """
    texts, text_index = np.unique([normalise(question) for question in questions.tolist()], return_inverse=True)
    i, j = reworded_pairs(texts.tolist())
    touched_rows: list[Ints] = []
    examples: list[str] = []
    count = total = 0
    for split in splits:
        rows = _tested_rows(split)
        in_test, in_seen = (_occurs(text_index[role_rows], len(texts)) for role_rows in (rows, _seen_rows(split)))
        leaks = in_test[i] & in_seen[j] & ~in_seen[i]  # questions repeated word for word are counted by other audits
        is_reworded = np.zeros(len(texts), dtype=bool)
        is_reworded[i[leaks]] = True
        touched_rows.append(rows[is_reworded[text_index[rows]]])
        count, total = count + int(is_reworded.sum()), total + int(in_test.sum())
        examples += _shortened_pairs(texts[i[leaks][:1]], texts[j[leaks][:1]])
    reach_text, severity = leak_reach(touched_rows, splits, y)
    detail = f"{count} of {total} test questions ({_share_text(count, total)}) are a seen one in other words"
    if count:
        detail += f", such as {'; '.join(examples[:2])}; {reach_text}"
    return Finding("no reworded questions", count <= TOLERATED_SHARE * total, detail, severity)


def leak_reach(touched: Sequence[Ints], splits: Sequence[Split], y: Ints | None) -> tuple[str, Severity]:
    """Returns a clause on how many answers a leak touches and by how much numbers can move, and its severity.

    AUROC is the share of pairs of a 1 and a 0 in the right order. A pair can move only if one of the two is touched.

    Args:
        touched: for each split, the rows that the leak touches.
        splits: the splits.
        y: labels of 0 and 1; None if unknown.
    """
    no_rows = np.empty(0, dtype=np.int64)  # where there are no splits
    rows, tested_rows = np.concatenate([no_rows, *touched]), np.concatenate([no_rows, *map(_tested_rows, splits)])
    clause = f"that touches {len(rows)} of {len(tested_rows)} answers ({_share_text(len(rows), len(tested_rows))})"
    if y is not None and len(rows):
        wrong_share, right_share = (
            np.sum(y[rows] == label) / max(int(np.sum(y[tested_rows] == label)), 1) for label in (0, 1)
        )
        clause += f", and AUROC can move by at most {1 - (1 - wrong_share) * (1 - right_share):.3f} through it"
    return clause, "invalid" if len(rows) > LARGE_LEAK_SHARE * len(tested_rows) else "weak"


def _tested_rows(split: Split) -> Ints:
    return split.get(TEST_ROLE, np.empty(0, dtype=np.int64))


def class_balance(y: Ints) -> Finding:
    """Checks that both classes are common enough to learn from."""
    share = float(np.mean(y))
    rarer = min(share, float(np.mean(y == 0)))  # 1 - share falls short of a tenth by rounding
    return Finding(
        "both classes are common",
        rarer >= RARE_CLASS_SHARE,
        f"{share:.0%} of {len(y)} labels are 1; the rarer class has {rarer:.1%}, expected {RARE_CLASS_SHARE:.0%}",
    )


def labels_by_source(runs: Iterable[Run], call_ids: Sequence[str], target: str) -> dict[str, NDArray[np.float64]]:
    """Maps each source to its last label of each call, shape (n,); NaN if the source gave none.

    Args:
        runs: the runs.
        call_ids: ids of the calls.
        target: name of the label.
    """
    row = {call_id: i for i, call_id in enumerate(call_ids)}
    by_source: dict[str, NDArray[np.float64]] = {}
    for run in runs:
        for label in run.labels:
            if label.name == target and label.call_id in row:
                by_source.setdefault(label.source, np.full(len(row), np.nan))[row[label.call_id]] = label.value
    return by_source


def label_noise(
    labels: Mapping[str, NDArray[np.float64]],
    groups: NDArray[np.str_],
    *,
    y: Ints | None = None,
    seed: int = 0,
) -> list[Finding]:
    """Checks for every two sources of labels that Cohen's kappa is at least `MODERATE_KAPPA`.

    Sources that share fewer than `MIN_SHARED_LABELS` answers are not compared. A lower kappa is `invalid`: the numbers
    then say how well one source is imitated, not how good the answers are. The detail gives the best AUROC that such
    noise allows (`auroc_ceiling`). If the labels in use, `y`, are the program's, a low kappa with another source is
    only `weak`, because a program does not guess.

    Args:
        labels: labels of 0, 1 and NaN, as from `labels_by_source`.
        groups: the groups (n,).
        y: the labels in use.
        seed: seed of the bootstrap.
    """
    audits = []
    for first, second in combinations(sorted(labels), 2):
        has_both = np.isfinite(labels[first]) & np.isfinite(labels[second])
        first_labels, second_labels = labels[first][has_both], labels[second][has_both]
        if len(first_labels) < MIN_SHARED_LABELS:
            continue
        kappa = interval(
            quadratic_weighted_kappa,
            first_labels,
            second_labels,
            cluster_weights(groups[has_both].tolist(), 1000, seed),
        )
        agreement = float(np.mean(first_labels == second_labels))
        detail = f"kappa {format_interval(kappa)}, {agreement:.0%} of {len(first_labels)} agree"
        for source, source_labels in ((first, first_labels), (second, second_labels)):
            if 0 < source_labels.mean() < 1:
                detail += (
                    f"; against {source} no more than AUROC {auroc_ceiling(agreement, float(source_labels.mean())):.2f}"
                )
        # The kappa is NaN where both sources give one label throughout: they agree.
        passed = bool(np.isnan(kappa.estimate) or kappa.estimate >= MODERATE_KAPPA)
        is_program_in_use = (
            y is not None and PROGRAM in (first, second) and bool((labels[PROGRAM] == y)[has_both].all())
        )
        audits.append(
            Finding(f"{first} and {second} agree", passed, detail, "weak" if is_program_in_use else "invalid")
        )
    return audits


def auroc_ceiling(agreement: float, share: float) -> float:
    """Returns the AUROC of a score that knows the truth z, measured against a source that errs.

    `share` of this source's labels y are 1. Let two sources each err with probability e, independently of each other
    and, given z, of the answer. They then agree with probability a = (1 - e)^2 + e^2. So e = (1 - sqrt(2a - 1)) / 2
    (1/2 if a <= 1/2). Then P(z = 1) is p = (share - e) / (1 - 2e), held in [0, 1]. With z itself as the score

        AUROC = (P(z = 1 | y = 1) + P(z = 0 | y = 0)) / 2 = (p (1 - e) / share + (1 - p) (1 - e) / (1 - share)) / 2.

    No score that depends on y only through z exceeds it. A score that does exceed it has learned the source's own bias.
    """
    root = np.sqrt(max(2 * agreement - 1, 0.0))
    error = (1 - root) / 2
    if root == 0:
        return 0.5
    p = float(np.clip((share - error) / root, 0, 1))
    return float(min((p / share + (1 - p) / (1 - share)) * (1 - error) / 2, 1.0))


def _seen_rows(split: Split) -> Ints:
    return np.concatenate([rows for role, rows in split.items() if role != TEST_ROLE])


def _occurs(numbers: NDArray[np.intp], n: int) -> NDArray[np.bool_]:
    """Returns for each number from 0 to n - 1 whether it occurs among `numbers`; shape (n,)."""
    return np.bincount(numbers, minlength=n) > 0


def _share_text(count: int, total: int) -> str:
    return f"{count / total:.1%}" if total else "none"


def _shortened(text: str) -> str:
    return repr(str(text) if len(text) <= 80 else f"{text[:40]} ... {text[-35:]}")


def _shortened_pairs(first_texts: NDArray[np.str_], other_texts: NDArray[np.str_]) -> list[str]:
    return [
        f"{_shortened(first)} / {_shortened(second)}" for first, second in zip(first_texts, other_texts, strict=True)
    ]


def normalise(text: str) -> str:
    """Returns the text in lower case, without clause punctuation, and with one space between words and operators."""
    return " ".join(re.findall(r"\w+|[^\w\s.,;:!?'\"]", text.casefold()))


def nearly_identical(texts: Sequence[str], *, seed: int = 0) -> Iterator[tuple[Indices, Indices, Indices]]:
    """Yields the `similar_pairs` of normalised texts that hold the same numbers in the same order.

    Questions that differ only in digits ("what is 3 + 5", "what is 4 + 9") are different questions.
    """
    numbers = np.unique([" ".join(_NUMBER.findall(text)) for text in texts], return_inverse=True)[1]
    for rows, i, j in similar_pairs(texts, MIN_SIMILARITY, seed=seed):
        has_same_numbers = numbers[i] == numbers[j]
        yield rows, i[has_same_numbers], j[has_same_numbers]


def reworded_pairs(texts: Sequence[str]) -> tuple[Indices, Indices]:
    """Returns pairs (i, j) of normalised texts that ask the same in other words.

    Such texts have the same numbers, in any order, and similar letters (cosine of TF-IDF weighted character 3- and
    4-grams).
    Only texts of at least 2 numbers and 8 words are compared: without numbers, a rewording cannot be told from another
    question about the same thing. Texts made from a template, which resemble more than 5 texts whatever the numbers,
    are left out, because there the same numbers occur by chance. Each pair is returned in both orders. Ends early as
    `similar_pairs` does.
    """
    # Texts with the same numbers and operators.
    rows_of_numbers: dict[tuple[str, ...], list[int]] = {}
    for row, text in enumerate(texts):
        numbers = _NUMBER.findall(text)
        if len(numbers) >= MIN_QUESTION_NUMBERS and len(re.findall(r"[^\W\d]+", text)) >= MIN_QUESTION_WORDS:
            rows_of_numbers.setdefault((*sorted(numbers), *sorted(re.findall(r"[+*/=^<>×÷]", text))), []).append(row)
    near_pairs, compared = [np.empty((0, 2), dtype=np.intp)], 0
    row_groups = [np.array(rows, dtype=np.intp) for rows in rows_of_numbers.values() if len(rows) > 1]
    if not row_groups:
        return near_pairs[0][:, 0], near_pairs[0][:, 1]
    extraction = require("sklearn.feature_extraction.text", "fit")
    vectorizer = extraction.TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 4), sublinear_tf=True, dtype=np.float32)
    grams = vectorizer.fit_transform(texts)
    # Pairs with similar letters among them.
    for rows in row_groups:
        for start in range(0, len(rows), TEXTS_PER_BLOCK):
            block = rows[start : start + TEXTS_PER_BLOCK]
            near = np.argwhere((grams[block] @ grams[rows].T).toarray() >= MIN_REWORDED_COSINE)
            pairs = np.stack([block[near[:, 0]], rows[near[:, 1]]], axis=1)
            near_pairs.append(pairs[pairs[:, 0] != pairs[:, 1]])
            compared += len(block) * len(rows)
            if compared > MAX_COMPARED_PAIRS:
                break
    # Without texts that resemble many others once their numbers are masked.
    pairs = np.concatenate(near_pairs)
    rows = np.unique(pairs)
    if not len(rows):
        return pairs[:, 0], pairs[:, 1]
    masked = vectorizer.fit_transform([_NUMBER.sub("0", text) for text in texts])
    is_no_template = np.zeros(len(texts), dtype=bool)
    for start in range(0, len(rows), TEXTS_PER_BLOCK):
        block = rows[start : start + TEXTS_PER_BLOCK]
        is_alike = (masked[block] @ masked.T).toarray() >= MIN_REWORDED_COSINE
        is_no_template[block] = is_alike.sum(axis=1) <= MAX_ALIKE_TEXTS + 1  # each text resembles itself
    unique_pairs = pairs[is_no_template[pairs].all(axis=1)]
    return unique_pairs[:, 0], unique_pairs[:, 1]


def similar_pairs(
    texts: Sequence[str], threshold: float, *, seed: int = 0
) -> Iterator[tuple[Indices, Indices, Indices]]:
    """Yields, for each block of the texts in random order, the block and its pairs (i in the block, j any other).

    Candidates are found by prefix filtering (Bayardo, Ma and Srikant 2007, doi:10.1145/1242572.1242591). With grams
    ordered from rare to common, two sets of similarity t share one of the first |x| - ceil(t |x|) + 1 grams of each.
    Ends early if there are very many candidates, as among long templates.

    Args:
        texts: the texts.
        threshold: least Jaccard similarity.
        seed: seed of the order.
    """
    if not any(texts):
        return
    vectorizer = require("sklearn.feature_extraction.text", "fit").CountVectorizer(
        analyzer=_grams, binary=True, dtype=np.int32
    )
    grams = vectorizer.fit_transform(texts)
    grams = grams[:, np.argsort(grams.getnnz(axis=0), kind="stable")].tocsr()
    grams.sort_indices()
    sizes = np.diff(grams.indptr)
    prefix = grams.copy()
    rank = np.arange(grams.nnz) - np.repeat(grams.indptr[:-1], sizes)  # place within its text, rarest first
    prefix.data[rank > np.repeat(sizes - np.ceil(threshold * sizes - 1e-9), sizes)] = 0
    prefix.eliminate_zeros()
    order = np.random.default_rng(seed).permutation(len(texts))
    columns, compared = prefix.T.tocsr(), 0
    for start in range(0, len(order), TEXTS_PER_BLOCK):
        rows = order[start : start + TEXTS_PER_BLOCK]
        candidates = (prefix[rows] @ columns).tocoo()
        i, j = np.unique(rows[candidates.row]), np.unique(candidates.col)
        shared = (grams[i] @ grams[j].T).tocoo()
        i, j = i[shared.row], j[shared.col]
        similar = (shared.data >= threshold * (sizes[i] + sizes[j] - shared.data) - 1e-9) & (i != j)
        yield rows, i[similar], j[similar]
        compared += len(i)
        if compared > MAX_COMPARED_PAIRS:
            return


def _grams(text: str) -> list[str]:
    """Returns the word 3-grams. A text of fewer words is one gram, an empty text has none."""
    words = text.split()
    return [" ".join(words[i : i + 3]) for i in range(max(len(words) - 2, 1))] if words else []


def number_series(logprobs: NDArray[np.object_]) -> Ints:
    """Returns a number for each series of log-probabilities, shape (n,); equal series have one number.

    The number is -1 for a series that is too short or has too few distinct values to be compared.
    """
    number_of_series: dict[bytes, int] = {}
    numbers = np.full(len(logprobs), -1)
    for row, values in enumerate(logprobs):
        rounded = np.round(np.asarray(values, dtype=np.float64), LOGPROB_DECIMALS) + 0.0  # -0.0 becomes 0.0
        if len(rounded) >= MIN_SERIES_TOKENS and len(np.unique(rounded)) >= MIN_DISTINCT_LOGPROBS:
            numbers[row] = number_of_series.setdefault(rounded.tobytes(), len(number_of_series))
    return numbers


def repeated_series(logprobs: NDArray[np.object_], splits: Sequence[Split], *, y: Ints | None = None) -> Finding:
    """Checks that at most 1 % of the test answers have the log-probabilities of a seen answer, token by token.

    Answers of at least 5 tokens are compared, to four decimals. Answers to two different questions never agree so
    closely: one answer is a copy in another group. The severity of a failure is that of `near_duplicates`, and the
    detail says by how much AUROC can move.

    Args:
        logprobs: the log-probabilities of each answer.
        splits: the splits.
        y: labels of 0 and 1; None if unknown.
    """
    series = number_series(logprobs)
    touched_rows, total = [], 0
    for split in splits:
        rows = _tested_rows(split)
        rows = rows[series[rows] >= 0]
        touched_rows.append(rows[np.isin(series[rows], series[_seen_rows(split)])])
        total += len(rows)
    count, (reach_text, severity) = sum(map(len, touched_rows)), leak_reach(touched_rows, splits, y)
    detail = (
        f"{count} of {total} test answers of {MIN_SERIES_TOKENS} tokens and more have the log-probabilities of a seen "
        "one"
    )
    if count:
        detail += f"; {reach_text}. Give answers that are copies one group"
    return Finding("no answer twice", count <= TOLERATED_SHARE * total, detail, severity)


def twins_disagree(logprobs: NDArray[np.object_], y: Ints) -> Finding | None:
    """Checks that at most 10 % of the answers that occur more than once have another label than their twin.

    Twins have the same log-probabilities, as in `repeated_series`, whatever their groups. If the same answer has two
    labels, one label is wrong. The detail gives the best AUROC that such noise allows (`auroc_ceiling`). Returns None
    if there are fewer than 20 twins.
    """
    series = number_series(logprobs)
    comparable = np.flatnonzero(series >= 0)
    _, member, copies = np.unique(series[comparable], return_inverse=True, return_counts=True)
    right_count = np.bincount(member, weights=y[comparable])[member]
    is_twin = copies[member] > 1
    if is_twin.sum() < MIN_TWINS:
        return None
    labels, twin_count = y[comparable][is_twin], copies[member][is_twin] - 1
    agreeing_twins = np.where(labels == 1, right_count[is_twin] - 1, twin_count - right_count[is_twin])
    agreement = float(np.mean(agreeing_twins / twin_count))
    detail = f"{int(is_twin.sum())} answers occur more than once; their twin has the other label in {1 - agreement:.1%}"
    if 0 < y.mean() < 1 and agreement < 1:
        detail += f"; with labels so noisy no score has more than AUROC {auroc_ceiling(agreement, float(y.mean())):.2f}"
    return Finding("twins have one label", 1 - agreement <= MAX_DISAGREEING_SHARE, detail)
