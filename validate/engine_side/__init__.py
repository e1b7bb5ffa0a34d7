"""What runs inside the engine's processes. The folder itself goes on their PYTHONPATH: `vllm_capacity_probe`
needs nothing else.
"""
