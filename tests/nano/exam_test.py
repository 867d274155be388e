"""The exam against a server that knows the key, one that does not, and a random checkpoint."""
import contextlib
import http.server
import json
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request

import nano
import exam

sys.path.insert(0, str(nano.ROOT / "tests/e2e"))
from cluster import free_ports  # noqa: E402

PER_SKILL = 15


def words_of(request):
    return json.dumps([request["messages"], request.get("tools"), request["max_tokens"]])


class FakeServer(http.server.ThreadingHTTPServer):
    """Answers by `choice_of(question)`; knows a question by its words."""
    daemon_threads = True

    def __init__(self, questions, choice_of):
        self.known = {words_of(q["request"]): q for q in questions}
        self.choice_of, self.running, self.most, self.lock = choice_of, 0, 0, threading.Lock()
        super().__init__(("127.0.0.1", 0), Handler)


class Handler(http.server.BaseHTTPRequestHandler):
    def send(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        self.send(200, {"data": [{"id": "fake"}]})

    def do_POST(self):
        with self.server.lock:
            self.server.running += 1
            self.server.most = max(self.server.most, self.server.running)
        time.sleep(0.002)
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        choice = self.server.choice_of(self.server.known[words_of(request)])
        with self.server.lock:
            self.server.running -= 1
        if self.path != "/v1/chat/completions" or request["model"] != "fake" or choice is None:
            return self.send(503, {"error": {"message": "no"}})
        return self.send(200, {"choices": [choice], "usage": {}})

    def log_message(self, *_):
        pass


def right(question):
    expected = question["expected"]
    calls = [{"id": "x", "type": "function", "function": {
        "name": c["name"], "arguments": json.dumps(c["arguments"])}} for c in expected.get("tool_calls", [])]
    return {"message": {"content": expected.get("content"), "tool_calls": calls, "reasoning_content": "."},
            "finish_reason": expected.get("finish_reason", "stop")}


def nearly(question):
    """Wrong by a word, a type or a reason."""
    choice = right(question)
    choice["message"]["content"] = (choice["message"]["content"] or "") + "."
    for call in choice["message"]["tool_calls"]:
        arguments = json.loads(call["function"]["arguments"])
        key = next(iter(arguments))
        arguments[key] = [arguments[key]]
        call["function"]["arguments"] = json.dumps(arguments)
    if question["skill"] == "finish":
        choice["finish_reason"] = "content_filter"
    return choice


class Asked(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.questions = exam.questions(5, PER_SKILL)

    def asked(self, choice_of, concurrency=8, more=(), keep=None):
        """(summary, exit code, the most requests at a time), through the command line."""
        server = FakeServer(self.questions, choice_of)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with tempfile.TemporaryDirectory() as folder:
            paper, out = pathlib.Path(folder) / "exam.json", pathlib.Path(folder) / "result.json"
            paper.write_text(json.dumps(self.questions))
            done = subprocess.run([sys.executable, str(nano.ROOT / "k3/nano/exam.py"), "ask", str(paper),
                                   "--url", f"http://127.0.0.1:{server.server_port}/v1", "-o", str(out),
                                   "--concurrency", str(concurrency), *more,
                                   *(["--answers", str(keep)] if keep else [])], capture_output=True,
                                  text=True, timeout=60, check=False)
            result = json.loads(out.read_text())
        server.shutdown()
        server.server_close()
        if not more:
            self.assertEqual(sum(e["asked"] for e in result["skills"].values()), len(self.questions))
        for skill, entry in result["skills"].items():
            self.assertIn(f"{entry['score']:.4f}", next(
                line for line in done.stdout.splitlines() if line.startswith(skill + " ")))
        return result["skills"], done.returncode, server.most

    def test_answers_from_the_key_score_one_in_every_skill(self):
        skills, code, _ = self.asked(right)
        self.assertEqual(code, 0)
        self.assertEqual({s: e["score"] for s, e in skills.items()}, dict.fromkeys(skills, 1.0))
        self.assertEqual(set(skills), {"recall-512", "recall-2048", "recall-8192", "copy", "add2", "tools",
                                       "results", "system", "turns", "finish"})
        self.assertTrue(all(e["asked"] == PER_SKILL for e in skills.values()))

    def test_answers_that_are_nearly_right_score_nothing(self):
        skills, code, _ = self.asked(nearly)
        self.assertEqual(code, 0)
        self.assertEqual({s: e["score"] for s, e in skills.items()}, dict.fromkeys(skills, 0.0))

    def test_a_server_that_refuses_is_told_apart_from_a_wrong_answer(self):
        skills, code, _ = self.asked(lambda q: None if q["skill"] == "copy" else right(q))
        self.assertEqual(code, 1)
        self.assertEqual((skills["copy"]["failed"], skills["copy"]["score"]), (PER_SKILL, 0.0))
        self.assertEqual(skills["add2"]["failed"], 0)

    def test_the_first_questions_of_a_skill_may_be_asked_alone(self):
        skills, code, _ = self.asked(right, more=["--limit", "3,copy=1,add2=0"])
        self.assertEqual(code, 0)
        self.assertEqual({s: e["asked"] for s, e in skills.items()},
                         {s: 1 if s == "copy" else 3 for s in {q["skill"] for q in self.questions} - {"add2"}})
        for limit in ("x", "copy=", "nonsense=3"):
            with self.assertRaises(SystemExit):
                exam.limited(self.questions, limit)

    def test_two_results_are_compared_by_every_byte_of_an_answer(self):
        def otherwise(question):
            choice = right(question)
            if question["skill"] == "copy":
                choice["message"]["reasoning_content"] = "otherwise"  # another thought, still right
            return nearly(question) if question["skill"] == "add2" else choice
        with tempfile.TemporaryDirectory() as folder:
            files = [pathlib.Path(folder) / name for name in ("one", "other", "counts")]
            self.asked(right, keep=files[0])
            self.asked(otherwise, keep=files[1])
            for other, differ in ((files[0], {}), (files[1], {"copy": PER_SKILL, "add2": PER_SKILL})):
                subprocess.run([sys.executable, str(nano.ROOT / "k3/nano/exam.py"), "compare", str(files[0]),
                                str(other), "-o", str(files[2])], check=True, capture_output=True)
                counts = json.loads(files[2].read_text())
                self.assertEqual({s: c["differ"] for s, c in counts.items() if c["differ"]}, differ)
            shorter, fewer, apart = (pathlib.Path(folder) / name for name in ("shorter", "fewer", "apart"))
            lines = files[0].read_text().splitlines(keepends=True)
            shorter.write_text("".join(lines[:3]))
            fewer.write_text("")
            apart.write_text(json.dumps({**json.loads(lines[0]), "key": "another"}) + "\n")
            for file, code in ((shorter, 0), (fewer, 1), (apart, 1), (files[0], 0)):
                done = subprocess.run([sys.executable, str(nano.ROOT / "k3/nano/exam.py"), "compare",
                                       str(files[0]), str(file)], check=False, capture_output=True)
                self.assertEqual(done.returncode, code, file.name)
            self.assertEqual((counts["copy"]["only the first right"], counts["add2"]["only the first right"],
                              counts["add2"]["only the second right"]), (0, PER_SKILL, 0))

    def test_an_exam_that_was_cut_short_goes_on(self):
        asked_again = []
        def counted(question):
            asked_again.append(question["key"])
            return right(question)
        with tempfile.TemporaryDirectory() as folder:
            answers = pathlib.Path(folder) / "answers"
            none, code, _ = self.asked(right, keep=answers, more=["--seconds", "0"])
            self.assertEqual((none, code, answers.exists()), ({}, 0, False))
            whole, _, _ = self.asked(right, keep=answers)
            lines = answers.read_text().splitlines(keepends=True)
            self.assertEqual(len(lines), len(self.questions))
            # Seven answers and one that was cut off: all but seven are asked, and all count.
            answers.write_text("".join(lines[:7]) + lines[7][:40])
            self.assertEqual(self.asked(counted, keep=answers)[0], whole)
            self.assertEqual(len(asked_again), len(self.questions) - 7)
            # Answers of another exam are not taken for this one's.
            answers.write_text(json.dumps({**json.loads(lines[0]), "skill": self.questions[0]["skill"], "place": 1,
                                           "key": "another"}) + "\n")
            with self.assertRaisesRegex(SystemExit, "answered was 'another'"):
                exam.run("http://127.0.0.1:9/v1", self.questions[:1], 1, "fake", answers)
            # Nor are another model's.
            answers.write_text("".join(lines))
            with self.assertRaisesRegex(SystemExit, "the answers of fake, asked is k3"):
                exam.run("http://127.0.0.1:9/v1", self.questions, 1, "k3", answers)

    def test_as_many_requests_run_at_a_time_as_asked_for(self):
        self.assertEqual(self.asked(right, 1)[2], 1)
        most = self.asked(right, 4)[2]
        self.assertGreater(most, 1)
        self.assertLessEqual(most, 4)

    def test_values_of_other_types_are_not_equal(self):
        self.assertNotEqual(exam.typed({"a": 1}), exam.typed({"a": True}))
        self.assertNotEqual(exam.typed({"a": 1}), exam.typed({"a": 1.0}))
        self.assertEqual(exam.typed({"a": 1, "b": 2}), exam.typed({"b": 2, "a": 1}))

    def test_all_kinds_of_finish_are_asked_and_the_same_seed_asks_the_same(self):
        kinds = {q["expected"]["finish_reason"] for q in self.questions if q["skill"] == "finish"}
        self.assertEqual(kinds, {"stop", "length", "tool_calls"})
        self.assertEqual(exam.questions(5, 10), exam.questions(5, 10))


class Random(unittest.TestCase):
    """`kern serve` with random weights answers every question, and knows nothing."""

    def test_a_random_checkpoint_answers_and_scores_nothing_where_it_must_know(self):
        with contextlib.ExitStack() as stack:
            folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
            port, = free_ports(1)
            config = nano.ROOT / "k3/configs/k3-nano.json"
            for command in (["k3-checkpoint", "--config", config, "-o", folder / "checkpoint"],
                            ["k3-gen", "one-rank", "--config", config, "-o", folder / "one.json"]):
                subprocess.run([str(nano.BUILD / "bin" / command[0]), *map(str, command[1:])],
                               check=True, timeout=60, capture_output=True)
            log = stack.enter_context(open(folder / "serve.log", "wb"))
            server = subprocess.Popen([str(nano.BUILD / "bin/kern"), "serve", str(folder / "one.json"),
                                       "--weights", str(folder / "checkpoint"), "--port", str(port)],
                                      stdout=log, stderr=log)
            stack.callback(server.wait, 30)
            stack.callback(server.terminate)
            url = f"http://127.0.0.1:{port}"
            for _ in range(200):
                with contextlib.suppress(OSError):
                    urllib.request.urlopen(f"{url}/health", timeout=5).close()
                    break
                time.sleep(0.1)
            asked = exam.questions(0, 2, only=["recall-512", "copy", "add2", "tools", "system", "finish"])
            for question in asked:
                question["request"]["max_tokens"] = min(24, question["request"]["max_tokens"])
            summary, records = exam.run(f"{url}/v1", asked, 4, exam.first_model(f"{url}/v1"))
            self.assertIsNone(server.poll())
            self.assertEqual([r["reply"] for r in records if r["failed"]], [])
            for skill in ("recall-512", "copy", "add2", "tools", "system"):
                self.assertEqual(summary[skill]["score"], 0.0, skill)
            for record in records:
                self.assertIn(record["reply"]["finish_reason"], ("stop", "length", "tool_calls"))


if __name__ == "__main__":
    nano.main()
