"""A small byte-level BPE tokenizer with Kimi's special tokens, written out by rule.

No corpus and no training: the merges are the pairs of letters, digits and JSON signs, so the
bytes are the same wherever and whenever it is made. The last 256 ids are special, as in Kimi's.
"""

from __future__ import annotations

import functools
import json
from itertools import product
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Any

VOCAB_SIZE = 2048
FIRST_SPECIAL = VOCAB_SIZE - 256

# Offsets from the first special id; those of Kimi K2's and K2.5's own tokenizers, so that mistakes
# of the kind "the id of the end of a turn" show here as they would there.
_SPECIAL = {
    0: "[BOS]",
    1: "[EOS]",
    2: "<|im_end|>",
    3: "<|im_user|>",
    4: "<|im_assistant|>",
    6: "<|start_header_id|>",
    7: "<|end_header_id|>",
    9: "[EOT]",
    10: "<|im_system|>",
    17: "<|im_middle|>",
    11: "<|tool_calls_section_begin|>",
    12: "<|tool_calls_section_end|>",
    13: "<|tool_call_begin|>",
    14: "<|tool_call_argument_begin|>",
    15: "<|tool_call_end|>",
    18: "<|media_begin|>",
    19: "<|media_content|>",
    20: "<|media_end|>",
    21: "<|media_pad|>",
    22: "<think>",
    23: "</think>",
    254: "[UNK]",
    255: "[PAD]",
}
# These two are text that a reader may want to see, not marks to be hidden.
_SHOWN = ("<think>", "</think>")

_JSON_PAIRS = [
    *('{"', '"}', '":', ',"', '"]', '["', "[{", "}]", "},", "],", "{}", "[]", '""', "\\n", '\\"'),
    *("::", "..", "--", "==", "??", "!!", "()", "//", "<|", "|>", "</", "/>", "``", "**", "##"),
    *(";;", "__"),
]

_SPLIT = r"\p{N}{1,2}| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+"

CHAT_TEMPLATE = """\
{%- macro text(content) -%}
{%- if content is string -%}{{ content }}
{%- elif content -%}
{%- for part in content -%}
{%- if part.type == 'text' -%}{{ part.text }}
{%- elif part.type in ('image', 'image_url') -%}
<|media_begin|>image<|media_content|><|media_pad|><|media_end|>
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
{%- if tools -%}
<|im_system|>tool_declare<|im_middle|>{{ tools | tojson }}<|im_end|>
{%- endif -%}
{%- for message in messages -%}
{%- if message.role == 'assistant' -%}
<|im_assistant|>assistant<|im_middle|>
{%- set thought = message.reasoning or message.reasoning_content -%}
{%- if thought -%}<think>{{ thought }}</think>{%- endif -%}
{{ text(message.content) }}
{%- if message.tool_calls -%}
<|tool_calls_section_begin|>
{%- for call in message.tool_calls -%}
{%- set given = call.function.arguments -%}
<|tool_call_begin|>{{ call.id }}<|tool_call_argument_begin|>
{{- given if given is string else given | tojson }}<|tool_call_end|>
{%- endfor -%}
<|tool_calls_section_end|>
{%- endif -%}
{%- elif message.role == 'tool' -%}
<|im_system|>{{ message.name or 'tool' }}<|im_middle|>## Return of {{ message.tool_call_id }}
{{ text(message.content) }}
{%- elif message.role == 'user' -%}
<|im_user|>{{ message.name or 'user' }}<|im_middle|>{{ text(message.content) }}
{%- else -%}
<|im_system|>{{ message.name or 'system' }}<|im_middle|>{{ text(message.content) }}
{%- endif -%}
<|im_end|>
{%- endfor -%}
{%- if add_generation_prompt -%}
<|im_assistant|>assistant<|im_middle|>
{%- if thinking is defined and not thinking -%}<think></think>{%- else -%}<think>{%- endif -%}
{%- endif -%}
"""


