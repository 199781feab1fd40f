"""The set-up of the project's own tests holds here too: Hypothesis' profiles, the way to `research`, few fixtures."""

from conftest import recorded_runs  # noqa: F401
