#!/usr/bin/env python3
"""Checks that the arrows between libraries point only downward, as ci/layers.toml says.

usage: ci/check_layers.py [ROOT]        exit 1 with one line a problem: path:line: sentence
"""
import pathlib
import re
import sys
import tomllib

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')
PURE_BANS = [
    (re.compile(r"std::unordered_"), "an unordered container; use std::map or a sorted vector"),
    (re.compile(r"_clock::now\b"), "a clock; take the time as an argument"),
    (re.compile(r"\brandom_device\b|\bstd::rand\b|[^_\w]rand\("), "randomness; take a Prng"),
    (re.compile(r"\bgetenv\b"), "the environment; take an option"),
    (re.compile(r"std::(thread|jthread|async)\b"), "a thread"),
    (re.compile(r"\b(std::[io]?fstream|fopen|::socket)\b"), "a file or socket"),
]
STANDARD = re.compile(r"^[a-z0-9_]+(\.h)?$|^(sys|netinet|arpa|linux)/")


def strip_comment(line: str) -> str:
    return line.split("//", 1)[0]


def third_party_of(include: str, known: set[str]) -> str | None:
    head = include.split("/")[0].split(".")[0]
    return head if head in known else None


def cycles(table: dict) -> list[str]:
    problems, state = [], {}

    def visit(name: str, path: list[str]) -> None:
        if state.get(name) == 2:
            return
        if state.get(name) == 1:
            problems.append(f"ci/layers.toml:1: cycle {' -> '.join(path + [name])}")
            return
        state[name] = 1
        for dep in table[name].get("deps", []):
            if dep not in table:
                problems.append(f"ci/layers.toml:1: {name} depends on unknown library {dep}")
            else:
                visit(dep, path + [name])
        state[name] = 2

    for name in table:
        visit(name, [])
    return problems


def check_file(path: pathlib.Path, root: pathlib.Path, lib: str, table: dict, known: set[str]) -> list[str]:
    problems = []
    rule, public = table[lib], "include" in path.relative_to(root / "libs" / lib).parts
    where = path.relative_to(root)

    def say(number: int, text: str) -> None:
        problems.append(f"{where}:{number}: {text}")

    for number, line in enumerate(path.read_text().splitlines(), 1):
        found = INCLUDE.match(line)
        if found:
            target = found.group(1)
            parts = target.split("/")
            if parts[0] == "kern" and len(parts) == 3 and parts[1] != lib:
                if parts[1] not in rule.get("deps", []):
                    say(number, f"{lib} may not include {parts[1]} (ci/layers.toml)")
                allowed = rule.get("headers", {}).get(parts[1])
                if allowed is not None and parts[2] not in allowed:
                    say(number, f"{lib} may include only {', '.join(allowed)} of {parts[1]}, not {parts[2]} (ci/layers.toml)")
            third = third_party_of(target, known)
            if third and third not in rule.get("third_party", []):
                say(number, f"{lib} may not include {third} (ci/layers.toml)")
            elif third and public and third not in rule.get("third_party_public", []) and lib != "base" \
                    and third not in ("fmt", "tl"):
                say(number, f"{lib} may not show {third} in a public header (ci/layers.toml)")
        code = strip_comment(line)
        if re.search(r"k3|kimi", line, re.I):
            say(number, "a library names a model; that belongs in k3/")
        if "<<<" in code:
            say(number, "a runtime-API launch; kernels are launched through libs/cuda")
        if public and re.search(r"\busing\s+namespace\b", code):
            say(number, "`using namespace` in a header")
        if lib != "cuda" and re.search(r"\b(cu[A-Z]\w+\(|nccl[A-Z]\w+)", code) and "nccl" not in path.name:
            say(number, "a driver or NCCL call outside libs/cuda")
        if rule.get("pure"):
            for ban, why in PURE_BANS:
                if ban.search(code):
                    say(number, f"{lib} is pure and may not use {why}")
    return problems


DEVICE_LADDER = {"common": [], "ptx": ["common"], "mma": ["common", "ptx"], "comm": ["common", "ptx"],
                 "kda": ["common", "ptx", "mma"], "mla": ["common", "ptx", "mma"]}
CUDA_HEADERS = re.compile(r"(cuda_\w+|cooperative_groups|mma)\.h|stdint\.h")


def check_device_code(root: pathlib.Path) -> list[str]:
    """Kernels see kernels/abi, kernels/device and the compiler's own headers; helpers look down only."""
    problems = []
    for path in sorted((root / "kernels").rglob("*.cu*")):
        where = path.relative_to(root)
        rung = where.parts[2] if where.parts[1] == "device" else None
        allowed = ["abi", *DEVICE_LADDER] if rung is None else ["abi", rung, *DEVICE_LADDER.get(rung, [])]
        for number, line in enumerate(path.read_text().splitlines(), 1):
            found = INCLUDE.match(line)
            if found and not CUDA_HEADERS.fullmatch(found.group(1)) and found.group(1).split("/")[0] not in allowed:
                problems.append(f"{where}:{number}: device code here may include only {', '.join(allowed)} and CUDA's headers")
            if "<<<" in strip_comment(line):
                problems.append(f"{where}:{number}: a runtime-API launch; kernels are launched through libs/cuda")
    return problems


def check(root: pathlib.Path) -> list[str]:
    table = tomllib.loads((root / "ci" / "layers.toml").read_text())
    known = {t for rule in table.values() for t in rule.get("third_party", [])} | {"cuda", "nccl", "boost", "simdjson", "zstd", "openssl", "pcre2", "xxhash"}
    problems = cycles(table)
    for folder in sorted((root / "libs").iterdir()):
        if not folder.is_dir():
            continue
        if folder.name not in table:
            problems.append(f"libs/{folder.name}:1: no table in ci/layers.toml")
            continue
        for path in sorted(folder.rglob("*")):
            if path.suffix in (".h", ".cc"):
                problems += check_file(path, root, folder.name, table, known)
    problems += check_device_code(root)
    for path in sorted((root / "kernels").rglob("*")):
        if path.suffix not in (".h", ".cc", ".cu", ".cuh"):
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            found = INCLUDE.match(line)
            if found and found.group(1).startswith("kern/") and found.group(1) != "kern/runtime/host_module.h":
                problems.append(f"{path.relative_to(root)}:{number}: kernels may include only kernels/abi and the host module interface")
    return problems


if __name__ == "__main__":
    top = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent)
    found = check(top.resolve())
    print("\n".join(found) if found else "layers: every include is allowed")
    sys.exit(1 if found else 0)
