"""The table of a comparison's tuning."""

from partita.report.tables.tuned import tuned_table
from partita.studies.trials import Trial, Tuned
from report.tables.test_comparison import SMALL, results


def tuned(best: int, *trials: tuple[float | None, str], **choices: list[float | str]) -> Tuned:
    """Trials given by value and status, each with its place in the lists of choices."""
    done = [
        Trial(
            number=n, choice={key: values[n] for key, values in choices.items()}, value=value, status=status
        )
        for n, (value, status) in enumerate(trials)
    ]
    return Tuned(metric="accuracy", trials=done, best=done[best])


def test_what_each_method_was_tuned_to_is_a_row_with_the_range_tried_and_its_edge() -> None:
    ends = [(0.5, "done"), (0.7, "done"), (None, "stopped after 2 rounds"), (None, "No device replied.")]
    given = {
        ("finetune", ""): tuned(1, *ends, rate=[0.1, 0.3, 0.01, 1.0]),
        ("fedalt", "output"): tuned(1, *ends, rate=[0.1, 0.3, 0.1, 0.2], kind=["a", "b", "a", "b"]),
    }

    table = tuned_table(results(SMALL, tuned=given))

    assert table.columns[2:] == [
        *("key", "value", "lowest tried", "highest tried", "at an edge"),
        *("validation accuracy", "trials", "failed"),
    ]
    assert table.rows == [
        ["Finetune", "", "rate", "0.3", "0.01", "1.0", "", 0.7, 4, 1],
        ["FedAlt", "output", "rate", "0.3", "0.1", "0.3", "highest", 0.7, 4, 1],
        ["FedAlt", "output", "kind", "b", "", "", "", 0.7, 4, 1],
    ]
    assert table.notes[-1] == (
        "At an edge of what was tried: FedAlt output `rate` = 0.3 (highest). A wider range or more trials may "
        "be better."
    )


def test_no_edge_is_not_mentioned_and_no_tuning_is_no_table() -> None:
    given = {("finetune", ""): tuned(1, (0.5, "done"), (0.7, "done"), (0.6, "done"), rate=[0.1, 0.3, 1.0])}

    assert not any("edge" in note for note in tuned_table(results(SMALL, tuned=given)).notes)
    assert tuned_table(results(SMALL)).rows == []


def test_the_number_of_trials_is_told_as_it_is() -> None:
    three, two = ([(0.5, "done"), (0.7, "done"), (0.6, "done")][:count] for count in (3, 2))
    same = {("finetune", ""): tuned(0, *three, rate=[0.1, 0.3, 1.0])}
    other = {**same, ("fedalt", "output"): tuned(0, *two, rate=[0.1, 0.3])}

    assert (
        tuned_table(results(SMALL, tuned=same))
        .notes[0]
        .startswith("Every method in this table has 3 trials,")
    )
    assert tuned_table(results(SMALL, tuned=same)).notes[1] == (
        "Not tuned, because nothing that they declare is trained with: FedAlt output."
    )
    assert (
        tuned_table(results(SMALL, tuned=other)).notes[0].startswith("A method has 2 to 3 trials, fewer than")
    )
