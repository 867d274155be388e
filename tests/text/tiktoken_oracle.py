#!/usr/bin/env python3
"""Compares text-tokenize with PyPI's tiktoken on mixed strings drawn from a seed.

usage: tiktoken_oracle.py PROGRAM [--count N] [--seed S]
Exit 0: equal. 1: different, or tiktoken is missing while KERN_REQUIRE_PYTHON=1. 77: tiktoken is missing.
The split pattern and the cutting of long texts are written here a second time, on purpose.
"""
import argparse
import base64
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import unicodedata

SPECIAL_SLOTS = 256
CHUNK_CHARS, RUN_CHARS = 400_000, 25_000
UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PATTERN = "|".join([
    r"[\p{Han}]+",
    r"[^\r\n\p{L}\p{N}]?" + UPPER + "*" + LOWER + "+" + SUFFIX,
    r"[^\r\n\p{L}\p{N}]?" + UPPER + "+" + LOWER + "*" + SUFFIX,
    r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+",
])
# Letters, marks and digits newer than Unicode 14, one or two of every block.
LATE = [0x897, 0xCF3, 0xECE, 0x1C89, 0x1C8A, 0xA7CB, 0xA7CD, 0xA7DA, 0xA7DB, 0xA7DC, 0x105C0, 0x10D40, 0x10D4A,
        0x10D50, 0x10D69, 0x10D70, 0x10EC2, 0x10EFC, 0x1123F, 0x11241, 0x11380, 0x113B8, 0x113D1, 0x116D0,
        0x11BC0, 0x11BF0, 0x11F00, 0x11F04, 0x11F50, 0x11F5A, 0x1342F, 0x13440, 0x13460, 0x143FA, 0x16100,
        0x1611E, 0x16130, 0x16D40, 0x16D70, 0x18CFF, 0x1B132, 0x1CCF0, 0x1D2C0, 0x1DF25, 0x1E030, 0x1E08F,
        0x1E4D0, 0x1E4EC, 0x1E4F0, 0x1E5D0, 0x1E5EE, 0x1E5F1, 0x2B739, 0x2EBF0, 0x2EE5D, 0x31350, 0x323AF]


def split_runs(text):
    """At most RUN_CHARS spaces, or others, in a row."""
    start, run, was_space = 0, 0, None
    for i, char in enumerate(text):
        if char.isspace() == was_space:
            run += 1
            if run > RUN_CHARS:
                yield text[start:i]
                start, run = i, 1
        else:
            was_space, run = char.isspace(), 1
    yield text[start:]


def expected_ids(encoding, text):
    ids = []
    for i in range(0, len(text), CHUNK_CHARS):
        for part in split_runs(text[i:i + CHUNK_CHARS]):
            ids += encoding.encode(part, disallowed_special=())
    return ids


def load_encoding(tiktoken, folder):
    ranks = {}
    for line in (folder / "tiktoken.model").read_bytes().splitlines():
        token, rank = line.split()
        ranks[base64.b64decode(token)] = int(rank)
    names = json.loads((folder / "tokenizer_config.json").read_text())["added_tokens_decoder"]
    first = len(ranks)
    specials = {names.get(str(i), {}).get("content", f"<|reserved_token_{i}|>"): i
                for i in range(first, first + SPECIAL_SLOTS)}
    return tiktoken.Encoding("small", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=specials)


