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

TEST = "test"

RARE = 0.1
"""A class with less than this share of the answers is rare."""
TOLERATED = 0.01
"""Share of test questions that may resemble a seen question."""
LARGE = 0.05
"""A leak that touches more than this share of the answers makes the numbers `invalid`, a smaller one `weak`."""
PROGRAM = "program"
"""Source of labels that a program gave."""
KAPPA = 0.4
"""Kappa of two label sources below which their agreement is called low. Landis and Koch 1977, doi:10.2307/2529310, call
agreement above this kappa "moderate", and below it "fair".
"""
FEW_SHARED = 30
"""Fewest answers judged by both sources for which kappa is computed."""
TEXTS_PER_BLOCK = 128
"""Number of texts that are compared with all others at a time, so at most TEXTS_PER_BLOCK * n pairs are in memory."""
MAX_COMPARED = 10_000_000
"""Number of pairs after which no further text is compared."""
SIMILAR = 0.8
"""Texts of at least this Jaccard similarity are nearly the same."""

REWORDED = 0.4
"""Word problems with the same numbers are one if the cosine of their character n-grams is at least this. In the
recorded stores different problems reach 0.3, and rewordings by hand 0.6.
"""
MOST_ALIKE = 5
"""A text that resembles more other texts than this, numbers aside, is taken as made from a template."""
FEWEST_NUMBERS, FEWEST_WORDS = 2, 8
"""A question needs so many numbers and words to be told from others: "44 + 69" is not "69 + 44" reworded."""

Indices = NDArray[np.intp]
FEWEST_TOKENS = 5
DECIMALS = 4
"""Decimals of a log-probability, in nats, on which two servers or two formats agree."""
FEWEST_VALUES = 3
"""A series with fewer different values is not compared: answers of which a model is sure are all rows of zeros."""
FEWEST_TWINS = 20
DISAGREEING = 0.1
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
    several = f"{len(splits)} split{'s' * (len(splits) != 1)}"
    return Finding("splits share no group", not overlaps, f"{detail} ({several})", "invalid")


def repeated_questions(questions: NDArray[np.str_], splits: Sequence[Split], *, y: Ints | None = None) -> Finding:
    """No question is in two roles of one split, under whatever group. Case, spacing and punctuation are ignored.

    A single repeated question fails the audit, which says how many answers it touches. If labels `y` of 0 and 1 are
    given, it also says by how much AUROC can move at most. `invalid` if it touches more than 5 % of the answers.
    Choices are not part of the question here: "Which of these is true?" with other choices is taken as the same.

    Args:
        questions: the questions (n,).
        splits: the splits.
        y: labels of 0 and 1; None if unknown.
    """
    texts, number = np.unique([normalise(question) for question in questions.tolist()], return_inverse=True)
    not_empty = texts != ""
    repeated = np.zeros(len(texts), dtype=bool)
    touched: list[Ints] = []
    for split in splits:
        is_repeated = np.sum([_among(number[rows], len(texts)) & not_empty for rows in split.values()], axis=0) > 1
        repeated |= is_repeated
        rows = _tested_rows(split)
        touched.append(rows[is_repeated[number[rows]]])
    count, (reach, severity) = int(repeated.sum()), leak_reach(touched, splits, y)
    detail = f"{count} of {int(not_empty.sum())} questions are in two roles"
    if count:
        examples = "; ".join(_short(text) for text in texts[repeated][:2].tolist())
        detail += f", such as {examples}; {reach}. Give what is asked the same way one group"
    return Finding("no question in two roles", not count, detail, severity)


