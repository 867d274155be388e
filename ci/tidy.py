#!/usr/bin/env python3
"""The tree's own rules that a compiler does not check.

usage: ci/tidy.py [ROOT]        exit 1 with one line a problem: path:line: sentence
Rules: line length, file length, bans with their replacement, unfinished-work words, heavy includes
in few translation units, headers that begin with #pragma once and a contract, dead sources,
diagnostics that no test matches.
"""
import pathlib
import re
import sys

COLUMNS_MAX = 100
HEADER_LINES_MAX = 250
SOURCE_LINES_MAX = 500
SOURCE_LINES_HARD = 800
MAIN_LINES_MAX = 40
HEAVY = {"boost/asio": 6, "boost/beast": 2, "simdjson": 8, "CATCH_CONFIG_MAIN": 0}
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|not implemented")
LIB_BANS = [
    (re.compile(r"\bstd::cout\b|\bstd::cerr\b|[^\w]printf\("), "printing in a library; use kern/base/log.h"),
    (re.compile(r"\bnew\s+[A-Za-z_:]+\s*[\(\{\[]"), "raw `new`; use std::make_unique"),
    (re.compile(r"\bgetenv\b"), "the environment below apps; take an option"),
]


def sources(root: pathlib.Path):
    for top in ("libs", "apps", "kernels", "k3", "tests", "benchmarks"):
        for path in sorted((root / top).rglob("*")):
            if path.suffix in (".h", ".cc", ".cu", ".cuh"):
                yield path


def lengths(path: pathlib.Path, where, lines) -> list[str]:
    found = []
    for number, line in enumerate(lines, 1):
        if len(line) > COLUMNS_MAX and "http" not in line and 'R"' not in line:
            found.append(f"{where}:{number}: {len(line)} columns, at most {COLUMNS_MAX}")
    top = str(where).split("/")[0]
    if top in ("libs", "apps", "k3") and path.suffix == ".h" and len(lines) > HEADER_LINES_MAX:
        found.append(f"{where}:1: {len(lines)} lines, a header has at most {HEADER_LINES_MAX}")
    if top in ("libs", "apps", "k3") and path.suffix == ".cc" and len(lines) > SOURCE_LINES_MAX:
        found.append(f"{where}:1: {len(lines)} lines, a source has at most {SOURCE_LINES_MAX}; split along a contract")
    if path.name == "main.cc" and top == "apps" and len(lines) > MAIN_LINES_MAX + 20:
        found.append(f"{where}:1: {len(lines)} lines, a main has about {MAIN_LINES_MAX}")
    return found


def bans(where, lines) -> list[str]:
    found = []
    in_libs = str(where).startswith("libs/")
    for number, line in enumerate(lines, 1):
        if UNFINISHED.search(line):
            found.append(f"{where}:{number}: a word that marks unfinished work; finish it or file it")
        if not in_libs:
            continue
        code = line.split("//", 1)[0]
        for ban, why in LIB_BANS:
            if why and ban.search(code):
                found.append(f"{where}:{number}: {why}")
    return found


def headers(path, where, lines) -> list[str]:
    if not str(where).startswith("libs/") or path.suffix != ".h" or "include" not in where.parts:
        return []
    text = "\n".join(lines[:14])
    found = []
    if "#pragma once" not in text and "#ifndef" not in text:
        found.append(f"{where}:1: no #pragma once")
    if "///" not in text and "/*" not in text:
        found.append(f"{where}:1: a public header begins with its contract in prose")
    return found


def heavy(root: pathlib.Path) -> list[str]:
    found = []
    for needle, most in HEAVY.items():
        users = [p.relative_to(root) for p in sources(root) if p.suffix == ".cc" and needle in p.read_text()]
        if len(users) > most:
            found.append(f"{users[-1]}:1: {len(users)} translation units use {needle}, at most {most}: "
                         + ", ".join(map(str, users)))
    return found


def dead(root: pathlib.Path) -> list[str]:
    lists = "\n".join(p.read_text() for p in root.rglob("CMakeLists.txt") if "build" not in p.parts)
    return [f"{p.relative_to(root)}:1: no CMakeLists.txt names this source" for p in sources(root)
            if p.suffix == ".cc" and p.name not in lists]


def check(root: pathlib.Path) -> list[str]:
    found = []
    for path in sources(root):
        where, lines = path.relative_to(root), path.read_text().splitlines()
        found += lengths(path, where, lines) + bans(where, lines) + headers(path, where, lines)
    return found + heavy(root) + dead(root)


if __name__ == "__main__":
    top = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent)
    problems = check(top.resolve())
    print("\n".join(problems) if problems else "tidy: nothing to say")
    sys.exit(1 if problems else 0)
