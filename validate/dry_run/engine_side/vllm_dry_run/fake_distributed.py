"""One rank among many that are not there: torch's `fake` process group, and communicators that only allocate.

vLLM computes the groups itself (`initialize_model_parallel`); the coordinators keep their ranks but talk to nobody. The
collectives allocate what pynccl's out-of-place ones do (distributed/device_communicators/cuda_communicator.py).
"""

from __future__ import annotations

from typing import Any


class AllToAllManager:
    """Stands for AgRsAll2AllManager (all-gather, reduce-scatter; device_communicators/all2all.py), vLLM's default backend.
    The others keep buffers of their own, outside PyTorch, and are refused where they are asked for a handle.
    """

    support_fault_tolerance = False
    internode = False

    def __init__(self, group: Any) -> None:
        from vllm.distributed import parallel_state

        self.rank, self.world_size = group.rank_in_group, group.world_size
        self.dp_group, self.tp_group = parallel_state.get_dp_group(), parallel_state.get_tp_group()
        self.dp_rank, self.dp_world_size = self.dp_group.rank_in_group, self.dp_group.world_size

    def get_handle(self, _arguments: Any) -> Any:
        raise NotImplementedError("dry-run knows the all-to-all backend allgather_reducescatter only")

    def max_sms_used(self) -> None: ...
    def destroy(self) -> None: ...


class Communicator:
    """Stands for CudaCommunicator: same results in size, nothing sent."""

    def __init__(self, group: Any) -> None:
        self.group = group
        self.world_size = group.world_size
        self.disabled = False
        self.ca_comm = self.pynccl_comm = None
        self._all2all_manager: AllToAllManager | None = None

    @property
    def all2all_manager(self) -> AllToAllManager:
        if self._all2all_manager is None:
            self._all2all_manager = AllToAllManager(self.group)
        return self._all2all_manager

    def all_reduce(self, tensor: Any) -> Any:
        import torch

        return torch.empty_like(tensor)

    def all_gather(self, tensor: Any, dim: int = -1) -> Any:
        import torch

        dim = dim % tensor.dim()
        gathered = torch.empty((self.world_size, *tensor.shape), dtype=tensor.dtype, device=tensor.device)
        shape = list(tensor.shape)
        shape[dim] *= self.world_size
        return gathered.movedim(0, dim).reshape(shape)

    def all_gatherv(self, tensors: Any, dim: int = 0, sizes: Any = None) -> Any:
        import torch

        def one(tensor: Any) -> Any:
            rows = sum(sizes) if sizes is not None else tensor.shape[0] * self.world_size
            return torch.empty((rows, *tensor.shape[1:]), dtype=tensor.dtype, device=tensor.device)

        return [one(tensor) for tensor in tensors] if isinstance(tensors, list) else one(tensors)

    def reduce_scatter(self, tensor: Any, dim: int = -1) -> Any:
        import torch

        shape = list(tensor.shape)
        shape[dim] //= self.world_size
        return torch.empty(shape, dtype=tensor.dtype, device=tensor.device)

    def reduce_scatterv(self, tensor: Any, dim: int = -1, sizes: Any = None) -> Any:
        import torch

        if sizes is None:
            return self.reduce_scatter(tensor, dim)
        shape = list(tensor.shape)
        shape[dim] = sizes[self.group.rank_in_group]
        return torch.empty(shape, dtype=tensor.dtype, device=tensor.device)

    def gather(self, tensor: Any, dst: int = 0, dim: int = -1) -> Any:
        return self.all_gather(tensor, dim)

    def broadcast(self, tensor: Any, src: int = 0) -> Any:
        return tensor

    def send(self, *_args: Any) -> None: ...

    def recv(self, size: Any, dtype: Any, src: Any = None) -> Any:
        import torch

        return torch.empty(size, dtype=dtype, device="cuda")

    def dispatch_router_logits(
        self, hidden: Any, logits: Any, sequence_parallel: bool = False, extra: Any = None
    ) -> Any:
        found = self._gathered([hidden, logits, *(extra or [])], sequence_parallel)
        return (found[0], found[1], found[2:]) if extra is not None else (found[0], found[1])

    def dispatch(
        self, hidden: Any, weights: Any, ids: Any, sequence_parallel: bool = False, extra: Any = None
    ) -> Any:
        found = self._gathered([hidden, weights, ids, *(extra or [])], sequence_parallel)
        return (*found[:3], found[3:]) if extra is not None else tuple(found)

    def combine(self, hidden: Any, sequence_parallel: bool = False) -> Any:
        group, sizes = self._exchange(hidden.shape[0], sequence_parallel)
        return group.device_communicator.reduce_scatterv(hidden, 0, sizes)

    def _gathered(self, tensors: list[Any], sequence_parallel: bool) -> list[Any]:
        group, sizes = self._exchange(tensors[0].shape[0], sequence_parallel)
        return list(group.device_communicator.all_gatherv(tensors, 0, sizes))

    def _exchange(self, tokens: int, sequence_parallel: bool) -> tuple[Any, list[int]]:
        """The group and the rows of each rank: AgRsAll2AllManager, device_communicators/all2all.py."""
        from vllm.distributed import parallel_state
        from vllm.forward_context import get_forward_context

        if sequence_parallel:
            group = parallel_state.get_ep_group()
        else:
            group = parallel_state.get_dp_group()
            if group.world_size == 1:
                group = parallel_state.get_pcp_group()
        metadata = get_forward_context().dp_metadata
        sizes = metadata.get_chunk_sizes_across_dp_rank() if metadata is not None else None
        return group, sizes if sizes is not None else [tokens] * group.world_size

    def prepare_communication_buffer_for_model(self, _model: Any) -> None: ...
    def destroy(self) -> None: ...


