"""Speed and accuracy of every rung of a ladder, side by side, beside fp32 and transformers with the same weights.

``python -m benchmarks.decode LADDER [--rounds 15] [--windows 16] [--gguf FILE] [--out FILE]``

Weights after weights: all rungs made of them, their fp32 form (the reference, in the ladder or not) and
transformers' own model on the same memory are held at once, and timed in turns, so that a busy minute of the
machine hits all of them. Prefill is one chunk of 128 tokens; decode is one token behind 128 cells, with
the check for logits that are no numbers and without sampling; of transformers, it is what one more token costs
``generate`` (greedy), and its prefill is its forward pass. Bytes a token are the weights that a token reads and its
cells; percent of roof is their rate against the speed of plain reading. KL (nats a token) and top-1 agreement are
against the fp32 form on windows of 256 tokens of the held-out documents that ship with ``pico``. With ``--gguf``,
llama-cpp-python, where it is installed, is timed on that file too (prompt of 128, then 32 tokens), after the rest.

Prints a table and writes everything as JSON.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate
from tokenizers import Tokenizer
from torch import Tensor

import molt.openmp  # noqa: F401  before torch
from benchmarks.timing import Others, medians, roof, write
from molt.kv.loaded_rung import LoadedRung
from molt.models import image, predict
from molt.models.ladder_file import LadderSpec, RungSpec, resolve
from molt.models.loader import DTYPES, LoadedWeights, load
from molt.models.pico.corpus import shipped_documents

PROMPT_TOKENS = 128
GENERATED = 16
WINDOW = 256


@dataclass(frozen=True, slots=True)
class Row:
    """One rung, or another program with its weights; times are medians."""

    weights: str
    what: str
    precision: str
    load_s: float | None
    weight_bytes: int
    prefill_s: float
    decode_s: float
    bytes_per_token: int
    roof_share: float
    kl: float | None
    top1: float | None


def windows(tokenizer: Tokenizer, count: int) -> list[list[int]]:
    """The first ``WINDOW`` tokens of each of ``count`` held-out documents."""
    encoded = (tokenizer.encode(text).ids[:WINDOW] for _, text in shipped_documents())
    return list(islice((ids for ids in encoded if len(ids) == WINDOW), count))


def loaded(rung: RungSpec) -> tuple[LoadedWeights, float]:
    """A rung, and the seconds it took."""
    begin = time.perf_counter()
    return load(rung), time.perf_counter() - begin


def as_rung(spec: LadderSpec, rung: LoadedWeights) -> LoadedRung:
    """A loaded rung with the facts of its ladder."""
    shape = rung.spec.shape
    return LoadedRung(rung.decoder, predict.kv_layout(shape), shape.positions, spec.vocabulary)


def prefill(rung: LoadedRung, ids: list[int]) -> Callable[[], object]:
    """Prefills ``PROMPT_TOKENS`` into a new cache."""
    return lambda: rung.prefill_afresh(ids[:PROMPT_TOKENS])


def decode(rung: LoadedRung, ids: list[int]) -> Callable[[], object]:
    """Steps over one token, behind ``PROMPT_TOKENS`` cells and up to ``GENERATED`` more."""
    cache = rung.prefill_afresh(ids[:PROMPT_TOKENS], spare=GENERATED)

    def step() -> None:
        if cache.cells == cache.capacity:
            del cache.positions[PROMPT_TOKENS:]
        rung.step(cache, [ids[cache.cells]], cache.cells)

    return step


def transformers_model(rung: LoadedWeights) -> Any:
    """transformers' model whose parameters are the memory of a rung in float32."""
    from transformers import AutoConfig, AutoModelForCausalLM

    assert rung.arena is not None, "a rung in memory"
    config = AutoConfig.from_pretrained(rung.spec.folder)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    parameters = {
        slot.name: rung.arena.tensor(slot.offset, DTYPES[slot.dtype], slot.shape)
        for slot in image.layout(rung.spec.shape, rung.spec.precision)
    }
    model.load_state_dict(parameters, strict=False, assign=True)
    model.tie_weights()
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    assert not any(value.is_meta for value in (*model.parameters(), *model.buffers())), "all have a place"
    return model.eval()


