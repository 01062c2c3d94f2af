"""Measures the shipped rungs on held-out documents and checks the gates they must pass.

- *Bits per byte*: the cost of a document under the rung, over its UTF-8 bytes; `xz -9` on the same
  documents, joined, is what it is compared with.
- *Context*: the loss of the first 16, 32 and 64 tokens of a continuation, with 256 tokens of history and
  with none. A cache transplanted from one rung to another can only be worth something if history is.

    python -m molt.models.pico.evaluate              # all held-out documents; writes evaluation.json
    python -m molt.models.pico.evaluate --shipped    # the excerpts in the package; writes nothing
"""

import argparse
import json
import lzma
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from transformers import Qwen2ForCausalLM
from transformers.utils.logging import disable_progress_bar

from molt.models.pico import END_OF_TEXT_ID, TIERS, WEIGHTS
from molt.models.pico.corpus import Document, documents, shipped_documents
from molt.models.pico.tokenizer import load_tokenizer

LOSS_WINDOW_TOKENS = 1024
HISTORY_TOKENS = 256
CONTINUATION_LENGTHS = (16, 32, 64)
CONTINUATIONS_MAX = 256
CONTEXT_GAIN_MIN_NATS = 0.3
PROMPTS = (
    "The purpose of this command is to",
    "In computing, a hacker is someone who",
    "If the server cannot be reached,",
)


@dataclass(frozen=True)
class ContextGain:
    """Loss in nats per token over the first `tokens` of continuations, with and without history."""

    tokens: int
    with_history: float
    without_history: float

    @property
    def gain(self) -> float:
        return self.without_history - self.with_history


@dataclass(frozen=True)
class RungResult:
    """What was measured of one rung; `loss` is in nats per token, `file_bytes` the size of its weights."""

    parameters: int
    file_bytes: int
    loss: float
    bits_per_byte: float
    context: list[ContextGain]
    samples: list[str]


@dataclass(frozen=True)
class RungGate:
    """A claim about the rungs: `value` must stay below `limit` (or reach it, where `at_least`)."""

    claim: str
    value: float
    limit: float
    at_least: bool = False

    @property
    def passed(self) -> bool:
        return self.value >= self.limit if self.at_least else self.value < self.limit


@dataclass(frozen=True)
class Evaluation:
    """All results over one set of documents."""

    documents: int
    bytes: int
    tokens: int
    xz_bits_per_byte: float
    rungs: dict[str, RungResult]

    def gates(self) -> list[RungGate]:
        """The claims the model card makes."""
        large, small = (self.rungs[tier] for tier in TIERS)
        gates = [
            RungGate(f"{tier}: bits per byte below xz -9", rung.bits_per_byte, self.xz_bits_per_byte)
            for tier, rung in self.rungs.items()
        ]
        gates.append(RungGate("tier0's loss below tier1's (nats per token)", large.loss, small.loss))
        for tier, rung in self.rungs.items():
            last = rung.context[-1]
            claim = f"{tier}: worth of {HISTORY_TOKENS} tokens of history over {last.tokens} (nats per token)"
            gates.append(RungGate(claim, last.gain, CONTEXT_GAIN_MIN_NATS, at_least=True))
        return gates


def load_rung(tier: str, folder: Path = WEIGHTS) -> Qwen2ForCausalLM:
    """A shipped rung as a transformers model in float32, ready for inference."""
    return Qwen2ForCausalLM.from_pretrained(folder / tier, dtype=torch.float32, local_files_only=True).eval()


def token_losses(model: Qwen2ForCausalLM, ids: torch.Tensor) -> torch.Tensor:
    """Loss in nats of each of `ids[:, 1:]` given what stands before it; ids: (B, T + 1) -> (B, T)."""
    logits = model(input_ids=ids[:, :-1], use_cache=False).logits
    return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none").view(len(ids), -1)


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    """End-of-text, then the tokens of `text`."""
    return [END_OF_TEXT_ID, *tokenizer.encode(text).ids]


