"""Plain version 7 manifests are judged as PyPI's kern-llm judges them.

Every base manifest is mutated by seed, and each of its values put at the edge of its type; both sides must accept or refuse each mutant, and where the
other one names what it refuses, so must ours. `kern_llm_exceptions.json` lists what is known to
differ and why; an exception that no mutant needs fails the test.
"""
import collections
import contextlib
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import unittest

import kern

from mutants import edges, mutant

SOURCE = pathlib.Path(os.environ["KERN_SOURCE_DIR"])
HERE = SOURCE / "tests/oracle"
KERN = pathlib.Path(os.environ["KERN_BUILD_DIR"]) / "bin/kern"
BASES = sorted((HERE / "manifests").glob("*.json"))
MUTANTS = 840  # of each base
CHUNK = 500  # files of one `kern verify`

SECTIONS = {"op": "ops", "state": "states", "buffer": "buffers", "var": "vars",
            "program": "programs", "module": "modules", "group": "topology"}


@contextlib.contextmanager
def quiet_stderr():
    """A panic for want of a driver prints before it is raised."""
    kept, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(null)


def judge(path):
    """What kern-llm says against the manifest; None when it goes on to look for a driver."""
    try:
        kern.Runtime(str(path), str(path.parent), [], 0)
    except ValueError as refusal:
        return str(refusal)
    except BaseException as later:  # a panic is no Exception
        if isinstance(later, (KeyboardInterrupt, SystemExit)):
            raise
        if not re.search("libcuda|this rank's place", str(later)):
            raise
    return None


def ours(paths):
    out = []
    for i in range(0, len(paths), CHUNK):
        done = subprocess.run([KERN, "verify", "--json", *paths[i:i + CHUNK]], text=True,
                              capture_output=True)
        out += json.loads(done.stdout)["files"]
    return out


def objects_theirs(refusal):
    found = re.findall(r"^  - (\w+) `([^`]+)`", refusal, re.M)
    objects = {(SECTIONS[kind], name) for kind, name in found if kind in SECTIONS}
    objects |= {("topology", name) for name in re.findall(r"(?:group|members of) `([^`]+)`", refusal)}
    return objects | ({("schema_version",)} if "unsupported schema_version" in refusal else set())


def objects_ours(problems):
    found = set()
    for problem in problems:
        parts = [p.replace("~1", "/").replace("~0", "~") for p in problem["pointer"].split("/")[1:]]
        if parts[:2] == ["topology", "groups"]:
            parts = ["topology", *parts[2:]]
        found.add(tuple(parts[:2]))
    return found


class Exceptions:
    def __init__(self, path):
        self.known = json.loads(path.read_text())
        self.used = collections.Counter()

    def cover(self, theirs, problems):
        """Whether one exception explains every word said by the side that refuses."""
        side = "theirs" if problems == [] else "ours"
        lines = theirs.splitlines()[2:] if side == "theirs" else [
            f"{p['pointer']}: {p['sentence']}" for p in problems]
        for i, known in enumerate(self.known):
            if known["refused_by"] == side and all(re.search(known["says"], l) for l in lines):
                self.used[i] += 1
                return True
        return False


def sample_of(known):
    text = (SOURCE / known["sample"]).read_text()
    if "change" in known:
        before, after = known["change"]
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    return text


class KernLlmTest(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        folder = pathlib.Path(cls.folder.name)
        cls.cases = []
        texts = [(f"{b.name} whole", b.read_text()) for b in BASES]
        for base in BASES:
            manifest = json.loads(base.read_text())
            for seed in range(MUTANTS):
                name = f"{base.name} {seed}"
                texts.append((name, mutant(manifest, random.Random(name))))
            texts += [(f"{base.name} {where}", text) for where, text in edges(manifest)]
        exceptions = HERE / "kern_llm_exceptions.json"
        cls.exceptions = Exceptions(exceptions)
        for known in cls.exceptions.known:
            if "sample" in known:
                texts.append((f"sample: {known['why']}", sample_of(known)))
        paths = []
        with quiet_stderr():
            for i, (name, text) in enumerate(texts):
                paths.append(folder / f"{i}.json")
                paths[-1].write_text(text)
                cls.cases.append([name, judge(paths[-1])])
        for case, answer in zip(cls.cases, ours(paths), strict=True):
            case.append(answer["problems"])

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_the_judge_is_the_version_that_was_read(self):
        self.assertEqual(kern.__version__, "0.3.1")

    def test_the_bases_are_right_and_their_mutants_are_of_both_kinds(self):
        self.assertGreaterEqual(len(BASES), 6)
        self.assertGreaterEqual(len(self.cases), 5000)
        for name, theirs, problems in self.cases[:len(BASES)]:
            self.assertEqual((theirs, problems), (None, []), name)
        accepted = sum(theirs is None for _, theirs, _ in self.cases)
        self.assertGreater(accepted, 500)
        self.assertGreater(len(self.cases) - accepted, 3000)

    def test_both_accept_or_both_refuse(self):
        apart = [f"{name}: theirs: {theirs}; ours: {problems}"
                 for name, theirs, problems in self.cases
                 if (theirs is None) != (problems == [])
                 and not self.exceptions.cover(theirs, problems)]
        self.assertEqual(apart, [])
        unused = [known["why"] for i, known in enumerate(self.exceptions.known)
                  if i not in self.exceptions.used]
        self.assertEqual(unused, [])

    def test_a_refusal_names_what_the_judge_names(self):
        compared, apart = 0, []
        for name, theirs, problems in self.cases:
            wanted = objects_theirs(theirs or "")
            if not wanted or not problems:
                continue
            compared += 1
            if not wanted & objects_ours(problems):
                apart.append(f"{name}: theirs: {theirs}; ours: {problems}")
        self.assertEqual(apart, [])
        self.assertGreater(compared, 500)


if __name__ == "__main__":
    sys.path.insert(0, str(SOURCE / "tests/e2e"))
    import run
    run.main()
