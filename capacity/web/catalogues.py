"""The two catalogues as the API lists them."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

FOUND_BY = {"models": ("id",), "gpus": ("name", "aliases")}


class ModelEntry(BaseModel):
    """A model of the bundled catalogue (docs/catalogue.md)."""

    model_config = ConfigDict(extra="allow")

    id: str
    architecture: str = Field(description="vLLM's model class.")
    parameters: int | None = Field(default=None, description="The published number of stored elements.")
    checkpoint_bytes: int | None = None
    source: str = Field(description="Where the config was read.")
    confidence: str = Field(description="How sure it is.")


class ModelList(BaseModel):
    models: list[ModelEntry]


class GpuEntry(BaseModel):
    """A GPU of the catalogue (docs/gpus.md)."""

    model_config = ConfigDict(extra="forbid")

    name: str
    cuda_total_bytes: int = Field(description="What cudaMemGetInfo reports and vLLM budgets.")
    nvml_total_bytes: int = Field(description="What nvidia-smi reports.")
    compute_capability: tuple[int, int]
    num_sms: int
    bandwidth_bytes_per_s: int | None
    nvlink: bool
    integrated: bool
    vendor: str
    aliases: list[str]
    source: str
    cuda_total_low: int | None
    cuda_total_high: int | None
    derived: bool = Field(description="One of the two totals was derived from the other.")
    power_watts: int | None


class GpuList(BaseModel):
    gpus: list[GpuEntry]


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
