"""Conversations: from a neutral job to a running answer."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from typing import overload

from mlxcel.core.errors import InvalidRequest
from mlxcel.core.events import Completed
from mlxcel.core.jobs import ChatJob
from mlxcel.core.ports import Constraint
from mlxcel.services.choices import Choices, fold
from mlxcel.services.conversation import Conversation, ConversationRenderer
from mlxcel.services.generation import Answer, GenerationService, release

log = logging.getLogger(__name__)

Observer = Callable[[Completed], None]


class ChatService:
    """Answers conversations with one model."""

    def __init__(self, generation: GenerationService) -> None:
        self._generation = generation
        self._renderer = ConversationRenderer(generation.model)

    @overload
    async def start(self, job: ChatJob, *, on_completed: Observer | None = None) -> Answer: ...

    @overload
    async def start(self, job: ChatJob, *, choices: int, on_completed: Observer | None = None) -> Answer | Choices: ...

    async def start(self, job: ChatJob, *, choices: int = 1, on_completed: Observer | None = None) -> Answer | Choices:
        """Admit a conversation and begin to answer it. The caller closes what it gets.

        Args:
            job: the conversation.
            choices: answers to give.
            on_completed: called with each finished answer, before its reader sees it.

        Raises:
            ServerBusy: the queue is full; told before anything is rendered.
            InvalidRequest: the job cannot be served as it is.
            ContextOverflow: the prompt does not fit the window.
        """
        self._renderer.check(job)
        places = self._generation.reserve(job.options, choices)
        answers: list[Answer] = []
        try:
            conversation = await self._render(job)
            self._generation.check_length(conversation.prompt)
            report = _reporter(job, on_completed)
            for choice, place in enumerate(places):
                constraint = await self._constraint(job, conversation)
                parser = self._renderer.parser(job, conversation)
                work_id = job.id if choices == 1 else f"{job.id}-{choice}"
                answer = self._generation.begin(
                    place, work_id, conversation.prompt, job.options, parser, constraint, choice, report
                )
                answers.append(answer)
        except BaseException:
            release(places)
            for answer in answers:
                await answer.aclose()
            raise
        return answers[0] if choices == 1 else Choices(answers)

    async def answer(self, job: ChatJob, *, choices: int = 1) -> list[Completed]:
        """The whole answers, one a choice; see :meth:`start` for the errors."""
        return await fold(await self.start(job, choices=choices))

    async def end_reasoning(self, job_id: str) -> bool:
        """End the thinking of a running answer; False when there is none of that id, or its job did not allow it."""
        return await self._generation.model.client.end_thinking(job_id)

    async def render(self, job: ChatJob) -> str:
        """The prompt text, rendered as for an answer."""
        self._renderer.check(job)
        return (await self._render(job)).text

    async def count_tokens(self, job: ChatJob) -> int:
        """Tokens of the prompt, rendered and encoded as for an answer."""
        self._renderer.check(job)
        return len((await self._render(job)).prompt.token_ids)

    async def _render(self, job: ChatJob) -> Conversation:
        return await self._generation.in_pool(lambda: self._renderer.render(job))

    async def _constraint(self, job: ChatJob, conversation: Conversation) -> Constraint | None:
        """The job's own constraint, or the grammar of a forced call where the engine can express it."""
        if conversation.tool_grammar is None:
            return await self._generation.constraint(job.options)
        try:
            options = dataclasses.replace(job.options, constraint=conversation.tool_grammar)
            return await self._generation.constraint(options)
        except InvalidRequest as error:
            log.warning("request %s: the forced tool call is not constrained: %s", job.id, error.message)
            return None


def _reporter(job: ChatJob, on_completed: Observer | None) -> Observer:
    def report(answer: Completed) -> None:
        if on_completed is not None:
            on_completed(answer)
        for warning in answer.warnings:
            log.warning("request %s: %s", job.id, warning)
        if job.tool_choice.forced and not answer.tool_calls:
            log.warning("request %s: a forced tool choice ended without a call", job.id)

    return report
