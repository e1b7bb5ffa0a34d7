"""The two catalogues as the API lists them."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from vllm_capacity.vocabulary import add_meanings

FOUND_BY = {"models": ("id",), "gpus": ("name", "aliases")}


class ModelEntry(BaseModel):
    """A model of the bundled catalogue (docs/catalogue.md)."""

    model_config = ConfigDict(extra="allow", json_schema_extra=add_meanings)

    id: str = Field(description="What `model` takes.")
    architecture: str = Field(description="vLLM's model class.")
    parameters: int | None = None
    checkpoint_bytes: int | None = None
    source: str = Field(description="Where the config was read.")
    confidence: str = Field(description="How sure it is.")


class ModelList(BaseModel):
    """Models of the catalogue."""

    models: list[ModelEntry] = Field(description="In the order of their names.")


class GpuEntry(BaseModel):
    """A GPU of the catalogue (docs/gpus.md)."""

    model_config = ConfigDict(extra="forbid", json_schema_extra=add_meanings)

    name: str = Field(description="What `gpu` takes.")
    cuda_total_bytes: int
    nvml_total_bytes: int
    compute_capability: str = Field(description="Major and minor, as in 9.0.")
    num_sms: int
    bandwidth_bytes_per_second: int | None
    nvlink: bool = Field(description="All GPUs of a node are fully connected by it.")
    integrated: bool = Field(description="It shares the host's memory.")
    vendor: str = Field(description="nvidia or amd.")
    aliases: list[str] = Field(description="Other names that `gpu` takes.")
    source: str = Field(description="Where the totals come from.")
    cuda_total_low_bytes: int | None
    cuda_total_high_bytes: int | None
    derived: bool = Field(description="One of the two totals was derived from the other.")
    power_watts: int | None


class GpuList(BaseModel):
    """GPUs of the catalogue."""

    gpus: list[GpuEntry] = Field(description="In the catalogue's order.")


async def choose(state: Any, name: str, text: str) -> bytes:
    """The catalogue `name`, whole or those entries with `text` in a name. A worker reads it once."""
    rows = state.catalogues.get(name)
    if rows is None:
        rows = json.loads(await state.pool.run(name, lane="plan"))[name]
        state.catalogues[name] = rows
    wanted = _folded(text)
    return json.dumps({name: [row for row in rows if wanted in _names(row, name)]}).encode()


def _names(row: dict[str, Any], catalogue: str) -> str:
    names: list[str] = []
    for key in FOUND_BY[catalogue]:
        value = row[key]
        names += value if isinstance(value, list) else [value]
    return "\n".join(_folded(name) for name in names)


def _folded(text: str) -> str:
    return text.casefold().replace(" ", "").replace("-", "").replace("_", "")
