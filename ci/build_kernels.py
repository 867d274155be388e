#!/usr/bin/env python3
"""Builds every cubin that k3/kernels.toml pins and compares it with its pin.

usage: ci/build_kernels.py [--update] [--only PREFIX] [--out DIR] [--jobs N]
  --update   writes hashes and entries into the pins instead of comparing
  --only     only the variants whose key begins with PREFIX
  --out      where the cubins go (default build/lib/kern/cuda), one <key>.cubin a variant
exit: 0 all as pinned, 1 with one sentence a problem; no compiler of the pinned build is one.

Every source is also compiled for sm_103a, as a check, but for those whose pin says why it cannot be.
A key is <family>-<name>, for kernels/cuda/<family>/<name>.cu, followed by +NAME=VALUE a define. A
cubin depends on the sources, the defines and the compiler alone: not on the folder or the time.
What was built before from the same bytes is not built again.
"""
import argparse
import concurrent.futures
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tomllib

import machine_code

ROOT = pathlib.Path(__file__).resolve().parent.parent
PINS = ROOT / "k3" / "kernels.toml"
WHEELS = ROOT / "build" / "cuda" / "nvidia" / "cu13" / "bin"
FLAGS = ["-std=c++17", "-O3", "-cubin"]
FIELDS = {"source", "sm", "toolchain", "sha256", "entries", "defines", "hopper_only", "report", "stack", "waits", "why"}


def target(sm: str) -> str:
    return f"-gencode=arch={sm.replace('sm', 'compute')},code={sm}"


def key_of(source: str, defines: dict) -> str:
    path = pathlib.PurePosixPath(source)
    return f"{path.parent.name}-{path.stem}" + "".join(f"+{n}={v}" for n, v in defines.items())


def read_pins(text: str) -> tuple[dict, list[str]]:
    """The table of variants, and what is wrong with it on paper."""
    pins, problems, hashes = tomllib.loads(text), [], {}
    for key, pin in pins.items():
        for field in sorted(FIELDS - {"defines", "hopper_only", "report", "stack", "waits", "why"} - set(pin)):
            problems.append(f"k3/kernels.toml: `{key}` has no {field}")
        for field in sorted(set(pin) - FIELDS):
            problems.append(f"k3/kernels.toml: `{key}`: unknown field {field}")
        want = key_of(pin.get("source", "?"), pin.get("defines", {}))
        if key != want:
            problems.append(f"k3/kernels.toml: `{key}` must be called `{want}` after its source and defines")
        if (pin.get("stack", 0) > 0) != ("why" in pin):
            problems.append(f"k3/kernels.toml: `{key}`: stack and why go together")
        if "report" in pin and not (ROOT / pin["report"]).is_file():
            problems.append(f"k3/kernels.toml: `{key}`: report {pin['report']} is not there")
        if pin.get("sha256") and pin["sha256"] in hashes:
            problems.append(f"k3/kernels.toml: `{key}` and `{hashes[pin['sha256']]}` are the same cubin")
        hashes[pin.get("sha256")] = key
    sources = {pin.get("source") for pin in pins.values()}
    for path in sorted((ROOT / "kernels" / "cuda").rglob("*.cu")):
        if str(path.relative_to(ROOT)) not in sources:
            problems.append(f"{path.relative_to(ROOT)}: no variant in k3/kernels.toml")
    return pins, problems


def find_tool(name: str) -> list[pathlib.Path]:
    on_path = shutil.which(name)
    places = [WHEELS / name, pathlib.Path(on_path) if on_path else None, pathlib.Path("/usr/local/cuda/bin") / name]
    return [p for p in places if p and p.is_file()]


def build_of(nvcc: pathlib.Path) -> str:
    said = subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout
    found = re.search(r"^Build (\S+)$", said, re.M)
    return found[1] if found else "unknown"


class Builder:
    def __init__(self, nvcc: pathlib.Path, cuobjdump: pathlib.Path, out: pathlib.Path):
        self.nvcc, self.cuobjdump, self.out = nvcc, cuobjdump, out
        shared = hashlib.sha256()
        for folder in ("abi", "device"):
            for path in sorted((ROOT / "kernels" / folder).rglob("*")):
                if path.is_file():
                    shared.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
        self.headers = shared.digest()

    def compile(self, pin: dict, sm: str, to: pathlib.Path) -> str | None:
        """Compiles unless the same bytes were compiled to `to` before; the compiler's words on failure."""
        defines = [f"-D{n}={v}" for n, v in pin.get("defines", {}).items()]
        line = [target(sm), *FLAGS, "-I", "kernels/device", "-I", "kernels", *defines, pin["source"]]
        source = (ROOT / pin["source"]).read_bytes()
        stamp = hashlib.sha256(self.headers + source + "\0".join(line).encode() + build_of(self.nvcc).encode())
        mark = to.with_name(to.name + ".stamp")
        before = mark.read_text() if mark.is_file() else ""
        if to.is_file() and before == stamp.hexdigest() + sha256(to):
            return None
        to.unlink(missing_ok=True)
        if before.startswith(stamp.hexdigest() + "\n"):
            return before.partition("\n")[2]
        done = subprocess.run([self.nvcc, *line, "-Werror", "all-warnings", "-o", to], cwd=ROOT,
                              capture_output=True, text=True)
        if done.returncode != 0:
            said = (done.stdout + done.stderr).strip()
            mark.write_text(stamp.hexdigest() + "\n" + said)
            return said
        mark.write_text(stamp.hexdigest() + sha256(to))
        return None

    def usage(self, cubin: pathlib.Path) -> dict:
        said = subprocess.run([self.cuobjdump, "-res-usage", cubin], capture_output=True, text=True).stdout
        rows = re.findall(r"Function (\w+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", said)
        return {name: {"registers": int(r), "stack": int(s), "shared": int(m), "local": int(x)}
                for name, r, s, m, x in rows}