def near_duplicates(
    questions: NDArray[np.str_],
    splits: Sequence[Split],
    *,
    y: Ints | None = None,
    seed: int = 0,
) -> Finding:
    """At most 1 % of the test questions have a near-duplicate among the seen ones.

    A near-duplicate has the same numbers in the same order, and a Jaccard similarity of word 3-grams of at least
    `SIMILAR`. Questions that differ only in digits ("what is 3 + 5", "what is 4 + 9") are different questions with
    different answers, so a fold that holds one of them tells nothing about the other. They do share how hard their
    template is, which can be learned without any signal of the model; the prompt-only control shows that. So they are
    counted in the detail and do not fail the split. Give a template's questions one group to be judged on new
    templates.

    If it fails, it says how many answers that touches and, if labels `y` are given, by how much AUROC can move at most.
    `invalid` if it touches more than 5 % of the answers. Time and memory are bounded: if there are very many
    candidates, a sample of questions, drawn by `seed`, stands for all.

    Args:
        questions: the questions (n,).
        splits: the splits.
        y: labels of 0 and 1; None if unknown.
        seed: seed of the sample.
    """
    texts, number = np.unique([normalise(question) for question in questions.tolist()], return_inverse=True)
    masked = np.unique([_NUMBER.sub("0", text) for text in texts.tolist()], return_inverse=True)[1]
    not_empty = texts != ""
    test = np.array([_among(number[_tested_rows(split)], len(texts)) & not_empty for split in splits])
    seen = np.array([_among(number[_seen_rows(split)], len(texts)) for split in splits])
    hit = test & seen  # (splits, texts); identical ones to begin with
    checked = np.zeros(len(texts), dtype=bool)
    examples: list[str] = []
    for rows, i, j in nearly_identical(texts.tolist(), seed=seed):
        checked[rows] = True
        for fold in range(len(splits)):
            leaks = test[fold, i] & seen[fold, j]
            hit[fold, i[leaks]] = True
            examples += _short_pairs(texts[i[leaks][:2]], texts[j[leaks][:2]])
    touched = [(rows := _tested_rows(split))[here[number[rows]]] for split, here in zip(splits, hit, strict=True)]
    reach, severity = leak_reach(touched, splits, y)
    hit, test = hit & checked, test & checked
    template = sum(
        int(np.isin(masked[row_test], masked[row_seen]).sum()) for row_test, row_seen in zip(test, seen, strict=True)
    )
    count, total = int(hit.sum()), int(test.sum())
    detail = (
        f"{count} of {total} test questions ({_share(count, total)}) have a near-duplicate among the seen ones"
        f" (Jaccard of word 3-grams >= {SIMILAR:g}, same numbers)"
    )
    if not checked[not_empty].all():
        detail += f"; {int(checked.sum())} of {len(texts)} questions drawn for the check"
    if examples:
        detail += f", such as {'; '.join(examples[:2])}"
    if count:
        detail += f"; {reach}"
    if template > count:
        detail += f"; {_share(template, total)} share their template with a seen one: they differ in digits at most"
    return Finding("no near-duplicate questions", count <= TOLERATED * total, detail, severity)


def reworded_questions(questions: NDArray[np.str_], splits: Sequence[Split], *, y: Ints | None = None) -> Finding:
    """Checks that at most 1 % of the test questions repeat a seen question in other words.

    Compares questions of at least 2 numbers and 8 words with the same numbers and operators, in any order, by the
    cosine of character n-grams (`reworded_pairs`). Questions without numbers cannot be judged in this way. Fails as
    `near_duplicates`.

    Args:
        questions: the questions (n,).
        splits: the splits.
        y: labels of 0 and 1; None if unknown.
    """
    texts, number = np.unique([normalise(question) for question in questions.tolist()], return_inverse=True)
    i, j = reworded_pairs(texts.tolist())
    touched: list[Ints] = []
    examples: list[str] = []
    count = total = 0
    for split in splits:
        rows = _tested_rows(split)
        test, seen = (_among(number[part], len(texts)) for part in (rows, _seen_rows(split)))
        leaks = test[i] & seen[j] & ~seen[i]  # what is there word for word is counted by others
        is_reworded = np.zeros(len(texts), dtype=bool)
        is_reworded[i[leaks]] = True
        touched.append(rows[is_reworded[number[rows]]])
        count, total = count + int(is_reworded.sum()), total + int(test.sum())
        examples += _short_pairs(texts[i[leaks][:1]], texts[j[leaks][:1]])
    reach, severity = leak_reach(touched, splits, y)
    detail = f"{count} of {total} test questions ({_share(count, total)}) are a seen one in other words"
    if count:
        detail += f", such as {'; '.join(examples[:2])}; {reach}"
    return Finding("no reworded questions", count <= TOLERATED * total, detail, severity)


