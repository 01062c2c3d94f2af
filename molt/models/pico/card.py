"""The model card of the embedded ladder, generated from the JSON files beside the weights.

python -m molt.models.pico.card          # writes weights/CARD.md
"""

import json
from collections.abc import Iterable
from pathlib import Path
from string import Template
from typing import Any

from molt.models.pico import TIERS, WEIGHTS
from molt.models.pico.corpus import FIT_FRACTION, HELDOUT_FRACTION, shipped_documents
from molt.models.pico.evaluate import (
    LOSS_WINDOW_TOKENS,
    Evaluation,
    gate_table,
    load_evaluation,
    result_table,
)
from molt.models.pico.tokenizer import VOCABULARY

_CARD = Template("""\
# Pico, the embedded ladder

Two small language models that ship with the package, so that every simulation, test and example runs offline with
real weights. tier0 and tier1 differ in depth, width and head dimension; tier2 is tier1, quantised to INT8 at load
time and not stored. All share one tokenizer: byte-level BPE, $vocabulary entries, `<|endoftext|>` (id 0) before each
document. The architecture is Qwen2 with tied embeddings; weights are stored in float16 and meant to be computed in
float32. This page is generated: `python -m molt.models.pico.card`.

## Geometry and training

$recipes

Each rung was trained from scratch: Muon for the matrices inside the layers, AdamW for embeddings, norms and biases,
one learning rate for both, bfloat16 matrix products, constant rate after the warm-up, `1 - sqrt(x)` decay over the
last quarter of the steps. Documents are packed into sequences with `<|endoftext|>` between them.

## Results

Measured by `python -m molt.models.pico.evaluate` on all held-out documents: $documents documents, $bytes bytes,
$tokens tokens, read in windows of $window tokens. Loss with and without history compares the same continuations;
`xz -9` on the same documents, joined: $xz bits per byte.

$results

$gates

Samples at temperature 0.7, 60 tokens after each prompt:

$samples

## Data

English documentation from Debian packages, cleaned by `python -m molt.models.pico.corpus`. Long paragraphs that an
earlier document has are removed. $heldout_percent % of the documents, chosen by a hash of their names, are held out;
a fixed $fit_percent % of the training documents also serve to fit the maps between rungs.

$packages

No text is part of the weights' folder but `heldout.jsonl`: $shipped_count held-out documents ($shipped_bytes
bytes) for tests without the corpus; their licences and notices are in `NOTICE`.

## Limits

The rungs know software documentation and nothing else. They write sentences that look like manuals and are not true;
they follow no instructions and must not be used as a source of facts. Their purpose is to have real attention
states to carry over, and a real difference in quality between rungs to measure.
""")


def _table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(header), *map(list, rows)]
    lines.insert(1, ["---"] + ["---:"] * (len(lines[0]) - 1))
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _recipe_table(training: dict[str, dict[str, Any]]) -> str:
    def row(name: str, cell: str) -> list[str]:
        return [name, *(cell.format(**t, r=t["recipe"], s=t["recipe"]["shape"]) for t in training.values())]

    rows = [
        row("layers", "{s[layers]}"),
        row("hidden / feed-forward", "{s[hidden]} / {s[ff]}"),
        row("heads, KV heads x head dimension", "{s[heads]}, {s[kv_heads]} x {s[head_dim]}"),
        row("positions, rope base", "{s[positions]}, {s[rope_base]:g}"),
        row("steps", "{steps:,}"),
        row("tokens seen", "{tokens:,}"),
        row("tokens per step", "{r[tokens_per_step]:,}"),
        row("sequence length, at the end", "{r[length]}, {r[length_last]}"),
        row("share of steps at that length", "{r[last_fraction]:.0%}"),
        row("peak learning rate, warm-up steps", "{r[learning_rate]:g}, {r[warmup_steps]}"),
        row("share of steps in the decay", "{r[decay_fraction]:.0%}"),
        row("weight decay (matrices), gradient clip", "{r[weight_decay]:g}, {r[clip_norm]:g}"),
        row("Muon's momentum, AdamW's betas", "{r[momentum]:g}, {r[betas][0]:g} and {r[betas][1]:g}"),
        row("seed", "{r[seed]}"),
    ]
    return _table(["", *training], rows)


def _package_table(packages: list[dict[str, Any]]) -> str:
    counts = ("documents", "bytes", "heldout_documents", "heldout_bytes")
    rows = [[p["package"], p["version"], p["licence"], *(f"{p[key]:,}" for key in counts)] for p in packages]
    sums = [sum(p[key] for p in packages) for key in counts]
    header = ["package", "version", "licence", "documents", "bytes", "held out", "bytes held out"]
    return _table(header, [*rows, ["all", "", "", *(f"{n:,}" for n in sums)]])


def _samples(evaluation: Evaluation) -> str:
    lines = [
        f"{tier}: {' '.join(text.split())}"
        for tier, rung in evaluation.rungs.items()
        for text in rung.samples
    ]
    return "\n".join(["```text", *lines, "```"])


def card(folder: Path = WEIGHTS) -> str:
    """The card as Markdown, from `training.json` of each rung, `evaluation.json`, `corpus.json` and the excerpts."""
    evaluation = load_evaluation(folder / "evaluation.json")
    training = {tier: json.loads((folder / tier / "training.json").read_text()) for tier in TIERS}
    shipped = [text for _, text in shipped_documents(folder)]
    return _CARD.substitute(
        vocabulary=VOCABULARY,
        recipes=_recipe_table(training),
        documents=evaluation.documents,
        bytes=f"{evaluation.bytes:,}",
        tokens=f"{evaluation.tokens:,}",
        window=f"{LOSS_WINDOW_TOKENS:,}",
        xz=f"{evaluation.xz_bits_per_byte:.3f}",
        results=result_table(evaluation),
        gates=gate_table(evaluation),
        samples=_samples(evaluation),
        heldout_percent=f"{100 * HELDOUT_FRACTION:g}",
        fit_percent=f"{100 * FIT_FRACTION:g}",
        packages=_package_table(json.loads((folder / "corpus.json").read_text())),
        shipped_count=len(shipped),
        shipped_bytes=f"{sum(len(text.encode()) for text in shipped):,}",
    )


def main() -> None:
    (WEIGHTS / "CARD.md").write_text(card(), encoding="utf-8")


if __name__ == "__main__":
    main()
