"""An ended answer still had as much to come as the mean of those that went on, where there are enough of them."""

import sys
import threading

from metaprobe.production.monitoring.log import MIN_LONGER_ANSWERS, MOST_MODELS, AnswerLengths


def test_the_estimate_is_the_mean_of_what_longer_answers_had_still_to_come() -> None:
    lengths = AnswerLengths()
    for number in range(MIN_LONGER_ANSWERS):
        lengths.add("m", 10 if number % 2 else 40)
        lengths.add("m", 5)
        lengths.add("other", 1000)
    assert lengths.estimate_left("m", 5) == 20  # of those longer than 5, and not of those that ended there
    assert lengths.estimate_left("m", 5, 12) == 7
    assert lengths.estimate_left("m", 5, 3) == 0
    assert lengths.estimate_left("other", 5) == 995


def test_of_few_longer_answers_and_of_unknown_models_nothing_is_said() -> None:
    lengths = AnswerLengths()
    for _ in range(MIN_LONGER_ANSWERS - 1):
        lengths.add("m", 100)
    lengths.add("m", 50)
    assert lengths.estimate_left("m", 49) is not None
    assert lengths.estimate_left("m", 50) is None
    assert lengths.estimate_left("nobody", 1) is None


def test_models_whose_names_callers_make_up_do_not_fill_the_memory() -> None:
    lengths = AnswerLengths()
    for number in range(10 * MOST_MODELS):
        lengths.add(f"m{number}", 1)
    assert len(lengths._by_model) == MOST_MODELS


def test_threads_may_read_while_others_write() -> None:
    lengths, failed, before = AnswerLengths(), [], sys.getswitchinterval()

    def write() -> None:
        for number in range(5_000):
            lengths.add("m", number)

    def read() -> None:
        try:
            for _ in range(20):
                lengths.estimate_left("m", 1)
        except RuntimeError as error:
            failed.append(error)

    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work) for work in (write, read, read)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert failed == []
