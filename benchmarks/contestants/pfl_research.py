"""The round with pfl-research, set up as its guide on fast simulations recommends.

Data is in memory as `Dataset`, the fastest according to the guide; no callbacks, no privacy, no metrics are
sent anywhere, and only the first round, which is not timed, evaluates. With several processes, each is
started with PFL_WORKER_ADDRESSES and PFL_WORKER_RANK, as the guide says.
"""

# pyright: reportMissingImports=false
import dataclasses

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import MinimizeReuseUserSampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

from turns import Turns, serve, workload_of_arguments
from workload import EXAMPLES, LR, Workload, loss_of


class Classifier(nn.Module):
    """The model with the two methods that pfl calls."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss of a batch."""
        return loss_of(self.model, (inputs, labels))

    @torch.no_grad()
    def metrics(self, inputs: Tensor, labels: Tensor) -> dict[str, Weighted]:
        """Return the loss of a batch; called in the first round only."""
        return {"loss": Weighted(float(self.loss(inputs, labels)) * len(labels), len(labels))}


class Simulation:
    """A simulation that goes on by one round at a time."""

    def __init__(self, workload: Workload) -> None:
        np.random.seed(0)  # noqa: NPY002, RUF100 - pfl demands the same seed in all of its processes
        self.classifier = Classifier(workload.make_model())
        self._model = PyTorchModel(
            model=self.classifier,
            local_optimizer_create=torch.optim.SGD,
            central_optimizer=torch.optim.SGD(self.classifier.parameters(), lr=1.0),
        )
        users = {
            number: Dataset(raw_data=batch, user_id=str(number))
            for number, batch in enumerate(workload.make_data())
        }
        sampler = MinimizeReuseUserSampler(list(users))
        data = FederatedDataset(users.__getitem__, sampler)
        self._backend = SimulatedBackend(data, data, postprocessors=[WeightByDatapoints()])
        self._algorithm = FederatedAveraging()
        self._training = NNTrainHyperParams(
            local_num_epochs=workload.steps, local_learning_rate=LR, local_batch_size=EXAMPLES
        )
        self._params = NNAlgorithmParams(
            central_num_iterations=0,
            evaluation_frequency=10**9,
            train_cohort_size=workload.devices,
            val_cohort_size=0,
        )

    def run_round(self) -> None:
        """Run a round more."""
        rounds = self._params.central_num_iterations + 1
        self._params = dataclasses.replace(self._params, central_num_iterations=rounds)
        self._algorithm.run(
            self._params, self._backend, self._model, self._training, send_metrics_to_platform=False
        )


def main() -> None:
    """Serve rounds."""
    turns = Turns()
    workload, _ = workload_of_arguments()
    simulation = Simulation(workload)
    serve(turns, workload, simulation.run_round, lambda: list(simulation.classifier.parameters()))


if __name__ == "__main__":
    main()
