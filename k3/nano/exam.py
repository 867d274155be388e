#!/usr/bin/env python3
"""Questions that no training text of any seed holds, and what a server answers to them.

usage: exam.py write -o EXAM.json [--seed S] [--per-skill 500] [--tokenizer DIR] [--skills a,b]
       exam.py ask EXAM.json --url http://HOST:PORT/v1 -o RESULT.json [--concurrency 8] [--limit N,SKILL=N]
               [--answers FILE.jsonl] [--seconds S]
       exam.py compare ANSWERS.jsonl OTHER.jsonl    how many answers of both differ, in any byte
--limit asks the first N of every skill, and other numbers of the named ones. --answers keeps each answer as it
comes, a line each; what the file holds is not asked again. After --seconds nothing more is asked. An exam is a list of
{skill, key, request, expected}; expected holds content, tool_calls (name and arguments by value and type) and
finish_reason, or as many of these as the skill is judged by.
"""
import argparse
import concurrent.futures
import json
import pathlib
import sys
import threading
import time
import urllib.error
import urllib.request

import skills
import text
import tool_skills
from draw import Draw

MAX_TOKENS = 256
REQUEST_SECONDS = 600
RECALLS = (512, 2048, 8192)


def of_talk(skill, talk, judged):
    """The question of a talk: its last message becomes what is expected."""
    request = talk.request()
    said = request["messages"][-1]
    calls = [{"name": c["function"]["name"], "arguments": json.loads(c["function"]["arguments"])}
             for c in said.get("tool_calls") or []]
    whole = {"content": said["content"], "tool_calls": calls,
             "finish_reason": "tool_calls" if calls else "stop"}
    asked = {**request, "messages": request["messages"][:-1], "temperature": 0, "max_tokens": MAX_TOKENS}
    return {"skill": skill, "key": talk.key, "request": asked, "expected": {k: whole[k] for k in judged}}


def finishing(draw):
    """Judged by finish_reason alone: a third of each kind."""
    kind = draw.below(3)
    talk = (skills.copying, skills.adding, tool_skills.calling)[kind](draw, True)
    question = of_talk("finish", talk, ["finish_reason"])
    if kind == 0:  # no answer is that short: thought and tags alone are longer
        question["request"]["max_tokens"] = draw.between(1, 4)
        question["expected"] = {"finish_reason": "length"}
    return question


def makers(count):
    """Skill -> a function that makes one question from a Draw."""
    def of(skill, judged, make):
        return lambda draw: of_talk(skill, make(draw), judged)
    out = {f"recall-{n}": of(f"recall-{n}", ["content"],
                             lambda draw, n=n: skills.recalling(draw, True, n, count)) for n in RECALLS}
    out["copy"] = of("copy", ["content"], lambda draw: skills.copying(draw, True))
    out["add2"] = of("add2", ["content"], lambda draw: skills.adding(draw, True, 2))
    out["tools"] = of("tools", ["tool_calls", "finish_reason"], lambda draw: tool_skills.calling(draw, True))
    out["results"] = of("results", ["content"], lambda draw: tool_skills.reporting(draw, True))
    out["system"] = of("system", ["content"], lambda draw: skills.instructed(draw, True))
    out["turns"] = of("turns", ["content"], lambda draw: skills.turning(draw, True))
    out["finish"] = finishing
    return out


def questions(seed, per_skill, count=text.rough_count, only=None):
    """`per_skill` different questions of every skill, in the skills' order."""
    out = []
    for skill, make in makers(count).items():
        if only and skill not in only:
            continue
        seen, index = set(), 0
        while len(seen) < per_skill:
            question = make(Draw("exam", seed, skill, index))
            index += 1
            words = json.dumps([question["request"]["messages"], question["request"].get("tools")])
            if words not in seen:
                seen.add(words)
                out.append(question)
            if index > 100 * per_skill:
                raise ValueError(f"skill {skill}: fewer than {per_skill} different questions")
    return out


