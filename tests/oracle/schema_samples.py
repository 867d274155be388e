"""Small documents that a manifest's JSON Schema describes: every property, alternative and word once.

Only for schemas of the keywords that `kern schema` writes; any other is an error.
"""
import re

TEXTS = ["x", "position", "i32", "bytes<8>", "inout state", "in buffer<bf16>"]
PLAIN = {"null": [None], "boolean": [True, False], "number": [0.5, -1], "string": ["x"]}
CONSTANT = "ONE"  # a constant of every document, within every integer's bounds


class Samples:
    def __init__(self, schema):
        self.defs = schema["$defs"]
        self.met = set()

    def of(self, schema):
        """(where, value) of each sample: the place it is about, and the whole."""
        if "$ref" in schema:
            name = schema["$ref"].removeprefix("#/$defs/")
            if name in self.met:
                yield (), self.least(schema)
            else:
                self.met.add(name)
                yield from self.of(self.defs[name])
        elif "anyOf" in schema:
            for one in schema["anyOf"]:
                yield from self.of(one)
        elif "if" in schema:
            (key, word), = schema["if"]["properties"].items()
            for path, value in self.of(schema["else"]):
                if not re.search(word["pattern"], value[key]):
                    yield path, value
            for path, value in self.of(schema["then"]):
                yield path, {**value, key: word["pattern"].removeprefix("^")}
        elif schema.get("type") == "object":
            yield from self.of_object(schema)
        elif schema.get("type") == "array":
            yield from self.of_array(schema)
        else:
            yield from (((), value) for value in self.of_words(schema))

    def of_object(self, schema):
        least = self.least(schema)
        yield (), least
        for key, value in schema.get("properties", {"x": schema["additionalProperties"]}).items():
            exclusive = {one["required"][0] for one in schema.get("oneOf", [])}
            others = {k: v for k, v in least.items() if key not in exclusive or k not in exclusive}
            for path, sample in self.of(value):
                if key in exclusive and sample is None:
                    continue  # stands for nothing
                yield (key, *path), {**others, key: sample}

    def of_array(self, schema):
        yield (), self.least(schema)
        elements = schema.get("prefixItems") or [schema["items"]] * max(schema.get("minItems", 0), 1)
        least = [self.least(one) for one in elements]
        for i, one in enumerate(elements):
            for path, sample in self.of(one):
                yield (i, *path), [*least[:i], sample, *least[i + 1:]]

    def of_words(self, schema):
        if "const" in schema:
            return [schema["const"]]
        if "enum" in schema:
            return schema["enum"]
        types = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
        if "pattern" in schema:
            return [text for text in TEXTS if re.search(schema["pattern"], text)]
        if "integer" in types:
            return [schema["minimum"], schema["maximum"], CONSTANT]
        if types == ["number", "string"]:
            return [*PLAIN["number"], CONSTANT]
        return PLAIN[schema["type"]]

    def least(self, schema):
        """The first value that comes to mind."""
        if "$ref" in schema:
            return self.least(self.defs[schema["$ref"].removeprefix("#/$defs/")])
        if "anyOf" in schema:
            return self.least(min(schema["anyOf"], key=lambda one: "$ref" in one))
        if "if" in schema:
            return self.least(schema["else"])
        if schema.get("type") == "array":
            elements = schema.get("prefixItems", [schema.get("items")] * schema.get("minItems", 0))
            return [self.least(one) for one in elements]
        if schema.get("type") != "object":
            return self.of_words(schema)[0]
        keys = schema.get("required", []) + [
            key for one in schema.get("oneOf", [])[:1] for key in one["required"]]
        return {key: self.least(schema["properties"][key]) for key in keys}


def documents(schema):
    """(where, document) of each sample of the whole."""
    for path, document in Samples(schema).of(schema):
        yield path, {**document, "constants": {CONSTANT: 1, **document.get("constants", {})}}
