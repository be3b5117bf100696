"""The two components of a Flower app that runs a config: its server and its client.

`partita flower new` writes an app of a few lines that calls these functions. Besides the config they need
Flower's own settings: those of the run (`flwr run -c`) and those of a node (`--node-config`).
"""

# pyright: reportMissingImports=false
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from rich.console import Console

from partita.config.reading import check_type, read_config, unknown_key
from partita.deploy.flower.courier import Courier, carry_while
from partita.deploy.flower.device import answer
from partita.deploy.flower.project import SETTINGS
from partita.deploy.serving import Server, Serving, new_server, resumed_server
from partita.errors import ConfigError
from partita.executors.remote import Patience
from partita.progress.display import Display


def client_app(config: Path) -> ClientApp:
    """Return the client of an app: it answers every message as one device.

    Args:
        config: the config, which is part of the app.
    """
    app = ClientApp()

    def reply(message: Message, context: Context) -> Message:
        return Message(answer(message, context, config), reply_to=message)

    for register in (app.train, app.evaluate, app.query):
        register()(reply)
    return app


def server_app(config: Path) -> ServerApp:
    """Return the server of an app: the usual training loop, with devices behind Flower's grid.

    Args:
        config: the config, which is part of the app.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        serve(grid, context.run_config, config)

    return app


def serve(grid: Grid, settings: Mapping[str, Any], config: Path) -> None:
    """Run a config with the devices of a grid, or resume such a run.

    Args:
        grid: the grid.
        settings: the settings of the Flower run.
        config: the config.

    Raises:
        ConfigError: a setting or the config cannot be used.
    """
    given = _checked(settings)
    serving = _serving(given)
    if given["resume"]:
        server = resumed_server(serving, [])
    else:
        server = new_server(serving, read_config(config), config.parent)
    carry_while(Courier(server.hub, grid), lambda: _run(server, resume=given["resume"]))


def _run(server: Server, *, resume: bool) -> None:
    """Do what is left of the run, showing its progress."""
    console = Console(stderr=True)
    run = server.resumed() if resume else server.begin("flwr run")
    console.print(f"Running in {run.folder.path}", highlight=False, markup=False)
    with Display(console) as display:
        server.finish(run, display.watch)


def _checked(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return all settings, those that are not given with their defaults."""
    given = {entry.name: entry.default for entry in SETTINGS}
    kinds = {entry.name: type(entry.default) for entry in SETTINGS}
    for name, value in settings.items():
        if name not in kinds:
            raise unknown_key("", name, list(kinds), of="a Flower run")
        given[name] = check_type(value, kinds[name], name)
    if not given["home"]:
        raise ConfigError(
            "`home` must be the folder of the server on its machine: `flwr run -c 'home=\"...\"'`."
        )
    return given


def _serving(given: Mapping[str, Any]) -> Serving:
    try:
        return Serving(
            home=Path(given["home"]).expanduser(),
            devices=given["devices"],
            linger=given["linger"],
            patience=Patience(deadline=given["deadline"], min_devices=given["min-devices"]),
        )
    except ValueError as error:
        raise ConfigError(str(error)) from None
