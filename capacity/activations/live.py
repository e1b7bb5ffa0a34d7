"""Building blocks: a tensor (or several) alive at some moment of the profile run, and a phase as a sum of
them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from vllm_capacity.context import RankContext, once
from vllm_capacity.frozen import dataclass
from vllm_capacity.ledger import Allocator, Component, Lifetime, MemoryTerm, term_of
from vllm_capacity.units import DTYPE_BYTES


@dataclass(frozen=True, slots=True)
class Phase:
    """A moment of the profile run at which many bytes are alive.

    `n_bytes` is everything that PyTorch has allocated above the start of profiling, what persists included;
    `warm_bytes` the same for a start that finds its kernels in the compile caches.
    """

    name: str
    n_bytes: int
    terms: tuple[MemoryTerm, ...]
    warm_bytes: int

    @property
    def cold(self) -> bool:
        """True for what exists only while the compile caches are empty."""
        return self.warm_bytes == 0


def phase(name: str, terms: Iterable[MemoryTerm], *, warm_bytes: int | None = None) -> Phase:
    """A phase of these terms; terms of 0 bytes are left out. `warm_bytes` is given where it differs."""
    kept = tuple([t for t in terms if t.n_bytes or t.high])
    n_bytes = sum([t.n_bytes for t in kept])
    return Phase(name, n_bytes, kept, n_bytes if warm_bytes is None else warm_bytes)


def transient(
    name: str,
    formula: str,
    source: str,
    *,
    component: Component = Component.ACTIVATION,
    low: int | None = None,
    high: int | None = None,
    note: str = "",
    **values: int | float,
) -> MemoryTerm:
    """Alive at the peak, gone after the profile run; the arguments are those of `term`."""
    lifetime = Lifetime.PROFILE_TRANSIENT
    return term_of(name, component, formula, values, Allocator.TORCH, lifetime, source, low, high, note)


def persistent(
    name: str,
    formula: str,
    source: str,
    *,
    component: Component = Component.WORKSPACE,
    low: int | None = None,
    high: int | None = None,
    note: str = "",
    **values: int | float,
) -> MemoryTerm:
    """Allocated during the profile run and kept for the life of the engine; the arguments are those of `term`."""
    lifetime = Lifetime.PROFILE_PERSISTENT
    return term_of(name, component, formula, values, Allocator.TORCH, lifetime, source, low, high, note)


def less(t: MemoryTerm, n_bytes: int, note: str) -> MemoryTerm:
    """`t` without `n_bytes` of it (never below 0): those bytes are counted by another term."""
    values = {**t.values, "later": n_bytes}
    rest = max(0, t.n_bytes - n_bytes)
    return replace(
        t,
        n_bytes=rest,
        low=max(0, t.low - n_bytes),
        high=max(rest, t.high - n_bytes),
        formula=f"max(0, ({t.formula}) - later)",
        values=values,
        note="; ".join(filter(None, (t.note, note))),
    )


@dataclass(frozen=True, slots=True)
class Sizes:
    """Numbers that most phases share. `tokens` is the batch of the profile run, `rows` its logits rows."""

    tokens: int
    sequences: int
    rows: int
    tp: int
    hidden: int
    vocab: int
    padded_vocab: int
    el: int
    """Bytes of one element of the model's dtype."""
    limited: int = 0
    """1 where the profile run splits no block of 20 MiB and more (feature `profile_max_split_size`)."""

    @staticmethod
    @once
    def of(ctx: RankContext) -> Sizes:
        engine, architecture = ctx.engine, ctx.architecture
        tokens, sequences = engine.max_num_batched_tokens, engine.max_num_seqs
        return Sizes(
            tokens=tokens,
            sequences=sequences,
            rows=min(tokens, sequences),
            tp=engine.parallel.tp,
            hidden=architecture.hidden_size,
            vocab=architecture.vocab_size,
            padded_vocab=-(-architecture.vocab_size // 64) * 64,
            el=DTYPE_BYTES[engine.dtype],
            limited=int(ctx.release.has("profile_max_split_size")),
        )


def share(size: int, tp: int) -> int:
    """A dimension divided by tp; the last rank's padding is ignored where it does not divide."""
    return -(-size // tp)


def kv_share(num_kv_heads: int, tp: int) -> int:
    """KV heads on one rank: divided by tp, or one replica each when there are fewer than tp."""
    return max(1, num_kv_heads // tp)
