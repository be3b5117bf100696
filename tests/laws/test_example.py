"""The library gives the bits of the plain loop in `examples/`."""

import torch
from torch import nn

import fedalt_in_one_file as plain
import partita
from small import negative_error, same_bits


def test_the_library_is_the_plain_loop_bit_for_bit() -> None:
    devices = plain.make_devices()
    task = partita.Task(
        model=plain.make_model,
        loss=lambda model, batch: nn.functional.mse_loss(model(batch[0]), batch[1]),
        metrics={"closeness": negative_error},
        devices={device: {"train": data, "test": data} for device, data in devices.items()},
    )
    method = partita.FedAlt(personal_lr=0.05, shared_lr=0.03, batch_size=8)
    threads = torch.get_num_threads()

    result = partita.run(
        task, partita.Partition(plain.make_model(), personal="4.*"), method, rounds=7, devices_per_round=4
    )

    torch.set_num_threads(1)
    torch.manual_seed(plain.seed_of(1, "model"))
    u, v = plain.fedalt(
        plain.make_model(),
        {"4.weight", "4.bias"},
        devices,
        rounds=7,
        devices_per_round=4,
        batch_size=8,
        personal_lr=0.05,
        shared_lr=0.03,
        seed=1,
    )
    torch.set_num_threads(threads)
    assert same_bits(result.shared, u)
    assert all(same_bits(result.personal(device), v[device]) for device in devices)