def pipe(program, command, folder, items):
    raw = b"".join(struct.pack("<I", len(item) // unit) + item for item, unit in items)
    done = subprocess.run([program, command, str(folder)], input=raw, capture_output=True)
    if done.returncode != 0:
        sys.exit(f"text-tokenize {command} failed: {done.stderr.decode()}")
    return done.stdout


def read_items(raw, unit):
    items, at = [], 0
    while at < len(raw):
        (count,) = struct.unpack_from("<I", raw, at)
        items.append(raw[at + 4:at + 4 + count * unit])
        at += 4 + count * unit
    return items


def ids_of(raw):
    return list(struct.unpack(f"<{len(raw) // 4}i", raw))


class Strings:
    """Mixed strings: words of the corpus, scripts, blanks, runs, specials as text, broken bytes."""

    def __init__(self, seed, words, special_names):
        self.random = random.Random(seed)
        self.words = words
        self.special_names = special_names
        self.assigned = [c for c in range(0x30000) if not 0xD800 <= c < 0xE000
                         and unicodedata.category(chr(c)) not in ("Cn", "Co")] + LATE

    def part(self):
        draw = self.random
        kind = draw.randrange(13)
        if kind < 3:
            return " ".join(draw.choice(self.words) for _ in range(draw.randrange(1, 12)))
        if kind == 3:
            return "".join(chr(draw.choice(self.assigned)) for _ in range(draw.randrange(1, 8)))
        if kind == 4:
            return draw.choice(" \t\n\r\u00a0\u2003\u3000\x1c\x85\u180e") * draw.randrange(1, 6)
        if kind == 5:
            return draw.choice(["'s", "'S", "'re", "'LL", "'t", "'\u017f", "''d", "'VE"])
        if kind == 6:
            return str(draw.randrange(10 ** draw.randrange(1, 12)))
        if kind == 7:
            return "".join(draw.choice("!?.,:;-_()[]{}<>|\\/@#$%^&*+=~`\"'\r\n ") for _ in range(draw.randrange(1, 9)))
        if kind == 8:
            return draw.choice(self.special_names)
        if kind == 9:
            return draw.choice("aA\u00e9\u4e2d0 .\n\U0001f600") * draw.choice([2, 3, 5, 17, 40, 129])
        if kind == 10:
            return "".join(draw.choice([str.upper, str.lower, str.title, str.swapcase])(draw.choice(self.words))
                           for _ in range(3))
        if kind == 11:
            start = draw.choice([0x3040, 0x4e00, 0xac00, 0x0900, 0x0590, 0x0600, 0x0370, 0x0400, 0x0e00, 0x1f300])
            return "".join(chr(start + draw.randrange(80)) for _ in range(draw.randrange(1, 10)))
        return chr(draw.choice(LATE)) * draw.randrange(1, 3)

    def text(self):
        return "".join(self.part() for _ in range(self.random.randrange(0, 9)))

    def broken(self):
        raw = bytearray(self.text().encode())
        for _ in range(self.random.randrange(1, 4)):
            raw.insert(self.random.randrange(len(raw) + 1), self.random.choice(
                [0x80, 0xBF, 0xC0, 0xC3, 0xE0, 0xE2, 0xED, 0xF0, 0xF4, 0xF5, 0xFF]))
        return bytes(raw)

    def long_texts(self):
        yield "a" * 60_001
        yield " " * 60_001 + "x"
        yield "\n" * 30_000 + " \x1c" * 30_000
        yield "ab" * 210_000
        yield "\u4e2d" * 25_001 + "\u0301" * 25_001
        yield ("word " * 90_000)[:405_003]


def check_equal(kind, inputs, got, wanted):
    if len(got) != len(wanted):
        sys.exit(f"{kind}: {len(wanted)} answers wanted, got {len(got)}")
    bad = [i for i in range(len(wanted)) if got[i] != wanted[i]]
    for i in bad[:5]:
        print(f"{kind} {i}: input {inputs[i]!r:.300}\n  wanted {wanted[i]!r:.300}\n  got    {got[i]!r:.300}")
    if bad:
        sys.exit(f"{kind}: {len(bad)} of {len(wanted)} differ")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("KERN_SEED", "1")))
    args = parser.parse_args()
    try:
        import tiktoken
    except ImportError:
        print("python3 has no tiktoken")
        sys.exit(1 if os.environ.get("KERN_REQUIRE_PYTHON") == "1" else 77)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        subprocess.run([args.program, "train", name, "3000"], check=True)
        encoding = load_encoding(tiktoken, folder)
        corpus = pathlib.Path(__file__).parents[2] / "k3/tokenizer/corpus"
        words = [word for file in sorted(corpus.glob("*.txt")) for word in file.read_text().split()]
        strings = Strings(args.seed, words, sorted(encoding.special_tokens_set))
        texts = [strings.text().encode() for _ in range(args.count * 4 // 5)]
        texts += [strings.broken() for _ in range(args.count - len(texts))]
        texts += [text.encode() for text in strings.long_texts()]
        wanted = [expected_ids(encoding, text.decode(errors="replace")) for text in texts]
        raw = pipe(args.program, "encode", folder, [(text, 1) for text in texts])
        check_equal("encode", texts, [ids_of(item) for item in read_items(raw, 4)], wanted)

        lists = [[strings.random.randrange(encoding.n_vocab) for _ in range(strings.random.randrange(12))]
                 for _ in range(2_000)]
        raw = pipe(args.program, "decode", folder, [(struct.pack(f"<{len(ids)}i", *ids), 4) for ids in lists])
        check_equal("decode", lists, [item.decode() for item in read_items(raw, 1)],
                    [encoding.decode(ids, errors="replace") for ids in lists])
        tokens = sum(map(len, wanted))
        print(f"equal: {len(texts)} strings, {tokens} ids, {len(lists)} id lists, tiktoken {tiktoken.__version__}")


if __name__ == "__main__":
    main()
