"""Every way in which a tokenizer from elsewhere could break the pipeline is found, and a good one has no fault."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from stages.text.items.chat import TEMPLATE
from stages.text.tokens.bpe import tokenizer_config, train_bpe
from stages.text.tokens.tokenizer_check import tokenizer_faults

TEXTS = [f"The function {word} returns the {word} of its argument." for word in ("length", "sum", "copy")] * 4
LLAMA3 = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + message['role'] + "
    "'<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}"
    "{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
"""The template of Meta's Llama 3 tokenizer_config.json: other words than ours, the same rendering."""


@pytest.fixture(scope="module")
def text() -> str:
    return str(train_bpe(TEXTS, 290).to_str())


def test_a_good_one_has_no_fault(text: str) -> None:
    assert tokenizer_faults(text) == [] == tokenizer_faults(text, json.dumps(tokenizer_config()))
    assert tokenizer_faults(text, json.dumps({"chat_template": LLAMA3, "bos_token": {"content": "<|begin_of_text|>"}})) == []
    assert tokenizer_faults(text, "", TEMPLATE) == []


def without_pad(raw: dict[str, Any]) -> None:
    raw["added_tokens"].pop()


def plain_pad(raw: dict[str, Any]) -> None:
    raw["added_tokens"][-1]["special"] = False


def hole(raw: dict[str, Any]) -> None:
    vocabulary = raw["model"]["vocab"]
    vocabulary["zzzz"] = 1000


def without_a_byte(raw: dict[str, Any]) -> None:
    vocabulary = raw["model"]["vocab"]
    vocabulary["\u2581"] = vocabulary.pop("\u0100")  # the byte 0


CHANGES: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (without_pad, "It has no token <|pad|>."),
    (plain_pad, "<|pad|> is not marked as special"),
    (hole, "Its 291 ids are not 0 to 290"),
    (without_a_byte, "It is not byte-level: 1 of the 256 bytes have no token."),
    (lambda raw: raw.update(normalizer={"type": "NFC"}), "It does not give a text back"),
    (lambda raw: raw["pre_tokenizer"]["pretokenizers"][1].update(add_prefix_space=True), "It does not give a text back"),
    (lambda raw: raw.update(post_processor=None), "Its post-processor does not put <|begin_of_text|>, and nothing else, before a text."),
    (lambda raw: raw["model"].update(dropout=0.1), "It has BPE dropout"),
    (
        lambda raw: raw.update(truncation={"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}),
        "It truncates or pads",
    ),
    (lambda raw: raw["model"].update(type="WordPiece"), "It is not a byte-level BPE tokenizer"),
]


@pytest.mark.parametrize(("change", "fault"), CHANGES, ids=lambda v: v if isinstance(v, str) else "")
def test_every_fault_is_named(text: str, change: Callable[[dict[str, Any]], object], fault: str) -> None:
    raw = json.loads(text)
    change(raw)
    faults = tokenizer_faults(json.dumps(raw))
    assert len(faults) == 1 and faults[0].startswith(fault), faults


@pytest.mark.parametrize(
    ("config", "template", "fault"),
    [
        ({"pad_token": "<pad>"}, "", "Its pad_token is <pad>, the pipeline's is <|pad|>."),
        ({"eos_token": {"content": "<|eot_id|>"}}, "", "Its eos_token is <|eot_id|>, the pipeline's is <|end_of_text|>."),
        ({"chat_template": [{"name": "default", "template": TEMPLATE}]}, "", "It has several chat templates"),
        (
            {"chat_template": TEMPLATE},
            "{{ messages[0].content }}",
            "Its chat template is not the pipeline's (Llama 3's): it renders ' Be brief. '",
        ),
        ({}, "{% if %}", "Its chat template cannot be rendered"),
        ({}, TEMPLATE + "{% if add_generation_prompt %} {% endif %}", "Its chat template is not the pipeline's"),
    ],
)
def test_a_config_that_contradicts_the_pipeline_is_named(text: str, config: dict[str, Any], template: str, fault: str) -> None:
    faults = tokenizer_faults(text, json.dumps(config), template)
    assert len(faults) == 1 and faults[0].startswith(fault), faults


def test_what_is_no_json_is_named() -> None:
    assert tokenizer_faults("{")[0].startswith("It is not JSON") and tokenizer_faults("[]")[0].startswith("It is not a byte-level BPE")
