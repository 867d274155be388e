"""Runs the built programs on a small model and measures how far they are from the reference.

Distances are relative RMS errors. The unit is always the distance that rounding alone puts between
the reference and itself on the same input; where experts are chosen, the truth takes the same
experts as the side it is compared with, and the choice is judged on its own.
"""
import functools
import json
import os
import pathlib
import subprocess
from dataclasses import dataclass

import numpy as np

from checkpoint_files import bf16_to_f64
from k3_reference import BF16, EXACT, KdaState, Model, to_bf16_bits

HERE = pathlib.Path(__file__).resolve().parent
SOURCE = pathlib.Path(os.environ.get("KERN_SOURCE_DIR", HERE.parent.parent))
BUILD = pathlib.Path(os.environ.get("KERN_BUILD_DIR", SOURCE / "build"))

FACTOR = 1.5       # times the rounding reference's own distance
FLOOR = 1e-4       # relative RMS: a few elements of a row rounded the other way
NEAR = 1.0         # of a layer's output to the rounding reference, in the same unit
NEAR_STATE = 0.25  # of a layer's state: what rounds elsewhere than documented is farther away
TOP1_POINTS = 5.0  # of agreement with float64, below the rounding reference's own


def rel_rms(x, truth):
    return float(np.sqrt(np.sum((x - truth) ** 2) / np.sum(truth ** 2)))


def row_rms(x, truth):
    return np.linalg.norm(x - truth, axis=-1) / np.linalg.norm(truth, axis=-1)


def top1(x, truth):
    """Percent of rows whose largest entry is the truth's."""
    return 100.0 * float(np.mean(np.argmax(x, axis=-1) == np.argmax(truth, axis=-1)))


