"""OpenEnv's check of an endpoint that is to be trained through: python client_tests/openenv_check.py URL MODEL."""

from __future__ import annotations

import sys

from openenv.core.harness.capture import validate_llm

report = validate_llm(sys.argv[1], sys.argv[2])
print(report)
sys.exit(not (report.ok and report.capture_level == "tokens" and report.logprobs_mode == "processed"))
