"""What the fields of the page offer, from the library's own lists."""

from __future__ import annotations

from functools import cache

from vllm_capacity.engine_defaults.dtypes import cache_dtypes
from vllm_capacity.inputs.catalogue import model_ids
from vllm_capacity.inputs.gpus import list_devices
from vllm_capacity.releases import get_release, supported_releases
from vllm_capacity.request import choose_release
from vllm_capacity.units import GIB


@cache
def models() -> list[str]:
    """Ids of the catalogue."""
    return model_ids()


@cache
def gpus() -> dict[str, str]:
    """Name -> name with memory."""
    return {
        device.name: f"{device.name} · {device.cuda_total_bytes / GIB:.0f} GiB" for device in list_devices()
    }


def releases() -> list[str]:
    """The newest first."""
    return list(reversed(supported_releases()))


def default_release() -> str:
    """The vLLM that is installed beside this tool, else the newest known."""
    return choose_release(None, None)[0].version


def kv_dtypes(release: str) -> list[str]:
    """What --kv-cache-dtype takes in a release; only 'auto' for one that is not known."""
    return list(cache_dtypes(get_release(release))) if release in supported_releases() else ["auto"]
