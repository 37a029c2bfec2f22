"""Raw completions: text or token ids in, text out, without a chat template."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from mlxcel.core.errors import ContextOverflow, InvalidRequest
from mlxcel.core.events import Completed
from mlxcel.core.jobs import CompletionJob
from mlxcel.services.choices import Choices, fold
from mlxcel.services.generation import Answer, GenerationService, Prompt, release
from mlxcel.text.detokenize import Detokenizer
from mlxcel.text.output import OutputParser
from mlxcel.text.stop import StopMatcher


class CompletionService:
    """Continues prompts with one model."""

    def __init__(self, generation: GenerationService) -> None:
        self._generation = generation

    async def start(self, jobs: Sequence[CompletionJob]) -> Answer | Choices:
        """Admit prompts, all or none, and begin to continue them. The caller closes what it gets.

        Raises:
            ServerBusy: the queue is full.
            InvalidRequest: an empty prompt, or token ids outside the vocabulary.
            ContextOverflow: the prompt does not fit the window.
        """
        places = self._generation.reserve(jobs[0].options, len(jobs))
        answers: list[Answer] = []
        try:
            for choice, (job, place) in enumerate(zip(jobs, places, strict=True)):
                prompt = Prompt(await self._generation.in_pool(partial(self.encode, job.prompt)))
                constraint = await self._generation.constraint(job.options)
                parser = self._parser(job)
                answers.append(self._generation.begin(place, job.id, prompt, job.options, parser, constraint, choice))
        except BaseException:
            release(places)
            for answer in answers:
                await answer.aclose()
            raise
        return answers[0] if len(answers) == 1 else Choices(answers)

    async def answer(self, jobs: Sequence[CompletionJob]) -> list[Completed]:
        """The whole continuations; see :meth:`start` for the errors."""
        return await fold(await self.start(jobs))

    def encode(self, prompt: str | tuple[int | str, ...]) -> tuple[int, ...]:
        """Token ids of a prompt: a leading text gets the model's own begin token, ids are used as they are.

        Raises:
            InvalidRequest: an id outside the vocabulary, or a prompt without any token.
            ContextOverflow: the prompt does not fit the window.
        """
        tokenizer = self._generation.model.tokenizer
        ids: list[int] = []
        for index, item in enumerate((prompt,) if isinstance(prompt, str) else prompt):
            if isinstance(item, str):
                ids += tokenizer.encode(item, add_special=index == 0)
            elif 0 <= item < tokenizer.vocab_size:
                ids.append(item)
            else:
                raise InvalidRequest(
                    f"'prompt': token id {item} is out of vocabulary range (vocab_size {tokenizer.vocab_size})",
                    param="prompt",
                )
        start_id = tokenizer.bos_id if tokenizer.bos_id is not None else min(tokenizer.eos_ids, default=None)
        if not ids and isinstance(prompt, str) and start_id is not None:
            ids.append(start_id)
        if not ids:
            raise InvalidRequest("'prompt' must not be empty", param="prompt")
        if len(ids) >= self._generation.model.context_tokens:
            raise ContextOverflow(len(ids), self._generation.model.context_tokens)
        return tuple(ids)

    def text_of(self, prompt: str | tuple[int | str, ...]) -> str:
        """An admitted prompt as text."""
        if isinstance(prompt, str):
            return prompt
        return self._generation.model.tokenizer.decode(self.encode(prompt))

    def echoes(self, jobs: Sequence[CompletionJob]) -> list[str | None]:
        """The text of each admitted prompt that is to be repeated before its answer."""
        return [self.text_of(job.prompt) if job.echo else None for job in jobs]

    def _parser(self, job: CompletionJob) -> OutputParser:
        detokenizer = Detokenizer(self._generation.model.tokenizer, continues_text=True)
        return OutputParser(detokenizer, StopMatcher(job.options.stop) if job.options.stop else None)
