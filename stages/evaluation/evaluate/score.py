"""Computes log-probabilities of given tokens under a Hugging Face causal model, for evaluation.

Guarantee: attention is causal and sequences are padded on the right. Therefore the result of a sequence does not depend on the other
sequences of its batch, except for rounding in matrix products. Log-probabilities are returned as float64.
Cost: one forward pass per batch of sequences of similar length. Logits are computed only for the requested tokens, at most LOGIT_ELEMENTS
at a time.
Source: the scoring of lm-eval's HF wrapper (a test compares the results).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stages.training.checkpoints.convert import quiet_transformers

LOGIT_ELEMENTS = 1 << 25

Progress = Callable[[int, int], None]


def load_model(folder: Path, device: str) -> Any:
    """Returns an exported model: float32 on a CPU, the saved dtype on a GPU. Only safetensors of the folder are read, and no remote code runs."""
    quiet_transformers()
    from transformers import AutoModelForCausalLM

    dtype = torch.float32 if device == "cpu" else "auto"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True, use_safetensors=True, trust_remote_code=False)
    return model.to(device).eval()


def load_tokenizer(folder: Path) -> Any:
    """Returns the tokenizer in the folder of an exported model, with its chat template."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


@torch.inference_mode()  # type: ignore[untyped-decorator]
def token_logprobs(
    model: Any, sequences: Sequence[tuple[Sequence[int], int]], batch_size: int, progress: Progress | None = None
) -> list[tuple[np.ndarray, bool]]:
    """Returns, per sequence, the natural log-probabilities of its scored tokens (float64) and whether all of them are the most likely ones.

    Args:
        model: A Hugging Face causal model.
        sequences: (ids, first): ids[first:] are scored, ids[:first] are context. first is at least 1.
        batch_size: Sequences per forward pass; the longest come first.
        progress: Called with (sequences done, sequences in total) after each batch.

    Returns:
        One pair per sequence, in the order of `sequences`.
    """
    results: list[tuple[np.ndarray, bool]] = [(np.zeros(0), True)] * len(sequences)
    order = sorted(range(len(sequences)), key=lambda i: (-len(sequences[i][0]), i))
    device = next(model.parameters()).device
    for begin in range(0, len(order), batch_size):
        batch = order[begin : begin + batch_size]
        length = len(sequences[batch[0]][0]) - 1
        ids_BT = torch.zeros(len(batch), max(length, 1), dtype=torch.long)
        rows: list[int] = []
        columns: list[int] = []
        targets: list[int] = []
        for row, i in enumerate(batch):
            ids, first = sequences[i]
            ids_BT[row, : len(ids) - 1] = torch.tensor(ids[:-1], dtype=torch.long)
            rows += [row] * (len(ids) - first)
            columns += range(first - 1, len(ids) - 1)
            targets += ids[first:]
        hidden_BTD = model.base_model(input_ids=ids_BT.to(device), use_cache=False).last_hidden_state
        logp, greedy = _logprobs(model, hidden_BTD[rows, columns], torch.tensor(targets, dtype=torch.long, device=device))
        ends = np.cumsum([len(sequences[i][0]) - sequences[i][1] for i in batch])
        for i, own, best in zip(batch, np.split(logp, ends[:-1]), np.split(greedy, ends[:-1]), strict=True):
            results[i] = (own, bool(best.all()))
        if progress:
            progress(min(begin + batch_size, len(order)), len(order))
    return results


def _logprobs(model: Any, hidden_ND: torch.Tensor, targets_N: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    head = model.get_output_embeddings()
    step = max(1, LOGIT_ELEMENTS // head.weight.shape[0])
    logp, greedy = [], []
    for part_nD, target_n in zip(hidden_ND.split(step), targets_N.split(step), strict=True):
        logits_nV = head(part_nD).float()
        own_n = logits_nV.gather(1, target_n[:, None])[:, 0] - logits_nV.logsumexp(dim=1)
        logp.append(own_n.double().cpu().numpy())
        greedy.append((logits_nV.argmax(dim=1) == target_n).cpu().numpy())
    return (np.concatenate(logp), np.concatenate(greedy)) if logp else (np.zeros(0), np.zeros(0, bool))
