"""``mlxcel generate`` and ``mlxcel chat``: a model in the terminal, without a server."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mlxcel.cli.inspect import inspect_model, print_report
from mlxcel.cli.options import build_parser, resolve
from mlxcel.config.adapters import AdapterConfig
from mlxcel.config.constraints import ConstraintConfig
from mlxcel.config.conversation import TemplateConfig
from mlxcel.config.memory import MemoryConfig
from mlxcel.config.model import ModelConfig
from mlxcel.config.option import option, switch
from mlxcel.config.rope import RopeConfig
from mlxcel.config.sampling import SamplingConfig
from mlxcel.config.scheduling import SchedulingConfig
from mlxcel.config.server import LogConfig, ServerConfig
from mlxcel.core.chat import Message, TextPart
from mlxcel.core.errors import MlxcelError, StartupError
from mlxcel.core.events import Completed, OutputEvent, ReasoningDelta, TextDelta
from mlxcel.core.jobs import ChatJob, CompletionJob, GenerationOptions
from mlxcel.observe.logging import configure_logging

if TYPE_CHECKING:
    from mlxcel.services.chat import ChatService
    from mlxcel.services.choices import Choices
    from mlxcel.services.generation import Answer

_COMMANDS = """/bye or /exit   leave
/clear          forget the conversation
/?              this help
\"\"\"             begin and end a message of several lines"""


@dataclass(frozen=True, slots=True)
class PromptConfig:
    """Prompt"""

    prompt: str = option("", "-p", "--prompt", metavar="TEXT", help="answer this and leave (without it: a conversation)")
    system: str = option("", "-sys", "--system-prompt", metavar="TEXT", help="instructions before the conversation")
    raw: bool = switch(False, "--no-chat-template", help="continue the prompt as it is, without a chat template")
    show_reasoning: bool = switch(False, "--show-reasoning", help="show the model's thinking")


@dataclass(frozen=True, slots=True)
class GenerateConfig:
    """What ``generate`` was told."""

    prompt: PromptConfig = field(default_factory=PromptConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    adapters: AdapterConfig = field(default_factory=AdapterConfig)
    rope: RopeConfig = field(default_factory=RopeConfig)
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    scheduling: SchedulingConfig = field(default_factory=SchedulingConfig)
    constraints: ConstraintConfig = field(default_factory=ConstraintConfig)
    template: TemplateConfig = field(default_factory=TemplateConfig)
    log: LogConfig = field(default_factory=LogConfig)
    given: frozenset[str] = frozenset()


def run(arguments: Sequence[str]) -> int:
    """``mlxcel generate``: greedy unless the options or the checkpoint say otherwise."""
    return _run(arguments, prog="mlxcel generate")


def run_chat(arguments: Sequence[str]) -> int:
    """``mlxcel chat``: always a conversation."""
    return _run(arguments, prog="mlxcel chat")


def _run(arguments: Sequence[str], prog: str) -> int:
    parser = build_parser(GenerateConfig, prog=prog, description="Talk to a model in the terminal.")
    config = resolve(GenerateConfig, vars(parser.parse_args(list(arguments))), os.environ)
    verbosity = config.log.verbosity if "log.verbosity" in config.given else 2
    configure_logging(verbosity=9 if config.log.verbose else verbosity, secrets=(config.model.hf_token,))
    if config.memory.estimate:
        print_report(inspect_model(server_config(config)))
        return 0
    return asyncio.run(_talk(config))


def server_config(config: GenerateConfig) -> ServerConfig:
    """The same options for the objects that a server is made of: one slot, and greedy by default."""
    sampling, given = config.sampling, config.given
    if "sampling.temperature" not in given:
        sampling = dataclasses.replace(sampling, temperature=0.0)
    scheduling = dataclasses.replace(config.scheduling, parallel=1)
    return ServerConfig(
        model=config.model,
        adapters=config.adapters,
        rope=config.rope,
        memory=config.memory,
        sampling=sampling,
        scheduling=scheduling,
        constraints=config.constraints,
        template=config.template,
        given=given,
    )


async def _talk(config: GenerateConfig) -> int:
    from mlxcel.app import build_app, open_source

    settings = server_config(config)
    app = build_app(settings, open_source(settings))
    async with app.asgi.router.lifespan_context(app.asgi):
        await app.model.client.wait_ready()
        session = Session(app.rooms.chat, app.rooms.facts.defaults, config.prompt)
        if config.prompt.raw:
            if not config.prompt.prompt:
                raise StartupError("--no-chat-template needs a prompt; give one with -p")
            job = CompletionJob(uuid.uuid4().hex, config.prompt.prompt, app.rooms.facts.defaults)
            await show(await app.rooms.completion.start([job]), show_reasoning=False)
        elif config.prompt.prompt:
            await session.say(config.prompt.prompt)
        else:
            await session.converse()
    return 0


class Session:
    """One conversation with its history."""

    def __init__(self, chat: ChatService, defaults: GenerationOptions, prompt: PromptConfig) -> None:
        self._chat = chat
        self._defaults = defaults
        self._prompt = prompt
        self._history: list[Message] = []
        self.clear()

    def clear(self) -> None:
        """Forget everything but the instructions."""
        self._history = [Message("system", (TextPart(self._prompt.system),))] if self._prompt.system else []

    async def say(self, text: str) -> None:
        """Answer one message on the terminal."""
        self._history.append(Message("user", (TextPart(text),)))
        job = ChatJob(uuid.uuid4().hex, tuple(self._history), self._defaults)
        try:
            answer = await show(await self._chat.start(job), show_reasoning=self._prompt.show_reasoning)
        except MlxcelError as error:
            self._history.pop()
            print(f"error: {error.message}", file=sys.stderr)
            return
        self._history.append(
            Message("assistant", (TextPart(answer.text),), tool_calls=answer.tool_calls, reasoning=answer.reasoning or None)
        )

    async def converse(self) -> None:
        """Read messages until the end."""
        while (text := await asyncio.to_thread(_read_message)) is not None:
            word = text.strip()
            if word in ("/bye", "/exit", "/quit"):
                return
            if word == "/clear":
                self.clear()
            elif word in ("/?", "/help"):
                print(_COMMANDS)
            elif word:
                await self.say(text)


def _read_message() -> str | None:
    """One message from the terminal; None at its end."""
    try:
        line = input(">>> ")
        if not line.startswith('"""'):
            return line
        lines = [line[3:]]
        while not lines[-1].endswith('"""'):
            lines.append(input("... "))
        return "\n".join(lines)[:-3]
    except EOFError:
        return None


async def show(running: Answer | Choices, *, show_reasoning: bool) -> Completed:
    """Print an answer as it comes and return it.

    Raises:
        MlxcelError: the generation failed.
    """
    completed: Completed | None = None
    try:
        async for event in running:
            completed = _show_event(event, show_reasoning) or completed
    finally:
        await running.aclose()
    print()
    if completed is None:
        raise StartupError("the generation ended without an answer")
    return completed


def _show_event(event: OutputEvent, show_reasoning: bool) -> Completed | None:
    if isinstance(event, TextDelta):
        print(event.text, end="", flush=True)
    elif isinstance(event, ReasoningDelta) and show_reasoning:
        print(f"\x1b[2m{event.text}\x1b[0m" if sys.stdout.isatty() else event.text, end="", flush=True)
    elif isinstance(event, Completed):
        for call in event.tool_calls:
            print(f"\n{call.name}({call.arguments})", end="")
        return event
    return None
