"""Everything that a rank's model holds, tensor by tensor, layers counted and not visited one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import Any

from vllm_capacity.architecture.modules import (
    Experts,
    LayerGroup,
    Linear,
    Module,
    MultiHeadLatentAttention,
    Placed,
    Placement,
    StateSpace,
    Tensor,
    VocabEmbedding,
)
from vllm_capacity.context import RankContext, once
from vllm_capacity.frozen import dataclass
from vllm_capacity.parallel import ParallelConfig, stage_bounds
from vllm_capacity.releases.release import Release
from vllm_capacity.units import DTYPE_BYTES
from vllm_capacity.weights.encoder_modules import outside_here
from vllm_capacity.weights.groups import ParameterGroup, role_of
from vllm_capacity.weights.quantisation import checkpoint_method, quantisation_method
from vllm_capacity.weights.quantisation.base import (
    LayerTensors,
    QuantContext,
    QuantisationMethod,
    Stored,
    plain_experts,
    plain_linear,
    plain_vocab,
)
from vllm_capacity.weights.sharding import (
    SINGLE,
    Layout,
    shard_experts,
    shard_linear,
    shard_qkv,
    shard_tensor,
    shard_vocab,
)


@dataclass(frozen=True, slots=True)
class Section:
    """Tensors that stand together `count` times: a layer of some kind, or what lies outside the layers (count
    1).

    `transient_bytes` is the largest need of one module's post-load processing; `dropped` are tensors that
    vLLM allocates in this section and frees before loading ends; `repacking` is what that processing allocates and frees
    in one layer, `late` what comes when all layers are through with that (see `LayerTensors`). `layer_indices` count from the
    first layer of the stage, so that stages of equal layers are equal.
    """

    groups: tuple[ParameterGroup, ...]
    built: tuple[ParameterGroup, ...]
    count: int = 1
    layer_indices: tuple[int, ...] = ()
    transient_bytes: int = 0
    dropped: tuple[ParameterGroup, ...] = ()
    repacking: tuple[tuple[str, int], ...] = ()
    late: tuple[tuple[str, int], ...] = ()
    uncertain: bool = False
    """A module is processed in steps that were not read off the source."""


@dataclass(frozen=True, slots=True, eq=False)
class RankWeights:
    """One rank's tensors in vLLM's order of construction: `before` the layers, one section per kind of layer,
    `after`.

    `caches` are the rope caches, which vLLM builds inside the first layer that needs them.
    """

    before: Section
    layers: tuple[Section, ...]
    caches: Section
    after: Section

    @property
    def sections(self) -> tuple[Section, ...]:
        return (self.before, *self.layers, self.caches, self.after)

    @property
    def groups(self) -> tuple[ParameterGroup, ...]:
        """What stays after loading."""
        return tuple(group for section in self.sections for group in section.groups)

    @property
    def built(self) -> tuple[ParameterGroup, ...]:
        """What vLLM constructs before it reads the checkpoint."""
        return tuple(group for section in self.sections for group in section.built)

    @property
    def n_bytes(self) -> int:
        """Exact bytes after loading, without the allocator's rounding."""
        return sum(group.n_bytes for group in self.groups)

    @property
    def built_bytes(self) -> int:
        return sum(group.n_bytes for group in self.built)

    @property
    def repacked(self) -> bool:
        """Whether processing makes tensors anew, in blocks that others left."""
        return any(n_bytes for section in self.sections for _, n_bytes in (*section.repacking, *section.late))

    @property
    def parameters_on_rank(self) -> int:
        """Elements of the parameters as constructed, scales and packed words counted as they are stored."""
        return sum(group.numel for group in self.built if not group.buffer)


@once
def rank_weights(ctx: RankContext, ep_rank: int = 0) -> RankWeights:
    """The weights of the rank that `ctx` describes; `ep_rank` counts over dp x pcp x tp and matters with
    uneven experts.

    The same object is returned for equal inputs. Raises RefusedError(INVALID_LAYOUT) where a size does not
    divide, InputError for quantisation that is not modelled.
    """
    return _weights(ctx, ctx.layers, ctx.pp_rank, layout_of(ctx, ep_rank), method_of(ctx))


