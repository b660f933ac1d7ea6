"""Which conversations and preference pairs quote a document that the mixture holds out from pretraining: sft and reference leave them out.

Bits per byte of the fine-tuned models are measured on those documents, so fine-tuning should not train on their words.
Guarantee: what stages/training/run/quotes.py calls a quote is found in every reply of the train split; the log counts the records that are
too short to be searched. Nothing is searched for where the node's
other inputs are not made from the mixture and its documents in this pipeline (both roles are ancestors, stages/record/contract/declaration.py);
the log says so if only one of the two is there.
Cost: the ids of all documents, the texts of the row groups with a held-out document, and the searches of quotes.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from stages.record.contract.declaration import Artifact, Context
from stages.training.run.training_tables import HELD_OUT_BY, HELD_OUT_DOCUMENTS

if TYPE_CHECKING:
    from uuid import UUID

    from stages.training.data.pairs import ConversationRecord, PreferenceRecord
    from stages.training.run.quotes import Quotable

ROLES = {HELD_OUT_BY: "mix", HELD_OUT_DOCUMENTS: "decontaminate"}
"""Roles of the stages that call `held_out_quotes`, all of them optional and ancestors."""


def held_out_quotes(
    records: Sequence[ConversationRecord] | Sequence[PreferenceRecord], inputs: Mapping[str, Artifact], ctx: Context
) -> dict[UUID, str]:
    """Returns doc_id -> quoted words of the records of the train split that quote a held-out document, and logs their number.

    Args:
        records: Conversations or preference pairs.
        inputs: The inputs of the node; without ROLES, no record is returned.
        ctx: The node's context.
    """
    import pyarrow.parquet as pq

    from stages.corpus.documents.documents import texts_of_documents
    from stages.training.run.quotes import quotes, too_short

    there = [node for role, node in ROLES.items() if role in inputs]
    absent = [node for role, node in ROLES.items() if role not in inputs]
    if absent:
        if there:
            ctx.log(f"not searched for quotes of held-out documents, because only {there[0]} is at hand, without {absent[0]}")
        return {}
    spans = pq.read_table(inputs[HELD_OUT_BY].path / "sequence_spans" / "validation.parquet", columns=["doc_id"])
    wanted = set(spans.column("doc_id").to_pylist())
    texts = texts_of_documents(inputs[HELD_OUT_DOCUMENTS].path, wanted)
    train = [record for record in records if record["split"] == "train"]
    examples = [_quotable(record) for record in train]
    found, unsearched = quotes(examples, texts), too_short(examples)
    ctx.log(
        f"{len(found):,} of {len(train):,} records for training quote one of {len(texts):,} documents that are held out from pretraining"
        + (f"; {unsearched:,} are too short to be searched" if unsearched else "")
        + (f"; the texts of {len(wanted) - len(texts):,} more are not at hand" if len(texts) < len(wanted) else "")
    )
    return found


def _quotable(record: ConversationRecord | PreferenceRecord) -> Quotable:
    """Returns what training makes likelier or less likely in a record."""
    from stages.training.run.quotes import Quotable

    if "messages" in record:
        dialogues = [json.loads(cast("ConversationRecord", record)["messages"])]
    else:
        asked = json.loads(record["prompt"])[-1:]
        dialogues = [[*asked, {"role": "assistant", "content": side}] for side in (record["chosen"], record["rejected"])]
    return Quotable(record["doc_id"], tuple(reply for messages in dialogues for reply in _replies(messages)))


def _replies(messages: Sequence[Mapping[str, str]]) -> list[str]:
    """Returns what the assistant says; after "Complete: ...", also the whole that the user's and the assistant's part make together."""
    from stages.examples.items.chat import complete_prompt

    found: list[str] = []
    begun = complete_prompt("")
    for before, message in zip([{"content": ""}, *messages], messages, strict=False):
        if message["role"] == "assistant":
            found.append(message["content"])
            if before["content"].startswith(begun):
                found.append(f"{before['content'].removeprefix(begun)} {message['content']}")
    return found
