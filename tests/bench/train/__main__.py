"""Training against plain torch and nanochat's trainer: `python -m tests.bench.train`. About ten minutes on two idle cores.

All sides train a model of one shape on the same sequences in one run, each in its own process with one thread. They take turns in rounds, so
that other work on the machine meets all alike. Counted are CPU seconds per step; start-up and compilation (with an empty cache) are a column
of their own. FLOP/s are those of the model, not of what a side computes: attention over the whole context without the causal discount
(stages/lm/model/flops.py), or to the earlier tokens of the document. Both are compared with a square matrix product in the same precision.
A second table has the memory of the loss alone at a large vocabulary.

nanochat is no dependency. The environment variable LOAM_BENCH_NANOCHAT names a checkout of it; without one, its row is left out.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from flows.cli.printing import print_table
from stages.lm.model.peak_flops import PRODUCT_FLOPS
from tests.bench.probe import probe
from tests.bench.train import figures, head_loss, prepared
from tests.bench.train.rounds import left_out, measure
from tests.bench.train.sides import LOAM, PRODUCT, SIDES

PRECISIONS = ("fp32", "bf16")


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.train")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=10, help="counted steps of each side in a round")
    parser.add_argument("--warm-up", type=int, default=2, help="steps that are not counted")
    options = parser.parse_args()
    if min(options.rounds, options.steps, options.warm_up) < 1:
        parser.error("--rounds, --steps and --warm-up are at least 1")
    print(probe())
    training([options.warm_up, *[options.steps] * options.rounds])
    print(f"\nLoss at {head_loss.VOCABULARY:,} entries, {head_loss.TOKENS:,} tokens, width {head_loss.WIDTH}, fp32")
    print_table(head_loss.rows())
    print(probe())


def training(steps: list[int]) -> None:
    """Prints the tables of both precisions. steps: of the warm-up, then of each round."""
    start = time.monotonic()
    missing = left_out()
    names = [name for name in SIDES if name not in missing]
    with tempfile.TemporaryDirectory(prefix="loam-bench-train-") as folder:
        data = prepared.prepare(Path(folder), sum(steps), PRECISIONS)
        print(
            f"{data.text}, paragraphs as documents: {data.segments_per_sequence:.2f} segments per sequence\n"
            + ", ".join(f"{name} {value}" for name, value in prepared.MODEL.to_json().items())
            + f"\n{prepared.BATCH} sequences and {data.work.tokens:,.0f} tokens a step; {sum(steps[1:])} counted steps in {len(steps) - 1} rounds",
            flush=True,
        )
        for precision in PRECISIONS:
            runs, failed = measure(Path(folder), names, precision, steps)
            missing |= {f"{name}, {precision}": why for name, why in failed.items()}
            if (product := runs.pop(PRODUCT, None)) is None:
                continue
            product_flops = PRODUCT_FLOPS / product.step_s
            print(f"\n{precision}; matmul: {product_flops / 1e9:.0f} GFLOP/s")
            print_table(figures.table(runs, data.work, product_flops, LOAM))
    print("\n" + "\n".join(f"{name}: {side.differs}" for name, side in SIDES.items() if side.differs))
    print("".join(f"left out: {name}: {why}\n" for name, why in missing.items()) + f"{time.monotonic() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