def generate(model: Any, ids: list[int], tokens: int) -> Callable[[], object]:
    """transformers' greedy generation of exactly ``tokens`` tokens."""
    prompt = torch.tensor([ids[:PROMPT_TOKENS]])
    return lambda: model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        do_sample=False,
        min_new_tokens=tokens,
        max_new_tokens=tokens,
        pad_token_id=0,
    )


def divergence(
    reference: LoadedRung, others: dict[str, LoadedRung], texts: list[list[int]]
) -> dict[str, tuple[float, float]]:
    """Mean KL of each rung to the reference, and how often both would say the same."""
    sums = {name: [0.0, 0.0] for name in others}
    for ids in texts:
        wanted = _log_probabilities(reference, ids)
        for name, other in others.items():
            found = _log_probabilities(other, ids)
            sums[name][0] += float((wanted.exp() * (wanted - found)).sum(-1).mean())
            sums[name][1] += float((wanted.argmax(-1) == found.argmax(-1)).float().mean())
    return {name: (kl / len(texts), top1 / len(texts)) for name, (kl, top1) in sums.items()}


def _log_probabilities(rung: LoadedRung, ids: list[int]) -> Tensor:
    return rung.step(rung.empty_cache(len(ids)), ids, 0).log_softmax(-1)


def bytes_per_token(rung: RungSpec) -> int:
    """What a token reads behind ``PROMPT_TOKENS`` cells: an embedding that is not the head is only looked up."""
    weights = sum(
        slot.nbytes
        for slot in image.layout(rung.shape, rung.precision)
        if rung.shape.tied or not slot.name.startswith(image.EMBEDDING)
    )
    return weights + PROMPT_TOKENS * predict.kv_layout(rung.shape).bytes_per_token


