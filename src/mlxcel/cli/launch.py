"""``mlxcel launch AGENT``: start a coding agent on a running server.

Everything goes through the environment and the command line of the agent's process. Its configuration files are neither
written nor needed, and settings that point elsewhere in them are overridden for this one session.
"""

from __future__ import annotations

import ipaddress
import json
import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx2

from mlxcel.cli.options import build_parser, resolve
from mlxcel.config.option import option, switch
from mlxcel.core.errors import StartupError

KEY_VARIABLE = "MLXCEL_API_KEY"
_PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
_MAX_OUTPUT_TOKENS = 32_000
_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """Server"""

    url: str = option("http://127.0.0.1:8080", "--url", metavar="URL", help="the server's address, its API prefix included")
    api_key: str = option(
        "",
        "--api-key",
        env=(KEY_VARIABLE, "LLAMA_API_KEY"),
        parse=lambda text: text.partition(",")[0].strip(),
        metavar="KEY",
        help="a key that the server accepts; of a comma list the first",
    )
    model: str = option("", "--model", metavar="NAME", help="the name to ask for instead of the loaded model's own")
    show: bool = switch(False, "--print", help="show the settings as shell commands and start nothing")


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """What ``launch`` was told."""

    server: LaunchOptions = field(default_factory=LaunchOptions)


