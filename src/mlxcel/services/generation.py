"""From prompt tokens to output events: the part that every generating surface shares."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any, Self, TypeVar

from mlxcel.core.errors import ContextOverflow, InvalidRequest
from mlxcel.core.events import (
    AnswerEvent,
    Completed,
    EngineEvent,
    Failed,
    Finished,
    FinishReason,
    PieceLogprob,
    PrefillDone,
    Started,
    TokenLogprob,
    Tokens,
)
from mlxcel.core.jobs import GenerationOptions
from mlxcel.core.ports import Constraint
from mlxcel.core.sampling import SamplingParams
from mlxcel.core.usage import Timings, Usage
from mlxcel.core.work import CachePolicy, GenerateWork, ThinkingPlan
from mlxcel.engine.client import Reservation
from mlxcel.engine.stream import EventStream
from mlxcel.services.model import ServedModel
from mlxcel.text.output import OutputParser
from mlxcel.text.tokenizer import Tokenizer

R = TypeVar("R")


@dataclasses.dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt ready for the engine.

    Attributes:
        token_ids: what the model reads.
        cache_variant: sets prompts apart that must not share cached state (template signature, media digests).
        boundaries: token offsets where a message ends.
        thinking: control of the reasoning block, when the model has one.
    """

    token_ids: tuple[int, ...]
    cache_variant: str = ""
    boundaries: tuple[int, ...] = ()
    thinking: ThinkingPlan | None = None


class Answer:
    """One running generation as an async iterator of output events, ended by exactly one ``Completed``.

    The work is submitted when the object is made. Closing it (or leaving it unread and closed) ends the generation and
    frees its slot. Errors of the generation are raised from the iteration.
    """

    def __init__(
        self,
        stream: EventStream,
        parser: OutputParser,
        tokenizer: Tokenizer,
        prompt_tokens: int,
        reports: Sequence[Callable[[Completed], None]] = (),
    ) -> None:
        self.prompt_tokens = prompt_tokens
        self._reports = reports
        self._stream = stream
        self._parser = parser
        self._tokenizer = tokenizer
        self._ready: deque[AnswerEvent] = deque()
        self._ended = False
        self._cached_tokens = 0
        self._completion_tokens = 0
        self._timings = Timings()
        self._decode_started_s = time.perf_counter()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AnswerEvent:
        while not self._ready:
            if self._ended:
                raise StopAsyncIteration
            try:
                event = await anext(self._stream)
            except StopAsyncIteration:
                self._end(FinishReason.CANCELLED)
                continue
            self._take(event)
        return self._ready.popleft()

    def cancel(self) -> None:
        """Ask for an early end: what was generated still comes, then ``Completed`` with the reason CANCELLED."""
        self._stream.cancel()

    async def aclose(self) -> None:
        """End the generation; may be called at any time, and again."""
        self._ended = True
        await self._stream.aclose()

    def _take(self, event: EngineEvent) -> None:
        if isinstance(event, Tokens):
            self._completion_tokens += len(event.token_ids)
            self._ready.extend(self._parser.push(event.token_ids, self._pieces(event.logprobs)))
            if self._parser.stopped is not None:
                self._stream.cancel()
                self._completion_tokens = self._parser.token_count
                self._end(FinishReason.STOP_STRING)
        elif isinstance(event, PrefillDone):
            self._cached_tokens = event.cached_tokens
            self._timings = Timings(queue_s=event.queue_s, prefill_s=event.prefill_s)
            self._decode_started_s = time.perf_counter()
            self._ready.append(Started(event.prompt_tokens, event.cached_tokens, event.prefill_s))
        elif isinstance(event, Finished):
            self._cached_tokens = event.usage.cached_tokens
            self._completion_tokens = event.usage.completion_tokens
            self._end(event.reason, event)
        elif isinstance(event, Failed):
            self._ended = True
            raise event.error

    def _end(self, reason: FinishReason, finished: Finished | None = None) -> None:
        self._ended = True
        end = self._parser.finish(reason)
        self._ready.extend(end.pieces)
        measured = dataclasses.replace(self._timings, decode_s=time.perf_counter() - self._decode_started_s)
        usage = Usage(self.prompt_tokens, self._cached_tokens, self._completion_tokens, end.reasoning_tokens)
        completed = Completed(
            reason=end.reason,
            text=end.text,
            usage=usage,
            timings=measured if finished is None else finished.timings,
            reasoning=end.reasoning,
            tool_calls=end.tool_calls,
            stop_string=end.stop_string,
            logprobs=end.logprobs,
            token_ids=end.token_ids,
            truncated=finished.truncated if finished is not None else False,
            warnings=end.warnings,
        )
        for report in self._reports:
            report(completed)
        self._ready.append(completed)

    def _pieces(self, logprobs: Sequence[TokenLogprob]) -> list[PieceLogprob]:
        return [
            dataclasses.replace(
                self._piece(entry.token_id, entry.logprob),
                top=tuple(self._piece(token_id, logprob) for token_id, logprob in entry.top),
            )
            for entry in logprobs
        ]

    def _piece(self, token_id: int, logprob: float) -> PieceLogprob:
        raw = self._tokenizer.token_bytes(token_id)
        return PieceLogprob(token_id, raw.decode("utf-8", "replace"), raw, logprob)