def leak_reach(touched: Sequence[Ints], splits: Sequence[Split], y: Ints | None) -> tuple[str, Severity]:
    """Returns a clause on how many answers a leak touches and by how much numbers can move, and its severity.

    AUROC is the share of pairs of a 1 and a 0 in the right order. A pair can move only if one of the two is touched.

    Args:
        touched: for each split, the rows that the leak touches.
        splits: the splits.
        y: labels of 0 and 1; None if unknown.
    """
    none = np.empty(0, dtype=np.int64)  # where there are no splits
    rows, tested = np.concatenate([none, *touched]), np.concatenate([none, *map(_tested_rows, splits)])
    words = f"that touches {len(rows)} of {len(tested)} answers ({_share(len(rows), len(tested))})"
    if y is not None and len(rows):
        wrong, right = (np.sum(y[rows] == label) / max(int(np.sum(y[tested] == label)), 1) for label in (0, 1))
        words += f", and AUROC can move by at most {1 - (1 - wrong) * (1 - right):.3f} through it"
    return words, "invalid" if len(rows) > LARGE * len(tested) else "weak"


def _tested_rows(split: Split) -> Ints:
    return split.get(TEST, np.empty(0, dtype=np.int64))


def class_balance(y: Ints) -> Finding:
    """Checks that both classes are common enough to learn from."""
    share = float(np.mean(y))
    rarer = min(share, float(np.mean(y == 0)))  # 1 - share falls short of a tenth by rounding
    return Finding(
        "both classes are common",
        rarer >= RARE,
        f"{share:.0%} of {len(y)} labels are 1; the rarer class has {rarer:.1%}, expected {RARE:.0%}",
    )


def labels_by_source(runs: Iterable[Run], call_ids: Sequence[str], target: str) -> dict[str, NDArray[np.float64]]:
    """Maps each source to its last label of each call, shape (n,); NaN if it gave none.

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
    """One finding for every two sources that both judged at least 30 answers: Cohen's kappa is at least 0.4.

    Below it, the numbers say how well one source is imitated, not how good the answers are: `invalid`. The detail gives
    the best AUROC that such noise allows: `auroc_ceiling`. If the labels in use, `y`, are the program's, another source
    that disagrees is `weak`, because a program does not guess.

    Args:
        labels: labels of 0, 1 and NaN, as from `labels_by_source`.
        groups: the groups (n,).
        y: the labels in use.
        seed: seed of the bootstrap.
    """
    audits = []
    for first, second in combinations(sorted(labels), 2):
        both = np.isfinite(labels[first]) & np.isfinite(labels[second])
        a, b = labels[first][both], labels[second][both]
        if len(a) < FEW_SHARED:
            continue
        kappa = interval(quadratic_weighted_kappa, a, b, cluster_weights(groups[both].tolist(), 1000, seed))
        agreement = float(np.mean(a == b))
        detail = f"kappa {format_interval(kappa)}, {agreement:.0%} of {len(a)} agree"
        for source, source_labels in ((first, a), (second, b)):
            if 0 < source_labels.mean() < 1:
                detail += (
                    f"; against {source} no more than AUROC {auroc_ceiling(agreement, float(source_labels.mean())):.2f}"
                )
        # Undefined where both say one thing throughout: they agree.
        passed = bool(np.isnan(kappa.estimate) or kappa.estimate >= KAPPA)
        checked = y is not None and PROGRAM in (first, second) and bool((labels[PROGRAM] == y)[both].all())
        audits.append(Finding(f"{first} and {second} agree", passed, detail, "weak" if checked else "invalid"))
    return audits


def auroc_ceiling(agreement: float, share: float) -> float:
    """Returns the AUROC of a score that knows the truth z, measured against a source that errs.

    `share` of this source's labels y are 1. If two sources each err with probability e, independently of each other and
    of the answer given z, they agree with probability a = (1 - e)^2 + e^2. So e = (1 - sqrt(2a - 1)) / 2 (1/2 if a <=
    1/2). Then P(z = 1) is p = (share - e) / (1 - 2e), held in [0, 1]. With z itself as the score

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
    return np.concatenate([rows for role, rows in split.items() if role != TEST])