def whole_weights(ctx: RankContext) -> RankWeights:
    """The weights of the whole model, as one GPU would hold them."""
    if ctx.engine.parallel.num_gpus == 1:
        return rank_weights(ctx)
    layers = tuple([(group, len(group.indices)) for group in ctx.architecture.layers])
    return _weights(ctx, layers, 0, SINGLE, _method(ctx, SINGLE.parallel))


def _weights(
    ctx: RankContext,
    layers: tuple[tuple[LayerGroup, int], ...],
    pp_rank: int,
    layout: Layout,
    method: QuantisationMethod,
) -> RankWeights:
    engine = ctx.engine
    outside, tokens = outside_here(ctx), engine.max_num_batched_tokens
    decode_rows = min(tokens, engine.max_num_seqs * (1 + engine.num_speculative_tokens))
    by_token, by_row = _sized_by_batch(layers, outside)
    return _rank_weights(
        layers,
        outside,
        ctx.architecture.num_hidden_layers,
        pp_rank,
        layout,
        method,
        tokens if by_token else 0,
        decode_rows if by_row else 0,
        not engine.compiled,
        engine.attention_backends,
    )


@lru_cache(maxsize=256)
def _sized_by_batch(
    layers: tuple[tuple[LayerGroup, int], ...], outside: tuple[Placed, ...]
) -> tuple[bool, bool]:
    """Whether a tensor grows with the tokens, and with the decode rows, of a batch: for most models none does, and plans
    with other batches share their weights.
    """
    modules = [module for group, _ in layers for module in group.modules]
    modules += [placed.module for placed in outside]
    tensors = [module for module in modules if isinstance(module, Tensor)]
    return any(tensor.per_token for tensor in tensors), any(tensor.per_decode_row for tensor in tensors)


@lru_cache(maxsize=256)
def _rank_weights(
    layers: tuple[tuple[LayerGroup, int], ...], outside: tuple[Placed, ...], num_layers: int, pp_rank: int,
    layout: Layout, method: QuantisationMethod, tokens: int, decode_rows: int, eager: bool,
    backends: tuple[str, ...],
) -> RankWeights:  # fmt: skip
    build = _Builder(num_layers, pp_rank, layout, method, tokens, decode_rows, eager, backends)
    sections = tuple(section for group, count in layers for section in build.layer(group, count))
    before, caches, after = build.outside(outside)
    return _one_object(before, sections, caches, after)


@lru_cache(maxsize=256)
def _one_object(before: Section, layers: tuple[Section, ...], caches: Section, after: Section) -> RankWeights:
    """The same object for equal tensors: devices and releases that hold the same share what is worked out from them."""
    return RankWeights(before, layers, caches, after)


def layout_of(ctx: RankContext, ep_rank: int) -> Layout:
    args = ctx.engine.args
    eplb = args.other("eplb_config")
    redundant = eplb.get("num_redundant_experts", 0) if isinstance(eplb, Mapping) else 0
    return Layout(
        ctx.engine.parallel, ep_rank, int(redundant) if args.other("enable_eplb") else 0,
        str(args.other("all2all_backend") or "allgather_reducescatter"),
    )  # fmt: skip


@once
def method_of(ctx: RankContext) -> QuantisationMethod:
    """The quantisation method in use: the engine's (`--quantization`), else the checkpoint's."""
    return _method(ctx, ctx.engine.parallel)


