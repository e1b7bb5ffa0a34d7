"""vLLM's own start-up on tensors without storage. Runs inside a Python that has vLLM and imports nothing of this tool.

fake_cuda, fake_nvml, fake_triton   the machine: torch.cuda, NVML and Triton answer as the chosen GPU
fake_tensors, tensor_ledger         cuda tensors have no storage; every byte that they would take is counted
fake_distributed                    process groups and communicators of one rank among many
custom_ops, fake_kernels            bodies of vLLM's Python operators; kernels that need a GPU
vllm_names                          where each supported release keeps what is used here
engine, worker, kv_cache            vLLM's configuration, worker and KV planner, driven as the engine does
server                              the protocol: JSON lines in and out
"""
