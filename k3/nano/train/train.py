#!/usr/bin/env python3
"""Trains a model of any config on the text of k3/nano; stops after some minutes and goes on later.

usage: train.py --config F --tokenizer DIR --run DIR --steps N [--minutes 9] [--device cuda]
       [--tokens 69632] [--rate 4e-3] [--muon-rate 8e-3] [--workers 13] [--seed 0] [--dtype bf16]
       [--judge 200] [--until STEP] [--beyond 0] [--export DIR] [--record FILE] [--note TEXT]
The run's folder holds `state.pt`: everything a run needs to go on, to the bit. `--export` writes
the checkpoint as the release has it, the tokenizer's files included, after the last step or at the
stop; `--record` what the run was and how it went. `--beyond N` goes on for N steps behind a stop, of
which only the state's digest is printed: the next piece must come by the same. Exit code 0: all steps
are done; 3: stopped before, call again.
"""
import argparse
import hashlib
import itertools
import json
import os
import pathlib
import shutil
import sys
import time

if __name__ == "__main__" and os.environ.get("PYTHONHASHSEED") != "0":
    # What a compiler does in the order of a set is the same in every process.
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "PYTHONHASHSEED": "0"})
# Products in the same order every time.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import torch  # noqa: E402

import batches  # noqa: E402
import release  # noqa: E402
from model import Model  # noqa: E402
from optimizer import Optimizer  # noqa: E402
from passes import Passes, answers, loss_said  # noqa: E402
from shapes import begin, read_config  # noqa: E402

DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}
BALANCE_RATE = 1e-3   # of the router's correction bias, a step
WARM_STEPS, DECAY_SHARE = 100, 0.6
JUDGE_SEED = "judge"  # of the conversations that scores come from: of training's kind, of no training step
NOTED_EVERY = 25


def share_at(step, steps):
    """Of the learning rate: warm up, hold, then down to nothing."""
    down = (steps - step) / (steps * DECAY_SHARE)
    return min(1.0, (step + 1) / WARM_STEPS, down)


def text_digest(tokens):
    """Of the vocabulary and the text: of the ids of some passes."""
    found = hashlib.sha256()
    for kind in batches.LIMITS:
        ids, said, _, _ = batches.one_pass(JUDGE_SEED, kind, 0, tokens)
        found.update(ids.tobytes() + said.tobytes())
    return found.hexdigest()[:16]


class Run:
    """Model, optimizer and step number; `save` and `Run` itself are inverse to the bit."""

    def __init__(self, args):
        self.args, self.step, self.history = args, 0, []
        self.config = read_config(args.config)
        self.file = pathlib.Path(args.run) / "state.pt"
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.model = Model(self.config, begin(self.config, args.seed), DTYPES[args.dtype]).to(args.device)
        self.optimizer = Optimizer(self.model.tensors, args.rate, args.muon_rate)
        self.biases = [p for n, p in self.model.tensors.items() if n.endswith("e_score_correction_bias")]
        self.passes = Passes(self.model, args.tokens, args.device)
        # What makes the run the one it is: going on with another value would be another run.
        self.identity = {name: getattr(args, name) for name in (
            "steps", "tokens", "rate", "muon_rate", "seed", "dtype")}
        self.identity["text"] = text_digest(args.tokens)
        if self.file.exists():
            self.load()
        self.updating = None
        if self.passes.on_gpu:
            self.model.compile()
            self.record()

    def tensors(self):
        return {**self.optimizer.state, "biases": torch.stack(self.biases)}

    def load(self):
        state = torch.load(self.file, map_location=self.args.device, weights_only=True)
        if state["identity"] != self.identity:
            raise SystemExit(f"{self.file}: begun with {state['identity']}, asked for {self.identity}")
        for name, tensor in self.optimizer.state.items():
            tensor.copy_(state["tensors"][name])
        for bias, kept in zip(self.biases, state["tensors"]["biases"]):
            bias.data.copy_(kept)
        self.step, self.history = state["step"], state["history"]

    def save(self):
        part = self.file.with_suffix(".part")
        torch.save({"identity": self.identity, "step": self.step, "history": self.history,
                    "tensors": {n: t.cpu() for n, t in self.tensors().items()}}, part)
        os.replace(part, self.file)

    def digest(self):
        """Of all that the run is made of at this step."""
        found = hashlib.sha256()
        for _, tensor in sorted(self.tensors().items()):
            found.update(tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes())
        return found.hexdigest()[:16]

    def record(self):
        """Compiles and records what a step does; nothing of it changes the run."""
        kept = {name: tensor.clone() for name, tensor in self.tensors().items()}
        for kind in batches.LIMITS:
            batch = (kind, *batches.one_pass(JUDGE_SEED, kind, 0, self.args.tokens))
            self.passes.record(kind, *self.passes.given(batch, 1))
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.update()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        self.updating = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.updating):
            self.update()
        for name, tensor in self.optimizer.state.items():
            tensor.copy_(kept[name])
        for bias, old in zip(self.biases, kept["biases"]):
            bias.data.copy_(old)
        self.clear()

    def clear(self):
        self.optimizer.grads.zero_()
        self.passes.load.zero_()

    @torch.no_grad()
    def update(self):
        self.optimizer.update()
        load = self.passes.load
        for bias, counts in zip(self.biases, load):  # experts chosen too seldom get a larger bias
            bias += BALANCE_RATE * torch.sign(counts.mean() - counts)
        load.zero_()

    def learn(self, passes):
        """One step; what the tokens of its last pass lost."""
        for batch in passes:
            losses, _ = self.passes.run(batch, len(passes))
        self.optimizer.prepare(self.step, share_at(self.step, self.args.steps))
        if self.updating:
            self.updating.replay()
        else:
            self.update()
        self.step += 1
        return losses

    def judge(self, held):
        """Skill -> share of answers that would come out right, of batches that no step learns from."""
        found = {}
        for batch in held:
            _, right = self.passes.run(batch)
            for skill, ok in answers(batch, right):
                found.setdefault(skill, []).append(ok)
            self.clear()
        return {skill: round(sum(oks) / len(oks), 4) for skill, oks in sorted(found.items())}

    def note(self, line):
        """Prints a line and keeps it, without its clock, in the run's history."""
        print(json.dumps(line), flush=True)
        self.history.append({k: v for k, v in line.items() if k != "seconds"})

    def export(self, folder):
        tensors = {name.replace("/", "."): p for name, p in self.model.tensors.items()}
        release.write(folder, self.config, tensors, pathlib.Path(self.args.config).read_text())
        for file in ("tiktoken.model", "tokenizer_config.json"):
            shutil.copy(pathlib.Path(self.args.tokenizer) / file, folder)


