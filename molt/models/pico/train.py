"""Trains one rung of the embedded ladder on the corpus.

Rules of this module:

- What a step does depends on the recipe, the schedule, the weights, the optimizers' moments and the number
  of the step alone. So a resumed run equals an uninterrupted one.
- The learning rate is constant after its warm-up, then decays. Where the decay begins may be decided late:
  by `--steps`, by `--minutes`, or by a file named `finish` in the run's folder.
- `RUN/checkpoint` is the newest state, `RUN/stable` the last one before the decay. To train for longer,
  copy `stable` over `checkpoint`, remove `finish`, and start again with a later end.
- Weights train in float32 (matrix products in bfloat16) and are exported as float16.

    python -m molt.models.pico.train --tier tier0 --out RUN --minutes 80
"""

import argparse
import copy
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TextIO

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from transformers import Qwen2ForCausalLM

from molt.models.pico import WEIGHTS
from molt.models.pico.batches import batch, encode_split, windows
from molt.models.pico.recipes import RECIPES, Recipe, Schedule

LossFunction = Callable[[Qwen2ForCausalLM, torch.Tensor], torch.Tensor]

HELDOUT_WINDOWS = 16
HELDOUT_EVERY_STEPS = 200
LOG_EVERY_STEPS = 20
CHECKPOINT_EVERY_S = 240.0
EXPORT_EVERY_S = 900.0

LAST_PHASE_SLOWDOWN = 1.6
"""How much longer an average step of the decay takes than one before it: most read long sequences."""


# --------------------------------------------------------------------------------------------------- a run


@dataclass
class Training:
    """The state of a training: everything a checkpoint holds."""

    recipe: Recipe
    model: Qwen2ForCausalLM
    muon: torch.optim.Muon
    adamw: torch.optim.AdamW
    step: int = 0
    elapsed_s: float = 0.0
    schedule: Schedule = field(default_factory=Schedule)

    @property
    def finished(self) -> bool:
        return self.schedule.end is not None and self.step >= self.schedule.end

    @property
    def tokens(self) -> int:
        """How many tokens have been trained on."""
        return self.step * self.recipe.tokens_per_step


def new_run(recipe: Recipe) -> Training:
    """A run at step 0, with weights drawn from the recipe's seed."""
    torch.manual_seed(recipe.seed)
    model = Qwen2ForCausalLM(recipe.shape.config()).float()
    parameters = dict(model.named_parameters())
    matrices = [p for name, p in parameters.items() if is_hidden_matrix(name)]
    others = [p for name, p in parameters.items() if not is_hidden_matrix(name)]
    rate, decay = recipe.learning_rate, recipe.weight_decay
    muon = torch.optim.Muon(
        matrices, lr=rate, weight_decay=decay, momentum=recipe.momentum, adjust_lr_fn="match_rms_adamw"
    )
    adamw = torch.optim.AdamW(others, lr=rate, weight_decay=0.0, betas=recipe.betas, fused=True)
    return Training(recipe, model, muon, adamw)


def is_hidden_matrix(name: str) -> bool:
    """Whether Muon trains this parameter: the matrices inside the layers; AdamW has embeddings, norms and biases.

    On tier0, 60 steps with Muon reached a lower training loss (6.10 nats) than 70 with AdamW alone (6.42). Muon:
    K. Jordan et al. 2024; its step size: J. Liu et al. 2025, arXiv 2502.16982.
    """
    return name.endswith("proj.weight")


