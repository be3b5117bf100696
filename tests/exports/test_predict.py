"""Predictions are those of each device's served model, for rows with and without labels."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import partita
from exported import CONTENT, finished, rows_of
from partita.cli import main
from partita.data.examples import examples_of
from partita.runs.folder import RunFolder
from partita.tasks.measure import measure
from tables import write

LABELS = {"image": "label", "speech": "text", "tabular": "label", "regression": "label"}


def predicted(run: Path, rows: list[dict[str, Any]], folder: Path, *more: str) -> list[dict[str, Any]]:
    write(folder / "new.parquet", rows)
    out = folder / "out.parquet"
    out.unlink(missing_ok=True)
    assert main(["predict", str(run), str(folder / "new.parquet"), str(out), "--quiet", *more]) == 0
    return pq.read_table(out).to_pylist()


def unlabeled(kind: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k not in (LABELS.get(kind), "split")} for row in rows]


@pytest.mark.parametrize("kind", list(CONTENT))
def test_every_row_has_the_prediction_of_its_devices_model(
    kind: str, run_of: Callable[[str], Path], tmp_path: Path
) -> None:
    run = run_of(kind)
    result = partita.open(run)
    task = result._models.origin.task
    assert task.predictor is not None
    rows = [row for row in rows_of(kind) if row["split"] == "test"]

    found = predicted(run, unlabeled(kind, rows), tmp_path)

    assert [row["device"] for row in found] == [row["device"] for row in rows]
    assert [row["row"] for row in found] == list(range(len(rows)))
    for device in ("d0", "d3"):
        model = result.model(device, "served")
        (batch,) = [examples_of(task.devices[device]["test"])]
        own = [row for row in found if row["device"] == device]
        with torch.no_grad():
            scores, targets = task.predict(model, batch.batch_at(torch.arange(len(batch))))
        if kind in ("image", "tabular"):
            assert [row["prediction"] for row in own] == scores.argmax(dim=1).tolist()
            chances = scores.softmax(dim=1).max(dim=1).values.tolist()
            assert [row["probability"] for row in own] == pytest.approx(chances, abs=1e-6)
            accuracy = sum(r["prediction"] == t for r, t in zip(own, targets.tolist(), strict=True)) / len(
                own
            )
            assert accuracy == measure(task, model, batch)["accuracy"]
        elif kind == "regression":
            assert [row["prediction"] for row in own] == pytest.approx(scores.flatten().tolist(), abs=1e-6)
        elif kind == "speech":
            assert [row["prediction"] for row in own] == scores


def test_the_next_word_is_the_most_likely_one_after_the_text(
    run_of: Callable[[str], Path], tmp_path: Path
) -> None:
    run = run_of("text")
    result = partita.open(run)
    words = ["<pad>", "<oov>", "<bos>", "<eos>", *result.derived["vocabulary"]]
    number = {word: token for token, word in enumerate(words)}

    texts = ["we like", "", "we like number 2 of 3 and some more"]
    found = predicted(run, [{"device": "d1", "text": text} for text in texts], tmp_path)

    model = result.model("d1", "served")
    # A text of more than 5 words leaves its first ones out: 6 tokens with the beginning.
    kept = [["we", "like"], [], ["of", "3", "and", "some", "more"]]
    for row, own in zip(found, kept, strict=True):
        tokens = torch.tensor([[2, *(number.get(word, 1) for word in own)]])
        with torch.no_grad():
            scores = model(tokens)[0, -1].double().softmax(dim=0)
        scores[[0, 2]] = -1
        assert row["prediction"] == words[int(scores.argmax())]
        assert row["probability"] == pytest.approx(float(scores.max()), abs=1e-6)


@pytest.mark.parametrize(("kind", "size"), [("synthetic", 5), ("quadratic", 7)])
def test_a_task_without_tables_is_predicted_from_numbers(
    kind: str, size: int, run_of: Callable[[str], Path], tmp_path: Path
) -> None:
    run = run_of(kind)
    inputs = torch.randn(6, size, generator=torch.Generator().manual_seed(1))
    rows = [{"device": f"device-000{number % 2}", "input": row} for number, row in enumerate(inputs.tolist())]

    found = predicted(run, rows, tmp_path)

    for number, row in enumerate(found):
        model = partita.open(run).model(f"device-000{number % 2}", "served")
        with torch.no_grad():
            output = model(inputs[number : number + 1])
        if kind == "synthetic":
            assert row["prediction"] == int(output.argmax())
            assert row["probability"] == pytest.approx(float(output.softmax(dim=1).max()), abs=1e-6)
        else:
            assert row["prediction"] == pytest.approx(float(output), abs=1e-6)


def test_rows_need_no_order_and_keep_their_own(run_of: Callable[[str], Path], tmp_path: Path) -> None:
    rows = unlabeled("tabular", rows_of("tabular"))
    mixed = [rows[position] for position in torch.randperm(len(rows)).tolist()]
    for number, row in enumerate(mixed):
        row["id"] = number + 100

    found = predicted(run_of("tabular"), mixed, tmp_path)

    straight = predicted(run_of("tabular"), rows, tmp_path)
    by_content = {tuple(row[k] for k in ("device", "x")): found[n] for n, row in enumerate(mixed)}
    for row, own in zip(rows, straight, strict=True):
        other = by_content[row["device"], row["x"]]
        assert other["prediction"] == own["prediction"]
        assert other["probability"] == pytest.approx(own["probability"], abs=1e-6)
    assert [row["id"] for row in found] == [str(number + 100) for number in range(len(rows))]


def test_one_devices_rows_need_no_column_of_devices(run_of: Callable[[str], Path], tmp_path: Path) -> None:
    rows = unlabeled("tabular", rows_of("tabular"))
    bare = [{k: v for k, v in row.items() if k != "device"} for row in rows]

    alone = predicted(run_of("tabular"), bare, tmp_path, "--device", "d2")
    among = predicted(run_of("tabular"), rows, tmp_path, "--device", "d2")

    assert len(alone) == len(rows)
    assert {row["device"] for row in [*alone, *among]} == {"d2"}
    assert [row["row"] for row in among] == list(range(18, 27))
    assert [row["prediction"] for row in among] == [alone[row]["prediction"] for row in range(18, 27)]


def test_classes_have_their_names_where_the_table_of_the_run_has_them(tmp_path: Path) -> None:
    table = pa.Table.from_pylist(rows_of("tabular"))
    about = '{"info": {"features": {"label": {"names": ["no", "yes"], "_type": "ClassLabel"}}}}'
    pq.write_table(table.replace_schema_metadata({"huggingface": about}), tmp_path / "tabular.parquet")
    run = finished(tmp_path, "tabular")

    found = predicted(run, unlabeled("tabular", rows_of("tabular")), tmp_path)

    assert all(row["class"] == ["no", "yes"][row["prediction"]] for row in found)


def test_a_bad_row_is_an_error_or_has_no_prediction(
    run_of: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = unlabeled("tabular", rows_of("tabular"))[:3]
    rows[1]["x"] = None
    write(tmp_path / "new.parquet", rows)
    paths = [str(run_of("tabular")), str(tmp_path / "new.parquet"), str(tmp_path / "out.parquet")]

    assert main(["predict", *paths]) == 2
    assert "row 1, device 'd0': `x` must be a number, got None" in capsys.readouterr().err
    assert not (tmp_path / "out.parquet").exists()
    found = predicted(run_of("tabular"), rows, tmp_path, "task.skip_bad=true")

    assert [row["prediction"] is None for row in found] == [False, True, False]
    assert [row["reason"] for row in found] == [None, "`x` must be a number, got None", None]


def test_devices_that_the_run_does_not_know_are_named_with_what_to_do(
    run_of: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_of("tabular")
    write(tmp_path / "new.parquet", unlabeled("tabular", rows_of("tabular", range(3, 6))))

    assert main(["predict", str(run), str(tmp_path / "new.parquet"), str(tmp_path / "out.parquet")]) == 2

    error = capsys.readouterr().err
    assert "rows of 2 devices that the run does not know, such as 'd4'" in error
    assert f"`partita onboard {run} DATA.parquet`" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out.parquet").exists()


@pytest.mark.parametrize(
    ("rows", "more", "message"),
    [
        ([{"device": "d0", "x": 1.0}], [], "has no column 'y'. Its columns: device, x."),
        ([{"x": 1.0, "y": 1.0}], [], "has no column 'device'."),
        ([{"device": "d0", "x": 1.0, "y": 1.0}], ["--device", "d1"], "has no rows of device 'd1'."),
        ([{"device": "", "x": 1.0, "y": 1.0}], [], "row 0: `device` is empty."),
    ],
)
def test_a_table_that_cannot_be_predicted_is_one_line(
    rows: list[dict[str, Any]],
    more: list[str],
    message: str,
    run_of: Callable[[str], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write(tmp_path / "new.parquet", rows)
    paths = [str(tmp_path / "new.parquet"), str(tmp_path / "out.parquet")]

    assert main(["predict", str(run_of("tabular")), *paths, *more]) == 2

    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["new.parquet"]


def test_an_existing_table_is_not_replaced_and_the_run_stays_as_it_is(
    run_of: Callable[[str], Path], tmp_path: Path
) -> None:
    run = run_of("tabular")
    before = {path: path.stat().st_mtime_ns for path in RunFolder(run).path.rglob("*")}
    write(tmp_path / "new.parquet", unlabeled("tabular", rows_of("tabular")))
    (tmp_path / "out.parquet").write_text("mine")

    paths = [str(tmp_path / "new.parquet"), str(tmp_path / "out.parquet")]
    assert main(["predict", str(run), *paths]) == 2
    (tmp_path / "out.parquet").unlink()
    assert main(["predict", str(run), *paths, "--quiet"]) == 0

    assert {path: path.stat().st_mtime_ns for path in RunFolder(run).path.rglob("*")} == before


@pytest.mark.parametrize("mode", [0o600, 0o640])
def test_predictions_have_the_permissions_of_their_rows(
    run_of: Callable[[str], Path], tmp_path: Path, mode: int
) -> None:
    data, out = tmp_path / "new.parquet", tmp_path / "out.parquet"
    write(data, unlabeled("tabular", rows_of("tabular"))).chmod(mode)
    (tmp_path / "out.parquet.tmp").write_text("mine")

    assert main(["predict", str(run_of("tabular")), str(data), str(out), "--quiet"]) == 0

    assert out.stat().st_mode & 0o777 == mode
    assert (tmp_path / "out.parquet.tmp").read_text() == "mine"
