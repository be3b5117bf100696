"""A sample of the damage matrix; `python tests/damage.py` runs all of it."""

import random

import pytest

from damage import Matrix, quickly


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("reports")
def test_damage_is_refused_in_one_line_or_changes_nothing() -> None:
    chance = random.Random(17)
    with quickly():
        matrix = Matrix()
        for case in chance.sample(matrix.cases(), 80):
            ended, outcome = matrix.run(case, chance)
            assert ended not in ("SILENT", "traceback"), (case, outcome.errors)


def test_the_matrix_damages_every_file_that_is_read_again() -> None:
    with quickly():
        cases = Matrix(["in a commit"]).cases()

    files = {case.file.partition("/")[0] for case in cases} | {case.file.rpartition(".")[2] for case in cases}
    assert files >= {
        "config.toml",
        "commit.json",
        "rounds.jsonl",
        "devices.jsonl",
        "derived.json",
        "costs.json",
    }
    assert files >= {"skipped.jsonl", "shared", "personal", "next"}


@pytest.mark.slow
def test_the_matrix_damages_the_files_of_an_onboarding() -> None:
    with quickly():
        cases = Matrix(["half onboarded"]).cases()

    files = {case.file.removeprefix("onboarded/1/") for case in cases if case.file.startswith("onboarded/")}
    assert files >= {"onboarding.json", "config.toml", "commit.json", "rounds.jsonl", "devices.jsonl"}
    assert files >= {"skipped.jsonl", "derived.json"}
    assert len([file for file in files if file.startswith("personal/")]) == 2
