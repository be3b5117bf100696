"""The command `predict`."""

import argparse

from partita.cli.output import console, log, print_json


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
