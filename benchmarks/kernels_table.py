#!/usr/bin/env python3
"""Every kernel that programs launch, and every product, beside what the machine would allow.

usage: benchmarks/kernels_table.py [--bin DIR] [--modules DIR] [--only TEXT] [--resume OLD.json] [--deadline S]
                                   -o OUT.json [--markdown OUT.md]
       benchmarks/kernels_table.py --plan-only     without a GPU or kernels: is every pinned one in the table?
  --bin       where k3-gen and launch-bench are     --modules  the kernels
  --only      rows whose name holds TEXT
  --resume    rows of an earlier table stay, if kernel, cubin, shape and geometry are still the same; each says of which run it is
  --deadline  seconds after which no row is begun; what was measured is written, and the rest is missing
exit: 0; 1 a kernel of k3/kernels.toml that is not in the table, one that takes more than 8 times its
floor without a sentence in kernels_why.toml, or a row that failed.

Shapes are those of the full model: a stage's 8,192 rows of one prompt, its 1,024 rows behind 7,168 (P),
one row and 64 rows of a rank of eight at contexts of 8,192 (D). A kernel that only other programs
launch (plain manifests, the small models) stands there with one of theirs. Geometry, constants and buffers come
out of the manifests that k3-gen writes.

Measured: the median of replays of a graph of 64 launches or more, over as many sets of operands as outgrow
the L2, so that what a model would read from memory comes from memory. The floor is the largest of bytes over what a copy
moves (read and written), operations over what an 8192-cubed bf16 product reaches, and an empty launch
in a graph; the three are measured in the same run. A launch of nothing is in the floor because no kernel can be
shorter; where it decides, the column says so, and the share of the memory is then no measure.
"""
import argparse
import datetime
import json
import pathlib
import selectors
import subprocess
import sys
import tempfile
import time
import tomllib

import kernels_plan
import kernels_work

ROOT = pathlib.Path(__file__).resolve().parent.parent
RATIO_MAX = 8
PATIENCE_S = 60  # for one row


