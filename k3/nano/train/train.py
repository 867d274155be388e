#!/usr/bin/env python3
"""Trains a model of any config on the text of k3/nano; stops after some minutes and goes on later.

usage: train.py --config F --tokenizer DIR --run DIR --steps N [--minutes 9] [--device cuda]
       [--conversations 512] [--tokens 65536] [--rate 2e-3] [--longest 8704] [--workers 12] [--seed 0]
       [--dtype bf16] [--recompute] [--export DIR]
The run's folder holds `state.pt`: everything a run needs to go on, to the bit. `--export` writes
the checkpoint as the release has it, the tokenizer's files included, after the last step or at the
stop. Exit code 0: all steps are done; 3: stopped in time, call again.
"""
import argparse
import json
import math
import os
import pathlib
import shutil
import sys
import time

# Products in the same order every time.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

import release  # noqa: E402
from batches import batches  # noqa: E402
from model import Model, begin, read_config  # noqa: E402

DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}
CONTEXT_WEIGHT = 0.1  # of what is read, beside what is said
BALANCE_RATE = 1e-3   # of the router's correction bias, a step
WARM_STEPS, DECAY_SHARE = 50, 0.3
CLIP, BETAS, WEIGHT_DECAY = 1.0, (0.9, 0.95), 0.05


def rate_at(step, steps, rate):
    """Warm up, hold, then down to a tenth over the last part."""
    down = max(0.0, (step + 1 - steps * (1 - DECAY_SHARE)) / (steps * DECAY_SHARE))
    return rate * min(1.0, (step + 1) / WARM_STEPS) * (0.1 + 0.45 * (1 + math.cos(math.pi * down)))


class Run:
    """Model, optimizer and step number; `save` and `Run` itself are inverse to the bit."""

    def __init__(self, args):
        self.args, self.step = args, 0
        self.config = read_config(args.config)
        self.file = pathlib.Path(args.run) / "state.pt"
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.model = Model(self.config, begin(self.config, args.seed), DTYPES[args.dtype],
                           recompute=args.recompute).to(args.device)
        learned = {n: p for n, p in self.model.tensors.items() if p.requires_grad}
        matrices = [p for p in learned.values() if p.dim() >= 2]
        vectors = [p for p in learned.values() if p.dim() < 2]
        self.optimizer = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": WEIGHT_DECAY},
             {"params": vectors, "weight_decay": 0.0}], lr=args.rate, betas=BETAS)
        # What makes the run the one it is: going on with another value would be another run.
        self.identity = {name: getattr(args, name) for name in (
            "steps", "conversations", "tokens", "longest", "rate", "seed", "dtype")}
        if self.file.exists():
            self.load()

    def load(self):
        state = torch.load(self.file, map_location=self.args.device, weights_only=True)
        if state["identity"] != self.identity:
            raise SystemExit(f"{self.file}: begun with {state['identity']}, asked for {self.identity}")
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]

    def save(self):
        part = self.file.with_suffix(".part")
        torch.save({"identity": self.identity, "step": self.step, "model": self.model.state_dict(),
                    "optimizer": self.optimizer.state_dict()}, part)
        os.replace(part, self.file)

    def learn(self, groups):
        """One optimizer step on all groups of a batch; (loss of what is said, length of gradient)."""
        device = self.args.device
        said_total = sum(int((said[:, 1:] == 1).sum()) for _, said in groups)
        read_total = sum(int((said[:, 1:] == 0).sum()) for _, said in groups)
        loss_said, load = 0.0, {}
        for ids, said in groups:
            ids = torch.tensor(ids.astype("int64"), device=device)
            said = torch.tensor(said[:, 1:].astype("int64"), device=device).flatten()
            logits = self.model(ids)[:, :-1].flatten(0, 1)
            losses = F.cross_entropy(logits.float(), ids[:, 1:].flatten(), reduction="none")
            part = (losses * (said == 1)).sum() / said_total
            (part + CONTEXT_WEIGHT * (losses * (said == 0)).sum() / read_total).backward()
            loss_said += part.item()
            for moe, counts in self.model.load.items():
                load[moe] = load.get(moe, 0) + counts
        norm = torch.nn.utils.clip_grad_norm_(
            [p for p in self.model.tensors.values() if p.grad is not None], CLIP)
        for group in self.optimizer.param_groups:
            group["lr"] = rate_at(self.step, self.args.steps, self.args.rate)
        self.optimizer.step()
        self.optimizer.zero_grad()
        with torch.no_grad():
            for moe, counts in load.items():  # experts chosen too seldom get a larger bias
                bias = self.model.of(moe + "gate.e_score_correction_bias")
                bias += BALANCE_RATE * torch.sign(counts.mean() - counts)
        self.step += 1
        return loss_said, norm.item()

    def export(self, folder):
        tensors = {name.replace("/", "."): p for name, p in self.model.tensors.items()}
        release.write(folder, self.config, tensors, pathlib.Path(self.args.config).read_text())
        for file in ("tiktoken.model", "tokenizer_config.json"):
            shutil.copy(pathlib.Path(self.args.tokenizer) / file, folder)


def options(argv):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    for name in ("config", "tokenizer", "run"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--export")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--minutes", type=float, default=9)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--conversations", type=int, default=512, help="of one step")
    parser.add_argument("--tokens", type=int, default=65536, help="that pass at once, padding included")
    parser.add_argument("--longest", type=int, default=8704, help="conversation, in tokens")
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--recompute", action="store_true", help="less memory, a third more work")
    return parser.parse_args(argv)


def main(argv=None):
    args = options(argv)
    end = time.monotonic() + 60 * args.minutes
    torch.use_deterministic_algorithms(True)
    run, slowest = Run(args), 0.0
    made = batches(args.tokenizer, args.seed, run.step, args.steps, args.conversations, args.tokens,
                   args.longest, args.workers)
    start = time.monotonic()
    for groups in made:
        began = time.monotonic()
        loss, norm = run.learn(groups)
        slowest = max(slowest, time.monotonic() - began)
        if run.step % 20 == 0 or run.step == args.steps:
            tokens = sum(ids.size for ids, _ in groups)
            print(json.dumps({"step": run.step, "loss": round(loss, 4), "gradient": round(norm, 3),
                              "tokens": tokens, "seconds": round(time.monotonic() - start, 1)}), flush=True)
        # Room for one more step and for writing.
        if time.monotonic() + 2 * slowest + 10 > end:
            break
    run.save()
    if args.export:
        run.export(pathlib.Path(args.export))
    return 0 if run.step == args.steps else 3


if __name__ == "__main__":
    sys.exit(main())
