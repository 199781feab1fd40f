"""The guide to confidence without labels, followed on llama.cpp's own server with a real model.

tests/test_vllm_real.py follows it on vLLM's server.
"""

from pathlib import Path

import pytest
from taught_guide import check_guide, taught_by_the_guide

from metaprobe.llms.weights import DEFAULT_MODEL

pytestmark = pytest.mark.slow


@pytest.mark.filterwarnings("ignore")
def test_the_guide_leads_from_the_server_to_a_flag_without_a_label(
    llama_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    check_guide(taught_by_the_guide(llama_server, DEFAULT_MODEL, tmp_path))