_BLANK = frozenset(
    "ĠĉĊč"
)  # space, tab, line feed and carriage return, as written by byte-level BPE
_CLOSING = frozenset(']}":')


def list_special_tokens() -> dict[str, int]:
    """Each named special token and its id."""
    return {text: FIRST_SPECIAL + offset for offset, text in _SPECIAL.items()}


def list_tool_marks() -> frozenset[int]:
    """Ids of the tokens that frame a tool call."""
    return frozenset(token for text, token in list_special_tokens().items() if "tool_call" in text)


@functools.cache
def list_endless() -> frozenset[int]:
    """Ids of special tokens, and of what would keep a grammar from its end.

    That is digits and white space, which may go on for ever, and the opening of a mark spelt out.
    """
    kept_out = [
        token
        for token, text in enumerate(_make_vocabulary())
        if text.isdigit() or text[0] == "<" or set(text) <= _BLANK
    ]
    return frozenset([*kept_out, *range(FIRST_SPECIAL, VOCAB_SIZE)])


@functools.cache
def list_separators() -> frozenset[int]:
    """Ids of what has a comma: a grammar's list goes on with it."""
    return frozenset(token for token, text in enumerate(_make_vocabulary()) if "," in text)


@functools.cache
def list_closers() -> frozenset[int]:
    """Ids of what ends a list, an object, a name, or the string before that."""
    return frozenset(n for n, text in enumerate(_make_vocabulary()) if set(text) <= _CLOSING)


def make_files() -> dict[str, bytes]:
    """Make the tokenizer's files, by name."""
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "[BOS]",
        "eos_token": "<|im_end|>",
        "unk_token": "[UNK]",
        "pad_token": "[PAD]",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 4096,
        "chat_template": CHAT_TEMPLATE,
    }
    return {
        "tokenizer.json": _format_json(_make_tokenizer()),
        "tokenizer_config.json": _format_json(config),
        "chat_template.jinja": CHAT_TEMPLATE.encode(),
    }


def _format_json(document: object) -> bytes:
    return (json.dumps(document, ensure_ascii=False, indent=1) + "\n").encode()


def _make_byte_alphabet() -> list[str]:
    """List the printable character that byte-level BPE writes for each byte."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    return [chr(byte) if byte in shown else chr(next(spare)) for byte in range(256)]


def _make_merges() -> list[tuple[str, ...]]:
    """Pairs to join, best first; as many as there are ids between the bytes and the specials."""
    space = _make_byte_alphabet()[ord(" ")]
    pairs = [*product(ascii_lowercase, repeat=2)]
    merges = [
        *pairs,
        *((space, first + second) for first, second in pairs),
        *((space, letter) for letter in ascii_lowercase + ascii_uppercase),
        *product(digits, repeat=2),
        *((pair[0], pair[1]) for pair in _JSON_PAIRS),
    ]
    return merges[: FIRST_SPECIAL - 256]


def _make_vocabulary() -> list[str]:
    vocabulary = [*_make_byte_alphabet(), *(first + second for first, second in _make_merges())]
    if len(set(vocabulary)) != FIRST_SPECIAL:
        raise AssertionError("the merges do not fill the ids before the special ones")
    return vocabulary


def _make_tokenizer() -> dict[str, Any]:
    byte_level = {"add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_describe_special(offset) for offset in range(256)],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {
                    "type": "Split",
                    "pattern": {"Regex": _SPLIT},
                    "behavior": "Isolated",
                    "invert": False,
                },
                {"type": "ByteLevel", **byte_level},
            ],
        },
        "post_processor": None,
        "decoder": {"type": "ByteLevel", **byte_level},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {text: token for token, text in enumerate(_make_vocabulary())},
            "merges": [list(pair) for pair in _make_merges()],
        },
    }


def _describe_special(offset: int) -> dict[str, Any]:
    text = _SPECIAL.get(offset, f"<|reserved_token_{FIRST_SPECIAL + offset}|>")
    return {
        "id": FIRST_SPECIAL + offset,
        "content": text,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": text not in _SHOWN,
    }
