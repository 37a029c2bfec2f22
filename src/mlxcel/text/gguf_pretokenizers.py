"""Word splitting rules of byte-level BPE vocabularies in GGUF files, by the name in ``tokenizer.ggml.pre``.

A GGUF file names its rule; the patterns are those of the models' own ``tokenizer.json`` files. Each pattern in a list splits
what the one before it left, matches and gaps alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_QWEN2 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"


def _cased_words(contraction: str) -> str:
    """Words split where lower case meets upper case, with an optional contraction behind them."""
    return (
        rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+{contraction}|[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*{contraction}"
    )


_TEKKEN = rf"{_cased_words('')}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
_GPT4O = rf"{_cased_words(_CONTRACTION + '?')}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
_DEEPSEEK_CJK = "[一-龥ࠀ-一가-퟿]+"
_CJK = "[一-龥\u3040-ゟ゠-ヿ]+"
_ASCII_PUNCTUATION = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""
_DEEPSEEK3 = (
    _ASCII_PUNCTUATION
    + r"[A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_BLOOM = " ?[^(\\s|.,!?…。，、।۔،)]+"
# Code points of letters with case, as the DeepSeek LLM tokenizer lists them.
_DEEPSEEK_LETTERS = """
    41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376 377 37B-37D 37F 386 388-38A 38C 38E-3A1 3A3-3F5
    3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF 1D00-1D2B 1D6B-1D77 1D79-1D9A 1E00-1F15
    1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC
    1FD0-1FD3 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 212A-212D
    212F-2134 2139 213C-213F 2145-2149 214E 2183 2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 A640-A66D A680-A69B
    A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3 104D8-104FB
    10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943
"""
_KIMI = (
    rf"\p{{Han}}+|[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}&&[^\p{{Han}}]]*[{_LOWER}&&[^\p{{Han}}]]+{_CONTRACTION}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}&&[^\p{{Han}}]]+[{_LOWER}&&[^\p{{Han}}]]*{_CONTRACTION}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
)


def _code_points(listing: str) -> str:
    """A character class from hexadecimal code points and ranges (written so because editors normalise such letters)."""
    escaped = ["-".join(f"\\x{{{point}}}" for point in entry.split("-")) for entry in listing.split()]
    return f"[{''.join(escaped)}]"


@dataclass(frozen=True, slots=True)
class PreTokenizerRule:
    """How one vocabulary splits words.

    Attributes:
        patterns: Oniguruma expressions, applied in order.
        ignore_merges: a word that is itself in the vocabulary is taken whole.
        adds_bos: the model expects a beginning token unless the file says otherwise.
        byte_encoded: entries use the byte-level alphabet; False means plain UTF-8 with ▁ for spaces.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    adds_bos: bool = False
    byte_encoded: bool = True

    def build(self) -> pre_tokenizers.PreTokenizer:
        splits: list[pre_tokenizers.PreTokenizer] = [
            pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in self.patterns
        ]
        if self.byte_encoded:
            splits.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        return pre_tokenizers.Sequence(splits)


def _table() -> dict[str, PreTokenizerRule]:
    gpt2 = PreTokenizerRule((_GPT2,))
    digits_then_gpt2 = PreTokenizerRule((r"\p{N}", _GPT2))
    llama3 = PreTokenizerRule((_LLAMA3,), ignore_merges=True, adds_bos=True)
    llama3_merging = PreTokenizerRule((_LLAMA3,))
    qwen2 = PreTokenizerRule((_QWEN2,))
    gpt4o = PreTokenizerRule((_GPT4O,))
    deepseek3 = PreTokenizerRule((r"\p{N}{1,3}", _CJK, _DEEPSEEK3))
    bloom = PreTokenizerRule((_BLOOM,))
    falcon_numbers = r"[0-9][0-9][0-9]"
    newline_runs = PreTokenizerRule((r"[^\n]+|[\n]+",), byte_encoded=False)
    bailing = PreTokenizerRule(
        (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",)
    )
    groups: list[tuple[str, PreTokenizerRule]] = [
        ("default", PreTokenizerRule((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", falcon_numbers))),
        ("gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert exaone4", gpt2),
        ("jina-v1-en jina-v2-code roberta-bpe mpt olmo jais trillion granite-docling", gpt2),
        ("smollm starcoder refact command-r codeshell exaone minerva-7b mellum2", digits_then_gpt2),
        ("llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano", llama3),
        ("dbrx smaug-bpe chatglm-bpe", llama3_merging),
        ("glm4 glm5", PreTokenizerRule((_LLAMA3,), ignore_merges=True)),
        ("qwen2 deepseek-r1-qwen kormo f2llmv2 stablelm2 megrez hunyuan solar-open grok-2", qwen2),
        ("qwen35", PreTokenizerRule((_QWEN35,))),
        ("tekken", PreTokenizerRule((_TEKKEN,), ignore_merges=True, adds_bos=True)),
        ("gpt-4o llama4 kanana2 talkie minimax-m2", gpt4o),
        ("granite-embed-multi-97m", PreTokenizerRule((_GPT4O,), ignore_merges=True)),
        ("tiny_aya cohere2moe", PreTokenizerRule((r"\d{1,3}(?=(?:\d{3})*\b)", _GPT4O))),
        ("deepseek-v3 hunyuan-dense joyai-llm hy_v4", deepseek3),
        ("deepseek-coder", PreTokenizerRule((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_CJK, r"\p{N}"))),
        ("deepseek-llm", PreTokenizerRule(
            (r"[\r\n]", rf"\s?{_code_points(_DEEPSEEK_LETTERS)}+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", _DEEPSEEK_CJK,
             r"\p{N}+"))),
        ("falcon", PreTokenizerRule((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, falcon_numbers))),
        ("poro-chat bloom gpt3-finnish", bloom),
        ("viking", PreTokenizerRule((_BLOOM, r"\p{N}"))),
        ("kimi-k2", PreTokenizerRule((_KIMI,))),
        ("superbpe", PreTokenizerRule((r"\p{N}+", r"(?=(\d{3})+(?!\d))"))),
        ("bailingmoe bailingmoe2 llada-moe", bailing),
        ("seed-coder", PreTokenizerRule(
            (rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}",))),
        ("exaone-moe", PreTokenizerRule(
            (rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
             r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",))),
        ("minicpm5", PreTokenizerRule(
            (r"\p{N}{1,3}", _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}+")),
            ignore_merges=True)),
        ("laguna", PreTokenizerRule((r"[^\n]+|[\n]+", _QWEN2))),
        ("jais-2", PreTokenizerRule(
            (rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+"
             r"|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)"
             r"|\s{1,2}(?!\S)|\s{1}",))),
        ("youtu", PreTokenizerRule(
            ("[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|" + _CJK,
             rf"{_cased_words(_CONTRACTION + '?')}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"), ignore_merges=True)),
        ("chameleon", PreTokenizerRule(
            (r"<sentinel:[0-9]+>", r"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", r"([\t\n]|    |  )", r"\p{N}",
             r"[\p{P}!-/:-@\[-`{-~]", _GPT2), adds_bos=True)),
        ("gemma4 granite-embed-multi-311m sarvam-moe", newline_runs),
    ]  # fmt: skip
    return {name: rule for names, rule in groups for name in names.split()}


def pre_tokenizer_rules() -> Mapping[str, PreTokenizerRule]:
    """Rules by GGUF name."""
    return _table()