def _method(ctx: RankContext, parallel: ParallelConfig) -> QuantisationMethod:
    engine, config = ctx.engine, ctx.config
    block = config.quantization
    moe_backend = str(engine.args.other("moe_backend") or "auto")
    key = (
        id(block), engine.quantization, engine.dtype, parallel, ctx.release.version, ctx.device, moe_backend,
        engine.args.other("linear_backend"), engine.args.other("allow_deprecated_quantization"),
        ctx.architecture.is_multimodal, tuple(sorted(engine.environment.items())), config.name,
        bool(engine.args.other("enable_lora")),
    )  # fmt: skip
    method = _METHODS.get(key)
    if method is None:
        if len(_METHODS) >= 256:
            _METHODS.clear()
        # the context keeps `block` alive, so its id stays its own while the entry is there
        context = QuantContext(
            dtype=engine.dtype, device=ctx.device, release=ctx.release, parallel=parallel, block=block,
            model=config.name, model_type=config.text_model_type or config.model_type,
            environment=engine.environment, moe_backend=moe_backend, text=config.text,
            is_multimodal=ctx.architecture.is_multimodal,
            linear_backend=str(engine.args.other("linear_backend") or "auto"),
            lora=bool(engine.args.other("enable_lora")),
            allow_deprecated=bool(engine.args.other("allow_deprecated_quantization")),
        )  # fmt: skip
        method = _METHODS[key] = quantisation_method(engine.quantization or checkpoint_method(block), context)
    return method


_METHODS: dict[tuple[Any, ...], QuantisationMethod] = {}
"""Methods by what they depend on: one object for equal inputs, so that equal plans share their tensors."""


def _replacing(tensors: LayerTensors) -> list[tuple[str, int]]:
    """All new tensors, then the built ones that they replace: where nothing closer is known."""
    if tensors.built is None:
        return []
    new = [t for t in tensors.stored if t not in tensors.built]
    gone = [t for t in tensors.built if t not in tensors.stored]
    return [*((f"{t.name} again", t.n_bytes) for t in new), *((t.name, 0) for t in gone)]


