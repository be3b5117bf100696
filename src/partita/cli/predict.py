"""The command `predict`."""

import argparse
from pathlib import Path

from partita.cli.options import AddParser, add_quiet
from partita.cli.output import console, log, print_json


def add(add_parser: AddParser) -> None:
    """Add the command `predict`."""
    parser = add_parser(
        "predict",
        help="write the predictions of each device's served model for its rows of a table",
        description="Write the predictions of each device's served model for its rows of a table. Rows need "
        "no label.",
    )
    parser.add_argument("run", metavar="RUN_DIR", type=Path, help="the folder of a finished run")
    parser.add_argument("data", metavar="DATA.parquet", type=Path, help="a table by device")
    parser.add_argument("out", metavar="OUT.parquet", type=Path, help="the table to write")
    parser.add_argument(
        "arguments",
        nargs="*",
        metavar="key=value",
        help="task.skip_bad=true leaves predictions of bad rows empty; task.data=FILE and the like, for "
        "files of the run that are elsewhere now",
    )
    parser.add_argument(
        "--device",
        metavar="ID",
        help="predict only rows of this device; without a column of devices, all rows are its rows",
    )
    add_quiet(parser)
    parser.add_argument("--json", action="store_true", help="print what was written as JSON")
    parser.set_defaults(command=predict)


def predict(options: argparse.Namespace) -> int:
    """Write the predictions of each device's served model for its rows."""
    from partita.exports.export import open_run
    from partita.exports.opening import SKIP_BAD
    from partita.exports.predict import predict_table
    from partita.progress.bar import ProgressBar
    from partita.report.differences import counted

    paths = [text for text in options.arguments if text != SKIP_BAD]
    with ProgressBar(console(options), "predict") as progress:
        found = predict_table(
            open_run(options.run, paths),
            options.data,
            options.out,
            device=options.device,
            skip_bad=SKIP_BAD in options.arguments,
            on_progress=progress.update,
        )
    rows = sum(found.devices.values())
    if options.json:
        print_json(
            {"out": str(options.out), "rows": rows, "devices": len(found.devices), "skipped": found.skipped}
        )
        return 0
    if found.skipped:
        log(options, f"{found.skipped} bad rows have no prediction: the column `reason` says why.")
    whose = f"{counted(rows, 'row')} of {counted(len(found.devices), 'device')}"
    print(f"The predictions for {whose} are in {options.out}")
    return 0
