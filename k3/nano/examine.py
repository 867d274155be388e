#!/usr/bin/env python3
"""Starts the small model on this build, puts its exam to it over HTTP, and prints a score a skill.

usage: k3/nano/examine.py SETUP -o RESULT.json [--device gpu:0] [--model DIR] [--exam EXAM.json]
       [--limit N,SKILL=N] [--sample] [--concurrency N] [--stages 8] [--ranks 8]
       [--answers FILE.jsonl] [--seconds S]
SETUP is `server`, kern serve in one process, or `daemons`, eight prefill stages and eight decode
ranks. Without --exam the 5,000 questions are written for the model's vocabulary first. --sample asks
20 of each skill, 6 of recall-2048 and 2 of recall-8192: minutes on two cores. RESULT holds the
scores and how they were come by. --answers keeps every answer as it comes, for `exam.py compare`; a run
that was cut short goes on from there. After --seconds nothing more is asked. On a GPU that several
processes share, NVIDIA's MPS must run.
"""
import argparse
import datetime
import hashlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import exam
from tokens import Tokenizer

ROOT = pathlib.Path(__file__).resolve().parents[2]
SAMPLE = "20,recall-2048=6,recall-8192=2"
# Rows of a prompt's step and tokens that a server holds: a GPU is only busy with many of both.
CHUNK = {"host": 512, "gpu": 8192}
CAPACITY = {"host": 131072, "gpu": 1048576}


def options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("setup", choices=("server", "daemons"))
    parser.add_argument("-o", "--out", required=True, type=pathlib.Path)
    parser.add_argument("--device", default="host")
    parser.add_argument("--model", type=pathlib.Path)
    parser.add_argument("--exam", type=pathlib.Path)
    parser.add_argument("--limit")
    parser.add_argument("--sample", action="store_true")
    parser.add_argument("--concurrency", type=int)
    parser.add_argument("--stages", type=int, default=8)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--answers", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    return parser.parse_args()


def started(args, cluster):
    kind = "host" if args.device == "host" else "gpu"
    model = (args.model or cluster.MODEL).resolve()
    flags = ["--capacity", CAPACITY[kind]]
    if args.setup == "server":
        threads = ["--threads", os.cpu_count()] if kind == "host" else []
        return cluster.Serve(model, flags=[*flags, *threads], chunk=CHUNK[kind])
    return cluster.Cluster(model, args.stages, args.ranks, chunk=CHUNK[kind], stage_flags=flags,
                           rank_flags=flags)


def commit():
    done = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], text=True,
                          capture_output=True, check=False)
    return done.stdout.strip() or None


def answerer(args, model):
    """Set-up, device and the checkpoint's very bytes."""
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in sorted(model.glob("*.safetensors"))))
    return f"{args.setup} on {args.device}, checkpoint {digest.hexdigest()[:16]}"


def main():
    args = options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leaves no daemons behind
    os.environ["KERN_E2E_DEVICE"] = args.device  # read when cluster is imported
    sys.path.insert(0, str(ROOT / "tests/e2e"))
    import cluster

    model = args.model or cluster.MODEL
    if args.exam:
        asked = json.loads(args.exam.read_text())
    else:
        print("writing the questions", flush=True)
        asked = exam.questions(0, 500, Tokenizer(model).count)
    if limit := SAMPLE if args.sample else args.limit:
        asked = exam.limited(asked, limit)
    concurrency = args.concurrency or (8 if args.device == "host" else 64)
    with started(args, cluster) as server:
        print(f"asking {len(asked)} questions, {concurrency} at a time", flush=True)
        start = time.monotonic()
        summary, records = exam.run(f"{server.url}/v1", asked, concurrency, exam.first_model(f"{server.url}/v1"),
                                    args.answers, args.seconds, answerer(args, model))
        seconds = time.monotonic() - start
        epochs = server.metrics().get("kern_epochs_total")
    exam.show(summary)
    used = [r["usage"] for r in records if r["usage"]]
    tokens = {"prompt": sum(u["prompt_tokens"] for u in used),
              "cached": sum(u["prompt_tokens_details"]["cached_tokens"] for u in used),
              "answer": sum(u["completion_tokens"] for u in used)}
    print(f"{seconds:.1f} s, {tokens['prompt']} tokens read, {tokens['cached']} of them from the cache, "
          f"{tokens['answer']} written")
    processes = {"stages": args.stages, "ranks": args.ranks} if args.setup == "daemons" else {}
    result = {"setup": args.setup, **processes, "device": args.device, "date": str(datetime.date.today()),
              "commit": commit(), "cores": os.cpu_count(), "concurrency": concurrency,
              "seconds": round(seconds, 1), "tokens": tokens, "epochs": epochs,
              "exam_sha256": hashlib.sha256(json.dumps(asked).encode()).hexdigest(),
              "skills": summary}
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    return 1 if any(entry["failed"] for entry in summary.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