def run(program, *args):
    """Runs a built program; its stdout. A failure carries what it said."""
    command = [str(BUILD / "bin" / program), *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: exit {done.returncode}: {done.stderr.strip()}")
    return done.stdout


class Routed(Model):
    """The reference, made to choose given experts: layer -> [t, top_k]."""

    def __init__(self, model, ids):
        super().__init__(model.config, model.tensors)
        self.ids = ids

    def choose(self, layer, selection):
        return self.ids[layer]


class Case:
    """One config, its checkpoint and manifests in a folder of its own, and a sequence: a prompt
    and what the implementation answers to it."""

    def __init__(self, config, seed, folder, prompt=120, answer=41):
        self.folder = pathlib.Path(folder)
        self.config_file = config
        self.checkpoint = self.folder / "checkpoint"
        run("k3-checkpoint", "--config", config, "--seed", seed, "-o", self.checkpoint)
        self.whole = self.folder / "one.json"
        run("k3-gen", "one-rank", "--config", config, "-o", self.whole)
        self.model = Model.load(self.checkpoint)
        rng = np.random.default_rng(seed)
        self.prompt = [int(t) for t in rng.integers(0, self.model.config.vocab, prompt)]
        self.answer = self.greedy(self.prompt, answer)
        self.tokens = self.prompt + self.answer[:-1]

    @functools.cached_property
    def truth(self):
        return self.model.forward(self.tokens)

    @functools.cached_property
    def rounded(self):
        return self.model.forward(self.tokens, BF16)

    @functools.cached_property
    def rounded_truth(self):
        """The truth on the experts that the rounding reference chose."""
        return Routed(self.model, {i: routing.ids for i, routing in enumerate(self.rounded.routing)
                                   if routing}).forward(self.tokens)

    @functools.cached_property
    def chain_truth(self):
        """The truth on the experts that the implementation chose, stage by stage."""
        return Routed(self.model, self.chain[1]).forward(self.tokens)

    def sides(self, length):
        """For `length` tokens: the truth on the implementation's experts, the truth on the
        rounding reference's, and that reference, each as (model, *rounding)."""
        def cut(ids):
            return Routed(self.model, {i: chosen[:length] for i, chosen in ids.items()})
        chosen = {i: g.ids for i, g in enumerate(self.rounded.routing) if g}
        return (cut(self.chain[1]),), (cut(chosen),), (self.model, BF16)

    @functools.cached_property
    def stages(self):
        """Folder of one stage manifest a layer; the last also holds the head."""
        labels = ",".join(f"layer.{i}" for i in range(1, self.model.config.layers))
        unfed = self.folder / "unfed.json"
        run("k3-gen", "one-rank", "--unfed", "--config", self.config_file, "-o", unfed)
        run("kern", "cut", unfed, "--at", labels, "-o", self.folder / "stages")
        return self.folder / "stages"

    # ---- what the implementation says --------------------------------------------------------

    def kern_run(self, manifest, tokens, *args):
        file = self.folder / "tokens.txt"
        file.write_text(" ".join(map(str, tokens)))
        return run("kern", "run", manifest, "--weights", self.checkpoint, "--tokens", file, *args)

    def logits(self, via, tokens, *args, manifest=None):
        out = self.folder / "logits.npy"
        self.kern_run(manifest or self.whole, tokens, "--via", via, "--logits", out, *args)
        return np.load(out).astype(np.float64)

    def greedy(self, tokens, count):
        """Ids of the answer to a prompt."""
        said = self.kern_run(self.whole, tokens, "--max-tokens", count)
        return [int(word) for word in said.split()]

    def prefill_manifest(self):
        file = self.folder / "prefill.json"
        run("k3-gen", "prefill", "--config", self.config_file, "-o", file)
        return file

    def decode_manifest(self, ranks):
        file = self.folder / f"decode-{ranks}.json"
        run("k3-gen", "decode", "--config", self.config_file, "--ranks", ranks, "-o", file)
        return file

    def state_name(self, layer):
        return f"{'kv' if self.model.config.is_mla(layer) else 'kda'}.{layer}"

    def parse_state(self, layer, file, count):
        """A state's bytes in the reference's form: KdaState, or latent rows of `count` tokens."""
        c, data = self.model.config, np.load(file)
        if c.is_mla(layer):
            rows = bf16_to_f64(np.ascontiguousarray(data).reshape(-1).view("<u2"))
            return rows.reshape(-1, c.kv_lora + c.rope)[:count]
        line, width = data.reshape(-1), c.kda_heads * c.kda_dim
        size = c.kda_heads * c.kda_dim * c.kda_dim * 4
        rec = line[:size].view("<f4").astype(np.float64)
        windows = bf16_to_f64(line[size:].view("<u2")).reshape(3, c.taps - 1, width)
        return KdaState(rec.reshape(c.kda_heads, c.kda_dim, c.kda_dim).transpose(0, 2, 1),
                        dict(zip("qkv", windows)))

    def states(self, tokens, steps, *args):
        """Every layer's state after a prompt in one item and `steps` tokens of its answer."""
        files = {i: self.folder / f"state-{i}.npy" for i in range(self.model.config.layers)}
        wanted = [f"--state={self.state_name(i)}={file}" for i, file in files.items()]
        # The last token of an answer is said, not read: one more is asked for than steps taken.
        asked = steps + 1 if steps else 0
        self.kern_run(self.whole, tokens, "--via", "prefill", "--max-tokens", asked,
                      *wanted, *args)
        return [self.parse_state(i, file, len(tokens) + steps) for i, file in files.items()]

    def stage(self, layer, inputs, outs, *args):
        """Runs one layer's stage between files; `inputs` and `outs` are name -> file."""
        for name, file in inputs.items():
            args += ("--in", f"{name}={file}")
        for name, file in outs.items():
            args += ("--out", f"{name}={file}")
        self.kern_run(self.stages / f"stage-{layer}.json", self.tokens, *args)

    def buffer(self, layer, name):
        """The buffer that a stage writes `name` to: the last one does not send it on, and keeps
        what it received apart from what it makes."""
        buffers = json.loads((self.stages / f"stage-{layer}.json").read_text())["buffers"]
        return name + ".own" if name + ".own" in buffers else name

    def layer(self, layer, stream, bank):
        """LayerResult of one layer, run alone on the given input."""
        inputs, ids = {}, None
        given = {"hidden": stream, **{f"bank.{i}": row for i, row in enumerate(bank)}}
        for name, rows in given.items() if layer else ():
            inputs[name] = self.folder / f"in-{name}.npy"
            np.save(inputs[name], to_bf16_bits(rows))
        out, state = self.folder / "hidden.npy", self.folder / "state.npy"
        outs = {self.buffer(layer, "hidden"): out}
        if self.model.config.is_moe(layer):
            outs["expert_ids"] = self.folder / "ids.npy"
        self.stage(layer, inputs, outs, "--via", "prefill",
                   "--state", f"{self.state_name(layer)}={state}")
        if "expert_ids" in outs:
            ids = np.load(outs["expert_ids"])
        return LayerResult(np.load(out).astype(np.float64), ids,
                           self.parse_state(layer, state, len(self.tokens)))

    @functools.cached_property
    def chain(self):
        """All stages one after the other, each on what the one before made: the logits of every
        position, and the experts that each layer chose."""
        c, inputs, ids = self.model.config, {}, {}
        logits = self.folder / "chain-logits.npy"
        for layer in range(c.layers):
            names = ["hidden", *(f"bank.{i}" for i in range(layer // c.block + 1))]
            made = {n: self.folder / f"chain-{layer}-{n}.npy" for n in names}
            outs = dict(made) if layer + 1 < c.layers else {}
            if c.is_moe(layer):
                outs["expert_ids"] = self.folder / f"chain-{layer}-ids.npy"
            last = ("--logits", logits) if layer + 1 == c.layers else ()
            self.stage(layer, inputs, outs, "--via", "decode", *last)
            inputs = made
            if "expert_ids" in outs:
                ids[layer] = np.load(outs["expert_ids"])
        return np.load(logits).astype(np.float64), ids


def flatten(state):
    """The parts of a state that are compared, name -> array."""
    if isinstance(state, KdaState):
        return {"rec": state.rec, "windows": np.concatenate(list(state.windows.values()))}
    return {"latent rows": state}


@dataclass
class LayerResult:
    """What a side made of one layer's input; ids None without experts."""
    output: np.ndarray
    ids: np.ndarray
    state: object

    @classmethod
    def of(cls, model, layer, stream, bank, r=EXACT):
        output, _, state = model.layer(layer, stream, bank, r)
        return cls(output, model.routing and model.routing.ids, state)

    def parts(self, base):
        return {"output": self.output - base, **flatten(self.state)}


class StatesReport:
    """Every layer's state behind a sequence: the implementation and the rounding reference, each
    against the truth on its own experts. Windows hold a few rows only and are pooled."""

    def __init__(self, name, ours, truth, rounded, its_truth):
        self.name, self.ours, self.rounded = name, {}, {}
        for out, side, exact in ((self.ours, ours, truth), (self.rounded, rounded, its_truth)):
            windows = []
            for layer, (state, expected) in enumerate(zip(side, exact)):
                for part, values in flatten(state).items():
                    far = rel_rms(values, flatten(expected)[part])
                    if part == "windows":
                        windows.append(far)
                    else:
                        out[f"{part} of layer {layer}"] = far
            if windows:
                out["windows of all layers"] = float(np.sqrt(np.mean(np.square(windows))))

    def line(self):
        worst = max(self.ours, key=lambda n: self.ours[n] / self.rounded[n])
        return (f"{self.name}: {len(self.ours)} parts, farthest {worst}: {self.ours[worst]:.2e} "
                f"({self.rounded[worst]:.2e})")

    def problems(self):
        return [f"{self.name}: {part} is {far:.2e} from float64, expected at most {FACTOR} * "
                f"{self.rounded[part]:.2e} + {FLOOR}" for part, far in self.ours.items()
                if not far <= FACTOR * self.rounded[part] + FLOOR]


class LayerReport:
    """One layer on one input: a side and the rounding reference against the truth."""

    def __init__(self, case, layer, ours):
        model, self.layer = case.model, layer
        stream, bank = case.rounded.inputs[layer]
        base = 0.0 if layer % model.config.block == 0 else stream
        rounded = LayerResult.of(model, layer, stream, bank, BF16)
        routing = model.routing

        def distance(side):
            exact = model if side.ids is None else Routed(model, {layer: side.ids})
            truth = LayerResult.of(exact, layer, stream, bank).parts(base)
            self.selection = exact.routing and exact.routing.selection
            return {n: rel_rms(part, truth[n]) for n, part in side.parts(base).items()}

        self.rounded, self.ours = distance(rounded), distance(ours)
        self.near = {n: rel_rms(part, rounded.parts(base)[n])
                     for n, part in ours.parts(base).items()}
        self.equal = float(np.mean(ours.output == rounded.output))
        if ours.ids is not None:
            self.judge_choice(routing, self.selection, ours.ids)

    flips = rounded_flips = 0
    regret = regret_limit = 0.0

    def judge_choice(self, routing, selection, ids):
        """Rows that chose other experts than float64, and the most that one of them lost by it,
        against what the error of rounded scores allows: two errors a swapped expert."""
        top_k = ids.shape[-1]
        best = np.sort(np.argsort(-selection, axis=-1, kind="stable")[:, :top_k], axis=-1)
        self.flips = int(np.sum(np.any(best != ids, axis=-1)))
        self.rounded_flips = int(np.sum(np.any(best != routing.ids, axis=-1)))
        lost = (np.take_along_axis(selection, best, axis=-1).sum(axis=-1)
                - np.take_along_axis(selection, ids, axis=-1).sum(axis=-1))
        swaps = [len(set(b) - set(i)) for b, i in zip(best, ids)]
        error = np.abs(routing.selection - selection).max()
        self.regret = float(np.max(lost / np.maximum(swaps, 1)))
        self.regret_limit = float(2 * FACTOR * error)

    def line(self):
        parts = ", ".join(f"{n} {self.ours[n]:.2e} ({self.rounded[n]:.2e}; {self.near[n]:.0e})"
                          for n in self.ours)
        return (f"layer {self.layer}: {parts}; {100 * self.equal:.0f} % of the output equal to "
                f"the rounding reference; other experts in {self.flips} "
                f"({self.rounded_flips}) rows")

    def problems(self):
        """What is out of bounds, one sentence each."""
        found = [f"layer {self.layer}: {name} is {self.ours[name]:.2e} from float64, expected at "
                 f"most {FACTOR} * {self.rounded[name]:.2e} + {FLOOR}"
                 for name in self.ours if self.ours[name] > FACTOR * self.rounded[name] + FLOOR]
        found += [f"layer {self.layer}: {name} is {self.near[name]:.2e} from the rounding "
                  f"reference, expected at most {share} * {self.rounded[name]:.2e}"
                  for name, share in ((n, NEAR if n == "output" else NEAR_STATE)
                                      for n in self.near)
                  if self.near[name] > share * self.rounded[name]]
        if self.regret > self.regret_limit:
            found.append(f"layer {self.layer}: a row chose experts {self.regret:.2e} below the "
                         f"best, expected at most {self.regret_limit:.2e}")
        return found


class LogitsReport:
    """Rows of logits: a side against `truth`, and the rounding reference against `its_truth`.
    `kinds` are what is judged: one row of another expert moves `all`, not the median, so `all`
    is judged only where both truths take their side's experts."""

    def __init__(self, name, ours, truth, rounded, its_truth, kinds=("median", "all", "top1")):
        self.name, self.rows, self.kinds = name, len(truth), kinds
        self.ours = self.measure(ours, truth)
        self.rounded = self.measure(rounded, its_truth)

    @staticmethod
    def measure(x, truth):
        return {"median": float(np.median(row_rms(x, truth))), "all": rel_rms(x, truth),
                "top1": top1(x, truth)}

    def line(self):
        return (f"{self.name}, {self.rows} rows: relRMS median {self.ours['median']:.2e} "
                f"({self.rounded['median']:.2e}), all {self.ours['all']:.2e} "
                f"({self.rounded['all']:.2e}), top-1 {self.ours['top1']:.1f} "
                f"({self.rounded['top1']:.1f})")

    def problems(self):
        found = [f"{self.name}: relRMS ({kind}) is {self.ours[kind]:.2e}, expected at most "
                 f"{FACTOR} * {self.rounded[kind]:.2e} + {FLOOR}" for kind in self.kinds
                 if kind != "top1"
                 and not self.ours[kind] <= FACTOR * self.rounded[kind] + FLOOR]
        if "top1" in self.kinds and self.ours["top1"] < self.rounded["top1"] - TOP1_POINTS:
            found.append(f"{self.name}: top-1 agreement is {self.ours['top1']:.1f}, expected at "
                         f"least {self.rounded['top1']:.1f} - {TOP1_POINTS}")
        return found