def command():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/bin")
    parser.add_argument("--modules", type=pathlib.Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--plan-only", action="store_true")
    parser.add_argument("-o", type=pathlib.Path)
    parser.add_argument("--markdown", type=pathlib.Path)
    parser.add_argument("--resume", type=pathlib.Path)
    parser.add_argument("--deadline", type=float, default=float("inf"))
    o = parser.parse_args()
    if not o.plan_only:
        o.modules = o.modules or o.bin.parent / "lib/kern/cuda"
    if not o.plan_only and o.o is None:
        parser.error("-o is missing")
    return o


# ---- what is launched ----

def generate(o, folder):
    """Manifests by a short name."""
    configs = ROOT / "k3/configs"

    def gen(name, program, config, *flags, several=False):
        to = folder / name if several else folder / f"{name}.json"
        done = subprocess.run([str(word) for word in (o.bin / "k3-gen", program, "--config", configs / f"{config}.json", "--device",
                               "cuda", "--modules", o.modules, *flags, "-o", to)], text=True, capture_output=True)
        if done.returncode != 0:
            sys.exit(f"kernels_table: k3-gen {program}: {done.stderr.strip()}")
        return [json.loads(path.read_text()) for path in (sorted(to.iterdir()) if several else [to])]

    stages = ("--stages", 8, "--chunk", 8192)
    return {
        "P": gen("p", "prefill", "k3", *stages, several=True),
        "D": gen("d", "decode", "k3", "--ranks", 8, "--max-seqs", 64),
        "plain P": gen("pp", "prefill", "k3", "--plain", *stages, several=True),
        "plain D": gen("pd", "decode", "k3", "--plain", "--ranks", 8, "--max-seqs", 64),
        "mini": gen("mini", "one-rank", "k3-mini"),
        "mini D": gen("mini8", "decode", "k3-mini", "--ranks", 8),
        "nano": gen("nano", "one-rank", "k3-nano"),
        "nano D": gen("nano8", "decode", "k3-nano", "--ranks", 8),
        "plain nano": gen("nanop", "one-rank", "k3-nano", "--plain"),
    }


def cases(manifests):
    """All launches of the first four; of the others what those do not launch."""
    for manifest in manifests["P"]:
        yield True, kernels_plan.Case("P 8192", manifest, "prefill", 8192, 1, 8192)
    for manifest in manifests["P"]:
        yield True, kernels_plan.Case("P 1024 + 7168", manifest, "prefill", 1024, 1, 8192)
    for rows in (1, 64):
        for manifest in manifests["D"]:
            yield True, kernels_plan.Case(f"D {rows}", manifest, "decode", rows, rows, 8192)
    for manifest in manifests["P"]:
        yield False, kernels_plan.Case("P 64", manifest, "prefill", 64, 1, 8192)
    for manifest in manifests["plain P"]:
        yield False, kernels_plan.Case("plain P 8192", manifest, "prefill", 8192, 1, 8192)
    for manifest in manifests["plain D"]:
        yield False, kernels_plan.Case("plain D 64", manifest, "decode", 64, 64, 8192)
    for name in ("mini D", "nano D"):
        yield False, kernels_plan.Case(f"{name} 4", manifests[name][0], "decode", 4, 4, 256)
    for name in ("mini", "nano", "plain nano"):
        for program, rows, seqs in (("prefill", 256, 1), ("decode", 4, 4), ("prefill", 64, 1)):
            yield False, kernels_plan.Case(f"{name} {program} {rows}", manifests[name][0], program, rows, seqs, 256)


def pinned(pins):
    return {(key, entry) for key, pin in pins.items() for entry in pin["entries"]}


def shape_of(launch):
    """The sizes that a reader asks for."""
    if launch.entry.startswith("extern:"):
        p = kernels_plan.product_of(launch)
        return f"{p.rows} x {p.k} by {p.n}{', f32' if p.f32 else ''}"
    numbers = [arg for arg in launch.args if isinstance(arg, int) and not isinstance(arg, bool)]
    return " ".join(map(str, numbers))


def rows_of(o, manifests, folder):
    """(launch, its words) by a row's name."""
    rows, covered = {}, set()
    for whole, case in cases(manifests):
        reader, vocab = kernels_plan.Reader(case), 163840 if "nano" not in case.name and "mini" not in case.name else 512
        fresh = set()
        for launch in reader.launches():
            entry = (launch.module, launch.entry)
            if launch.entry.startswith("extern:nccl") or (launch.entry.startswith("extern:") and not whole):
                continue
            if not whole and entry in covered:
                continue
            key = (case.name, launch.key)
            if key in rows:
                continue
            fresh.add(entry)
            moved, flops = kernels_work.work(reader, launch)
            name = f"r{len(rows)}"
            rows[key] = {"row": name, "launch": launch, "case": case.name, "bytes": moved, "flops": flops,
                         "words": kernels_plan.lines(reader, launch, name, moved, folder, vocab)}
        covered |= fresh
    return [row for row in rows.values() if o.only in label(row)], covered


def label(row):
    launch = row["launch"]
    return f"{launch.module or 'product'}:{launch.entry.removeprefix('kern_')} [{row['case']}] {shape_of(launch)}"


def missing(pins, covered, why):
    problems = []
    nobody = {tuple(name.rsplit(":", 1)): said for name, said in why.get("nobody", {}).items()}
    for key, entry in sorted(pinned(pins) - covered - set(nobody)):
        problems.append(f"k3/kernels.toml: `{key}` `{entry}` is not in the table and benchmarks/kernels_why.toml does not say why")
    for key, entry in sorted(set(nobody) & covered):
        print(f"benchmarks/kernels_why.toml: `{key}:{entry}` is launched after all: its sentence can go")
    for key, entry in sorted(set(nobody) - pinned(pins)):
        problems.append(f"benchmarks/kernels_why.toml: `{key}:{entry}` is not in k3/kernels.toml")
    return problems


# ---- measuring ----

def measure(o, rows, folder):
    """What launch-bench says, by row; it begins anew behind a row that fails or hangs."""
    said, left, until = {}, [None, *rows], time.monotonic() + o.deadline
    while left and time.monotonic() < until:
        plan = folder / "plan.txt"
        words = [line for row in left for line in (["machine"] if row is None else row["words"])]
        plan.write_text("\n".join(words) + "\n")
        process = subprocess.Popen([str(o.bin / "launch-bench"), "--cubins", str(o.modules), str(plan)], text=True, stdout=subprocess.PIPE)
        told = follow(process, said, until)
        done = next((i for i, row in enumerate(left) if (row["row"] if row else "machine") == told), -1) if told else -1
        if process.returncode == 0 or time.monotonic() >= until:
            return said
        # The row that was told as failed, or the one after the last that was told.
        failed = done if done >= 0 and "error" in said[told] else done + 1
        if "" in said:  # before any row
            said.setdefault("machine", said.pop(""))
            return said
        if failed == len(left):
            return said
        name = left[failed]["row"] if left[failed] else "machine"
        said.setdefault(name, {"error": f"launch-bench ended with {process.returncode}"})
        print(f"{name}: {said[name]['error']}", flush=True)
        if name == "machine":
            return said
        left = left[failed + 1:]
    return said


def follow(process, said, until):
    """Reads lines until the end; a process that says nothing for long, or nothing yet when time is up, is ended. The last row told."""
    watch, last = selectors.DefaultSelector(), None
    watch.register(process.stdout, selectors.EVENT_READ)
    while True:
        if not watch.select(max(0, min(PATIENCE_S, until - time.monotonic()))):
            process.kill()
            process.wait()
            return last
        line = process.stdout.readline()
        if not line:
            process.wait()
            return last
        try:
            got = json.loads(line)
        except ValueError:
            print(line.rstrip(), flush=True)
            continue
        last = "machine" if "machine" in got else got["row"]
        said[last] = got
        print(line.rstrip(), flush=True)


def line_of(row, pins):
    """What tells a row of the table from every other, and from itself after a change."""
    launch = row["launch"]
    return {"kernel": f"{launch.module}:{launch.entry}" if launch.module else launch.entry, "op": launch.op, "case": row["case"],
            "shape": shape_of(launch), "grid": launch.grid, "block": launch.block, "cluster": launch.cluster, "shared": launch.shared,
            "sha256": pins[launch.module]["sha256"] if launch.module else None, "bytes": round(row["bytes"]), "flops": round(row["flops"])}


def identity(line):
    return json.dumps([line.get(name) for name in ("kernel", "case", "shape", "grid", "block", "cluster", "shared", "sha256", "bytes")])


def judge(rows, said, why, pins, kept=(), run=0):
    """The table's lines, and what is wrong with them. `kept`: lines of earlier runs by identity."""
    machine, lines, problems = said.get("machine", {}), [], []
    kept = dict(kept)
    if "bytes_per_second" not in machine and any(identity(line_of(row, pins)) not in kept for row in rows):
        problems.append(f"the machine could not be measured: {machine.get('error', 'nothing was said')}")
    for row in rows:
        line, got = line_of(row, pins), said.get(row["row"], {"error": "not measured"})
        if identity(line) in kept:
            line = kept[identity(line)]
        elif "us" in got and "bytes_per_second" in machine:
            line |= {"run": run, "bytes_us": round(1e6 * row["bytes"] / machine["bytes_per_second"], 3),
                     "flops_us": round(1e6 * row["flops"] / machine["flops"], 3), "launch_us": machine["empty_launch_us"]}
            line |= {"floor_us": max(line["bytes_us"], line["flops_us"], line["launch_us"]), "us": got["us"], "best_us": got["best_us"],
                     "sets": got["sets"]}
            line["ratio"] = round(got["us"] / line["floor_us"], 2)
        else:
            line["error"] = got.get("error", "the machine was not measured")
            problems.append(f"{label(row)}: {line['error']}")
        lines.append(line)
        if line.get("ratio", 0) > RATIO_MAX:
            line["why"] = sentence(why, row["launch"], row["case"])
            if line["why"] is None:
                problems.append(f"{label(row)}: {line['ratio']} times its floor, and benchmarks/kernels_why.toml does not say why")
    return lines, problems


def sentence(why, launch, case):
    said = why.get("why", {})
    return said.get(f"{launch.entry} {case}", said.get(launch.entry))


def markdown(table):
    out = [f"# Every kernel beside its floor, {table['runs'][-1]['machine']}, {table['runs'][-1]['date']}", "",
           "From `benchmarks/kernels_table.py`. The floor is the largest of the three columns before it. What the machine gave, in the run of the row "
           "(last column):", "", "| run | a copy, read and written | an 8192-cubed bf16 product | an empty launch in a graph |", "|---|---|---|---|"]
    out += [f"| {i} | {m['bytes_per_second'] / 1e12:.2f} TB/s | {m['flops'] / 1e12:.0f} TFLOP/s | {m['empty_launch_us']:.2f} us |"
            for i, m in enumerate(table["runs"]) if m.get("flops")]
    out.append("")
    cases = list(dict.fromkeys(line["case"] for line in table["kernels"]))
    for case in cases:
        out += [f"## {case}", "", "| kernel | shape | MB | GFLOP | bytes us | flops us | launch us | floor us | measured us | ratio | run |",
                "|---|---|---|---|---|---|---|---|---|---|---|"]
        for line in (l for l in table["kernels"] if l["case"] == case):
            if "us" not in line:
                out.append(f"| {line['kernel']} | {line['shape']} | | | | | | | {line['error']} | | |")
                continue
            out.append(f"| `{line['kernel'].replace('kern_', '')}` | {line['shape']} | {line['bytes'] / 1e6:.3g} | {line['flops'] / 1e9:.3g} | {line['bytes_us']:.2f} | "
                       f"{line['flops_us']:.2f} | {line['launch_us']:.2f} | {line['floor_us']:.2f} | {line['us']:.2f} | {line['ratio']:.1f} | {line['run']} |")
        out.append("")
    above = {line["kernel"]: line["why"] for line in table["kernels"] if line.get("why")}
    if above:
        out += ["## Above 8 times the floor", ""]
        out += [f"* `{kernel.replace('kern_', '')}`: {said}" for kernel, said in above.items()]
    return "\n".join(out) + "\n"


def main():
    o = command()
    pins = tomllib.loads((ROOT / "k3/kernels.toml").read_text())
    why = tomllib.loads((ROOT / "benchmarks/kernels_why.toml").read_text())
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        if o.modules is None:  # a plan needs their names alone
            o.modules = folder / "cuda"
            o.modules.mkdir()
            for key in pins:
                (o.modules / f"{key}.cubin").write_bytes(key.encode())
        rows, covered = rows_of(o, generate(o, folder), folder)
        problems = missing(pins, covered, why)
        print(f"{len(rows)} rows, {len(covered)} kernels and products, {len(pinned(pins))} pinned", flush=True)
        if o.plan_only:
            print("\n".join(problems))
            return 1 if problems else 0
        old = json.loads(o.resume.read_text()) if o.resume else {"runs": [], "kernels": []}
        kept = {identity(line): line for line in old["kernels"] if "us" in line}
        said = measure(o, [row for row in rows if identity(line_of(row, pins)) not in kept], folder)
    lines, wrong = judge(rows, said, why, pins, kept, len(old["runs"]))
    problems += wrong
    table = table_of(old["runs"], said.get("machine", {}), lines, why)
    write(o, table, lines)
    print("\n".join(problems) if problems else f"all {len(lines)} rows stand")
    return 1 if problems else 0


def table_of(runs, machine, lines, why):
    run = {"date": str(datetime.date.today()), "machine": machine.get("machine", ""),
           **{name: machine.get(name) for name in ("bytes_per_second", "flops", "empty_launch_us")}}
    return {"command": "benchmarks/kernels_table.py", "runs": [*runs, run], "kernels": lines,
            "not launched by any program": why.get("nobody", {})}


def write(o, table, lines):
    o.o.write_text("{\n" + ",\n".join(f" {json.dumps(k)}: " + ("[\n  " + ",\n  ".join(map(json.dumps, v)) + "\n ]" if k == "kernels" else json.dumps(v))
                                      for k, v in table.items()) + "\n}\n")
    if lines and o.markdown:
        o.markdown.write_text(markdown(table))


if __name__ == "__main__":
    sys.exit(main())
