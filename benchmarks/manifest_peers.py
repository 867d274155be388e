#!/usr/bin/env python3
"""Reading and verifying the manifests of a whole model, ours and a published verifier's: one command, one table.

usage: benchmarks/manifest_peers.py [--config FILE] [--stages N] [--ranks R] [--once] [--without-kern-llm] [--json FILE]

Generates the prefill stages and the decode manifest in three forms and reads each form with manifest-bench:
  plain      experts bound by a segment each, as version 7 has it
  series     by extension `series`, what k3-gen writes
  derived    the plain form without any extension, made for the peer: `uses`, `device`, `meta` and extensions' fills
             dropped, built-ins of extensions renamed to version 7's
kern-llm 0.3.1 (PyPI) reads the derived form through `Runtime`, which on a machine without a driver ends once the
manifest is verified: at the missing driver, or for a topology at the missing rank. Times are milliseconds of the
reading thread, the least of the repetitions, of all files together.
"""
import argparse
import contextlib
import datetime
import json
import os
import pathlib
import platform
import re
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ.get("KERN_BUILD_DIR", ROOT / "build"))
EXTENSION_FILLS = {"snapshot", "fed_from", "temperature", "top_p", "top_k", "min_p", "seed", "draw", "logprob",
                   "top_tokens", "top_logprobs"}
BUILT_INS = [(r"^extern:(allreduce|allgather|reducescatter|alltoall)", r"extern:nccl_\1"),
             (r"^extern:gemm_bf16_tn_f32", "extern:cublas_bf16_tn_f32"),
             (r"^extern:gemm_bf16_tn", "extern:cublaslt_bf16_tn")]


def generate(options, binds, folder):
    common = ["--config", options.config, "--device", "host", "--binds", binds]
    for args in (["prefill", *common, "--stages", options.stages, "-o", folder],
                 ["decode", *common, "--ranks", options.ranks, "-o", folder / "decode.json"]):
        subprocess.run([BUILD / "bin/k3-gen", *map(str, args)], check=True)
    return sorted(folder.glob("*.json"))


def derive(path, to):
    """The same binds in a manifest that declares no extension."""
    manifest = json.loads(path.read_text())
    for key in ("uses", "device", "meta"):
        manifest.pop(key, None)
    for buffer in manifest["buffers"].values():
        if buffer.get("fill") in EXTENSION_FILLS:
            del buffer["fill"]
    for op in manifest["ops"].values():
        for launch in op["impl"]["launches"]:
            for ours, theirs in BUILT_INS:
                launch["entry"] = re.sub(ours, theirs, launch["entry"])
    (to / path.name).write_text(json.dumps(manifest))
    return to / path.name


def ours(paths, once):
    """{phase: milliseconds} of manifest-bench, and {memory line: (MB, ratio)}."""
    done = subprocess.run([BUILD / "bin/manifest-bench", *(["--once"] if once else []), *paths], text=True,
                          stdout=subprocess.PIPE, check=True)
    times, memory = {}, {}
    for line in done.stdout.splitlines():
        if match := re.match(r"(.*?) +([\d.]+) ms", line):
            times[match[1]] = float(match[2])
        elif match := re.match(r"(.*?) +([\d.]+) MB +([\d.]+) x", line):
            memory[match[1]] = {"MB": float(match[2]), "of_file": float(match[3])}
    return times, memory


@contextlib.contextmanager
def quiet_stderr():
    kept, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(null)


def judge_ms(kern, path):
    """How long kern-llm takes to say that a manifest is right."""
    start = time.process_time()
    try:
        kern.Runtime(str(path), str(path.parent), [], 0)
    except BaseException as end:  # a panic is no Exception
        ms = 1e3 * (time.process_time() - start)
        if not re.search("libcuda|this rank's place", str(end)):
            raise SystemExit(f"kern-llm on {path.name}: {end}") from None
        return ms
    raise SystemExit(f"kern-llm on {path.name}: there is a driver here; verifying is not told from loading")


def peer(paths, once):
    import kern
    if kern.__version__ != "0.3.1":
        raise SystemExit(f"kern-llm {kern.__version__}: expected 0.3.1")
    with quiet_stderr():
        return min(sum(judge_ms(kern, path) for path in paths) for _ in range(1 if once else 3))


def megabytes(paths):
    return sum(path.stat().st_size for path in paths) / 1e6


def measure(options, folder):
    rows = {}
    for form in ("plain", "series"):
        (folder / form).mkdir()
        paths = generate(options, form, folder / form)
        times, memory = ours(paths, options.once)
        rows[form] = {"files": len(paths), "MB": megabytes(paths), "ms": times, "memory": memory}
    (folder / "derived").mkdir()
    derived = [derive(path, folder / "derived") for path in sorted((folder / "plain").glob("*.json"))]
    times, memory = ours(derived, options.once)
    rows["derived"] = {"files": len(derived), "MB": megabytes(derived), "ms": times, "memory": memory}
    if not options.without_kern_llm:
        rows["kern-llm 0.3.1, derived"] = {"files": len(derived), "MB": megabytes(derived),
                                           "ms": {"total": peer(derived, options.once)}}
    return rows


def print_table(rows):
    phases = ["touch", "stage 1", "map", "parse", "verify", "release", "total"]
    print(f"{'':24} {'MB':>7}" + "".join(f"{p:>9}" for p in phases) + f"{'MB/s':>8}  peak over the largest file")
    for name, row in rows.items():
        cells = "".join(f"{row['ms'][p]:9.2f}" if p in row["ms"] else f"{'':9}" for p in phases)
        rate = row["MB"] / row["ms"]["total"] * 1e3
        peak = row.get("memory", {}).get("peak, the largest file")
        print(f"{name:24} {row['MB']:7.1f}{cells}{rate:8.0f}  " + (f"{peak['of_file']:.2f} x" if peak else ""))


def processor():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1].split("\n")[0])
    parser.add_argument("--config", default=ROOT / "k3/configs/k3.json")
    parser.add_argument("--stages", default=8, type=int)
    parser.add_argument("--ranks", default=8, type=int)
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--without-kern-llm", action="store_true")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(options, pathlib.Path(folder))
    print_table(rows)
    if options.json:
        commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], text=True, capture_output=True)
        record = {"date": datetime.date.today().isoformat(), "commit": commit.stdout.strip(),
                  "machine": f"{os.cpu_count()} cores, {processor()}", "load": os.getloadavg()[0],
                  "what": f"{options.stages} prefill stages and the decode manifest of {options.ranks} ranks, "
                          f"{pathlib.Path(options.config).stem}, on one core, files warm", "forms": rows}
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
