"""The trained model's arithmetic against the numpy reference, its files, and its resuming. Needs
torch and numpy; run by hand (k3/nano/README.md)."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import nano

os.environ["OMP_NUM_THREADS"] = "1"  # also of the processes started here; more spin on a busy machine
os.environ["TRITON_INTERPRET"] = "1"  # the kernels run in Python
sys.path.insert(0, str(nano.ROOT / "tests/oracle"))
import numpy as np  # noqa: E402
import torch  # noqa: E402

import checkpoint_files  # noqa: E402
import k3_reference  # noqa: E402
import delta  # noqa: E402
import delta_kernels  # noqa: E402
import model  # noqa: E402
import shapes  # noqa: E402
import mxfp4  # noqa: E402
import release  # noqa: E402
import text  # noqa: E402

CONFIGS = [nano.ROOT / "k3/configs/k3-nano.json", nano.ROOT / "tests/oracle/configs/broad.json",
           nano.ROOT / "tests/oracle/configs/deep.json"]


def checkpoint_of(config, folder, seed=3):
    subprocess.run([str(nano.BUILD / "bin/k3-checkpoint"), "--config", str(config), "--seed", str(seed),
                    "-o", str(folder)], check=True, timeout=120)


def distance(x, truth):
    return float(np.sqrt(np.sum((x - truth) ** 2) / np.sum(truth ** 2)))


def middle(x, truth):
    """The relative distance of the median row: two experts whose scores nearly tie may swap under any
    rounding, and such a row says nothing (tests/oracle/README.md)."""
    return float(np.median(np.linalg.norm(x - truth, axis=-1) / np.linalg.norm(truth, axis=-1)))


def short_config():
    """k3-nano in five layers: a dense one, both kinds of attention, two residual blocks."""
    raw = json.loads(CONFIGS[0].read_text())
    raw["text_config"]["num_hidden_layers"] = 5
    raw["text_config"]["linear_attn_config"] |= {"full_attn_layers": [4, 5], "kda_layers": [1, 2, 3]}
    return json.dumps(raw)


class Scratch(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)


class Arithmetic(Scratch):
    def test_logits_of_padded_batches_are_the_references(self):
        for config in CONFIGS:
            folder = self.folder / config.stem
            checkpoint_of(config, folder)
            reference = k3_reference.Model.load(folder)
            c = shapes.read_config(config)
            tensors = release.read(folder, c)
            rng = np.random.default_rng(1)
            rows = [rng.integers(0, c.vocab, n) for n in (1, 17, 64, 65, 150)]
            padded = torch.zeros(len(rows), 150, dtype=torch.long)
            for i, row in enumerate(rows):
                padded[i, :len(row)] = torch.tensor(row)
            truth = [reference.forward(row).logits for row in rows]
            for dtype, limit in ((torch.float64, 1e-9), (torch.float32, 1e-4)):
                with torch.no_grad():
                    logits = model.Model(c, tensors, dtype)(padded).double().numpy()
                for i, row in enumerate(rows):
                    found = distance(logits[i, :len(row)], truth[i])
                    print(f"  {config.stem} {dtype} {len(row)} tokens: {found:.1e}")
                    self.assertLess(found, limit)

    def test_the_delta_rule_in_chunks_is_the_rule_token_by_token_at_every_decay(self):
        rng = np.random.default_rng(2)
        t, h, d = 200, 4, 16
        q, k, v = (rng.normal(size=(t, h, d)) for _ in range(3))
        k /= np.linalg.norm(k, axis=-1, keepdims=True)
        k[50:90] = k[50]  # one key again and again
        beta = rng.uniform(0, 1, (t, h))
        g = -5 * rng.uniform(0, 1, (t, h, d)) ** np.array([0.01, 1, 4, 60])[:, None]
        truth, _ = k3_reference.Model.delta_rule(None, q, k, v, g, beta)
        for dtype, limit in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
            given = [torch.tensor(x, dtype=dtype)[None] for x in (q, k, v, g, beta)]
            self.assertLess(distance(delta.delta_rule(*given)[0].double().numpy(), truth), limit)

    def test_the_kernels_are_the_rule_and_its_gradients(self):
        generator = torch.Generator().manual_seed(0)
        t, h, d = 160, 2, 32
        q, k, v, do = (torch.randn(t, h, d, generator=generator) for _ in range(4))
        k = k / k.norm(dim=-1, keepdim=True)
        k[70:90] = k[70]
        g = -5 * torch.rand(t, h, d, generator=generator) ** torch.tensor([0.5, 40.0])[None, :, None]
        beta = torch.rand(t, h, generator=generator)
        given = [x.requires_grad_() for x in (q, k, v, g, beta)]
        starts = torch.tensor([0, 1, 1, 5], dtype=torch.int32)  # chunks of three sequences, one empty
        o = delta_kernels.DeltaRule.apply(*given, starts, 16)
        plain = [x.detach().double().requires_grad_() for x in given]
        truth = torch.cat([delta.delta_rule(*(x[None] for x in part))[0]
                           for part in zip(*(x.split([32, 128]) for x in plain))])
        found = [o, *torch.autograd.grad(o, given, do)]
        wanted = [truth, *torch.autograd.grad(truth, plain, do.double())]
        for name, x, y in zip(("o", "q", "k", "v", "g", "beta"), found, wanted):
            self.assertLess(distance(x.detach().double().numpy(), y.detach().numpy()), 2e-6, name)

    def test_gradients_are_finite_and_those_of_differences(self):
        (self.folder / "config.json").write_text(short_config())
        c = shapes.read_config(self.folder / "config.json")
        tensors = shapes.begin(c, 1)
        for name, tensor in tensors.items():  # a query of zeros gives its norm no gradient
            if name.endswith("res_proj.weight"):
                tensor += 0.3 * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(3))
        net = model.Model(c, tensors, torch.float64)
        tokens = torch.randint(0, c.vocab, (2, 70), generator=torch.Generator().manual_seed(1))

        def loss():
            return torch.nn.functional.cross_entropy(net(tokens)[:, :-1].flatten(0, 1),
                                                     tokens[:, 1:].flatten())
        loss().backward()
        for name, p in net.tensors.items():
            # The first layer has nothing to mix.
            if p.requires_grad and "layers/0/self_attention_res" not in name:
                self.assertTrue(torch.isfinite(p.grad).all(), name)
                self.assertGreater(p.grad.abs().max().item(), 0, name)
        for name in ("model.layers.1.self_attn.dt_bias", "model.layers.0.self_attn.A_log",
                     "model.layers.3.self_attn.kv_b_proj.weight", "model.layers.4.mlp_res_proj.weight",
                     "model.layers.2.self_attn.k_conv1d.weight", "model.norm.weight"):
            p = net.of(name)
            way = torch.randn(p.shape, generator=torch.Generator().manual_seed(2), dtype=p.dtype)
            sides = []
            for step in (1e-6, -2e-6):
                with torch.no_grad():
                    p += step * way
                    sides.append(loss().item())
            with torch.no_grad():
                p += 1e-6 * way
            slope = (sides[0] - sides[1]) / 2e-6
            self.assertLess(abs(slope - (p.grad * way).sum().item()), 1e-3 * abs(slope) + 1e-7, name)

    def test_fake_quantisation_is_what_is_packed(self):
        w = torch.randn(64, 96, generator=torch.Generator().manual_seed(1)) * 0.1
        w[0, :32] = 0
        w[1, 0] = 3.0
        packed, scale = mxfp4.pack(w)
        theirs = checkpoint_files.unpack_mxfp4(packed.numpy(), scale.numpy())
        self.assertTrue(np.array_equal(theirs, mxfp4.fake(w).double().numpy()))
        self.assertTrue(torch.equal(mxfp4.fake(mxfp4.fake(w)), mxfp4.fake(w)))
        self.assertLess((mxfp4.fake(w) - w).abs().max() / w.abs().max(), 1 / 6 + 1e-6)
        every = mxfp4.unpack(torch.arange(256, dtype=torch.uint8).reshape(16, 16),
                             torch.full((16, 1), 120, dtype=torch.uint8))
        self.assertTrue(torch.equal(mxfp4.fake(every), every))


class Files(Scratch):
    def test_what_is_written_is_loaded_by_kern_and_gives_the_same_logits(self):
        config = self.folder / "config.json"
        config.write_text(short_config())
        c = shapes.read_config(config)
        checkpoint_of(config, self.folder / "given")
        tensors = shapes.begin(c, 5)
        generator = torch.Generator().manual_seed(9)
        for name, tensor in tensors.items():
            if name.endswith(("res_proj.weight", "A_log")):
                tensor += 0.1 * torch.randn(tensor.shape, generator=generator)
            if name.endswith("correction_bias"):  # choices that rounding seldom turns
                tensor += 2 * torch.randn(tensor.shape, generator=generator)
        out = self.folder / "written"
        release.write(out, c, tensors, config.read_text())
        given, written = (set(release_names(f)) for f in (self.folder / "given", out))
        self.assertEqual(given, written)
        for file in ("tiktoken.model", "tokenizer_config.json"):
            (out / file).write_bytes((self.folder / "given" / file).read_bytes())
        tokens = np.random.default_rng(4).integers(0, c.vocab, 90)
        reference = k3_reference.Model.load(out)
        truth = reference.forward(tokens).logits
        read = release.read(out, c)
        with torch.no_grad():
            ours = model.Model(c, read, torch.float64)(torch.tensor(tokens)[None])[0].numpy()
            half = model.Model(c, read, torch.bfloat16)(torch.tensor(tokens)[None])[0].double().numpy()
        self.assertLess(distance(ours, truth), 1e-9)
        rounded = reference.forward(tokens, k3_reference.BF16).logits
        one, ids, found = self.folder / "one.json", self.folder / "ids", self.folder / "logits.npy"
        ids.write_text(" ".join(map(str, tokens)))
        for command in (["k3-gen", "one-rank", "--config", out / "config.json", "-o", one],
                        ["kern", "run", one, "--weights", out, "--tokens", ids, "--via", "decode",
                         "--logits", found]):
            subprocess.run([str(nano.BUILD / "bin" / command[0]), *map(str, command[1:])], check=True,
                           timeout=120)
        unit, kern = middle(rounded, truth), middle(np.load(found).astype(np.float64), truth)
        print(f"  to float64: kern {kern:.2e}, torch bf16 {middle(half, truth):.2e}, rounding {unit:.2e}")
        self.assertLess(unit, 0.05)
        self.assertLess(kern, 1.5 * unit)
        self.assertLess(middle(half, truth), 1.5 * unit)


class Resuming(Scratch):
    def setUp(self):
        super().setUp()
        self.config = self.folder / "config.json"
        self.config.write_text(short_config())

    def run_steps(self, folder, minutes="9", steps=4):
        """Exit code of one piece of a run of a tiny model on the CPU, in a process of its own."""
        done = subprocess.run(
            [sys.executable, str(nano.ROOT / "k3/nano/train/train.py"), "--config", str(self.config),
             "--tokenizer", str(self.folder / "tokenizer"), "--run", str(self.folder / folder), "--steps",
             str(steps), "--minutes", minutes, "--device", "cpu", "--dtype", "f32", "--tokens", "1024",
             "--judge", "0", "--workers", "0",
             "--export", str(self.folder / folder / "export")],
            capture_output=True, text=True, timeout=280, check=False)
        self.assertIn(done.returncode, (0, 1, 3), done.stderr)
        return done

    def test_a_run_in_pieces_is_the_run_in_one_to_the_bit(self):
        corpus = "\n".join(text.plain(text.conversation(7, i).request()) for i in range(300))
        nano.train_vocabulary(self.folder / "tokenizer", 1024, corpus)
        whole = self.run_steps("whole")
        self.assertEqual(whole.returncode, 0, whole.stderr)
        codes = [self.run_steps("pieces", minutes="0").returncode for _ in range(4)]
        self.assertEqual(codes, [3, 3, 3, 0])
        one, other = (torch.load(self.folder / f / "state.pt", weights_only=True)
                      for f in ("whole", "pieces"))
        self.assertEqual((one["step"], other["step"]), (4, 4))
        self.assertEqual(set(one["tensors"]), {"values", "momentum", "mean", "square", "biases"})
        for name, tensor in one["tensors"].items():
            self.assertTrue(torch.equal(tensor, other["tensors"][name]), name)
            self.assertGreater(tensor.abs().max().item(), 0, name)
        files = sorted(p.name for p in (self.folder / "whole/export").iterdir())
        self.assertIn("tiktoken.model", files)
        for file in files:
            self.assertEqual((self.folder / "whole/export" / file).read_bytes(),
                             (self.folder / "pieces/export" / file).read_bytes(), file)
        refused = self.run_steps("pieces", steps=5)
        self.assertEqual(refused.returncode, 1)
        self.assertIn("begun with", refused.stderr)
        nano.train_vocabulary(self.folder / "tokenizer", 1000, corpus)
        refused = self.run_steps("pieces")
        self.assertEqual(refused.returncode, 1)
        self.assertIn("'text': ", refused.stderr)


def release_names(folder):
    """(name, type, shape) of every tensor of the text model in a folder."""
    for shard in sorted(pathlib.Path(folder).glob("*.safetensors")):
        data = shard.read_bytes()
        for name, entry in json.loads(data[8:8 + int.from_bytes(data[:8], "little")]).items():
            if name != "__metadata__":
                yield name, entry["dtype"], tuple(entry["shape"])


if __name__ == "__main__":
    nano.main()
