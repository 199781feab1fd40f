"""One predictor in many threads and processes, and for a long time."""

import multiprocessing
import pickle
import resource
from concurrent.futures import ThreadPoolExecutor

import pytest
from tiny import responses, tiny_quality

from metaprobe import QualityPredictor

ANSWERS = responses(24)


@pytest.fixture(scope="module")
def predictor(tmp_path_factory):
    return QualityPredictor(tiny_quality(tmp_path_factory.mktemp("shared") / "quality"))


@pytest.fixture(scope="module")
def alone(predictor):
    """Returns the verdicts of one thread."""
    return [predictor.predict(answer) for answer in ANSWERS]


def scores(predictor):
    """Runs in another process."""
    return [predictor.predict(answer) for answer in ANSWERS]


def test_sixteen_threads_get_the_verdicts_of_one(predictor, alone):
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda _: scores(predictor), range(64)))
    assert all(one == alone for one in found)


def test_a_predictor_that_was_sent_reads_the_checkpoint_again_and_says_the_same(predictor, alone):
    received = pickle.loads(pickle.dumps(predictor))
    assert received.checkpoint.session is not predictor.checkpoint.session
    assert scores(received) == alone


def test_a_predictor_that_was_sent_is_refused_where_the_folder_holds_another_one(predictor, tmp_path):
    sent = pickle.dumps(QualityPredictor(predictor.save_pretrained(tmp_path / "c")))
    tiny_quality(tmp_path / "other", slope=2.0)
    (tmp_path / "c").rename(tmp_path / "aside")
    (tmp_path / "other").rename(tmp_path / "c")
    with pytest.raises(ValueError, match="not the checkpoint you asked for"):
        pickle.loads(sent)


def test_a_bare_session_says_what_to_send_instead(predictor):
    with pytest.raises(TypeError, match="send the Checkpoint"):
        pickle.dumps(predictor.checkpoint.session)


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_predictor_that_was_used_before_a_fork_works_after_it_on_both_sides(predictor, alone):
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=lambda: theirs.send(scores(predictor)))
    child.start()
    assert ours.poll(120)
    assert ours.recv() == alone
    child.join(60)
    assert child.exitcode == 0
    assert scores(predictor) == alone


@pytest.mark.slow
def test_a_predictor_can_be_sent_to_a_spawned_process(predictor, alone):
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map_async(predictor.predict, ANSWERS).get(300) == alone  # nothing of this file: no child finds it


@pytest.mark.slow
def test_two_hundred_thousand_verdicts_take_no_more_memory_than_the_first(predictor):
    def peak():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    for answer in ANSWERS * 100:
        predictor.predict(answer)
    before = peak()
    for _ in range(200_000 // len(ANSWERS)):
        for answer in ANSWERS:
            predictor.predict(answer)
    assert (peak() - before) / 1024 < 4, "MB"  # a small object that each leaves behind takes ten
