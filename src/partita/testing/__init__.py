"""The laws that methods, tasks and executors must keep, for the tests of packages that add one.

Each function raises an `AssertionError` that names the law that is broken.

    from partita.testing import check_method

    def test_my_method_keeps_the_laws():
        check_method("my_package.momentum:METHOD")
"""

from partita.testing.executors import check_executor
from partita.testing.methods import check_method
from partita.testing.tasks import check_task

__all__ = ["check_executor", "check_method", "check_task"]