class _Builder:
    def __init__(
        self,
        num_layers: int,
        pp_rank: int,
        layout: Layout,
        method: QuantisationMethod,
        tokens: int,
        decode_rows: int,
        eager: bool,
        backends: tuple[str, ...],
    ) -> None:
        self.layout, self.method, self.tokens, self.decode_rows, self.eager = (
            layout, method, tokens, decode_rows, eager
        )  # fmt: skip
        self.backends = backends
        self.dtype, self.release = method.context.dtype, method.context.release
        self.text = "language_model." if method.context.is_multimodal else ""
        self.first, self.last = pp_rank == 0, pp_rank == layout.parallel.pp - 1
        self.start, self.stop = stage_bounds(num_layers, layout.parallel)[pp_rank]

    def layer(self, group: LayerGroup, count: int) -> Iterator[Section]:
        """One section per set of layers that the quantisation method treats alike."""
        here = tuple(i for i in group.indices if self.start <= i < self.stop)
        classes: dict[Any, list[int]] = {}
        if self.method.name == "unquantised":
            classes[None] = list(here)
        else:
            for index in here:
                classes.setdefault(self.method.layer_class(index), []).append(index)
        if len(here) != count and len(classes) == 1:
            classes = {None: list(here[:count])}
        alike: dict[tuple[tuple[str, LayerTensors], ...], list[int]] = {}
        for indices in classes.values():
            alike.setdefault(tuple(self._layer_modules(group, indices[0])), []).extend(indices)
        for modules, indices in alike.items():
            yield self._section(modules, len(indices), tuple(sorted([i - self.start for i in indices])))

    def _layer_modules(self, group: LayerGroup, index: int) -> Iterator[tuple[str, LayerTensors]]:
        prefix = f"{self.text}model.layers.{index}."
        for module in group.modules:
            yield module.name, self._tensors(module, prefix)
            if isinstance(module, Experts) and self.layout.expert_ranks > 1:
                total = module.num_experts + self.layout.redundant_experts
                yield (
                    f"{module.name}._expert_map",
                    LayerTensors((Stored("", (total,), "int32", buffer=True),)),
                )
        for mixer in group.mixers:
            mla = isinstance(mixer, MultiHeadLatentAttention)
            if not isinstance(mixer, StateSpace) and self.method.loads_kv_scales(mla=mla):
                yield "self_attn.attn._loaded_scales", _loaded_kv_scales(self.release, self.dtype)
            elif not isinstance(mixer, StateSpace) and self.release.has("kv_scale_cpu_copies"):
                yield "self_attn.attn._scale_copies", _SCALE_COPIES
            if isinstance(mixer, MultiHeadLatentAttention):
                yield from self._absorbed(group, mixer, prefix)

    def _absorbed(
        self, group: LayerGroup, mixer: MultiHeadLatentAttention, prefix: str
    ) -> Iterator[tuple[str, LayerTensors]]:
        """W_UK_T and W_UV: views of kv_b_proj, but one new tensor in the model's dtype where that is
        quantised.

        Source: `MLAAttention.process_weights_after_loading`, layers/attention/mla_attention.py:948-1035, and
        `get_and_maybe_dequant_weights`, quantization/utils/quant_utils.py:404-465 (0.26.0).
        """
        for module in group.modules:
            if isinstance(module, Linear) and module.name.endswith("kv_b_proj") and module.quantised:
                scheme = self.method.at(prefix + module.name)
                if self.method.name == "unquantised" or scheme is None:
                    return
                local = shard_linear(module, self.layout)
                tensor = Stored("W_UK_W_UV", (mixer.kv_lora_rank, local.rows), self.dtype)
                yield module.name, LayerTensors((tensor,), (), tensor.n_bytes, late=True)

    def _section(
        self,
        modules: Iterable[tuple[str, LayerTensors]],
        count: int = 1,
        indices: tuple[int, ...] = (),
        copies: Sequence[int] | None = None,
    ) -> Section:
        """Groups of a section; `copies[i]` equal copies of module i (1 each unless given)."""
        groups: list[ParameterGroup] = []
        built: list[ParameterGroup] = []
        transient, same, uncertain = 0, True, False
        steps: list[tuple[str, int]] = []
        late: list[tuple[str, int]] = []
        dropped: list[ParameterGroup] = []
        for i, (name, tensors) in enumerate(modules):
            many = count if copies is None else count * copies[i]
            if tensors is _SCALE_COPIES:
                dropped += [_group(name, tensor, many) for tensor in tensors.as_built]
                continue
            mine = [_group(name, tensor, many) for tensor in tensors.stored]
            groups += mine
            if tensors.built is None:
                built += mine
            else:
                same = False
                built += [_group(name, tensor, many) for tensor in tensors.built]
            transient = max(transient, tensors.transient_bytes)
            uncertain |= bool(tensors.transient_bytes and not tensors.repacking and not tensors.late)
            (late if tensors.late else steps).extend(
                (_full_name(name, step), n_bytes)
                for step, n_bytes in tensors.repacking or _replacing(tensors)
            )
        stored = tuple(groups)
        return Section(
            stored, stored if same else tuple(built), count, indices, transient, tuple(dropped), tuple(steps),
            tuple(late), uncertain,
        )  # fmt: skip

    def _tensors(self, module: Module, prefix: str) -> LayerTensors:
        """A module's tensors on this rank, by the quantisation method where it applies."""
        method = self.method
        if isinstance(module, Tensor):
            return self._plain_tensor(module)
        name = prefix + module.name
        if isinstance(module, VocabEmbedding):
            vocab = shard_vocab(module, self.layout)
            found = method.vocab_at(name)
            return plain_vocab(vocab, self.dtype) if found is None else found.vocab(vocab)
        scheme = method.at(name) if module.quantised else None
        if isinstance(module, Experts):
            mine = shard_experts(module, self.layout)
            return plain_experts(mine, self.dtype) if scheme is None else scheme.experts(mine)
        local = (
            shard_linear(module, self.layout)
            if isinstance(module, Linear)
            else shard_qkv(module, self.layout)
        )
        return plain_linear(local, self.dtype) if scheme is None else scheme.linear(local)

    def _plain_tensor(self, tensor: Tensor) -> LayerTensors:
        if tensor.backend is not None and tensor.backend not in self.backends:
            return LayerTensors(())
        shape = shard_tensor(tensor, self.layout)
        if tensor.per_decode_row:
            shape = (self.decode_rows + 1, *shape)
        if tensor.per_token:
            shape = (self.tokens + tensor.per_token_extra, *shape)
        dtype = tensor.dtype or self.dtype
        if tensor.eager_dtype is not None and self.eager:
            dtype = tensor.eager_dtype
        return LayerTensors(
            (
                Stored(
                    "", shape, dtype, 0 if tensor.buffer else prod(shape), buffer=tensor.buffer, scaled=tensor.scaled
                ),
            )
        )  # fmt: skip

    def outside(self, modules: tuple[Placed, ...]) -> tuple[Section, Section, Section]:
        """(before the layers, rope caches, after the layers)."""
        here = [placed for placed in modules if self._is_here(placed)]
        names = {placed.module.name for placed in here}
        embeddings: list[tuple[str, LayerTensors]] = []
        caches: list[tuple[str, LayerTensors]] = []
        rest: list[tuple[str, LayerTensors]] = []
        copies: list[int] = []
        dropped: list[ParameterGroup] = []
        seen_other = False
        for placed in here:
            module = placed.module
            shared = placed.shares_storage_with in names if placed.shares_storage_with else False
            if shared:
                if placed.allocated_first:
                    tensors = self._tensors(module, self._outside_prefix(module.name))
                    dropped += [
                        _group(module.name, tensor, 1)
                        for tensor in tensors.as_built
                        if tensor.name == "weight"
                    ]
                continue
            entry = (
                module.name,
                self._tensors(module, self._outside_prefix(module.name)),
            )
            if role_of(module.name) == "rope_cache":
                caches.append(entry)
            elif (
                isinstance(module, VocabEmbedding)
                and not seen_other
                and not module.name.startswith("lm_head")
            ):
                embeddings.append(entry)
            else:
                seen_other = True
                rest.append(entry)
                copies.append(placed.count)
        after = self._section(rest, copies=copies)
        if dropped:
            after = replace(after, dropped=tuple(dropped))
        return self._section(embeddings), self._section(caches), after

    def _outside_prefix(self, name: str) -> str:
        role = role_of(name)
        return "" if role == "encoder" else self.text if role == "lm_head" else f"{self.text}model."

    def _is_here(self, placed: Placed) -> bool:
        placement = placed.placement
        if placed.layers is not None and not any(self.start <= i < self.stop for i in placed.layers):
            return False
        return (
            placement is Placement.EVERY
            or (self.first and placement in (Placement.FIRST, Placement.ENDS))
            or (self.last and placement in (Placement.LAST, Placement.ENDS))
        )


