"""What the tests of k3/nano share: where things lie, and the project's tokenizer behind a pipe."""
import os
import pathlib
import struct
import subprocess
import sys
import unittest

ROOT = pathlib.Path(os.environ.get("KERN_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
BUILD = pathlib.Path(os.environ.get("KERN_BUILD_DIR", ROOT / "build"))
sys.path[:0] = [str(ROOT / "k3/nano"), str(ROOT / "k3/nano/train")]


def tokenize(command, folder, strings):
    """Ids of each string by `text-tokenize encode` or of each request by `render`."""
    data = b"".join(struct.pack("<I", len(s)) + s for s in (t.encode() for t in strings))
    done = subprocess.run([str(BUILD / "bin/text-tokenize"), command, str(folder)], input=data,
                          capture_output=True, timeout=120, check=False)
    if done.returncode != 0:
        raise AssertionError(done.stderr.decode())
    out, at = [], 0
    while at < len(done.stdout):
        count, = struct.unpack_from("<I", done.stdout, at)
        out.append(list(struct.unpack_from(f"<{count}i", done.stdout, at + 4)))
        at += 4 + 4 * count
    return out


def train_vocabulary(folder, size, corpus):
    """A vocabulary of `size` base tokens trained on `corpus`, by the project's trainer."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "corpus.txt").write_text(corpus)
    subprocess.run([str(BUILD / "bin/text-tokenize"), "train", str(folder), str(size),
                    str(folder / "corpus.txt")], check=True, timeout=120)


def main():
    result = unittest.main(module="__main__", exit=False, verbosity=2).result
    bad = len(result.failures) + len(result.errors)
    ran = result.testsRun - len(result.skipped)
    sys.stderr.flush()
    print(f"{ran - bad} passed, {bad} failed, {len(result.skipped)} skipped")
    sys.exit(1 if bad or not ran else 0)
