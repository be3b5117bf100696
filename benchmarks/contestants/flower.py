"""The round with Flower's simulation: FedAvg on the Ray backend, an actor with one core for each process."""

# pyright: reportMissingImports=false
import logging

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from contestants.flower_client import app as client
from turns import Turns, serve, workload_of_arguments
from workload import Workload


def server_of(workload: Workload, turns: Turns) -> ServerApp:
    """Return the server, which runs a round for each turn."""
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        everyone = {"min_train_nodes": workload.devices, "min_available_nodes": workload.devices}
        strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, **everyone)
        arrays = ArrayRecord(workload.make_model().state_dict())
        config = ConfigRecord({"model": workload.model, "steps": workload.steps})

        def run_round() -> None:
            nonlocal arrays
            arrays = strategy.start(grid, arrays, num_rounds=1, train_config=config).arrays

        serve(turns, workload, run_round, lambda: list(arrays.to_torch_state_dict().values()))

    return server


def main() -> None:
    """Serve rounds."""
    turns = Turns()
    workload, processes = workload_of_arguments()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    run_simulation(
        server_of(workload, turns),
        client,
        num_supernodes=workload.devices,
        backend_config={
            "init_args": {"num_cpus": processes, "include_dashboard": False, "log_to_driver": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )


if __name__ == "__main__":
    main()