def document_loss(model: Qwen2ForCausalLM, ids: Sequence[int]) -> float:
    """Sum of losses in nats over a document, read in windows of `WINDOW_TOKENS` without overlap."""
    starts = range(0, len(ids) - 1, LOSS_WINDOW_TOKENS)
    return sum(
        token_losses(model, torch.tensor([ids[s : s + LOSS_WINDOW_TOKENS + 1]])).sum().item() for s in starts
    )


def continuations(encoded: Sequence[Sequence[int]], count_max: int = CONTINUATIONS_MAX) -> torch.Tensor:
    """Pieces of history and continuation from all documents, evenly thinned: (N, 256 + 64)."""
    length = HISTORY_TOKENS + CONTINUATION_LENGTHS[-1]
    pieces = [ids[s : s + length] for ids in encoded for s in range(1, len(ids) - length + 1, length)]
    step = max(1, math.ceil(len(pieces) / count_max))
    return torch.tensor(pieces[::step])


def context_gains(model: Qwen2ForCausalLM, pieces: torch.Tensor) -> list[ContextGain]:
    """The worth of history, for each length of continuation; pieces: (N, 256 + 64)."""
    begin = torch.full((len(pieces), 1), END_OF_TEXT_ID)
    full = torch.cat([begin, pieces], dim=1)
    bare = torch.cat([begin, pieces[:, HISTORY_TOKENS:]], dim=1)
    with_history = torch.cat([token_losses(model, part)[:, HISTORY_TOKENS:] for part in full.split(16)])
    without = torch.cat([token_losses(model, part) for part in bare.split(16)])
    return [
        ContextGain(n, with_history[:, :n].mean().item(), without[:, :n].mean().item())
        for n in CONTINUATION_LENGTHS
    ]


def sample(
    model: Qwen2ForCausalLM, tokenizer: Tokenizer, prompt: str, tokens: int = 60, seed: int = 0
) -> str:
    """`prompt` continued by `tokens` tokens, drawn at temperature 0.7 from the 40 likeliest."""
    generator = torch.Generator().manual_seed(seed)
    ids = encode(tokenizer, prompt)
    for _ in range(tokens):
        best = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].topk(40)
        choice = torch.multinomial((best.values / 0.7).softmax(0), 1, generator=generator)
        ids.append(int(best.indices[choice]))
    return tokenizer.decode(ids[1:])


@torch.inference_mode()
def evaluate_rung(tier: str, texts: Sequence[str], folder: Path, prompts: Sequence[str]) -> RungResult:
    """All measurements of one rung over `texts`."""
    model, tokenizer = load_rung(tier, folder), load_tokenizer(folder)
    encoded = [encode(tokenizer, text) for text in texts]
    nats = sum(document_loss(model, ids) for ids in encoded)
    return RungResult(
        parameters=sum(p.numel() for p in model.parameters()),
        file_bytes=(folder / tier / "model.safetensors").stat().st_size,
        loss=nats / sum(len(ids) - 1 for ids in encoded),
        bits_per_byte=nats / math.log(2) / sum(len(text.encode()) for text in texts),
        context=context_gains(model, continuations(encoded)),
        samples=[sample(model, tokenizer, prompt) for prompt in prompts],
    )


def xz_bits_per_byte(texts: Sequence[str]) -> float:
    """What `xz -9` makes of the texts joined, in bits per byte of the texts."""
    raw = "".join(texts).encode()
    return 8 * len(lzma.compress(raw, preset=9)) / len(raw)


def evaluate(
    found: Sequence[Document], folder: Path = WEIGHTS, prompts: Sequence[str] = PROMPTS
) -> Evaluation:
    """Measures every rung over the same documents, and lets each continue the prompts."""
    texts = [text for _, text in found]
    tokenizer = load_tokenizer(folder)
    return Evaluation(
        documents=len(texts),
        bytes=sum(len(text.encode()) for text in texts),
        tokens=sum(len(tokenizer.encode(text).ids) for text in texts),
        xz_bits_per_byte=xz_bits_per_byte(texts),
        rungs={tier: evaluate_rung(tier, texts, folder, prompts) for tier in TIERS},
    )


