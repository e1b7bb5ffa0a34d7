"""Reads a file of prices (docs/sizing.md)."""

from __future__ import annotations

import datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from vllm_capacity.errors import InputError
from vllm_capacity.inputs.gpus import find_device
from vllm_capacity.inputs.text_files import read_yaml
from vllm_capacity.sizing.nodes import choose_nodes
from vllm_capacity.sizing.prices import Prices


class _Price(BaseModel):
    model_config = ConfigDict(extra="forbid")
    price: float = Field(gt=0, description="Of one GPU, or of one box.", allow_inf_nan=False)
    source: str = Field(min_length=1, description="Who says so: an offer, a page.")
    date: datetime.date | str = Field(description="When it was read, YYYY-MM-DD.")


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")
    currency: str = "USD"
    unit: str = Field(
        pattern="^(gpu_hour|purchase)$", description="What `price` of a GPU buys: an hour, or the GPU."
    )
    gpus: dict[str, _Price] = Field(default_factory=dict)
    nodes: dict[str, _Price] = Field(default_factory=dict)


def read_prices(path: Path) -> Prices:
    """The prices of a YAML file (docs/sizing.md). Raises InputError that names the entry."""
    try:
        file = _File.model_validate(read_yaml(path, f"--prices {path}"))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise InputError(f"--prices {path}: {where}: {first['msg']}") from None
    nodes = {}
    for name, entry in file.nodes.items():
        (node,) = choose_nodes((), None, (name,), None)
        nodes[node.device.name, node.gpus] = entry.price
    return Prices(
        file.currency,
        file.unit,
        {find_device(name).name: entry.price for name, entry in file.gpus.items()},
        nodes,
    )
