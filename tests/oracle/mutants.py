"""Manifests with one or two seeded changes, or with one value at the edge of its type."""
import copy
import json
import random

WORDS = [
    "rows", "groups", "ranks", "input", "output", "inout", "weight", "source", "workspace", "carry",
    "peer", "bf16", "f32", "i32", "i64", "u8", "u64", "fp8e4m3", "token", "position", "slot",
    "seq_len", "cu_seqlens", "blocks", "tokens", "count", "error", "valid", "in buffer<bf16>",
    "out buffer<f32>", "inout state", "in state", "bytes<16>", "position", "heads", "host", "device"]
VALUES = [
    0, 1, -1, 2, 3, 7, 64, 255, 256, 1024, 1025, 65535, 65536, 2**31 - 1, 2**31, 2**32, 2**40,
    0.5, -0.5, "", "x", None, True, False, [], {}]
KEYS = [
    "axis", "fill", "domain", "export", "of", "group", "placement", "offset", "when", "pdl",
    "cluster", "shard", "bytes", "monotone", "once", "derive", "graph", "batch", "label", "algo",
    "stride", "interleave"]


def nodes_of(node, path=()):
    yield path, node
    items = node.items() if isinstance(node, dict) else (
        enumerate(node) if isinstance(node, list) else ())
    for key, value in items:
        yield from nodes_of(value, path + (key,))


def at(node, path):
    for key in path:
        node = node[key]
    return node


def rename(parent, old, new):
    items = [(new if k == old else k, v) for k, v in parent.items() if k != new]
    parent.clear()
    parent.update(items)


def other_number(value, rng):
    return rng.choice([value + 1, value - 1, value * 2, value // 2, -value, value + .5, value * 1024])


def names_of(manifest):
    sections = (manifest.get(s) for s in ("vars", "states", "buffers", "modules", "ops", "programs"))
    return [name for s in sections if isinstance(s, dict) for name in s] or ["x"]


def change(manifest, rng):
    """Changes one place: drops it, doubles it, or puts something else there."""
    nodes = [(p, v) for p, v in nodes_of(manifest) if p]
    if not nodes:
        return
    section = rng.choice(list(manifest))
    nodes = [(p, v) for p, v in nodes if p[0] == section]
    path, value = rng.choice(nodes)
    parent, key = at(manifest, path[:-1]), path[-1]
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    kind = rng.randrange(9)
    if kind == 0:
        del parent[key]
    elif kind == 1 and isinstance(parent, list):
        parent.insert(key, copy.deepcopy(value))
    elif kind in (1, 2) and isinstance(parent, dict):
        new = rng.choice(nodes)[1] if rng.random() < .5 else rng.choice(VALUES)
        parent[rng.choice(KEYS)] = copy.deepcopy(new)
    elif kind == 2:
        parent.append(rng.choice(VALUES))
    elif kind == 4 and number:
        parent[key] = other_number(value, rng)
    elif kind == 5 and isinstance(value, str):
        parent[key] = rng.choice(names_of(manifest))
    elif kind == 6 and isinstance(value, str):
        parent[key] = rng.choice(WORDS)
    elif kind == 7:
        same = [v for _, v in nodes if type(v) is type(value) and v != value]
        parent[key] = copy.deepcopy(rng.choice(same)) if same else rng.choice(VALUES)
    elif kind == 8 and isinstance(parent, dict):
        rename(parent, key, rng.choice(list(parent) + ["zz"]))
    else:
        parent[key] = rng.choice(VALUES)


def edges(base):
    """Every value of a manifest once at the edge of its type: no text, zero, the largest integer, a list of zero."""
    for path, value in nodes_of(base):
        kind = type(value)
        for edge in {str: [""], int: [0, 2**63 - 1], float: [0], list: [[0]]}.get(kind, []):
            if path and edge != value:
                manifest = copy.deepcopy(base)
                at(manifest, path[:-1])[path[-1]] = edge
                yield "/".join(map(str, path)), json.dumps(manifest)


def mutant(base, rng):
    manifest = copy.deepcopy(base)
    for _ in range(1 if rng.random() < .8 else 2):
        change(manifest, rng)
    return json.dumps(manifest)