_SCALE_COPIES = LayerTensors(
    (), tuple(Stored(name, (), "float32", buffer=True) for name in ("k_scale_cpu", "v_scale_cpu"))
)
"""Built on the device, as all is then, and made anew on the host: `set_default_quant_scales`,
layers/attention/attention.py (0.26.0 to 0.33.0).
"""


def _loaded_kv_scales(release: Release, dtype: str) -> LayerTensors:
    """What BaseKVCacheMethod adds to an attention layer: four scalars while loading, and scalars left on the
    GPU.

    Without such a method vLLM makes the latter anew on the host after loading. Source:
    `set_default_quant_scales`, layers/attention/attention.py:124-150 and 601-617; `BaseKVCacheMethod`,
    quantization/kv_cache.py (0.26.0).
    """
    kept: list[str] = []
    if release.has("kv_scale_cpu_copies"):
        kept += ["k_scale_cpu", "v_scale_cpu"]
    if release.has("kv_scale_ranges"):
        kept += ["q_range", "k_range", "v_range"]
    stored = tuple(Stored(name, (), "float32", buffer=True) for name in kept)
    built = tuple(Stored(f"{name}_scale", (), dtype, scale=True) for name in ("q", "k", "v", "prob"))
    return LayerTensors(stored, stored + built)


def _full_name(module: str, tensor: str) -> str:
    return f"{module}.{tensor}" if tensor else module


def _group(module: str, tensor: Stored, count: int) -> ParameterGroup:
    name = _full_name(module, tensor.name)
    role = "quantisation_scales" if tensor.scale else role_of(module)
    return ParameterGroup(
        role, name, tensor.shape, tensor.dtype, count, prod(tensor.shape) * DTYPE_BYTES[tensor.dtype] * count,
        tensor.buffer, tensor.logical * count, tensor.scaled,
    )  # fmt: skip
