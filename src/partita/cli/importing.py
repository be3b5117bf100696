"""The command `import`."""

import argparse

from partita.cli.output import console
from partita.errors import RunFailed, fault_text
from partita.shown import shown_lines


def import_(options: argparse.Namespace) -> int:
    """Convert a dataset to a per-device table."""
    from partita.config.importing import import_data
    from partita.progress.bar import ProgressBar

    again = (
        f"give the same command again, `{options.command_line}`. It continues after what is finished, if "
        "anything is."
    )
    try:
        with ProgressBar(console(options), options.kind) as progress:
            lines = import_data(options.kind, options.source, options.out, options.settings, progress.update)
    except KeyboardInterrupt as interrupt:
        interrupt.args = (f"No table was written: {again}",)
        raise
    except BrokenPipeError:
        raise
    except OSError as error:
        raise RunFailed(
            f"{fault_text(error)} No table was written: when the cause is mended, {again}"
        ) from error
    print(shown_lines("\n".join([*lines, f"The table is {options.out}"])))
    return 0
