"""The command `export`."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from partita.cli.given import split_settings
from partita.cli.options import AddParser, add_quiet
from partita.cli.output import console, print_json
from partita.errors import ConfigError

if TYPE_CHECKING:
    from partita.exports.subject import ServedRun


def add(add_parser: AddParser) -> None:
    """Add the command `export`."""
    parser = add_parser(
        "export",
        help="write the model that a device is served, or those of all devices, as files",
        description="Write the whole model that a device is served, its own or the global one. "
        "`partita.load` reads a safetensors file; the other formats need no Partita. A file is checked to "
        "predict as the model does before it is written.",
    )
    parser.add_argument("run", metavar="RUN_DIR", type=Path, help="the folder of a finished run")
    parser.add_argument(
        "arguments",
        nargs="*",
        metavar="DEVICE OUT | key=value",
        help="the device and the file to write, without --all; then, for files of the run that are elsewhere "
        "now, task.data=FILE and the like",
    )
    parser.add_argument(
        "--all", metavar="DIR", type=Path, help="write the models of all devices to this new folder"
    )
    parser.add_argument(
        "--format",
        choices=("safetensors", "torch-export", "onnx", "adapter"),
        help="safetensors (default); torch-export, a program for torch.export.load; onnx; adapter (default "
        "for pretrained Hugging Face models), a folder for peft",
    )
    parser.add_argument(
        "--merged",
        action="store_true",
        help="of a pretrained Hugging Face model, write a folder with the whole model, for transformers",
    )
    add_quiet(parser)
    parser.add_argument("--json", action="store_true", help="print what was written as JSON")
    parser.set_defaults(command=export)


def export(options: argparse.Namespace) -> int:
    """Write the served model of a device, or of all devices."""
    given, overrides = split_settings(options.arguments)
    return _export_all(options, given, overrides) if options.all else _export_one(options, given, overrides)


def _export_one(options: argparse.Namespace, given: Sequence[str], overrides: Sequence[str]) -> int:
    from partita.exports.export import export_device, open_run

    if len(given) != 2:
        raise ConfigError(
            "`partita export` needs a run's folder, a device and the file to write, or --all DIR: got "
            f"{len(given)} arguments after the folder."
        )
    device, out = given[0], Path(given[1])
    run = open_run(options.run, overrides)
    exported = export_device(run, device, out, _format(options, run))
    if options.json:
        print_json({"device": device, **exported.entry(), "file": str(exported.file)})
    else:
        print(f"The {exported.model} model of {device!r} ({exported.stage}) is {exported.file}")
    return 0


def _export_all(options: argparse.Namespace, given: Sequence[str], overrides: Sequence[str]) -> int:
    from partita.exports.export import INDEX, export_all, open_run
    from partita.progress.bar import ProgressBar
    from partita.report.differences import counted

    if given:
        raise ConfigError(f"With --all every device is exported: leave out {given[0]!r}.")
    with ProgressBar(console(options), "export") as progress:
        run = open_run(options.run, overrides)
        found = export_all(run, options.all, _format(options, run), progress.update)
    devices, own = found.total(), found["personal"]
    if options.json:
        print_json({"folder": str(options.all), "devices": devices, "personal": own})
    else:
        print(
            f"The models of {counted(devices, 'device')}, {own} of them personal, are in {options.all}; "
            f"{options.all / INDEX} has the file of each device"
        )
    return 0


def _format(options: argparse.Namespace, run: "ServedRun") -> str:
    """Return the format that is asked for, or the default of the run."""
    from partita.exports.export import default_format

    if options.merged and options.format:
        raise ConfigError(
            f"--merged and --format {options.format} exclude each other: leave out one of them."
        )
    return "merged" if options.merged else options.format or default_format(run)
