"""What a shell may complete: models, GPUs, releases, and vLLM's flags with their values. Read only when a shell asks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem
    from vllm_capacity.inputs.flags import Flag

F = TypeVar("F", bound=Callable[..., Any])


def models(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Ids of the catalogue that begin so, whatever the case, else those whose name after the slash does; paths."""
    from click.shell_completion import CompletionItem
    from vllm_capacity.inputs.catalogue import model_ids

    if incomplete.startswith((".", "/", "~")):
        return [CompletionItem(incomplete, type="file")]
    ids = model_ids()
    found = _beginning(ids, incomplete)
    names = ((id_.rpartition("/")[2], id_) for id_ in ids)
    found = found or [id_ for name, id_ in names if name.casefold().startswith(incomplete.casefold())]
    return [CompletionItem(id_) for id_ in found] or [CompletionItem(incomplete, type="file")]


def gpus(_ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of the GPU catalogue; after a comma where the option takes several."""
    from click.shell_completion import CompletionItem
    from vllm_capacity.inputs.gpus import list_devices

    before, comma, last = incomplete.rpartition(",") if param.name == "gpus" else ("", "", incomplete)
    names = [device.name for device in list_devices()]
    return [CompletionItem(before + comma + name) for name in _beginning(names, last)]


def releases(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """vLLM releases that can be planned, newest first."""
    from click.shell_completion import CompletionItem
    from vllm_capacity.releases import supported_releases

    return [CompletionItem(version) for version in _beginning(supported_releases()[::-1], incomplete)]


def components(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """What `--explain` takes for any plan."""
    from click.shell_completion import CompletionItem
    from vllm_capacity.ledger import Component

    return [CompletionItem(name) for name in _beginning([each.value for each in Component], incomplete)]


def files(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Whatever the shell finds."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]


def flag_values(_ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The values that the newest release's parser knows for one of vLLM's flags; it takes any KV cache dtype."""
    from click.shell_completion import CompletionItem
    from vllm_capacity.kv_cache.cache_dtypes import STORAGE

    flag = _flags().get(param.name or "")
    values = [str(choice) for choice in flag.choices] if flag else []
    if param.name == "kv_cache_dtype":
        values = ["auto", *STORAGE]
    return [CompletionItem(value) for value in _beginning(values, incomplete)]


class EngineCommand(click.Command):
    """A command that takes every flag of `vllm serve`: those that are no option of its own are offered too."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        found = super().shell_complete(ctx, incomplete)
        if incomplete.startswith("-"):
            known = {name for param in self.params for name in (*param.opts, *param.secondary_opts)}
            for flag in _flags().values():
                if not known & set(flag.aliases):
                    long = [name for name in flag.aliases if name.startswith("--")][:1]
                    found += [CompletionItem(name) for name in long if name.startswith(incomplete)]
        return found


def _flags() -> dict[str, Flag]:
    from vllm_capacity.inputs.flags import flags_for
    from vllm_capacity.releases import newest_release

    return dict(flags_for(newest_release()))


def _beginning(words: Iterable[str], start: str) -> list[str]:
    return [word for word in words if word.casefold().startswith(start.casefold())]
