"""The bare loops that show the limits of a machine."""

from limits import fastest, loops
from workload import Workload


def test_each_loop_is_timed_in_any_number_of_processes() -> None:
    small = Workload("linear", devices=4)

    one, two = (fastest(small, turns=2, processes=count) for count in (1, 2))

    assert list(one) == list(two) == list(loops(small))
    assert all(seconds > 0 for seconds in (*one.values(), *two.values()))
