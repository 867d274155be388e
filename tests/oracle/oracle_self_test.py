"""Checks the reference against itself: it must hold before anything is compared with it."""
import dataclasses
import functools
import pathlib
import sys
import tempfile
import unittest

import numpy as np

import mistakes
import tiny_model
from checkpoint_files import bf16_to_f64, read_config, read_tensors, unpack_mxfp4
from k3_reference import BF16, EXACT, Model, chunked_delta_rule, round_bf16, to_bf16_bits

TOKENS = np.random.default_rng(7).integers(0, tiny_model.TEXT["vocab_size"], 40)


def rel_rms(x, y):
    return np.sqrt(np.sum((x - y) ** 2) / np.sum(y ** 2))


@functools.cache
def tiny():
    with tempfile.TemporaryDirectory() as folder:
        tiny_model.write(folder, tiny_model.build(seed=3))
        return Model.load(folder)


@functools.cache
def truth():
    return tiny().forward(TOKENS)


class Files(unittest.TestCase):
    def test_a_nested_and_a_flat_config_are_the_same_config(self):
        with tempfile.TemporaryDirectory() as folder:
            tensors = tiny_model.build(seed=1)
            tiny_model.write(folder, tensors)
            nested = read_config(pathlib.Path(folder) / "config.json")
            tiny_model.write(folder, tensors, config=tiny_model.TEXT)
            self.assertEqual(nested, read_config(pathlib.Path(folder) / "config.json"))
            self.assertEqual(nested.full_attention, frozenset({3, 6}))

    def test_a_layer_in_no_list_is_refused(self):
        linear = {**tiny_model.TEXT["linear_attn_config"], "kda_layers": [1, 2, 3, 5]}
        with tempfile.TemporaryDirectory() as folder:
            tiny_model.write(folder, {}, config={**tiny_model.TEXT, "linear_attn_config": linear})
            with self.assertRaises(ValueError):
                read_config(pathlib.Path(folder) / "config.json")

    def test_tensors_come_back_from_their_bytes(self):
        built = tiny_model.build(seed=2)
        with tempfile.TemporaryDirectory() as folder:
            tiny_model.write(folder, built)
            read = read_tensors(folder)
        self.assertEqual(len(read), len(built))
        for name, (dtype, values) in built.items():
            got = read[name[len(tiny_model.PREFIX):]]
            expected = bf16_to_f64(values) if dtype == "BF16" else values
            self.assertTrue(np.array_equal(got, expected), name)

    def test_mxfp4_holds_element_0_in_the_low_nibble(self):
        # 0x2 = 1.0, 0x9 = -0.5, 0x7 = 6, 0xF = -6; scale 128 doubles, 126 halves.
        packed = np.zeros((1, 32), np.uint8)
        packed[0, 0], packed[0, 16] = 0x92, 0xF7
        got = unpack_mxfp4(packed, np.array([[128, 126]], np.uint8))
        self.assertEqual(got.shape, (1, 64))
        self.assertEqual(got[0, :3].tolist(), [2.0, -1.0, 0.0])
        self.assertEqual(got[0, 32:35].tolist(), [3.0, -3.0, 0.0])

    def test_an_mxfp4_scale_of_255_is_nan(self):
        got = unpack_mxfp4(np.zeros((1, 16), np.uint8), np.array([[255]], np.uint8))
        self.assertTrue(np.isnan(got).all())

    def test_bf16_rounds_to_nearest_and_ties_to_even(self):
        ulp = 2.0 ** -7
        cases = [(1.0, 1.0), (1 + 0.5 * ulp, 1.0), (1 + 0.51 * ulp, 1 + ulp),
                 (1 + 1.5 * ulp, 1 + 2 * ulp), (-1 - 1.5 * ulp, -1 - 2 * ulp), (0.0, 0.0)]
        for x, expected in cases:
            self.assertEqual(round_bf16(np.array([x]))[0], expected, x)
        every = np.arange(0x7F80, dtype=np.uint16)
        self.assertTrue(np.array_equal(to_bf16_bits(bf16_to_f64(every)), every))


