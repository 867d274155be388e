"""What the printed schema accepts the reader reads, and what it refuses the reader refuses.

The schema is `kern schema`, judged by PyPI's jsonschema; the reader is `kern verify --parse-only`.
Both see seeded mutants of every base manifest, small documents with every property, alternative and
word that the schema has, and those with values of every type and size in each of these places. `schema_exceptions.json` lists what a schema cannot
say and why; an exception that no manifest needs fails the test.
"""
import collections
import copy
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import unittest

import jsonschema

import schema_samples
from mutants import at, mutant

SOURCE = pathlib.Path(os.environ["KERN_SOURCE_DIR"])
HERE = SOURCE / "tests/oracle"
KERN = pathlib.Path(os.environ["KERN_BUILD_DIR"]) / "bin/kern"
FIXTURES = SOURCE / "tests/manifest/fixtures"
BASES = sorted((HERE / "manifests").glob("*.json")) + [
    FIXTURES / "base.json", FIXTURES / "pipe.json", FIXTURES / "series.json"]
MUTANTS = 260  # of each base
CHUNK = 500  # files of one `kern verify`

VALUES = [None, True, -1, 0.5, 256, 2**16, 2**31, 2**32, 2**63, -2**31 - 1, -2**63 - 1, "", "x", "ONE",
          "extern:x", "heads", [], [0, 0], [0] * 4, {}, {"": 1}, {"mul": ["x", 2]}]


def wrong(path, document):
    """The document with something else at that place, without it, and with more beside it."""
    for value in VALUES:
        changed = copy.deepcopy(document)
        at(changed, path[:-1])[path[-1]] = value
        yield f"is {value}", changed
    changed = copy.deepcopy(document)
    del at(changed, path[:-1])[path[-1]]
    yield "is left out", changed
    for key in ("zz", "offset") if isinstance(path[-1], str) else ():
        changed = copy.deepcopy(document)
        at(changed, path[:-1])[key] = 0
        yield f"stands beside {key}", changed


def texts_of_samples(schema):
    seen = {()}
    yield from ((f"{value} is no manifest", json.dumps(value)) for value in VALUES)
    for i, (path, document) in enumerate(schema_samples.documents(schema)):
        yield f"sample {i} {path} whole", json.dumps(document)
        if path not in seen:
            seen.add(path)
            for how, changed in wrong(path, document):
                yield f"{path} {how}", json.dumps(changed)


def texts_of_bases():
    for base in BASES:
        manifest = json.loads(base.read_text())
        yield f"{base.name} whole", base.read_text()
        for seed in range(MUTANTS):
            name = f"{base.name} {seed}"
            yield name, mutant(manifest, random.Random(name))


def sample_of(known):
    text = (SOURCE / known["sample"]).read_text()
    if "change" in known:
        before, after = known["change"]
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    return text


def read_all(paths):
    """The reader's problems with each."""
    out = []
    for i in range(0, len(paths), CHUNK):
        done = subprocess.run([KERN, "verify", "--parse-only", "--json", *paths[i:i + CHUNK]],
                              text=True, capture_output=True)
        out += [[p["sentence"] for p in f["problems"]] for f in json.loads(done.stdout)["files"]]
    return out


class SchemaTest(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.schema = json.loads(subprocess.run([KERN, "schema"], text=True, check=True,
                                               capture_output=True).stdout)
        validator = jsonschema.Draft202012Validator(cls.schema)
        cls.known = json.loads((HERE / "schema_exceptions.json").read_text())
        texts = [*texts_of_bases(), *texts_of_samples(cls.schema)]
        texts += [(f"sample: {known['why']}", sample_of(known))
                  for known in cls.known if "sample" in known]
        with tempfile.TemporaryDirectory() as folder:
            paths = [pathlib.Path(folder) / f"{i}.json" for i in range(len(texts))]
            for path, (_, text) in zip(paths, texts):
                path.write_text(text)
            problems = read_all(paths)
        cls.cases = [(name, validator.is_valid(json.loads(text)), said)
                     for (name, text), said in zip(texts, problems, strict=True)]

    def test_the_schema_is_one(self):
        jsonschema.Draft202012Validator.check_schema(self.schema)

    def test_the_bases_are_well_formed_and_their_mutants_of_both_kinds(self):
        self.assertGreaterEqual(len(BASES), 6)
        self.assertGreaterEqual(len(BASES) * MUTANTS, 2000)
        self.assertGreater(sum(name.startswith("sample ") for name, _, _ in self.cases), 300)
        wholes = [case for case in self.cases if case[0].endswith(" whole")]
        self.assertEqual([case for case in wholes if case[1:] != (True, [])], [])
        read_whole = sum(said == [] for _, _, said in self.cases)
        self.assertGreater(read_whole, 500)
        self.assertGreater(len(self.cases) - read_whole, 2000)

    def test_both_accept_or_both_refuse(self):
        used, apart = collections.Counter(), []
        for name, valid, said in self.cases:
            if valid == (said == []):
                continue
            side = "reader" if valid else "schema"
            covers = [[i for i, known in enumerate(self.known) if known["refused_by"] == side
                       and re.search(known["says"], line)] for line in said or [name]]
            used.update(i for found in covers for i in found)
            if not all(covers):
                apart.append(f"{name}: schema accepts: {valid}; reader says: {said}")
        self.assertEqual(apart, [])
        self.assertEqual([k["why"] for i, k in enumerate(self.known) if i not in used], [])


if __name__ == "__main__":
    sys.path.insert(0, str(SOURCE / "tests/e2e"))
    import run
    run.main()
