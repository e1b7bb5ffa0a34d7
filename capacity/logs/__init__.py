"""What a vLLM log says about memory: `read_log` turns any log into one typed `LogRecord`.

lines.py      bytes -> clean lines (prefixes, colours, progress bars, compression)
formats.py    a line -> named figures, for the lines of vLLM 0.10 to 0.33
prose.py      figures as people retell them
failures.py   refusals, out-of-memory messages, and the step they happened in
arguments.py  vLLM's printed engine arguments
reader.py     all of it in one pass and constant memory
record.py     the result
"""

from __future__ import annotations

from vllm_capacity.logs.reader import read_lines, read_log
from vllm_capacity.logs.record import LogRecord, StartRecord

__all__ = ["LogRecord", "StartRecord", "read_lines", "read_log"]
