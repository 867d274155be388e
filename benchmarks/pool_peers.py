#!/usr/bin/env python3
"""The pool's prefix tree and its peers on one workload: one command, one table.

usage: benchmarks/pool_peers.py [--checkpoints N] [--once] [--without-sglang] [--json FILE]

Makes each workload once (seeded), plays it on every side, and fails unless all sides find the same lengths. Sides:
  tree        kern::pool::PrefixTree, pages of 64 tokens, without recurrent state
  std::map    whole sequences in a std::map in token order (C++)
  block hash  pages in a hash table by chained hash, as a block manager does (C++, XXH3-128)
  SGLang      its RadixCache, page size 64, in Python, as published: its wheel is fetched with pip into BUILD/pool-peers
Times are the least of the repetitions: the thread's own nanoseconds an operation, so that a shared machine's other
work counts only through caches and memory. Python is what that peer is written in and costs it a
few microseconds a call; its tree compares token arrays in C. Torch is not installed for it: numpy arrays stand in for
the tensors of slot numbers that it cuts and keeps, which are cheaper to cut.
"""
import argparse
import gc
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import types
import zipfile
from array import array

try:
    import numpy as np
except ImportError:
    print("pool_peers: this Python has no numpy; ci/setup makes one that has in build/venv", file=sys.stderr)
    sys.exit(1 if os.environ.get("KERN_REQUIRE_PYTHON") == "1" else 77)

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ.get("KERN_BUILD_DIR", ROOT / "build"))
SGLANG = "0.5.23"
PAGE = 64


# --- workloads: (name, sequences to store, prompts) ---------------------------------------------

