"""A training that is told nothing takes the seed, the folds and the level that all trainings take."""

from defaults import unusual


def test_what_a_training_is_not_given_is_what_no_training_is_given() -> None:
    assert unusual("training") == []
