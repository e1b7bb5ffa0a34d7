"""vLLM's own start-up on a machine without a GPU: `vllm-capacity dry-run`.

    stub, session        the engine side: a Python that has vLLM, spoken to in JSON lines
    job, ranks           what it is asked to run
    selftest             refuses releases and environments that do not answer as known
    run                  ranks, KV planning and what the analytical plan adds, put together
    terms, as_plan       the ledger and the JSON of `plan`, from what vLLM did
    differences          a plan and a dry-run, term by term
    golden               what vLLM's classes build, as test data
    command, text        the command line

`engine_side/` runs in the other Python and imports nothing of this package.
"""
