#!/usr/bin/env python3
"""Where the time of a request goes, and requests a second, on the sixteen daemons of this build.

usage: benchmarks/serving_bench.py [--requests N] [--prompt TOKENS] [--answer TOKENS] [--out FILE.json]
Every figure is a mean over the requests of one run; the phases come from the head's /metrics, what the
client sees beyond them is HTTP, tokenizing and text. Stage seconds are of the device threads.
"""
import argparse
import concurrent.futures
import datetime
import json
import os
import pathlib
import platform
import random
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
from cluster import Cluster  # noqa: E402


def ask(cluster, seed, prompt, answer):
    rng = random.Random(seed)
    body = {"model": "k3", "prompt": [rng.randrange(5, 1000) for _ in range(prompt)], "max_tokens": answer,
            "temperature": 0, "ignore_eos": True}
    start = time.monotonic()
    usage = cluster.json("/v1/completions", body)["usage"]
    assert usage["completion_tokens"] == answer
    return time.monotonic() - start


def run(cluster, concurrency, requests, prompt, answer, first_seed):
    before, start = cluster.metrics(), time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(concurrency) as pool:
        walls = sorted(pool.map(lambda seed: ask(cluster, seed, prompt, answer),
                                range(first_seed, first_seed + requests)))
    seconds = time.monotonic() - start
    time.sleep(1.2)  # members report their times once a second
    delta = {k: v - before.get(k, 0) for k, v in cluster.metrics().items()}
    mean = sum(walls) / requests
    phases = {name: delta[f'kern_request_seconds_total{{phase="{name}"}}'] / requests
              for name in ("queue", "prefill", "hand-off", "steps")}
    stages = [{use: delta[f'kern_stage_seconds_total{{stage="{s}",use="{use}"}}'] / requests
               for use in ("busy", "receive", "send")} for s in range(len(cluster.stages))]
    return {"concurrency": concurrency, "requests": requests, "prompt_tokens": prompt, "answer_tokens": answer,
            "requests_per_s": requests / seconds, "answer_tokens_per_s": requests * answer / seconds,
            "wall_mean_s": mean, "wall_p50_s": walls[requests // 2], "wall_p95_s": walls[int(requests * 0.95)],
            "http_and_text_s": mean - sum(phases.values()), **{f"{k}_s": v for k, v in phases.items()},
            "prefill_items": delta["kern_items_total"],
            "stages": stages}


def show(r):
    print(f"\nconcurrency {r['concurrency']}: {r['requests']} requests of {r['prompt_tokens']} + {r['answer_tokens']} tokens, "
          f"{r['requests_per_s']:.2f} requests/s, {r['answer_tokens_per_s']:.0f} answer tokens/s, "
          f"{r['prefill_items']:.0f} prefill items")
    print(f"  mean wall {r['wall_mean_s'] * 1e3:8.1f} ms   p50 {r['wall_p50_s'] * 1e3:.1f}   p95 {r['wall_p95_s'] * 1e3:.1f}")
    for name, key in (("HTTP, tokenizing, text", "http_and_text_s"), ("queue", "queue_s"), ("prefill (8 stages)", "prefill_s"),
                      ("hand-off", "hand-off_s"), ("decode steps", "steps_s")):
        print(f"  {name:24} {r[key] * 1e3:8.1f} ms  {100 * r[key] / r['wall_mean_s']:5.1f} %")
    for s, t in enumerate(r["stages"]):
        print(f"    stage {s}: compute {t['busy'] * 1e3:7.2f} ms, waits to receive {t['receive'] * 1e3:7.2f}, "
              f"to send {t['send'] * 1e3:6.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--answer", type=int, default=32)
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    runs = []
    with Cluster() as cluster:
        run(cluster, 4, 8, options.prompt, options.answer, 1)
        for concurrency in (1, 32):
            requests = options.requests if concurrency > 1 else max(8, options.requests // 4)
            runs.append(run(cluster, concurrency, requests, options.prompt, options.answer, 1000 * concurrency))
            show(runs[-1])
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True, stdout=subprocess.PIPE).stdout.strip()
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "")
    record = {"date": datetime.date.today().isoformat(), "commit": commit, "machine": f"{os.cpu_count()} cores, {cpu}",
              "system": platform.platform(), "model": "k3-nano, 8 prefill stages, 8 decode ranks, device host", "runs": runs}
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
