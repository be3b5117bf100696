"""Flower's client: it trains on the batch of its device and replies with its weights.

Model and data are made once per actor, which is kinder than Flower's own examples. A module of its own, so
that Ray's actors import it instead of unpickling it with every message.
"""

# pyright: reportMissingImports=false
from functools import cache

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from workload import EXAMPLES, LR, Batch, Workload, loss_of

app = ClientApp()


@cache
def _setting(model: str, devices: int) -> tuple[nn.Module, list[Batch]]:
    torch.set_num_threads(1)
    workload = Workload(model, devices=devices)
    return workload.make_model(), workload.make_data()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Take the steps of a visit and reply with the weights."""
    config = message.content["config"]
    model, data = _setting(str(config["model"]), int(context.node_config["num-partitions"]))
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    batch = data[int(context.node_config["partition-id"])]
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for _ in range(int(config["steps"])):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
    content = {
        "arrays": ArrayRecord(model.state_dict()),
        "metrics": MetricRecord({"num-examples": EXAMPLES}),
    }
    return Message(content=RecordDict(content), reply_to=message)
