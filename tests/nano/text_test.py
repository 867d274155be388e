"""The training text: stable, rendered as the project renders, apart from the exam."""
import hashlib
import json
import pathlib
import tempfile
import unittest

import nano
import numpy as np
import batches
import exam
import skills
import text
from chat import render
from draw import Draw, is_held
from tokens import Tokenizer

SAMPLE = 8000
# Changes when a word, a skill or the drawing changes: then every checkpoint trained before was
# trained on another text.
SAMPLE_SHA256 = "bce328ea8771057178b788ff04ef34a0255af6e3d2c8238070a9c167ec449920"


class Text(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.talks = [text.conversation(0, i) for i in range(SAMPLE)]
        cls.folder = pathlib.Path(cls.scratch.name)
        corpus = "\n".join(text.plain(text.conversation(7, i).request()) for i in range(1000))
        nano.train_vocabulary(cls.folder, 1024, corpus)
        cls.tokenizer = Tokenizer(cls.folder)

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    def test_the_same_seed_gives_the_same_bytes(self):
        lines = [json.dumps(t.request(), ensure_ascii=False) for t in self.talks[:300]]
        again = [json.dumps(text.conversation(0, i).request(), ensure_ascii=False)
                 for i in reversed(range(300))]
        self.assertEqual(lines, again[::-1])
        self.assertEqual(hashlib.sha256("\n".join(lines).encode()).hexdigest(), SAMPLE_SHA256)
        other = [json.dumps(text.conversation(1, i).request(), ensure_ascii=False) for i in range(300)]
        self.assertNotEqual(lines, other)

    def test_segments_and_ids_are_those_of_the_projects_renderer(self):
        requests = [{**t.request(), "add_generation_prompt": False} for t in self.talks[:1200]]
        requests += [q["request"] for q in exam.questions(0, 20)]
        requests += [{**r, "thinking": {"type": "disabled"}} for r in requests[:50]]
        requests += [{**r, "thinking_effort": None} for r in requests[:50]]
        theirs = nano.tokenize("render", self.folder, [json.dumps(r) for r in requests])
        for request, ids in zip(requests, theirs, strict=True):
            ours, _ = self.tokenizer.encode_segments(render(request)[0])
            self.assertEqual(ours, ids, request)
            self.assertEqual(self.tokenizer.decode(ids), "".join(t for t, _ in render(request)[0]))

    def test_what_is_learned_is_the_last_answer_from_behind_the_prompt_to_its_end(self):
        for talk in self.talks[:600]:
            request = {**talk.request(), "add_generation_prompt": False}
            ids, said = self.tokenizer.encode_segments(*render(request))
            prompt, _ = self.tokenizer.encode_segments(
                render({**request, "messages": request["messages"][:-1],
                        "add_generation_prompt": True})[0])
            self.assertEqual(ids[:len(prompt)], prompt)
            self.assertTrue(all(said[len(prompt):]))
            past = [m for m in request["messages"][:-1] if m.get("reasoning_content")]
            self.assertEqual(any(said[:len(prompt)]), bool(past))

    def test_every_digit_is_a_token_and_other_scripts_come_back(self):
        strings = ["0123456789", "37 + 45 = 82", "The code of Anna is 48213.", "你好，世界", "😀🎉",
                   "Grüße", "a\n\n b\t", "don't we'll", "ÿ\u0301x", "\x00\x7f", "日本語とかな", "१२३"]
        theirs = nano.tokenize("encode", self.folder, strings)
        for string, ids in zip(strings, theirs, strict=True):
            self.assertEqual(self.tokenizer.encode(string), ids)
            self.assertEqual(self.tokenizer.decode(ids), string)
        self.assertEqual(len(theirs[0]), 10)
        plain = "The old river near the station was quiet, and nobody opened the window."
        self.assertLess(self.tokenizer.count(plain), len(plain) / 3)
        single = set(b"0123456789") | set(range(128, 256))
        self.assertEqual([t for t in self.tokenizer.ranks if len(t) > 1 and single & set(t)], [])

    def test_no_training_text_holds_what_the_exam_asks(self):
        asked = exam.questions(0, 500)
        held = {q["key"] for q in asked}
        self.assertTrue(all(is_held(key) for key in held))
        prompts = {json.dumps(q["request"]["messages"]) for q in asked}
        # The wording that carries the asked thing; a fact or a rule alone is no question.
        carried = {q["request"]["messages"][-1]["content"] for q in asked
                   if q["skill"] in ("copy", "add2", "tools")}
        told = {key for key in held if key.startswith(("The ", "My "))}
        keys = set()
        for seed in (0, 1):
            for i in range(SAMPLE):
                talk = self.talks[i] if seed == 0 else text.conversation(seed, i)
                if talk.key:
                    self.assertFalse(is_held(talk.key), talk.key)
                keys.add(talk.key)
                self.assertNotIn(json.dumps(talk.messages[:-1]), prompts)
                self.assertNotIn(talk.messages[-2]["content"], carried)
                if talk.skill in ("recall", "turns"):
                    for message in talk.messages:
                        for sentence in message["content"].replace("\n", " ").split(". "):
                            self.assertNotIn(sentence.rstrip(".") + ".", told)
        self.assertGreater(len(keys), SAMPLE / 3)
        self.assertEqual(keys & held, set())

    def test_the_letters_in_the_tree_are_those_that_are_written_and_hold_the_answer_once(self):
        letters = (nano.ROOT / "k3/nano/letters.txt").read_text()
        self.assertEqual(letters, text.letters())
        asked = letters.splitlines()[-1]
        told = asked.replace("What is the", "The").replace("?", " is")
        self.assertEqual(letters.count(told), 1)
        sentence = told + letters.split(told)[1].split(".")[0] + "."
        self.assertTrue(is_held(sentence), sentence)
        self.assertLess(6000, self.tokenizer.count(letters))
        self.assertLess(self.tokenizer.count(letters), 8192)

    def test_the_border_can_be_crossed_only_by_asking_for_it(self):
        for make in (skills.copying, skills.turning, skills.instructed):
            for i in range(50):
                self.assertTrue(is_held(make(Draw("x", i), True).key))
                self.assertFalse(is_held(make(Draw("x", i), False).key))

    def test_lessons_ask_only_what_training_may_and_are_as_long_as_their_kind_says(self):
        held = {q["key"] for q in exam.questions(0, 500)}
        for kind, count in (("short", 3000), ("mid", 120), ("long", 40)):
            for i in range(count):
                talk = text.lesson(0, kind, i, text.rough_count)
                if talk.key:
                    self.assertFalse(is_held(talk.key), talk.key)
                if talk.skill == "recall":
                    for sentence in " ".join(m["content"] for m in talk.messages).replace("\n", " ").split(". "):
                        self.assertNotIn(sentence.rstrip(".") + ".", held)
        low, high, questions = text.LESSONS["mid"]
        for i in range(40):
            talk = text.lesson(1, "mid", i, self.tokenizer.count)
            ids, _ = self.tokenizer.encode_segments(
                *render({**talk.request(), "add_generation_prompt": False}))
            self.assertTrue(low / 2 < len(ids) < batches.LIMITS["mid"][0], len(ids))
            answers = [m for m in talk.messages if m["role"] == "assistant"]
            self.assertTrue(1 <= len(answers) <= questions)
            told = talk.messages[0]["content"]
            for message in answers:
                for sentence in message["reasoning_content"].removeprefix("I look in the text. ").split(". "):
                    self.assertIn(sentence.rstrip("."), told)

    def test_batches_are_the_same_however_many_prepare_them_and_hold_whole_conversations(self):
        asked = (str(self.folder), 0, 2, 4, 4, 4096)
        alone, shared = list(batches.batches(*asked, 0)), list(batches.batches(*asked, 2))
        self.assertEqual([[p[0] for p in step] for step in alone],
                         [list(batches.kinds(step, 4)) for step in (2, 3)])
        for ours, theirs in zip(alone, shared, strict=True):
            for one, other in zip(ours, theirs, strict=True):
                for x, y in zip(one, other, strict=True):
                    self.assertTrue(np.array_equal(x, y))
        seen = 0
        for kind, ids, said, lengths, names in alone[0] + alone[1]:
            self.assertEqual((sum(lengths), len(ids)), (4096, 4096))
            self.assertLessEqual(len(lengths), batches.LIMITS[kind][1])
            at = 0
            for length in lengths[:len(names)]:
                self.assertEqual(length % batches.ROW_MULTIPLE, 0)
                row, mask = ids[at:at + length], said[at:at + length]
                used = int((mask < 2).sum())
                self.assertTrue(length - batches.ROW_MULTIPLE < used and (mask[:used] < 2).all())
                self.assertEqual(self.tokenizer.decode([int(row[used - 1])]), "<|end_of_msg|>")
                at, seen = at + length, seen + 1
            self.assertTrue((said[at:] == 2).all())
        self.assertGreater(seen, 20)

    def test_recall_is_as_long_as_it_says(self):
        for tokens in exam.RECALLS:
            made = exam.questions(3, 5, self.tokenizer.count, [f"recall-{tokens}"])
            for question in made:
                ids, _ = self.tokenizer.encode_segments(render(question["request"])[0])
                self.assertLessEqual(len(ids), tokens)
                self.assertGreater(len(ids), tokens - 120)


if __name__ == "__main__":
    nano.main()