@dataclass(frozen=True, slots=True)
class ServedChat:
    """What an agent has to know of a server. ``url`` has no ``/v1``; ``api_key`` is empty where none is needed."""

    url: str
    api_key: str
    model: str
    context_tokens: int

    @property
    def output_tokens(self) -> int:
        """A limit of answers that leaves room for the conversation."""
        return min(_MAX_OUTPUT_TOKENS, self.context_tokens // 2)


@dataclass(frozen=True, slots=True)
class AgentStart:
    """How an agent is started.

    Attributes:
        arguments: come before the user's own.
        environment: variables to set.
        unset: variables that would lead the agent elsewhere.
    """

    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()


def claude(chat: ServedChat) -> AgentStart:
    """Claude Code, over the Messages API (https://code.claude.com/docs/en/env-vars).

    The variables are repeated as ``--settings``, which win over the ``env`` of the user's settings file; the key is not,
    because other users of the machine can read command lines.
    """
    public = {
        "ANTHROPIC_BASE_URL": chat.url,
        "ANTHROPIC_MODEL": chat.model,
        "ANTHROPIC_DEFAULT_OPUS_MODEL": chat.model,
        "ANTHROPIC_DEFAULT_SONNET_MODEL": chat.model,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": chat.model,
        "ANTHROPIC_DEFAULT_FABLE_MODEL": chat.model,
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(chat.context_tokens),
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(chat.output_tokens),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    return AgentStart(
        arguments=("--settings", json.dumps({"env": public})),
        environment={**public, "ANTHROPIC_AUTH_TOKEN": chat.api_key or "none"},  # without any it asks for a login
        unset=(
            "ANTHROPIC_API_KEY",
            "CLAUDE_CODE_OAUTH_TOKEN",
            "CLAUDE_CODE_USE_BEDROCK",
            "CLAUDE_CODE_USE_FOUNDRY",
            "CLAUDE_CODE_USE_VERTEX",
        ),
    )


def codex(chat: ServedChat) -> AgentStart:
    """Codex, over the Responses API (https://developers.openai.com/codex/config-reference).

    With its web search off it declares functions only, which a strict server takes.
    """
    provider = {"name": "mlxcel", "base_url": f"{chat.url}/v1", "wire_api": "responses"}
    if chat.api_key:
        provider["env_key"] = KEY_VARIABLE
    settings: dict[str, Any] = {
        "model": chat.model,
        "model_provider": "mlxcel",
        "model_context_window": chat.context_tokens,
        "web_search": "disabled",
        "check_for_update_on_startup": False,
        "analytics.enabled": False,
        "features.plugins": False,  # their catalogue is fetched from the internet at every start
    }
    settings |= {f"model_providers.mlxcel.{name}": value for name, value in provider.items()}
    # A TOML value and a JSON value are written alike where they are strings, numbers and booleans.
    words = [word for name, value in settings.items() for word in ("-c", f"{name}={json.dumps(value)}")]
    return AgentStart(tuple(words), {KEY_VARIABLE: chat.api_key} if chat.api_key else {})


def opencode(chat: ServedChat) -> AgentStart:
    """opencode, over chat completions (https://opencode.ai/docs/config)."""
    limit = {"context": chat.context_tokens, "output": chat.output_tokens}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "mlxcel",
        "options": {"baseURL": f"{chat.url}/v1", **({"apiKey": chat.api_key} if chat.api_key else {})},
        "models": {chat.model: {"name": chat.model, "limit": limit}},
    }
    config = {
        "model": f"mlxcel/{chat.model}",
        "small_model": f"mlxcel/{chat.model}",
        "enabled_providers": ["mlxcel"],
        "provider": {"mlxcel": provider},
        "autoupdate": False,
        "share": "disabled",
    }
    return AgentStart(
        environment={
            "OPENCODE_CONFIG_CONTENT": json.dumps(config),
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        }
    )


AGENTS = {
    "claude": (claude, "@anthropic-ai/claude-code"),
    "codex": (codex, "@openai/codex"),
    "opencode": (opencode, "opencode-ai"),
}


def run(arguments: Sequence[str]) -> int:
    """Replace this process by the agent, or print how it would be started.

    Raises:
        StartupError: the agent is not installed, or no server with a chat model answers.
    """
    agent, options, passed_on = _parse(arguments)
    prepare, package = AGENTS[agent]
    program = shutil.which(agent)
    if program is None and not options.show:
        raise StartupError(f"{agent} is not installed; npm install -g {package}")
    chat = find_chat(options)
    start = prepare(chat)
    variables = {**start.environment, **_no_proxy(chat.url, os.environ)}
    command = [agent, *start.arguments, *passed_on]
    if program is not None and not options.show:
        kept = {name: value for name, value in os.environ.items() if name not in start.unset}
        os.execve(program, command, kept | variables)  # noqa: S606 - the program the user asked for, without a shell
    print(_as_shell(command, variables, start.unset))
    return 0


def _parse(arguments: Sequence[str]) -> tuple[str, LaunchOptions, list[str]]:
    """The agent, our options, and what stands after ``--``."""
    words = list(arguments)
    split = words.index("--") if "--" in words else len(words)
    description = "Start a coding agent on a running server. The agent's own arguments follow --."
    parser = build_parser(LaunchConfig, prog="mlxcel launch", description=description)
    parser.add_argument("agent", choices=tuple(AGENTS), help="claude (Claude Code), codex or opencode")
    parsed = vars(parser.parse_args(words[:split]))
    return parsed["agent"], resolve(LaunchConfig, parsed, os.environ).server, words[split + 1 :]


def find_chat(options: LaunchOptions) -> ServedChat:
    """Ask the server what it serves.

    Raises:
        StartupError: nothing answers there, the key is refused, or no chat model is ready.
    """
    url = options.url.rstrip("/").removesuffix("/v1")
    headers = {"Authorization": f"Bearer {options.api_key}"} if options.api_key else {}
    try:
        with httpx2.Client(headers=headers, timeout=_TIMEOUT_S, trust_env=not _is_loopback(url)) as client:
            health, models = client.get(f"{url}/health"), client.get(f"{url}/v1/models")
            report = health.json()
            listed = models.json().get("data") or [{}]
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError):
        raise StartupError(f"no server answers on {url}; start one with mlxcel serve, or name it with --url") from None
    except (ValueError, AttributeError):
        raise StartupError(f"what answers on {url} is no mlxcel server") from None
    if models.status_code == 401:
        raise StartupError(f"the server on {url} does not accept the key; give one with --api-key")
    context_tokens = report.get("context_size")
    if not isinstance(context_tokens, int):
        raise StartupError(f"the server on {url} has no chat model ready (its status is {report.get('status')!r})")
    return ServedChat(url, options.api_key, options.model or str(listed[0].get("id")), context_tokens)


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _no_proxy(url: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Keep an agent behind a proxy from asking it for a server on this machine."""
    if not _is_loopback(url) or not any(environment.get(name) or environment.get(name.lower()) for name in _PROXY_VARIABLES):
        return {}
    before = environment.get("NO_PROXY") or environment.get("no_proxy") or ""
    hosts = ",".join(part for part in (before, urlsplit(url).hostname) if part)
    return {"NO_PROXY": hosts, "no_proxy": hosts}


def _as_shell(command: Sequence[str], environment: Mapping[str, str], unset: Sequence[str]) -> str:
    lines = [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
    lines += [f"unset {' '.join(unset)}"] if unset else []
    return "\n".join([*lines, shlex.join(command)])