def evaluation_json(evaluation: Evaluation) -> str:
    """An evaluation as JSON text; floats keep four decimals, of which the last is already noise."""

    def rounded(value: object) -> object:
        match value:
            case float():
                return round(value, 4)
            case dict():
                return {key: rounded(inner) for key, inner in value.items()}
            case list():
                return [rounded(inner) for inner in value]
            case _:
                return value

    return json.dumps(rounded(asdict(evaluation)), indent=1, ensure_ascii=False) + "\n"


def load_evaluation(path: Path = WEIGHTS / "evaluation.json") -> Evaluation:
    """The evaluation written by `evaluation_json`."""
    raw = json.loads(path.read_text(encoding="utf-8"))
    for rung in raw["rungs"].values():
        rung["context"] = [ContextGain(**gain) for gain in rung["context"]]
    raw["rungs"] = {tier: RungResult(**rung) for tier, rung in raw["rungs"].items()}
    return Evaluation(**raw)


def gate_table(evaluation: Evaluation) -> str:
    """The gates as a Markdown table."""
    lines = ["| gate | measured | limit | |", "|---|---:|---:|---|"]
    for gate in evaluation.gates():
        sign, verdict = "≥" if gate.at_least else "<", "passed" if gate.passed else "MISSED"
        lines.append(f"| {gate.claim} | {gate.value:.3f} | {sign} {gate.limit:.3f} | {verdict} |")
    return "\n".join(lines)


def result_table(evaluation: Evaluation) -> str:
    """The measurements as a Markdown table, one column a rung."""
    rungs = list(evaluation.rungs.values())
    rows = [("parameters", [f"{rung.parameters:,}" for rung in rungs])]
    rows.append(("file (bytes)", [f"{rung.file_bytes:,}" for rung in rungs]))
    rows.append(("loss (nats per token)", [f"{rung.loss:.3f}" for rung in rungs]))
    rows.append(("bits per byte", [f"{rung.bits_per_byte:.3f}" for rung in rungs]))
    for index, tokens in enumerate(CONTINUATION_LENGTHS):
        gains = [rung.context[index] for rung in rungs]
        cells = [f"{g.without_history:.3f} − {g.with_history:.3f} = {g.gain:.3f}" for g in gains]
        rows.append((f"first {tokens} tokens: loss without − with {HISTORY_TOKENS} of history", cells))
    lines = [f"| | {' | '.join(evaluation.rungs)} |", "|---|" + "---:|" * len(rungs)]
    return "\n".join(lines + [f"| {name} | {' | '.join(cells)} |" for name, cells in rows])


def main() -> int:
    summary = (__doc__ or "").split("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m molt.models.pico.evaluate", description=summary)
    parser.add_argument("--shipped", action="store_true", help="only the excerpts in the package")
    parser.add_argument("--weights", type=Path, default=WEIGHTS, help="folder of the rungs (%(default)s)")
    parser.add_argument(
        "--cache", type=Path, help="folder of the corpus (default: corpus/ in the folder of caches)"
    )
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    disable_progress_bar()
    found = list(
        shipped_documents(options.weights) if options.shipped else documents("heldout", options.cache)
    )
    evaluation = evaluate(found, options.weights)
    if not options.shipped:
        (options.weights / "evaluation.json").write_text(evaluation_json(evaluation), encoding="utf-8")
    print(f"{evaluation.documents} documents, {evaluation.bytes:,} bytes, {evaluation.tokens:,} tokens\n")
    print(result_table(evaluation), gate_table(evaluation), sep="\n\n")
    return 0 if all(gate.passed for gate in evaluation.gates()) else 1


if __name__ == "__main__":
    sys.exit(main())