def workloads(checkpoints, longest, prompts_max):
    rng = np.random.default_rng(1)

    def text(tokens):
        return rng.integers(0, 160_000, tokens, dtype=np.int32)

    def asked(stored, count):
        """Some stored sequences, each with one token behind it: found whole."""
        picks = rng.integers(0, len(stored), min(count, prompts_max))
        return [np.append(stored[i], np.int32(-1)) for i in picks]

    def parted(stored, count):
        """Some stored sequences that go on differently from anywhere."""
        out = []
        for i in rng.integers(0, len(stored), min(count, prompts_max)):
            prompt = stored[i].copy()
            prompt[rng.integers(0, len(prompt))] = -2
            out.append(prompt)
        return out

    def unknown(stored, count):
        return [np.append(np.int32(-3), p) for p in asked(stored, count)]

    system = text(512)
    many = [np.concatenate([system, text(128)]) for _ in range(checkpoints)]
    yield f"{checkpoints:,} of 640 tokens that share 512", many, asked(many, 2000)
    yield "… and the prompt parts somewhere", many, parted(many, 2000)
    distinct = [text(192) for _ in range(checkpoints)]
    for number, sequence in enumerate(distinct):  # no two begin with the same page
        sequence[:2] = number >> 16, number & 0xFFFF
    yield f"{checkpoints:,} of 192 tokens that share nothing", distinct, asked(distinct, 2000)
    yield "… and the prompt is unknown at once", distinct, unknown(distinct, 2000)
    long = min(longest, 32_768)
    shared = text(long // 2)
    documents = [np.concatenate([shared, text(long // 2)]) for _ in range(64)]
    yield f"64 of {long:,} tokens that share half", documents, asked(documents, 64)
    talk = text(long)
    turns = [talk[:n] for n in range(512, long + 1, 512)]
    yield f"a conversation's {len(turns)} turns up to {long:,} tokens", turns, asked(turns[-1:], 64)
    book = [text(longest)]
    yield f"one of {longest:,} tokens", book, asked(book, 4)


def write(path, stored, prompts):
    every = stored + prompts
    head = np.array([len(stored), len(prompts)] + [len(s) for s in every], dtype="<i4")
    with open(path, "wb") as out:
        head.tofile(out)
        for sequence in every:
            sequence.astype("<i4", copy=False).tofile(out)


# --- SGLang's tree without what serves a model ---------------------------------------------------

class AnythingType(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()


class Anything(metaclass=AnythingType):
    """Stands for whatever the tree's module imports and its lookups and insertions never use."""

    def __init__(self, *_, **__):
        pass

    def __call__(self, *_, **__):
        return None

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()


class Tensor(np.ndarray):
    def clone(self):
        return self.copy()


class Fetched(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports the tree's own modules from the unpacked wheel, and nothing for all others."""
    REAL = {"sglang.srt.mem_cache." + name for name in
            ("radix_cache", "base_prefix_cache", "cache_init_params", "evict_policy", "utils",
             "unified_cache.component_type")}

    def __init__(self, folder):
        self.folder = folder

    def find_spec(self, name, _path=None, _target=None):
        if name.split(".")[0] not in ("sglang", "torch"):
            return None
        if name in self.REAL:
            return importlib.util.spec_from_file_location(name, self.folder / (name.replace(".", "/") + ".py"))
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__path__ = []
        module.__getattr__ = self.nothing
        if spec.name == "torch":
            module.Tensor, module.int64 = Tensor, np.int64
            module.empty = lambda shape, dtype=None, device=None: np.empty(shape, dtype).view(Tensor)
        return module

    def exec_module(self, module):
        pass

    @staticmethod
    def nothing(name):
        if name.startswith("__"):
            raise AttributeError(name)
        return AnythingType(name, (Anything,), {})


def fetch_sglang():
    """The published wheel, unpacked as far as the tree needs it."""
    folder = BUILD / "pool-peers" / SGLANG
    if not (folder / "sglang").is_dir():
        with tempfile.TemporaryDirectory() as wheels:
            subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:",
                            "-d", wheels, f"sglang=={SGLANG}"], check=True)
            wheel = zipfile.ZipFile(next(pathlib.Path(wheels).glob("sglang-*.whl")))
            wheel.extractall(folder, [n for n in wheel.namelist()
                                      if n.startswith("sglang/srt/mem_cache/") and n.endswith(".py")])
    sys.meta_path.insert(0, Fetched(folder))
    return importlib.import_module("sglang.srt.mem_cache.radix_cache")


def measure_sglang(module, stored, prompts, repetitions):
    def key(sequence):
        return module.RadixKey(token_ids=array("q", sequence.astype(np.int64).tobytes()))

    values = np.arange(max(map(len, stored)), dtype=np.int64).view(Tensor)
    # A prompt's last token is always computed: the tree is asked for what comes before it.
    asked = [module.MatchPrefixParams(key=key(p[:-1])) for p in prompts]
    best = {"insert_ns": float("inf"), "lookup_ns": float("inf")}
    clock = time.thread_time_ns
    gc.disable()
    for _ in range(repetitions):
        cache = module.RadixCache.create_simulated(page_size=PAGE)
        entered = [module.InsertParams(key=key(s), value=values[:len(s)]) for s in stored]
        start = clock()
        for one in entered:
            cache.insert(one)
        best["insert_ns"] = min(best["insert_ns"], (clock() - start) / len(entered))
        for _ in range(2):
            start = clock()
            results = [cache.match_prefix(one) for one in asked]
            best["lookup_ns"] = min(best["lookup_ns"], (clock() - start) / len(asked))
        del entered
    gc.enable()
    return {**best, "lengths": [r.device_prefix_len for r in results]}


# --- the table -----------------------------------------------------------------------------------

def measure(options, module):
    rows = []
    checkpoints, longest = (500, 2048) if options.once else (options.checkpoints, 1 << 20)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "workload.i32"
        for name, stored, prompts in workloads(checkpoints, longest, 20 if options.once else 2000):
            write(path, stored, prompts)
            repetitions = 1 if options.once else 3
            done = subprocess.run([BUILD / "bin" / "pool-peers", path, str(repetitions)], check=True,
                                  capture_output=True, text=True)
            sides = json.loads(done.stdout)
            if module:
                sides["SGLang"] = measure_sglang(module, stored, prompts, repetitions)
            lengths = {side: result.pop("lengths") for side, result in sides.items()}
            for side, found in lengths.items():
                if found != lengths["tree"]:
                    at = next(i for i, pair in enumerate(zip(found, lengths["tree"])) if pair[0] != pair[1])
                    sys.exit(f"{name}: prompt {at}: {side} finds {found[at]} tokens, tree {lengths['tree'][at]}")
            rows.append({"workload": name, "mean_hit": float(np.mean(lengths["tree"])), **sides})
    return rows


def table(rows):
    sides = [side for side in rows[0] if side not in ("workload", "mean_hit")]
    heads = "".join(f"{side:>13}" for side in sides) + "".join(f"{side + ' /':>13}" for side in sides[1:])
    print(f"{'ns an operation':<50}{heads}")
    for row in rows:
        print(f"{row['workload']}  ({row['mean_hit']:,.0f} tokens found)")
        for operation in ("insert_ns", "lookup_ns"):
            times = [row[side][operation] for side in sides]
            print(f"  {operation[:-3]:<48}" + "".join(f"{t:>13,.0f}" for t in times)
                  + "".join(f"{t / times[0]:>13,.1f}" for t in times[1:]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", type=int, default=100_000)
    parser.add_argument("--once", action="store_true", help="a small workload once, to see that it runs")
    parser.add_argument("--without-sglang", action="store_true", help="fetch nothing")
    parser.add_argument("--json", type=pathlib.Path, help="write the rows there")
    options = parser.parse_args()
    rows = measure(options, None if options.without_sglang else fetch_sglang())
    table(rows)
    print("all sides find the same lengths; `SIDE /` is its time over the tree's")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