def next_token_loss(model: Qwen2ForCausalLM, ids: torch.Tensor) -> torch.Tensor:
    """Mean loss in nats of predicting `ids[:, 1:]` from what stands before; ids: (B, T + 1) int64."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(input_ids=ids[:, :-1], use_cache=False).logits
    return F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())


_compiled_loss = torch.compile(next_token_loss, dynamic=False)


def choose_loss(run: Training, compiled: bool) -> LossFunction:
    """The loss for the next step; also sets the attention that suits it.

    The compiler makes short sequences a third faster, with plain attention; long ones are best left to the
    library's own attention (measured for tier0 with 8 layers, in CPU time: 3.3 against 2.4 and 1.5 against 2.0 thousand
    tokens a second).
    """
    last_from = run.schedule.last_phase_from(run.recipe)
    compiled = compiled and (last_from is None or run.step < last_from)
    run.model.set_attn_implementation("eager" if compiled else "sdpa")
    return _compiled_loss if compiled else next_token_loss


def advance(run: Training, tokens: np.ndarray, loss_of: LossFunction = next_token_loss) -> float:
    """Takes one optimizer step and returns the training loss in nats; tokens: (T,)."""
    for group in run.muon.param_groups + run.adamw.param_groups:
        group["lr"] = run.schedule.learning_rate(run.step, run.recipe)
    loss = loss_of(run.model, batch(tokens, run.step, run.schedule, run.recipe))
    loss.backward()
    torch.nn.utils.clip_grad_norm_(run.model.parameters(), run.recipe.clip_norm)
    for optimizer in (run.muon, run.adamw):
        optimizer.step()
        optimizer.zero_grad()
    run.step += 1
    return loss.item()


@torch.no_grad()
def heldout_loss(run: Training, tokens: np.ndarray) -> float:
    """Mean loss in nats over a fixed draw of held-out windows of the recipe's short length; tokens: (T,)."""
    ids = windows(tokens, 0, HELDOUT_WINDOWS, run.recipe.length, seed=0)
    return float(np.mean([next_token_loss(run.model, part).item() for part in ids.split(4)]))


# ------------------------------------------------------------------------------------- checkpoints, export


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """A scratch folder that replaces `folder` at the end: readers see the old one or the new one."""
    scratch, old = folder.with_name(f".{folder.name}.new"), folder.with_name(f".{folder.name}.old")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    yield scratch
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    scratch.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def _moments(run: Training, name: str, parameter: torch.nn.Parameter) -> dict[str, torch.Tensor]:
    """What the optimizer of a parameter remembers of it."""
    return (run.muon if is_hidden_matrix(name) else run.adamw).state[parameter]


def save_checkpoint(run: Training, folder: Path) -> None:
    """Writes weights, the moments of both optimizers and progress (safetensors and JSON)."""
    tensors = {}
    for name, parameter in run.model.named_parameters():
        tensors[f"weight/{name}"] = parameter.detach()
        for key, value in _moments(run, name, parameter).items():
            tensors[f"{key}/{name}"] = value
    progress = {
        "step": run.step,
        "elapsed_s": run.elapsed_s,
        "schedule": asdict(run.schedule),
        "recipe": asdict(run.recipe),
    }
    with replacing(folder) as scratch:
        save_file({key: value.contiguous() for key, value in tensors.items()}, scratch / "state.safetensors")
        (scratch / "progress.json").write_text(json.dumps(progress, indent=1) + "\n")


def load_checkpoint(recipe: Recipe, folder: Path) -> Training:
    """The run a checkpoint holds; raises ValueError if it was made with another recipe."""
    progress = json.loads((folder / "progress.json").read_text())
    if progress["recipe"] != json.loads(json.dumps(asdict(recipe))):
        raise ValueError(f"{folder}: this checkpoint was made with another recipe: {progress['recipe']}")
    run = new_run(recipe)
    tensors = load_file(folder / "state.safetensors")
    with torch.no_grad():
        for name, parameter in run.model.named_parameters():
            parameter.copy_(tensors[f"weight/{name}"])
            keys = ("momentum_buffer",) if is_hidden_matrix(name) else ("step", "exp_avg", "exp_avg_sq")
            _moments(run, name, parameter).update({key: tensors[f"{key}/{name}"] for key in keys})
    run.step, run.elapsed_s = progress["step"], progress["elapsed_s"]
    run.schedule = Schedule(**progress["schedule"])
    return run


def export(run: Training, folder: Path) -> None:
    """Writes `config.json`, `model.safetensors` (float16, the tied head once) and `training.json`."""
    config = copy.deepcopy(run.model.config)
    config.dtype = torch.float16
    weights = {name: p.detach().half().contiguous() for name, p in run.model.named_parameters()}
    training = {"steps": run.step, "tokens": run.tokens, "recipe": asdict(run.recipe)}
    with replacing(folder) as scratch:
        config.to_json_file(scratch / "config.json")
        save_file(weights, scratch / "model.safetensors", metadata={"format": "pt", "dtype": "float16"})
        (scratch / "training.json").write_text(json.dumps(training, indent=1) + "\n")


# ------------------------------------------------------------------------------------------------ the loop


