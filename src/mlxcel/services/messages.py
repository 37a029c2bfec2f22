"""Conversations of clients that may drop thinking text from their history (the Anthropic surface)."""

from __future__ import annotations

import dataclasses

from mlxcel.core.chat import Message, TextPart
from mlxcel.core.events import Completed
from mlxcel.core.jobs import ChatJob
from mlxcel.services.chat import ChatService
from mlxcel.services.choices import fold
from mlxcel.services.generation import Answer
from mlxcel.stores.reasoning_echo import ReasoningEchoStore


class MessagesService:
    """Answers conversations, and gives the model its own earlier thinking back where the client sent only the text.

    Args:
        chat: answers the conversation.
        echo: remembers thinking text; requests that did not ask for thinking, or that stay out of the prompt cache, neither
            read nor write it.
    """

    def __init__(self, chat: ChatService, echo: ReasoningEchoStore) -> None:
        self._chat = chat
        self._echo = echo

    async def start(self, job: ChatJob) -> Answer:
        """Admit a conversation and begin to answer it; the errors are those of :meth:`ChatService.start`."""
        job = self._restored(job)

        def record(answer: Completed) -> None:
            turn = Message("assistant", (TextPart(answer.text),) if answer.text else (), tool_calls=answer.tool_calls)
            self._echo.record(_namespace(job), job.messages, turn, answer.reasoning)

        # A continued turn is not the one that the client will send back.
        records = self._echoes(job) and job.messages[-1].role != "assistant"
        return await self._chat.start(job, on_completed=record if records else None)

    async def answer(self, job: ChatJob) -> Completed:
        """The whole answer."""
        (completed,) = await fold(await self.start(job))
        return completed

    async def count_tokens(self, job: ChatJob) -> int:
        """Tokens of the prompt that the same request would be answered with."""
        return await self._chat.count_tokens(self._restored(job))

    def _echoes(self, job: ChatJob) -> bool:
        return self._echo.enabled and job.reasoning.enabled is True and job.options.cache_prompt is not False

    def _restored(self, job: ChatJob) -> ChatJob:
        if not self._echoes(job):
            return job
        return dataclasses.replace(job, messages=self._echo.restore(_namespace(job), job.messages))


def _namespace(job: ChatJob) -> tuple[str, ...]:
    """What keeps conversations apart besides their text: tenant, session, and everything that shapes the template's work."""
    options = job.options
    template = sorted(job.template_kwargs.items(), key=lambda item: item[0])
    tools = [tool.name for tool in job.tools]
    return (options.cache_scope, options.session or "", repr(template), job.reasoning.effort or "", *tools)