class Arithmetic(unittest.TestCase):
    def test_the_recurrence_is_its_chunked_form_at_mild_and_at_saturated_decay(self):
        rng = np.random.default_rng(5)
        t, heads, dim = 77, 3, 16
        q, k = (x / np.linalg.norm(x, axis=-1, keepdims=True)
                for x in rng.normal(size=(2, t, heads, dim)))
        v, beta = rng.normal(size=(t, heads, 11)), rng.uniform(0, 1, (t, heads))
        for g in (rng.uniform(-0.05, 0, (t, heads, dim)), rng.uniform(-5, -4, (t, heads, dim)),
                  rng.uniform(-5, 0, (t, heads, dim))):
            o, s = tiny().delta_rule(q, k, v, g, beta)
            o_chunked, s_chunked = chunked_delta_rule(q, k, v, g, beta)
            self.assertLess(rel_rms(o_chunked, o), 1e-12)
            self.assertLess(rel_rms(s_chunked, s), 1e-12)

    def test_one_token_at_a_time_is_the_whole_sequence(self):
        states = tiny().fresh_states()
        logits = np.array([tiny().step(token, states) for token in TOKENS])
        self.assertLess(np.abs(logits - truth().logits).max(), 1e-10)
        for layer, state in enumerate(truth().states):
            if tiny().config.is_mla(layer):
                self.assertLess(np.abs(state - states[layer]).max(), 1e-10)
            else:
                self.assertLess(np.abs(state.rec - states[layer].rec).max(), 1e-10)
                for name, window in state.windows.items():
                    self.assertLess(np.abs(window - states[layer].windows[name]).max(), 1e-10)

    def test_expanded_and_absorbed_attention_agree(self):
        absorbed = dataclasses.replace(EXACT, absorbed=True)
        logits = tiny().forward(TOKENS, absorbed).logits
        self.assertLess(np.abs(logits - truth().logits).max(), 1e-10)

    def test_the_chunked_form_carries_a_whole_model(self):
        class Chunked(Model):
            def delta_rule(self, q, k, v, g, beta):
                return chunked_delta_rule(q, k, v, g, beta)
        logits = Chunked(tiny().config, tiny().tensors).forward(TOKENS).logits
        self.assertLess(np.abs(logits - truth().logits).max(), 1e-10)

    def test_no_position_sees_a_later_token(self):
        changed = TOKENS.copy()
        changed[25] = (changed[25] + 1) % tiny_model.TEXT["vocab_size"]
        logits = tiny().forward(changed).logits
        self.assertLess(np.abs(logits[:25] - truth().logits[:25]).max(), 1e-12)
        moved = rel_rms(logits[25:], truth().logits[25:])
        self.assertGreater(moved, 1e-3)

    def test_every_earlier_token_is_seen(self):
        changed = TOKENS.copy()
        changed[0] = (changed[0] + 1) % tiny_model.TEXT["vocab_size"]
        self.assertGreater(rel_rms(tiny().forward(changed).logits[-1], truth().logits[-1]), 1e-6)

    def test_the_bank_grows_by_the_raw_stream_at_each_block_start(self):
        block = tiny_model.TEXT["attn_res_block_size"]
        for layer, (_, bank) in enumerate(truth().inputs):
            self.assertEqual(len(bank), -(-layer // block), layer)
        stream, _ = truth().inputs[block]
        _, bank = truth().inputs[block + 1]
        self.assertTrue(np.array_equal(bank[1], stream))

    def test_a_zero_query_mixes_evenly(self):
        rows = np.random.default_rng(1).normal(size=(4, 3, 40))
        zero = {"x_norm.weight": np.ones(40), "x_proj.weight": np.zeros((1, 40))}
        mixed = Model(tiny().config, zero).mix(rows[3], list(rows[:3]), "x", EXACT)
        self.assertLess(np.abs(mixed - rows.mean(axis=0)).max(), 1e-12)

    def test_rounding_is_near_and_the_step_form_rounds_at_the_same_points(self):
        rounded = tiny().forward(TOKENS, BF16).logits
        distance = rel_rms(rounded, truth().logits)
        self.assertGreater(distance, 1e-4)
        self.assertLess(distance, 0.3)
        states = tiny().fresh_states()
        steps = np.array([tiny().step(token, states, BF16) for token in TOKENS])
        same = np.median(np.abs(steps - rounded).max(axis=-1))
        self.assertLess(same, 1e-9)  # a sum that falls on a tie may still round apart in a row


class Mistakes(unittest.TestCase):
    """Each known mistake moves the logits by more than 1e-4 of their size; all but the subtle
    ones by more than 1.5 times what rounding does."""

    def check(self, plant):
        planted = plant(tiny().config, tiny().tensors).forward(TOKENS).logits
        moved = np.median(np.linalg.norm(planted - truth().logits, axis=-1)
                          / np.linalg.norm(truth().logits, axis=-1))
        self.assertGreater(moved, 1e-4)
        if plant not in mistakes.SUBTLE:
            rounded = tiny().forward(TOKENS, BF16).logits
            noise = np.median(np.linalg.norm(rounded - truth().logits, axis=-1)
                              / np.linalg.norm(truth().logits, axis=-1))
            self.assertGreater(moved, 1.5 * noise)
        print(f"  {plant.__name__} moves a row of logits by {moved:.2e} (median)")


for each in mistakes.ALL:
    setattr(Mistakes, f"test_{each.__name__}_is_visible",
            lambda self, plant=each: self.check(plant))


def main():
    result = unittest.main(module="__main__", exit=False, verbosity=2).result
    bad = len(result.failures) + len(result.errors)
    if result.testsRun == 0:
        bad = 1  # nothing was tested
    print(f"{max(result.testsRun - bad, 0)} passed, {bad} failed")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
