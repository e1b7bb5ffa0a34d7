"""From a log's record to the cause and the smallest change that fixes it.

rebuild.py       the run's model, flags, GPU and release, as far as the log shows them
causes.py        the values of a diagnosis
findings.py      which failure decides, its evidence and figures
descriptions.py  what each cause means, in words and bytes
observations.py  what else the log shows: memory left unused, misleading figures, other users of the GPU
margins.py       how much room a plan has at the step that failed
remedies.py      changes, each planned again from the log's own figures
log_remedies.py  changes that follow from the log alone
predicted.py     the plan beside what was logged
diagnose.py      all of it
"""

from __future__ import annotations

from vllm_capacity.diagnosis.causes import Confidence, Diagnosis, Finding, Remedy, RuntimeCause
from vllm_capacity.diagnosis.diagnose import diagnose

__all__ = ["Confidence", "Diagnosis", "Finding", "Remedy", "RuntimeCause", "diagnose"]