def sha256(path: pathlib.Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def names_told(source: str, key: str, cubin: bytes) -> list[str]:
    """A name of an unnamed namespace holds a hash of the folder, and the cubin with it."""
    if b"_INTERNAL_" not in cubin:
        return []
    return [f"{source}: `{key}` keeps a name that tells the folder of the build; what stays in a module under its "
            "name wants a namespace with one"]


def waits_told(source: str, key: str, cubin: bytes, waits: bool) -> list[str]:
    """A module is pinned as one whose entries wait for earlier launches, or none of them does."""
    problems = []
    for entry, code in sorted(machine_code.sections(cubin).items()):
        early = machine_code.before_wait(code)
        if waits and early is None:
            problems.append(f"{source}: `{key}`: {entry} never waits for earlier launches, pinned as one that does")
        elif not waits and early is not None:
            problems.append(f"{source}: `{key}`: {entry} waits for earlier launches, and the pin does not say so")
        elif early:
            problems.append(f"{source}: `{key}`: {entry} makes {early[0]} before it waits for earlier launches")
    return problems


def portable_told(key: str, pin: dict, said: str | None) -> list[str]:
    """`said`: the compiler's words where a source does not compile for sm_103a."""
    if said and "hopper_only" not in pin:
        return [f"{pin['source']}: `{key}` does not compile for sm_103a:\n{said}"]
    if not said and "hopper_only" in pin:
        return [f"k3/kernels.toml: `{key}`: pinned as hopper_only, but it compiles for sm_103a"]
    return []


def check(builder: Builder, key: str, pin: dict, update: bool) -> tuple[list[str], dict]:
    """The problems of one variant, and its fields as they should be."""
    cubin = builder.out / f"{key}.cubin"
    if said := builder.compile(pin, pin["sm"], cubin):
        return [f"{pin['source']}: `{key}` does not compile:\n{said}"], {}
    problems, usage = [], builder.usage(cubin)
    problems += names_told(pin["source"], key, cubin.read_bytes())
    problems += waits_told(pin["source"], key, cubin.read_bytes(), pin.get("waits", False))
    for name, used in usage.items():
        if used["stack"] > pin.get("stack", 0) or used["local"] > 0:
            problems.append(f"{pin['source']}: `{key}`: {name} uses {used['stack']} bytes of stack and "
                            f"{used['local']} of local memory, pinned {pin.get('stack', 0)} and 0")
    (builder.out / "sm_103a").mkdir(exist_ok=True)
    said = builder.compile(pin, "sm_103a", builder.out / "sm_103a" / cubin.name)
    problems += portable_told(key, pin, said)
    is_now = {"sha256": sha256(cubin), "entries": sorted(usage), "toolchain": build_of(builder.nvcc)}
    if not update:
        for field in ("entries", "sha256"):
            if is_now[field] != pin[field]:
                problems.append(f"k3/kernels.toml: `{key}`: {field} is {is_now[field]}, pinned {pin[field]}")
    registers = ", ".join(f"{n} {u['registers']} registers" for n, u in sorted(usage.items()))
    print(f"{key}: {cubin.stat().st_size} bytes; {registers}", flush=True)
    return problems, is_now


def updated(text: str, found: dict) -> str:
    """The pins' text with the found fields in place of the written ones."""
    lines, key = [], None
    for line in text.splitlines():
        if head := re.match(r'\["?([^"\]]+)"?\]$', line):
            key = head[1]
        field = line.split(" = ")[0]
        if key in found and field in found[key]:
            value = found[key][field]
            shown = "[" + ", ".join(f'"{v}"' for v in value) + "]" if isinstance(value, list) else f'"{value}"'
            line = f"{field} = {shown}"
        lines.append(line)
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build" / "lib" / "kern" / "cuda")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    text = PINS.read_text()
    pins, problems = read_pins(text)
    if problems and not options.update:
        print("\n".join(problems))
        return 1
    builds = {pin["toolchain"] for pin in pins.values()}
    nvccs = [p for p in find_tool("nvcc") if options.update or {build_of(p)} == builds]
    readers = find_tool("cuobjdump")
    if not nvccs or not readers:
        print(f"no nvcc of build {', '.join(sorted(builds))} with cuobjdump; ci/setup installs them in build/cuda")
        return 1
    options.out.mkdir(parents=True, exist_ok=True)
    builder = Builder(nvccs[0], readers[0], options.out)
    chosen = {key: pin for key, pin in pins.items() if key.startswith(options.only)}
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        results = dict(zip(chosen, pool.map(lambda key: check(builder, key, pins[key], options.update), chosen)))
    problems = [problem for found, _ in results.values() for problem in found]
    if options.update:
        PINS.write_text(updated(text, {key: fields for key, (_, fields) in results.items()}))
        problems += read_pins(PINS.read_text())[1]
    print("\n".join(problems) if problems else f"{len(results)} cubins are as pinned")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