def measure(
    spec: LadderSpec, rungs: tuple[RungSpec, ...], texts: list[list[int]], rounds: int, roof_rate: float
) -> Iterator[Row]:
    """The rows of rungs that have the same weights, their fp32 form first."""
    wanted = {rung.precision: rung for rung in rungs}
    wanted = {"fp32": replace(rungs[0], precision="fp32"), **wanted}
    held = {precision: loaded(rung) for precision, rung in wanted.items()}
    ready = {precision: as_rung(spec, rung) for precision, (rung, _) in held.items()}
    model = transformers_model(held["fp32"][0])
    ids = texts[0]

    prefills = {precision: prefill(rung, ids) for precision, rung in ready.items()}
    prompt = torch.tensor([ids[:PROMPT_TOKENS]])
    prefills["transformers"] = lambda: model(prompt, logits_to_keep=1)
    prefill_s = medians(prefills, max(3, rounds // 3))
    decodes = {precision: decode(rung, ids) for precision, rung in ready.items()}
    decode_s = medians(decodes, GENERATED * rounds)
    whole = medians(
        {"long": generate(model, ids, 1 + GENERATED), "short": generate(model, ids, 1), **decodes},
        max(3, rounds // 3),
    )
    decode_s["transformers"] = (whole["long"] - whole["short"]) / GENERATED

    kl = divergence(ready["fp32"], {name: rung for name, rung in ready.items() if name != "fp32"}, texts)
    for precision, rung in wanted.items():
        names = [one.name for one in rungs if one.precision == precision]
        moved = bytes_per_token(rung)
        yield Row(
            weights=rung.weights,
            what=names[0] if names else "reference",
            precision=precision,
            load_s=held[precision][1],
            weight_bytes=held[precision][0].weight_bytes,
            prefill_s=prefill_s[precision],
            decode_s=decode_s[precision],
            bytes_per_token=moved,
            roof_share=moved / decode_s[precision] / roof_rate,
            kl=kl.get(precision, (None, None))[0],
            top1=kl.get(precision, (None, None))[1],
        )
    moved = bytes_per_token(wanted["fp32"])
    yield Row(
        rungs[0].weights,
        "transformers",
        "fp32",
        None,
        held["fp32"][0].weight_bytes,
        prefill_s["transformers"],
        decode_s["transformers"],
        moved,
        moved / decode_s["transformers"] / roof_rate,
        None,
        None,
    )


def llama(path: Path, ids: list[int], roof_rate: float) -> Row:
    """llama.cpp on a GGUF file, through llama-cpp-python; raises ``ImportError`` where that is not installed."""
    from llama_cpp import Llama  # type: ignore[import-not-found]

    begin = time.perf_counter()
    model = Llama(
        str(path), n_ctx=512, n_batch=PROMPT_TOKENS, n_threads=torch.get_num_threads(), verbose=False
    )
    load_s = time.perf_counter() - begin

    def read() -> None:
        model.reset()
        model.eval(ids[:PROMPT_TOKENS])

    prefill_s = medians({"prefill": read}, 5)["prefill"]
    decode_s = medians({"decode": lambda: model.eval([ids[PROMPT_TOKENS]])}, 32)["decode"]
    moved = path.stat().st_size
    share = moved / decode_s / roof_rate
    return Row(path.name, "llama.cpp", "gguf", load_s, moved, prefill_s, decode_s, moved, share, None, None)


def table(rows: list[Row]) -> str:
    """Speed and accuracy side by side; ratios are to fp32 of the same weights."""
    fp32 = {row.weights: row for row in rows if row.precision == "fp32" and row.what != "transformers"}
    lines = []
    for row in rows:
        base = fp32.get(row.weights)
        lines.append(
            (
                row.weights,
                row.what,
                row.precision,
                row.load_s,
                row.weight_bytes / 2**20,
                PROMPT_TOKENS / row.prefill_s,
                base and base.prefill_s / row.prefill_s,
                1 / row.decode_s,
                base and base.decode_s / row.decode_s,
                row.bytes_per_token / 1e6,
                100 * row.roof_share,
                row.kl,
                row.top1,
            )
        )
    header = ("weights", "what", "precision", "load s", "MiB", "prefill tok/s", "x fp32", "decode tok/s")
    header += ("x fp32", "MB a token", "% of roof", "KL", "top-1")
    formats = ("", "", "", ".2f", ".0f", ".1f", ".2f", ".1f", ".2f", ".0f", ".0f", ".4f", ".3f")
    return tabulate(lines, header, floatfmt=formats, tablefmt="pipe", missingval="–")


def main() -> None:
    """Measure a ladder."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decode")
    parser.add_argument("ladder")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--windows", type=int, default=16)
    parser.add_argument(
        "--weights", help="only the rungs of these weights (the name of the first that has them)"
    )
    parser.add_argument("--gguf", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    spec = resolve(options.ladder)
    texts = windows(Tokenizer.from_file(str(spec.tokenizer)), options.windows)
    roof_rate, others, rows = roof(), Others(), []
    names = [options.weights] if options.weights else list(dict.fromkeys(rung.weights for rung in spec.rungs))
    with torch.inference_mode():
        for name in names:
            rungs = tuple(rung for rung in spec.rungs if rung.weights == name)
            rows += measure(spec, rungs, texts, options.rounds, roof_rate)
        if options.gguf is not None:
            try:
                rows.append(llama(options.gguf, texts[0], roof_rate))
            except ImportError:
                print("llama-cpp-python is not installed")
    busy = others.cores()
    print(table(rows))
    print(
        f"\nroof {roof_rate / 1e9:.1f} GB/s; others used {busy:.2f} cores; {len(texts)} windows of {WINDOW}"
    )
    write(
        options.out or Path("benchmarks/results") / f"decode-{spec.ladder.name}.json",
        {
            "ladder": spec.ladder.name,
            "roof_bytes_per_s": roof_rate,
            "others_cores": busy,
            "rounds": options.rounds,
            "windows": len(texts),
            "prompt_tokens": PROMPT_TOKENS,
            "rows": [asdict(row) for row in rows],
        },
    )


if __name__ == "__main__":
    main()