def install(world_size: int, rank: int, data_parallel_size: int, data_parallel_rank: int) -> None:
    """Make this process `rank` of `world_size` (all data-parallel engines together). After `import vllm`."""
    import torch
    import torch.distributed as dist
    import vllm.distributed.parallel_state as parallel_state
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    coordinator: Any = parallel_state.GroupCoordinator

    def init(
        self: Any,
        group_ranks: Any,
        local_rank: int,
        torch_distributed_backend: Any,
        use_device_communicator: bool,
        use_message_queue_broadcaster: bool = False,
        group_name: str | None = None,
        **_later: Any,
    ) -> None:
        self.unique_name = parallel_state._get_unique_name(group_name or "anonymous")
        parallel_state._register_group(self)
        self.rank = rank
        self.local_rank = self.device_index = local_rank
        for ranks in group_ranks:
            if rank in ranks:
                self.ranks, self.world_size, self.rank_in_group = ranks, len(ranks), ranks.index(rank)
        self.group_ranks = group_ranks
        self.torch_distributed_backend = torch_distributed_backend
        self.cpu_group = self.device_group = dist.new_group(self.ranks, backend="fake")
        self.device = torch.device("cuda:0")
        self.use_device_communicator = use_device_communicator
        self.device_communicator = Communicator(self) if self.world_size > 1 else None
        self.mq_broadcaster = None
        self.use_custom_op_call = True
        self.use_cpu_custom_send_recv = False

    coordinator.__init__ = init
    coordinator.destroy = lambda self: None
    parallel_state.in_the_same_node_as = lambda group, source_rank=0: (
        [True] * (group.world_size if hasattr(group, "world_size") else dist.get_world_size(group))
    )
    if data_parallel_size > 1:
        _synchronise_engines(data_parallel_size, data_parallel_rank)


def _synchronise_engines(size: int, rank: int) -> None:
    """All data-parallel engines profile the same batch, so what they would sum is this engine's column in every place
    (v1/worker/dp_utils.py: _run_ar; v1/worker/gpu/dp_utils.py).
    """
    import torch.distributed as dist
    import vllm.distributed.parallel_state as parallel_state

    def same_everywhere(tensor: Any, *_args: Any, **_kwargs: Any) -> None:
        if tensor.dim() == 2 and tensor.shape[1] == size:
            tensor[:] = tensor[:, rank : rank + 1].clone().expand_as(tensor)

    dist.all_reduce = same_everywhere
    if hasattr(parallel_state.GroupCoordinator, "cpu_all_reduce_"):
        parallel_state.GroupCoordinator.cpu_all_reduce_ = lambda _self, tensor: same_everywhere(tensor)
    try:
        import vllm.v1.worker.dp_utils as dp_utils
    except ImportError:
        return
    dp_utils._get_device_and_group = lambda _config: ("cpu", parallel_state.get_dp_group().cpu_group)