def machine(device):
    name = torch.cuda.get_device_name() if device.startswith("cuda") else device
    return f"{name}, torch {torch.__version__}"


def judged_batches(tokens, count):
    """`count` passes of short texts, one of each other kind."""
    return [(kind, *batches.one_pass(JUDGE_SEED, kind, 1 + i, tokens))
            for kind in batches.LIMITS for i in range(count if kind == "short" else 1)]


def options(argv):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    for name in ("config", "tokenizer", "run"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--export")
    parser.add_argument("--record")
    parser.add_argument("--note", help="of the record: the commit, say")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--until", type=int, help="stop after this step")
    parser.add_argument("--beyond", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=9)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--tokens", type=int, default=batches.PASS_TOKENS, help="of a pass, padding included")
    parser.add_argument("--rate", type=float, default=4e-3)
    parser.add_argument("--muon-rate", type=float, default=8e-3)
    parser.add_argument("--judge", type=int, default=200, help="steps between scores; 0: none")
    parser.add_argument("--workers", type=int, default=13)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(argv)


def settle(device):
    """The same bits every time, and what speed there is beside that."""
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    if device.startswith("cuda"):
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        import torch._inductor.config as inductor
        # No choice by timing: of reductions it would change sums, of all else what is fused into one rounding.
        inductor.deterministic = True
        inductor.triton.autotune_pointwise = False


def main(argv=None):
    args = options(argv)
    start = time.monotonic()
    end = start + 60 * args.minutes
    settle(args.device)
    batches.read_tokenizer(args.tokenizer)
    run, slowest, tokens = Run(args), 0.0, 0
    last = min(args.steps, args.until or args.steps)
    proved = min(args.steps, last + args.beyond)
    print(json.dumps({"ready": round(time.monotonic() - start, 1)}), flush=True)
    held = judged_batches(args.tokens, 2) if args.judge else []
    began = entered = time.monotonic()
    steps = 0
    made = batches.batches(args.tokenizer, args.seed, run.step, proved, args.steps, args.tokens, args.workers)
    for passes in made:
        losses = run.learn(passes)
        tokens += args.tokens * len(passes)
        if run.step % NOTED_EVERY == 0 or run.step == args.steps:
            run.note({"step": run.step, "kind": passes[-1][0], "loss": round(loss_said(passes[-1], losses), 4),
                      "gradient": round(run.optimizer.norm.item(), 3), "state": run.digest(),
                      "seconds": round(time.monotonic() - start, 1)})
        if args.judge and (run.step % args.judge == 0 or run.step == args.steps):
            run.note({"step": run.step, "right": run.judge(held)})
        now = time.monotonic()
        slowest, began, steps = max(slowest, now - began), now, steps + 1
        # Room for one more step, those beyond and for writing.
        if run.step == last or now + 2 * slowest + args.beyond * (now - entered) / steps + 5 > end:
            break
    run.save()
    done = run.step
    if args.export:
        run.export(pathlib.Path(args.export))
    if args.record:
        pathlib.Path(args.record).write_text(json.dumps(
            {"config": pathlib.Path(args.config).name, **run.identity, "done": done, "note": args.note,
             "machine": machine(args.device), "history": run.history}, indent=0) + "\n")
    for passes in itertools.islice(made, min(args.beyond, args.steps - done)):
        run.learn(passes)
        if run.step % NOTED_EVERY == 0:
            print(json.dumps({"beyond": run.step, "state": run.digest()}), flush=True)
    print(json.dumps({"step": done, "tokens": tokens, "seconds": round(time.monotonic() - start, 1)}))
    return 0 if done == args.steps else 3


if __name__ == "__main__":
    sys.exit(main())
