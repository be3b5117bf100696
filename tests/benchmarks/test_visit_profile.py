"""The profile of a visit times functions of the library by their names."""

from visit_profile import STEPS, place_of


def test_every_function_that_is_timed_exists() -> None:
    for paths in STEPS.values():
        for path in paths.split(","):
            owner, name = place_of(path)

            assert callable(getattr(owner, name))