def typed(value):
    """A value with its types, so that 1, 1.0 and true differ."""
    if isinstance(value, dict):
        return {key: typed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [typed(item) for item in value]
    return type(value).__name__, value


def calls_of(message):
    out = []
    for call in message.get("tool_calls") or []:
        try:
            arguments = json.loads(call["function"]["arguments"])
        except ValueError:
            arguments = None
        out.append({"name": call["function"]["name"], "arguments": arguments})
    return out


def is_right(expected, reply):
    """Exact match of all that the question is judged by."""
    choice = reply["choices"][0]
    got = {"content": choice["message"].get("content") or "", "tool_calls": calls_of(choice["message"]),
           "finish_reason": choice["finish_reason"]}
    return all(typed(got[name]) == typed(value) for name, value in expected.items())


def ask(url, question):
    """The server's reply, or {"error": sentence}."""
    request = urllib.request.Request(f"{url}/chat/completions", json.dumps(question["request"]).encode(),
                                     {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=REQUEST_SECONDS) as reply:
            return json.load(reply)
    except urllib.error.HTTPError as error:
        return {"error": f"HTTP {error.code}: {error.read().decode(errors='replace')[:300]}"}
    except (OSError, ValueError) as error:
        return {"error": str(error)}


def said(choice):
    """All of a choice that an answer is: the ids of calls belong to the request."""
    message = choice["message"]
    return {"content": message.get("content"), "thought": message.get("reasoning_content"),
            "calls": [call["function"] for call in message.get("tool_calls") or []],
            "finish_reason": choice["finish_reason"]}


def limited(asked, limit):
    """The first questions of every skill: `limit` is "N", "SKILL=N" or several with commas between."""
    most = {}
    for part in limit.split(","):
        skill, _, count = part.rpartition("=")
        if not count.isdigit():
            raise SystemExit(f"--limit {limit}: expected N or SKILL=N, got {part!r}")
        most[skill] = int(count)
    if unknown := set(most) - {"", *(q["skill"] for q in asked)}:
        raise SystemExit(f"--limit {limit}: no question of skill {', '.join(sorted(unknown))}")
    out, taken = [], {}
    for question in asked:
        skill = question["skill"]
        taken[skill] = taken.get(skill, 0) + 1
        if taken[skill] <= most.get(skill, most.get("", len(asked))):
            out.append(question)
    return out


def numbered(questions):
    """Each with its place among those of its skill: of a shorter exam the same places hold the same questions."""
    places = {}
    for question in questions:
        place = places[question["skill"]] = places.get(question["skill"], 0) + 1
        yield place, question


def kept(file):
    """The answers that a file holds, by skill and place."""
    records = map(json.loads, pathlib.Path(file).read_text().splitlines())
    return {(record["skill"], record["place"]): record for record in records}


def mended(file):
    """The file without a last line that was cut off."""
    file = pathlib.Path(file)
    whole, newline, rest = file.read_bytes().rpartition(b"\n")
    if rest:
        file.write_bytes(whole + newline)
    return file


def run(url, asked, concurrency, model, answers=None, seconds=float("inf"), asked_of=None):
    """(summary a skill, one record a question that was answered, now or before). `asked_of` says who answers, if
    not only `model`: a file of answers is one's alone."""
    asked_of = asked_of or model
    end = time.monotonic() + seconds
    before = kept(mended(answers)) if answers and pathlib.Path(answers).exists() else {}
    for place, question in numbered(asked):
        record = before.get((question["skill"], place), question)
        if record["key"] != question["key"]:
            raise SystemExit(f"{answers}: question {place} of {question['skill']} is {question['key']!r}, "
                             f"answered was {record['key']!r}")
        if record.get("asked_of", asked_of) != asked_of:
            raise SystemExit(f"{answers}: these are the answers of {record['asked_of']}, asked is {asked_of}")
    keeping = threading.Lock()

    def one(numbered_question):
        place, question = numbered_question
        if record := before.get((question["skill"], place)):
            return record
        start = time.monotonic()
        if start > end:
            return None
        request = {**question["request"], "model": model}
        reply = ask(url, {"request": request})
        right = "error" not in reply and is_right(question["expected"], reply)
        record = {"asked_of": asked_of, "skill": question["skill"], "place": place, "key": question["key"], "right": right,
                  "seconds": time.monotonic() - start, "expected": question["expected"],
                  "reply": reply.get("error") or reply["choices"][0],
                  "failed": "error" in reply, "usage": reply.get("usage")}
        # What got no answer is asked again.
        if answers and not record["failed"]:
            with keeping, open(answers, "a", encoding="utf-8") as file:
                file.write(json.dumps(record, ensure_ascii=False) + "\n")
        return record
    with concurrent.futures.ThreadPoolExecutor(concurrency) as pool:
        records = [record for record in pool.map(one, numbered(asked)) if record]
    summary = {}
    for record in records:
        entry = summary.setdefault(record["skill"], {"asked": 0, "right": 0, "failed": 0})
        entry["asked"] += 1
        entry["right"] += record["right"]
        entry["failed"] += record["failed"]
    for entry in summary.values():
        entry["score"] = entry["right"] / entry["asked"]
    return summary, records


def first_model(url):
    with urllib.request.urlopen(f"{url}/models", timeout=30) as reply:
        return json.load(reply)["data"][0]["id"]


def write_command(args):
    count = text.rough_count
    if args.tokenizer:
        from tokens import Tokenizer
        count = Tokenizer(args.tokenizer).count
    only = args.skills.split(",") if args.skills else None
    made = questions(args.seed, args.per_skill, count, only)
    pathlib.Path(args.out).write_text(json.dumps(made, ensure_ascii=False))
    print(f"{len(made)} questions")
    return 0


def show(summary):
    for skill, entry in summary.items():
        failed = f", {entry['failed']} got no answer" if entry["failed"] else ""
        print(f"{skill:12} {entry['score']:.4f}  {entry['right']} of {entry['asked']}{failed}")


def ask_command(args):
    asked = json.loads(pathlib.Path(args.exam).read_text())
    if args.limit:
        asked = limited(asked, args.limit)
    start = time.monotonic()
    summary, _ = run(args.url, asked, args.concurrency, args.model or first_model(args.url), args.answers,
                     args.seconds)
    show(summary)
    result = {"seconds": time.monotonic() - start, "concurrency": args.concurrency, "skills": summary}
    pathlib.Path(args.out).write_text(json.dumps(result))
    return 1 if any(entry["failed"] for entry in summary.values()) else 0


def compare_command(args):
    """Counts by skill of what both answered; exit code 1 where that is nothing or other questions."""
    one, other = kept(args.one), kept(args.other)
    both = [(one[place], other[place]) for place in one if place in other]
    if not both or any(a["key"] != b["key"] for a, b in both):
        print("the two files answer different questions")
        return 1
    counts = {}
    for a, b in both:
        entry = counts.setdefault(a["skill"], {"asked": 0, "differ": 0, "only the first right": 0,
                                               "only the second right": 0})
        entry["asked"] += 1
        entry["differ"] += a["failed"] or b["failed"] or said(a["reply"]) != said(b["reply"])
        entry["only the first right"] += a["right"] and not b["right"]
        entry["only the second right"] += b["right"] and not a["right"]
    for skill, entry in counts.items():
        print(f"{skill:12} " + ", ".join(f"{name} {count}" for name, count in entry.items()))
    if args.out:
        pathlib.Path(args.out).write_text(json.dumps(counts, indent=1) + "\n")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    commands = parser.add_subparsers(required=True)
    write = commands.add_parser("write")
    write.add_argument("--seed", type=int, default=0)
    write.add_argument("--per-skill", type=int, default=500)
    write.add_argument("--tokenizer", help="folder with tiktoken.model: recall lengths are exact")
    write.add_argument("--skills", help="only these, comma between")
    write.set_defaults(run=write_command)
    asking = commands.add_parser("ask")
    asking.add_argument("exam")
    asking.add_argument("--url", required=True)
    asking.add_argument("--concurrency", type=int, default=8)
    asking.add_argument("--limit", help="questions a skill at most: N, or N,SKILL=N")
    asking.add_argument("--model")
    asking.add_argument("--answers", help="a line an answer, as they come")
    asking.add_argument("--seconds", type=float, default=float("inf"))
    asking.set_defaults(run=ask_command)
    comparing = commands.add_parser("compare")
    comparing.add_argument("one")
    comparing.add_argument("other")
    comparing.set_defaults(run=compare_command)
    for command in (write, asking, comparing):
        command.add_argument("-o", "--out", required=command is not comparing)
    args = parser.parse_args()
    return args.run(args)


if __name__ == "__main__":
    sys.exit(main())
