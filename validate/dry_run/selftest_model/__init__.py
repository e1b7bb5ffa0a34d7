"""A model folder as vLLM reads it: config.json of meta-llama/Llama-3.1-8B, nothing else."""
