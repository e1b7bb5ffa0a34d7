"""Measures vLLM from inside its own processes.

Self-contained on purpose (standard library, and torch and vLLM of the environment it runs in), so that
`--python PATH` can start the engine in an environment that does not have this tool. `child` is the process
that owns the engine, `worker` the class that vLLM instantiates on every rank, `journal` the file that
survives a crash.
"""