class GenerationService:
    """Turns prompts and options into running answers.

    Args:
        model: what serves them.
        pool: threads for the work that would hold up the event loop (rendering, grammars).
        observe: called with the end of every answer, whichever surface asked for it.
    """

    def __init__(
        self, model: ServedModel, pool: Executor, observe: Callable[[Completed], None] = lambda completed: None
    ) -> None:
        self.model = model
        self._pool = pool
        self._observe = observe

    def reserve(self, options: GenerationOptions, count: int = 1) -> list[Reservation]:
        """Places in the queue, all or none.

        Raises:
            ServerBusy: not enough room.
            ModelLoading: the model is not ready.
        """
        places: list[Reservation] = []
        try:
            for _ in range(count):
                places.append(self.model.client.reserve(options.priority))
        except BaseException:
            release(places)
            raise
        return places

    async def in_pool(self, function: Callable[[], R]) -> R:
        """Run a function on a pool thread."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, function)

    async def constraint(self, options: GenerationOptions) -> Constraint | None:
        """The compiled constraint of a job.

        Raises:
            InvalidRequest: the schema or grammar is invalid, too large or cannot be enforced.
        """
        wanted = options.constraint
        if wanted is None:
            return None
        return await self.in_pool(lambda: self.model.constraints.compile(wanted))

    def begin(
        self,
        place: Reservation,
        work_id: str,
        prompt: Prompt,
        options: GenerationOptions,
        parser: OutputParser,
        constraint: Constraint | None = None,
        choice: int = 0,
        report: Callable[[Completed], None] | None = None,
    ) -> Answer:
        """Submit one generation.

        Args:
            place: consumed by this call, also when it raises.
            choice: number among several answers to one request; it shifts a given seed.
            report: called with the end of the answer, before a reader gets it.

        Raises:
            ContextOverflow: the prompt leaves no room in the window.
            InvalidRequest: an empty prompt, or a sampling field that does not fit the vocabulary.
        """
        with place:
            work = self._work(work_id, prompt, options, constraint, choice)
            stream = self.model.client.submit(place, work)
        reports = (self._observe,) if report is None else (self._observe, report)
        return Answer(stream, parser, self.model.tokenizer, len(prompt.token_ids), reports)

    def check_length(self, prompt: Prompt) -> None:
        """
        Raises:
            ContextOverflow: the prompt is at or over the window.
            InvalidRequest: the prompt has no tokens.
        """
        if not prompt.token_ids:
            raise InvalidRequest("the prompt has no tokens")
        if len(prompt.token_ids) >= self.model.context_tokens:
            raise ContextOverflow(len(prompt.token_ids), self.model.context_tokens)

    def _work(
        self, work_id: str, prompt: Prompt, options: GenerationOptions, constraint: Constraint | None, choice: int
    ) -> GenerateWork:
        self.check_length(prompt)
        room = self.model.context_tokens - len(prompt.token_ids)
        limit = room if options.max_tokens is None or options.max_tokens < 0 else options.max_tokens
        if not self.model.policy.context_shift:
            limit = min(limit, room)
        use_cache = options.cache_prompt is not False
        adapters = tuple(entry for entry in self.model.adapters.in_force(options.adapters) if entry[1] != 0.0)
        return GenerateWork(
            id=work_id,
            prompt_ids=prompt.token_ids,
            max_tokens=max(limit, 1),
            sampling=self._sampling(options, choice),
            stop_ids=options.stop_ids | (frozenset() if options.ignore_eos else self.model.tokenizer.eos_ids),
            priority=options.priority,
            cache=CachePolicy(
                read=use_cache,
                write=use_cache,
                namespace=f"{options.cache_scope}\n{prompt.cache_variant}\n{adapters or ''}",
                boundaries=prompt.boundaries,
            ),
            constraint=constraint,
            thinking=prompt.thinking,
            loop=options.loop or self.model.policy.default_loop,
            adapters=adapters,
            keep_tokens=options.keep_tokens,
        )

    def _sampling(self, options: GenerationOptions, choice: int) -> SamplingParams:
        """Texts become token ids, and ids are checked against the vocabulary."""
        tokenizer, sampling = self.model.tokenizer, options.sampling
        biases = list(sampling.logit_bias)
        for token_id, _ in biases:
            if token_id >= tokenizer.vocab_size:
                raise InvalidRequest(
                    f"'logit_bias': token id {token_id} is out of vocabulary range (vocab_size {tokenizer.vocab_size})",
                    param="logit_bias",
                )
        for text, bias in options.logit_bias_texts:
            biases += [(token_id, bias) for token_id in tokenizer.encode(text, parse_special=False)]
        if options.ignore_eos:
            biases += [(token_id, float("-inf")) for token_id in tokenizer.eos_ids]
        changes: dict[str, Any] = {"logit_bias": tuple(biases)}
        if sampling.dry_multiplier > 0:
            sequences = [tuple(tokenizer.encode(text, parse_special=False)) for text in options.dry_breaker_texts]
            changes["dry_breaker_ids"] = sampling.dry_breaker_ids | {ids[0] for ids in sequences if len(ids) == 1}
            changes["dry_breaker_sequences"] = tuple(ids for ids in sequences if len(ids) > 1)
        if sampling.xtc_probability > 0:
            changes["xtc_protected_ids"] = tokenizer.eos_ids | frozenset(tokenizer.encode("\n", parse_special=False))
        if choice and sampling.seed is not None:
            changes["seed"] = sampling.seed + choice
        return dataclasses.replace(sampling, **changes)


def release(places: Sequence[Reservation]) -> None:
    """Give back places that were not used."""
    for place in places:
        place.release()
