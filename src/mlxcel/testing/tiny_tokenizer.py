"""A small real byte-level BPE tokenizer with a ChatML template, for tests and demos that need no download.

``VOCAB_TOKENS`` ids: 256 bytes, then merges learnt from the text below, then the special tokens. Any text round-trips.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

VOCAB_TOKENS: Final = 512

END_OF_TEXT: Final = "<|endoftext|>"
TURN_START: Final = "<|im_start|>"
TURN_END: Final = "<|im_end|>"

# Hidden from decoded text.
CONTROL_TOKENS: Final = (END_OF_TEXT, TURN_START, TURN_END, "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
# Single tokens that stay visible in decoded text, as Qwen and Hermes models have them.
MARKER_TOKENS: Final = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")

# The special tokens are the last ids, in the order above.
END_OF_TEXT_ID: Final = VOCAB_TOKENS - len(CONTROL_TOKENS) - len(MARKER_TOKENS)
TURN_END_ID: Final = END_OF_TEXT_ID + CONTROL_TOKENS.index(TURN_END)

_TRAINING_TEXT: Final = (
    "The river runs past the old mill, and the miller counts the sacks that the carts bring in from the valley.",
    "When the rain comes the wheel turns faster; when it stays away the stones are still and the children swim there.",
    "What is the weather in Paris today? It is warm and clear, with a light wind from the south in the afternoon.",
    "You are a helpful assistant. Answer the question in one short sentence, then stop.",
    'Call a function by its name: {"name": "get_weather", "arguments": {"city": "Paris", "unit": "celsius"}}',
    '{"type": "object", "properties": {"id": {"type": "integer"}, "tags": {"type": "array"}}, "required": ["id"]}',
    "def add(left, right):\n    return left + right\n\nfor number in range(10):\n    print(number, add(number, 1))\n",
    "First the user asks, then the model thinks about it, then the model writes the answer for the user.",
    "0 1 2 3 4 5 6 7 8 9 10 11 12 100 1000 2024",
)

_CHAT_TEMPLATE: Final = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- 'These functions may be called:\\n<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' + (tool | tojson) }}
    {%- endfor %}
    {{- '\\n</tools>\\nWrite each call as\\n' }}
    {{- '<tool_call>\\n{"name": <name>, "arguments": <object>}\\n</tool_call><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'system' and tools and loop.first %}
        {#- already written with the tools #}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' }}
        {%- if message.reasoning_content %}
            {{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}
        {%- endif %}
        {%- if message.content %}
            {{- message.content }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {%- set function = call.function or call %}
            {%- if message.content or not loop.first %}
                {{- '\\n' }}
            {%- endif %}
            {{- '<tool_call>\\n{"name": ' + (function.name | tojson) + ', "arguments": ' }}
            {%- if function.arguments is string %}
                {{- function.arguments }}
            {%- else %}
                {{- function.arguments | tojson }}
            {%- endif %}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""


def build_tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Train the tokenizer; the result is the same on every call."""
    specials = [AddedToken(text, special=True, normalized=False) for text in CONTROL_TOKENS]
    markers = [AddedToken(text, special=False, normalized=False) for text in MARKER_TOKENS]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=END_OF_TEXT_ID,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=1,
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TRAINING_TEXT, trainer)
    tokenizer.add_special_tokens(specials)
    tokenizer.add_tokens(markers)
    if tokenizer.get_vocab_size() != VOCAB_TOKENS:
        raise RuntimeError(f"the training text yields {tokenizer.get_vocab_size()} tokens, not {VOCAB_TOKENS}")
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        clean_up_tokenization_spaces=False,
        model_max_length=4096,
    )
    fast.chat_template = _CHAT_TEMPLATE
    return fast


def write_tiny_tokenizer(folder: Path, *, chat_template: str | None = None) -> Path:
    """Write ``tokenizer.json`` and ``tokenizer_config.json`` (the template inside it) and return ``folder``.

    ``chat_template`` replaces the ChatML template.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = build_tiny_tokenizer()
    if chat_template is not None:
        tokenizer.chat_template = chat_template
    tokenizer.save_pretrained(folder, save_jinja_files=False)
    return folder
