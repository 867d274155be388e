"""What the printed schema accepts the reader reads, and what it refuses the reader refuses.

The schema is `kern schema`, judged by PyPI's jsonschema; the reader is `kern verify --parse-only`.
Both see seeded mutants of every base manifest, and a manifest that has one of everything with a value
of every type in every kind of place. `schema_exceptions.json` lists what a schema cannot
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

from mutants import at, mutant, nodes_of

SOURCE = pathlib.Path(os.environ["KERN_SOURCE_DIR"])
HERE = SOURCE / "tests/oracle"
KERN = pathlib.Path(os.environ["KERN_BUILD_DIR"]) / "bin/kern"
FIXTURES = SOURCE / "tests/manifest/fixtures"
RICH = FIXTURES / "base.json"  # has one of everything
BASES = sorted((HERE / "manifests").glob("*.json")) + [RICH, FIXTURES / "pipe.json"]
MUTANTS = 260  # of each base
CHUNK = 500  # files of one `kern verify`

VALUES = [None, True, -1, -2**40, 0.5, 2**63, "", "extern:x", "heads", [], [0, 0], [0] * 4, {}, {"": 1},
          {"mul": ["x", 2]}]
CUT = {"id": "x", "stage": 0, "stages": 2}
NAMED = {"constants", "vars", "groups", "states", "buffers", "modules", "ops", "programs", "scratch"}
MANY = NAMED | {"calls", "args", "launches", "params", "fields", "bind"}


def kind_of(path, value):
    """The path with names and positions left out, and what stands there."""
    kind = tuple("#" if isinstance(k, int) or (i and path[i - 1] in NAMED) else k
                 for i, k in enumerate(path))
    return kind, tuple(sorted(value)) if isinstance(value, dict) else type(value)


def slim(node, path, seen):
    """Leaves out what has nothing in it of a kind that was not seen yet."""
    if not isinstance(node, (dict, list)):
        return node
    is_dict, kept = isinstance(node, dict), {}
    for key, value in node.items() if is_dict else enumerate(node):
        here = path + (key,)
        kinds = {kind_of(here + p, v) for p, v in nodes_of(value)}
        if path and path[-1] in MANY and kinds <= seen:
            continue
        kept[key] = slim(value, here, seen)
        seen |= kinds
    return kept if is_dict else list(kept.values())


def everywhere(base):
    """One place of each kind with every value, left out, and with a key that nothing knows."""
    places = {kind_of(path, value): path for path, value in nodes_of(base) if path}
    for path in places.values():
        for value in VALUES:
            changed = copy.deepcopy(base)
            at(changed, path[:-1])[path[-1]] = value
            yield f"{path} is {value}", changed
        changed = copy.deepcopy(base)
        del at(changed, path[:-1])[path[-1]]
        yield f"{path} is left out", changed
        for key in ("zz", "offset") if isinstance(at(base, path), dict) else ():
            changed = copy.deepcopy(base)
            at(changed, path)[key] = 0
            yield f"{path} has {key}", changed


def texts_of_bases():
    for base in BASES:
        manifest = json.loads(base.read_text())
        yield f"{base.name} whole", base.read_text()
        for seed in range(MUTANTS):
            name = f"{base.name} {seed}"
            yield name, mutant(manifest, random.Random(name))
    for name, changed in everywhere(slim({**json.loads(RICH.read_text()), "cut": CUT}, (), set())):
        yield name, json.dumps(changed)


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
        texts = list(texts_of_bases())
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