def _among(numbers: NDArray[np.intp], n: int) -> NDArray[np.bool_]:
    """Returns for each number (n,) whether it occurs."""
    return np.bincount(numbers, minlength=n) > 0


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "none"


def _short(text: str) -> str:
    return repr(str(text) if len(text) <= 80 else f"{text[:40]} ... {text[-35:]}")


def _short_pairs(some: NDArray[np.str_], other: NDArray[np.str_]) -> list[str]:
    return [f"{_short(first)} / {_short(second)}" for first, second in zip(some, other, strict=True)]


def normalise(text: str) -> str:
    """Returns the text in lower case, words and operators apart by one space, without punctuation that ends
    a clause.
    """
    return " ".join(re.findall(r"\w+|[^\w\s.,;:!?'\"]", text.casefold()))


def nearly_identical(texts: Sequence[str], *, seed: int = 0) -> Iterator[tuple[Indices, Indices, Indices]]:
    """Yields the `similar_pairs` of normalised texts that hold the same numbers in the same order.

    Questions that differ only in digits ("what is 3 + 5", "what is 4 + 9") are different questions.
    """
    numbers = np.unique([" ".join(_NUMBER.findall(text)) for text in texts], return_inverse=True)[1]
    for rows, i, j in similar_pairs(texts, SIMILAR, seed=seed):
        same = numbers[i] == numbers[j]
        yield rows, i[same], j[same]


def reworded_pairs(texts: Sequence[str]) -> tuple[Indices, Indices]:
    """Returns pairs (i, j) of normalised texts that ask the same in other words.

    They have the same numbers, in any order, and similar letters (cosine of TF-IDF weighted character 3- and 4-grams).
    Only texts of at least 2 numbers and 8 words are compared: without numbers, a rewording cannot be told from another
    question about the same thing. Texts made from a template, which resemble more than 5 texts whatever the numbers,
    are left out, because there the same numbers occur by chance. Each pair is returned in both orders. Ends early as
    `similar_pairs` does.
    """
    alike: dict[tuple[str, ...], list[int]] = {}
    for row, text in enumerate(texts):
        numbers = _NUMBER.findall(text)
        if len(numbers) >= FEWEST_NUMBERS and len(re.findall(r"[^\W\d]+", text)) >= FEWEST_WORDS:
            alike.setdefault((*sorted(numbers), *sorted(re.findall(r"[+*/=^<>×÷]", text))), []).append(row)
    near_pairs, compared = [np.empty((0, 2), dtype=np.intp)], 0
    groups = [np.array(rows, dtype=np.intp) for rows in alike.values() if len(rows) > 1]
    if not groups:
        return near_pairs[0][:, 0], near_pairs[0][:, 1]
    extraction = require("sklearn.feature_extraction.text", "fit")
    vectorizer = extraction.TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 4), sublinear_tf=True, dtype=np.float32)
    grams = vectorizer.fit_transform(texts)
    for rows in groups:
        for start in range(0, len(rows), TEXTS_PER_BLOCK):
            block = rows[start : start + TEXTS_PER_BLOCK]
            near = np.argwhere((grams[block] @ grams[rows].T).toarray() >= REWORDED)
            pairs = np.stack([block[near[:, 0]], rows[near[:, 1]]], axis=1)
            near_pairs.append(pairs[pairs[:, 0] != pairs[:, 1]])
            compared += len(block) * len(rows)
            if compared > MAX_COMPARED:
                break
    pairs = np.concatenate(near_pairs)
    rows = np.unique(pairs)
    if not len(rows):
        return pairs[:, 0], pairs[:, 1]
    masked = vectorizer.fit_transform([_NUMBER.sub("0", text) for text in texts])
    alone = np.zeros(len(texts), dtype=bool)
    for start in range(0, len(rows), TEXTS_PER_BLOCK):
        block = rows[start : start + TEXTS_PER_BLOCK]
        near = (masked[block] @ masked.T).toarray() >= REWORDED
        alone[block] = near.sum(axis=1) <= MOST_ALIKE + 1  # itself is one
    unique_pairs = pairs[alone[pairs].all(axis=1)]
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
        if compared > MAX_COMPARED:
            return


