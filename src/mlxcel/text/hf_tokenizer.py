"""Tokenizers of Hugging Face model folders.

The vocabulary file holds the tokens; the small JSON files beside it supply special tokens, turn ends and chat templates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson
import tokenizers

from mlxcel.core.errors import StartupError
from mlxcel.text.tokenizer_files import VocabularyFile, load_vocabulary_file
from mlxcel.text.tokenizer_parts import TokenizerParts

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def load_folder_tokenizer(folder: Path) -> TokenizerParts:
    """Read the tokenizer of a model folder.

    Raises:
        StartupError: no known tokenizer file is there, or one is damaged.
    """
    config = _read_json(folder / "tokenizer_config.json")
    file = load_vocabulary_file(folder, config)
    backend = file.backend
    backend.no_padding()  # some files carry the settings of a training batch
    backend.no_truncation()
    _add_declared_tokens(backend, config)
    named = _named_special_tokens(folder, config)
    for name, text in (("bos_token", file.bos), ("eos_token", file.eos), ("pad_token", file.pad)):
        if text is not None:
            named.setdefault(name, text)
    _mark_special(backend, [*named.values(), *_further_special_tokens(config)])
    prefix_ids, suffix_ids = _surrounding_ids(file, config, named)
    default_template, templates = _chat_templates(folder, config)
    return TokenizerParts(
        backend=backend,
        piece_encoding=file.piece_encoding,
        source_digest=file.digest,
        special_ids=frozenset(index for index, token in backend.get_added_tokens_decoder().items() if token.special),
        bos_id=_id_of(backend, named.get("bos_token") or named.get("cls_token")),
        eos_ids=_end_ids(folder, backend, named),
        pad_id=_id_of(backend, named.get("pad_token")),
        prefix_ids=prefix_ids,
        suffix_ids=suffix_ids,
        special_tokens=named,
        chat_template=default_template,
        named_templates=templates,
        strips_first_space=file.strips_first_space,
        constrainable=file.constrainable,
    )


def _add_declared_tokens(backend: tokenizers.Tokenizer, config: Mapping[str, Any]) -> None:
    """Add tokens that ``tokenizer_config.json`` declares and ``tokenizer.json`` lacks, in id order."""
    declared = config.get("added_tokens_decoder")
    if not isinstance(declared, dict):
        return
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    for key in sorted((key for key in declared if key.isdigit()), key=int):
        entry = declared[key]
        content = _text_of(entry)
        if not content or content in known:
            continue
        flags = {name: bool(entry.get(name, False)) for name in ("lstrip", "rstrip", "single_word", "special")}
        token = tokenizers.AddedToken(content, normalized=bool(entry.get("normalized", not flags["special"])), **flags)
        if flags["special"]:
            backend.add_special_tokens([token])
        else:
            backend.add_tokens([token])


def _named_special_tokens(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Template variables: the named special tokens, and whatever further ``*_token`` strings the model declares."""
    found: dict[str, str] = {}
    for source in (_read_json(folder / "special_tokens_map.json"), config):
        for name in _NAMED_TOKENS:
            text = _text_of(source.get(name))
            if text:
                found[name] = text
        extra = source.get("extra_special_tokens")
        for name, value in (extra if isinstance(extra, dict) else {}).items():
            text = _text_of(value)
            if text:
                found[str(name)] = text
        for name, value in source.items():
            if name.endswith("_token") and isinstance(value, str) and name not in found:
                found[name] = value
    return found


def _text_of(entry: object) -> str | None:
    """A token is written as a string or as an object with ``content``."""
    if isinstance(entry, dict):
        entry = entry.get("content")
    return entry if isinstance(entry, str) else None


def _id_of(backend: tokenizers.Tokenizer, text: str | None) -> int | None:
    return backend.token_to_id(text) if text else None


def _further_special_tokens(config: Mapping[str, Any]) -> list[str]:
    """Special tokens without a role; the second name is that of newer files."""
    found: list[str] = []
    for name in ("additional_special_tokens", "extra_special_tokens"):
        entries = config.get(name)
        found += [text for text in map(_text_of, entries if isinstance(entries, list) else []) if text]
    return found


def _mark_special(backend: tokenizers.Tokenizer, texts: Iterable[str]) -> None:
    """Declared special tokens are control tokens even where the vocabulary file does not say so."""
    added = {token.content for token in backend.get_added_tokens_decoder().values()}
    backend.add_special_tokens(
        [
            tokenizers.AddedToken(text, special=True, normalized=False)
            for text in texts
            if text not in added and backend.token_to_id(text) is not None
        ]
    )


def _surrounding_ids(
    file: VocabularyFile, config: Mapping[str, Any], named: Mapping[str, str]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What goes before and after a text: the post-processor's tokens, overridden by explicit ``add_*_token`` switches."""
    backend = file.backend
    encoding = backend.encode("a", add_special_tokens=True)
    inner = [index for index, special in enumerate(encoding.special_tokens_mask) if not special]
    first, last = (inner[0], inner[-1] + 1) if inner else (0, 0)
    prefix, suffix = tuple(encoding.ids[:first]), tuple(encoding.ids[last:])
    bos_id, eos_id = _id_of(backend, named.get("bos_token")), _id_of(backend, named.get("eos_token"))
    return (
        _switched(prefix, bos_id, config.get("add_bos_token"), file.adds_bos),
        _switched(suffix, eos_id, config.get("add_eos_token"), file.adds_eos),
    )


def _switched(ids: tuple[int, ...], token_id: int | None, wanted: object, default: bool) -> tuple[int, ...]:
    if token_id is None:
        return ids
    if not ids:
        return (token_id,) if wanted is True or (wanted is None and default) else ()
    return () if wanted is False and ids == (token_id,) else ids


def _end_ids(folder: Path, backend: tokenizers.Tokenizer, named: Mapping[str, str]) -> frozenset[int]:
    """Turn ends: the generation config's list (the model config's when there is none) and the tokenizer's own."""
    found: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        document = _read_json(folder / name)
        text_config = document.get("text_config")
        value = document.get("eos_token_id")
        if value is None and isinstance(text_config, dict):
            value = text_config.get("eos_token_id")
        found.update(_ids(value))
        if found:
            break
    own = _id_of(backend, named.get("eos_token"))
    return frozenset(found if own is None else found | {own})


def _ids(value: object) -> Iterable[int]:
    values = value if isinstance(value, list) else [value]
    return [item for item in values if isinstance(item, int) and not isinstance(item, bool) and item >= 0]


def _chat_templates(folder: Path, config: Mapping[str, Any]) -> tuple[str | None, dict[str, str]]:
    """The default template and the named ones. A ``chat_template.jinja`` file wins over the JSON files."""
    named: dict[str, str] = {}
    for document in (_read_json(folder / "chat_template.json"), config):
        declared = document.get("chat_template")
        if isinstance(declared, str):
            named["default"] = declared
        for entry in declared if isinstance(declared, list) else []:
            if isinstance(entry, dict) and isinstance(entry.get("name"), str) and isinstance(entry.get("template"), str):
                named[entry["name"]] = entry["template"]
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        named[path.stem] = path.read_text(encoding="utf-8")
    single = folder / "chat_template.jinja"
    if single.is_file():
        named["default"] = single.read_text(encoding="utf-8")
    return named.pop("default", None), named


def _read_json(path: Path) -> dict[str, Any]:
    """The object in a small JSON file; an absent file is an empty object."""
    if not path.is_file():
        return {}
    try:
        document = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise StartupError(f"{path.name} is not valid JSON") from error
    return document if isinstance(document, dict) else {}
