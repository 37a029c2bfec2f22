"""The official Node SDKs: whole and streamed answers, tools, thinking, refusals, streams left early.

The checks are in the scripts beside this file.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from mlxcel.config.network import NetworkConfig
from mlxcel.config.server import ServerConfig
from mlxcel.testing.app import LiveServer, scripted_source

pytestmark = pytest.mark.agents

KEY = "key-of-a-test"
ANSWER = "The river runs past the old mill."
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'


def say(prompt: str) -> str:
    if prompt.rstrip().endswith("assistant") and "Think first." in prompt and "Hello" not in prompt:
        return f"<think>\nIt runs.\n</think>\n\n{ANSWER}"
    return CALL if "weather in Paris" in prompt and "<tool_response>" not in prompt else ANSWER


@pytest.mark.parametrize("script", ["sdk_openai.mjs", "sdk_anthropic.mjs"])
def test_node_sdk(live: Callable[..., LiveServer], tmp_path: Path, packages: Path, script: str) -> None:
    config = ServerConfig(network=NetworkConfig(api_keys=(KEY,)))
    url = live(scripted_source(say, tmp_path, step_s=0.002), config).url
    env = os.environ | {"PACKAGES": str(packages), "MLXCEL_URL": url, "MLXCEL_API_KEY": KEY}
    command = ["node", "--test", str(Path(__file__).parent / script)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "# skipped 0" in done.stdout