def _grams(text: str) -> list[str]:
    """Returns the word 3-grams. A text of fewer words is one gram, an empty text has none."""
    words = text.split()
    return [" ".join(words[i : i + 3]) for i in range(max(len(words) - 2, 1))] if words else []


def number_series(logprobs: NDArray[np.object_]) -> Ints:
    """Returns (n,) a number for each series of log-probabilities, equal for equal series; -1 for a series that tells
    too little.
    """
    number_of_series: dict[bytes, int] = {}
    numbers = np.full(len(logprobs), -1)
    for row, values in enumerate(logprobs):
        rounded = np.round(np.asarray(values, dtype=np.float64), DECIMALS) + 0.0  # -0.0 becomes 0.0
        if len(rounded) >= FEWEST_TOKENS and len(np.unique(rounded)) >= FEWEST_VALUES:
            numbers[row] = number_of_series.setdefault(rounded.tobytes(), len(number_of_series))
    return numbers


def repeated_series(logprobs: NDArray[np.object_], splits: Sequence[Split], *, y: Ints | None = None) -> Finding:
    """At most 1 % of the test answers have the log-probabilities of a seen answer, token by token.

    Answers of at least 5 tokens are compared, to four decimals. Answers to two different questions never agree so far:
    one is a copy, under another group. Fails as `near_duplicates` does, and says by how much AUROC can move.

    Args:
        logprobs: the log-probabilities of each answer.
        splits: the splits.
        y: labels of 0 and 1; None if unknown.
    """
    series = number_series(logprobs)
    touched, total = [], 0
    for split in splits:
        rows = _tested_rows(split)
        rows = rows[series[rows] >= 0]
        touched.append(rows[np.isin(series[rows], series[_seen_rows(split)])])
        total += len(rows)
    count, (reach, severity) = sum(map(len, touched)), leak_reach(touched, splits, y)
    detail = (
        f"{count} of {total} test answers of {FEWEST_TOKENS} tokens and more have the log-probabilities of a seen one"
    )
    if count:
        detail += f"; {reach}. Give answers that are copies one group"
    return Finding("no answer twice", count <= TOLERATED * total, detail, severity)


def twins_disagree(logprobs: NDArray[np.object_], y: Ints) -> Finding | None:
    """At most 10 % of the answers that occur more than once have another label than their twin.

    Twins have the same log-probabilities, as in `repeated_series`, whatever their groups. If the same answer has two
    labels, one label is wrong. The detail gives the best AUROC that such noise allows: `auroc_ceiling`. Returns None if
    there are fewer than 20 twins.
    """
    series = number_series(logprobs)
    comparable = np.flatnonzero(series >= 0)
    _, member, size = np.unique(series[comparable], return_inverse=True, return_counts=True)
    ones = np.bincount(member, weights=y[comparable])[member]
    several = size[member] > 1
    if several.sum() < FEWEST_TWINS:
        return None
    labels, others = y[comparable][several], size[member][several] - 1
    same = np.where(labels == 1, ones[several] - 1, others - ones[several])
    agreement = float(np.mean(same / others))
    detail = f"{int(several.sum())} answers occur more than once; their twin has the other label in {1 - agreement:.1%}"
    if 0 < y.mean() < 1 and agreement < 1:
        detail += f"; with labels so noisy no score has more than AUROC {auroc_ceiling(agreement, float(y.mean())):.2f}"
    return Finding("twins have one label", 1 - agreement <= DISAGREEING, detail)
