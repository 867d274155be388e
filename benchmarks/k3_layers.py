#!/usr/bin/env python3
"""The first layers of the full model on one GPU with synthetic weights, beside the machine's floors.

usage: benchmarks/k3_layers.py [--bin DIR] [--modules DIR] [--config k3.json] [--layers 4] [--repeat 10]
                               [--program prefill] -o OUT.json
       benchmarks/k3_layers.py --once -o OUT.json      the small model on the host, so that this cannot rot
  --bin  where kern and k3-gen are     --modules  the kernels
A floor is the larger of operations over 790 TFLOP/s and bytes over 4.3 TB/s: what an 8192-cubed bf16
product and a large copy reach on an H200, measured. Bytes are each weight once, of the experts those that a row chose, and each
activation in and out; parts run one after the other, so their floors add up.
"""
import argparse
import datetime
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

FLOPS, BYTES = 790e12, 4.3e12
# program, rows, sequences, context of each, captured as a graph
SHAPES = [("prefill", 8192, 1, 8192, False), ("prefill", 8192, 8, 1024, False), ("prefill", 1024, 1, 8192, False),
          ("decode", 64, 64, 1024, False), ("decode", 64, 64, 1024, True), ("decode", 64, 64, 8192, False),
          ("decode", 64, 64, 8192, True), ("decode", 1, 1, 8192, False), ("decode", 1, 1, 8192, True)]
SHAPES_ONCE = [("prefill", 96, 2, 48, False), ("decode", 4, 4, 100, False)]


def part_of(op):
    if op.startswith("gemm"):
        return "dense products"
    if op == "routed_experts":
        return "routed experts"
    if op.startswith("kda"):
        return "delta rule"
    return "latent attention" if op.startswith("mla_") else "the rest"


def floors(config, layers, rows, seqs, context):
    """Milliseconds by part."""
    c, lin = config, config["linear_attn_config"]
    hidden, heads = c["hidden_size"], c["num_attention_heads"]
    inner, lora = lin["num_heads"] * lin["head_dim"], c["kv_lora_rank"]
    width, value = lora + c["qk_rope_head_dim"], heads * c["v_head_dim"]
    latent, inter, experts = c["routed_expert_hidden_size"], c["moe_intermediate_size"], c["num_experts"]
    picks, shared = c["num_experts_per_token"], c["moe_intermediate_size"] * c["num_shared_experts"]
    state = lin["num_heads"] * lin["head_dim"] ** 2 * 4
    flops = dict.fromkeys(("dense products", "routed experts", "delta rule", "latent attention", "the rest"), 0)
    moved = dict(flops)

    def product(m, k, n):
        flops["dense products"] += 2 * m * k * n
        moved["dense products"] += 2 * (k * n + m * (k + n))

    for layer in range(layers):
        if layer + 1 in lin["full_attn_layers"]:
            product(rows, hidden, c["q_lora_rank"] + width + value)
            product(rows, c["q_lora_rank"], heads * (c["qk_nope_head_dim"] + c["qk_rope_head_dim"]))
            product(rows, value, hidden)
            each = rows // seqs
            pairs = seqs * sum(range(context - each + 1, context + 1))
            flops["latent attention"] += 2 * pairs * heads * (width + lora)
            flops["latent attention"] += 2 * rows * heads * lora * (c["qk_nope_head_dim"] + c["v_head_dim"])
            moved["latent attention"] += 2 * (seqs * context * width + rows * (heads * 192 + 2 * value)
                                              + heads * lora * (c["qk_nope_head_dim"] + c["v_head_dim"]))
        else:
            product(rows, hidden, 4 * inner + lin["head_dim"] + lin["num_heads"])
            product(rows, lin["head_dim"], inner)
            product(rows, inner, hidden)
            moved["delta rule"] += rows * inner * (4 + 2 + 1) * 2 + 2 * seqs * state
        if layer < c["first_k_dense_replace"]:
            product(rows, hidden, 2 * c["intermediate_size"])
            product(rows, c["intermediate_size"], hidden)
            moved["the rest"] += rows * 3 * c["intermediate_size"] * 2
        else:
            product(rows, hidden, experts)
            product(rows, hidden, latent + 2 * shared)
            product(rows, shared, hidden)
            product(rows, latent, hidden)
            touched = experts * (1 - (1 - picks / experts) ** rows)
            flops["routed experts"] += 2 * rows * picks * 3 * latent * inter
            moved["routed experts"] += touched * 3 * latent * inter * 17 / 32 + rows * latent * 6
            moved["the rest"] += rows * (3 * shared * 2 + experts * 4)
        moved["the rest"] += rows * hidden * (2 * 3 * 2 + 2 * 8)  # two mixes, two sums landed
    product(seqs, hidden, c["vocab_size"])
    return {part: 1e3 * max(flops[part] / FLOPS, moved[part] / BYTES) for part in flops}