@dataclass(frozen=True)
class TrainingLimits:
    """When training ends; with neither of the two it goes on until the file `finish` appears."""

    steps: int | None = None
    minutes: float | None = None


def decide_schedule(run: Training, limits: TrainingLimits, finish_asked: bool) -> Schedule:
    """The schedule for the next step: as it was, or with its end fixed by a limit or a request.

    Raises ValueError if the run is past the step it should end at.
    """
    if run.schedule.end is not None:
        return run.schedule
    if limits.steps is not None:
        if limits.steps <= run.step:
            raise ValueError(f"--steps {limits.steps}: this run is already at step {run.step}")
        return Schedule.ending_at(limits.steps, run.recipe)
    fraction = run.recipe.decay_fraction
    needed_s = run.elapsed_s * (1 + LAST_PHASE_SLOWDOWN * fraction / (1 - fraction))
    if finish_asked or (limits.minutes is not None and needed_s >= limits.minutes * 60):
        return Schedule.decaying_from(run.step, run.recipe)
    return run.schedule


def train(
    run: Training,
    folder: Path,
    export_folder: Path,
    limits: TrainingLimits,
    cache: Path | None = None,
    compiled: bool = False,
) -> None:
    """Trains to the end; writes checkpoints and `log.jsonl` into `folder`, weights into `export_folder`."""
    tokens, heldout = encode_split("train", cache), encode_split("heldout", cache)
    folder.mkdir(parents=True, exist_ok=True)
    saved_s = exported_s = run.elapsed_s
    losses: list[float] = []
    with (folder / "log.jsonl").open("a") as log:
        while not run.finished:
            run.schedule = decide_schedule(run, limits, (folder / "finish").exists())
            if run.step == run.schedule.decay_from:
                save_checkpoint(replace(run, schedule=Schedule()), folder / "stable")
            began_s = time.monotonic()
            losses.append(advance(run, tokens, choose_loss(run, compiled)))
            run.elapsed_s += time.monotonic() - began_s
            if run.step % LOG_EVERY_STEPS == 0 or run.finished:
                _log(log, run, losses, heldout)
                losses.clear()
            if run.elapsed_s - saved_s >= CHECKPOINT_EVERY_S:
                save_checkpoint(run, folder / "checkpoint")
                saved_s = run.elapsed_s
            if run.elapsed_s - exported_s >= EXPORT_EVERY_S:
                export(run, export_folder)
                exported_s = run.elapsed_s
    save_checkpoint(run, folder / "checkpoint")
    export(run, export_folder)


def _log(log: TextIO, run: Training, losses: list[float], heldout: np.ndarray) -> None:
    record = {
        "step": run.step,
        "tokens": run.tokens,
        "loss": round(float(np.mean(losses)), 4),
        "learning_rate": run.schedule.learning_rate(run.step - 1, run.recipe),
        "elapsed_s": round(run.elapsed_s, 1),
        "tokens_per_s": round(run.tokens / run.elapsed_s),
    }
    if run.step % HELDOUT_EVERY_STEPS == 0 or run.finished:
        record["heldout_loss"] = round(heldout_loss(run, heldout), 4)
    for stream in (log, sys.stderr):
        print(json.dumps(record), file=stream, flush=True)


def main() -> None:
    summary = (__doc__ or "").split("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m molt.models.pico.train", description=summary)
    parser.add_argument("--tier", choices=sorted(RECIPES), required=True)
    parser.add_argument(
        "--out", type=Path, required=True, help="the run's folder; resumed if it has a checkpoint"
    )
    end = parser.add_mutually_exclusive_group()
    end.add_argument("--steps", type=int, help="end after this many steps")
    end.add_argument("--minutes", type=float, help="end after about this many minutes of training")
    parser.add_argument(
        "--cache", type=Path, help="folder of the corpus (default: corpus/ in the folder of caches)"
    )
    parser.add_argument("--weights", type=Path, default=WEIGHTS, help="folder to export into (%(default)s)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--compile", action="store_true", help="use torch.compile (needs a C++ compiler)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    recipe, checkpoint = RECIPES[options.tier], options.out / "checkpoint"
    run = load_checkpoint(recipe, checkpoint) if checkpoint.is_dir() else new_run(recipe)
    limits = TrainingLimits(steps=options.steps, minutes=options.minutes)
    train(run, options.out, options.weights / options.tier, limits, options.cache, options.compile)


if __name__ == "__main__":
    main()
