"""Checkpoints in the release's form: tensor names, types and one shard a layer."""
import json
import pathlib

import torch

import mxfp4
from shapes import shapes

PREFIX = "language_model."
F32 = ("conv1d.weight", "A_log", "dt_bias", "o_norm.weight", "e_score_correction_bias")
TYPES = {"BF16": torch.bfloat16, "F32": torch.float32, "U8": torch.uint8}


def stored(name, tensor):
    """(name, type, tensor) as they lie in a shard; an expert's stack becomes two tensors each."""
    tensor = tensor.detach().float().cpu()
    if ".experts." in name:
        base, matrix = name.rsplit(".", 1)
        for expert, w in enumerate(tensor):
            packed, scale = mxfp4.pack(w)
            yield f"{base}.{expert}.{matrix}.weight_packed", "U8", packed
            yield f"{base}.{expert}.{matrix}.weight_scale", "U8", scale
    elif name.endswith("A_log"):
        padded = torch.zeros(1 << len(tensor).bit_length())
        padded[:len(tensor)] = tensor
        yield name, "F32", padded
    else:
        kind = "F32" if name.endswith(F32) else "BF16"
        yield name, kind, tensor.to(TYPES[kind])


def write_shard(path, entries):
    header, at = {}, 0
    for name, kind, tensor in entries:
        size = tensor.numel() * tensor.element_size()
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for _, _, tensor in entries:
            out.write(tensor.contiguous().view(torch.uint8).numpy().tobytes())


def write(folder, config, tensors, config_json):
    """`tensors`: name -> tensor as the model holds them; the tokenizer's files are not written."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    parts = {}
    for name in shapes(config):
        layer = int(name.split(".")[2]) if name.startswith("model.layers.") else config.layers
        parts.setdefault(layer, []).extend(
            (PREFIX + n, kind, t) for n, kind, t in stored(name, tensors[name]))
    placed, total = {}, 0
    for number, layer in enumerate(sorted(parts), 1):
        file = f"model-{number:05}-of-{len(parts):06}.safetensors"
        write_shard(folder / file, parts[layer])
        placed.update({name: file for name, _, _ in parts[layer]})
        total += sum(t.numel() * t.element_size() for _, _, t in parts[layer])
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": total}, "weight_map": placed}))
    (folder / "config.json").write_text(config_json)


def read(folder, config):
    """The tensors of a checkpoint as the model holds them, f32."""
    folder = pathlib.Path(folder)
    placed = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    found = {}
    for shard in sorted(set(placed.values())):
        data = bytearray((folder / shard).read_bytes())
        size = int.from_bytes(data[:8], "little")
        for name, entry in json.loads(data[8:8 + size]).items():
            if name == "__metadata__" or not name.startswith(PREFIX):
                continue
            first, last = entry["data_offsets"]
            kind = TYPES[entry["dtype"]]
            body = torch.frombuffer(data, dtype=torch.uint8, offset=8 + size + first, count=last - first)
            found[name[len(PREFIX):]] = body.clone().view(kind).reshape(entry["shape"])
    out = {}
    for name, (shape, _) in shapes(config).items():
        if ".experts." in name:
            base, matrix = name.rsplit(".", 1)
            out[name] = torch.stack([
                mxfp4.unpack(found[f"{base}.{e}.{matrix}.weight_packed"],
                             found[f"{base}.{e}.{matrix}.weight_scale"]) for e in range(config.experts)])
        elif name.endswith("A_log"):
            out[name] = found[name][:shape[0]].float()
        else:
            out[name] = found[name].float()
    return out