def run(*args):
    done = subprocess.run([str(arg) for arg in args], text=True, capture_output=True)
    print(done.stdout, end="", flush=True)
    if done.returncode != 0:
        print(f"{args[0]} exits {done.returncode}: {done.stderr}", flush=True)
    return done.returncode == 0


def generate(o, folder, shapes):
    most = lambda program, place: max(shape[place] for shape in shapes if shape[0] == program)
    flags = ["--device", "host" if o.once else "cuda", "--modules", o.modules, "--config", o.config,
             "--layers", o.layers, "--max-ctx", max(shape[3] for shape in shapes)]
    made = True
    if any(shape[0] == "prefill" for shape in shapes):
        made &= run(o.bin / "k3-gen", "prefill", *flags, "--chunk", most("prefill", 1), "--pack", most("prefill", 2),
                    "-o", folder / "prefill.json")
    if any(shape[0] == "decode" for shape in shapes):
        made &= run(o.bin / "k3-gen", "decode", *flags, "--ranks", 1, "--max-seqs", most("decode", 2),
                    "-o", folder / "decode.json")
    if not made:
        sys.exit("k3_layers: no manifests")


def measure(o, folder, config, shape):
    program, rows, seqs, context, graph = shape
    out = folder / "out.json"
    print(f"\n== {program}{' as a graph' if graph else ''}: {rows} rows, {seqs} sequences, context {context}")
    if not run(o.bin / "kern", "bench", folder / f"{program}.json", "--synthetic", 1, "--modules", o.modules, "--program", program,
               "--rows", rows, "--seqs", seqs, "--context", context, "--repeat", o.repeat, "--json", out,
               *([] if graph else ["--by-op", "--eager"])):
        return None
    got = json.loads(out.read_text())
    got["graph"] = graph
    del got["tokens"]
    floor = floors(config, o.layers, rows, seqs, context)
    got["floor_ms"] = round(sum(floor.values()), 4)
    spent = dict.fromkeys(floor, 0)
    for line in got.get("by_op", []):
        spent[part_of(line["op"])] += line["ms"]
    got["parts"] = {part: {"ms": round(spent[part], 4), "floor_ms": round(floor[part], 4)} for part in floor}
    for part in floor:
        if spent[part] > 0:
            print(f"{part:18} {spent[part]:9.3f} ms, floor {floor[part]:9.3f}: {spent[part] / floor[part]:6.1f} x")
    print(f"{'a run':18} {got['median_ms']:9.3f} ms, floor {got['floor_ms']:9.3f}: {got['median_ms'] / got['floor_ms']:6.1f} x")
    return got


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    root = pathlib.Path(__file__).resolve().parent.parent
    parser.add_argument("--bin", type=pathlib.Path, default=root / "build/bin")
    parser.add_argument("--modules", type=pathlib.Path)
    parser.add_argument("--config", type=pathlib.Path)
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("--program", choices=("prefill", "decode"), help="only this one's shapes")
    parser.add_argument("-o", type=pathlib.Path, required=True)
    o = parser.parse_args()
    o.modules = o.modules or o.bin.parent / ("lib/kern" if o.once else "lib/kern/cuda")
    o.config = o.config or root / "k3/configs" / ("k3-nano.json" if o.once else "k3.json")
    shapes = [shape for shape in (SHAPES_ONCE if o.once else SHAPES) if o.program in (None, shape[0])]
    config = json.loads(o.config.read_text())
    config = config.get("text_config", config)
    asked = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    machine = subprocess.run(asked, text=True, capture_output=True).stdout.strip() if shutil.which(asked[0]) else ""
    results = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        generate(o, folder, shapes)
        for shape in shapes:
            results.append(measure(o, folder, config, shape))
            text = {"command": "benchmarks/k3_layers.py -o OUT.json", "date": str(datetime.date.today()),
                    "machine": machine, "layers": o.layers,
                    "ceilings": {"flops": FLOPS, "bytes_per_second": BYTES},
                    "results": [got for got in results if got]}
            o.o.write_text(json.dumps(text, indent=1))
    return 1 if None in results else 0


if __name__ == "__main__":
    sys.exit(main())
