#!/usr/bin/env python3
"""The training text: conversation number `index` of a seed is the same bytes everywhere.

usage: text.py --seed S --first I --count N [--requests | --plain]
       text.py --letters > k3/nano/letters.txt
  --requests   one JSON request a line, as the project's renderer reads it (default)
  --plain      the rendered text, and of every conversation nothing else: what a vocabulary is
               trained on. Digits and all beyond ASCII are left out: every digit stays a token of
               its own, every other script is spelled in bytes.
  --letters    a long text to try recall with, and a question whose answer no training text tells
"""
import argparse
import json
import re
import sys

import skills
import tool_skills
from chat import render
from draw import Draw

RECALL_TOKENS_MAX = 8192


def rough_count(text):
    """Tokens of a text where no tokenizer is at hand."""
    return max(1, len(text) * 3 // 10)


def recalling(draw, held, count):
    """Lengths are drawn so that each doubling from 256 to 8,192 tokens is as frequent, and tokens
    are spent mostly on the long ones."""
    tokens = 256 << draw.below(6)
    return skills.recalling(draw, held, draw.between(tokens - tokens // 4, tokens), count)


# How often each skill is drawn, of the sum of all.
MIX = [(20, skills.chatting), (16, skills.copying), (20, skills.adding), (6, skills.comparing),
       (14, skills.instructed), (14, skills.turning), (18, tool_skills.calling),
       (12, tool_skills.reporting), (14, None)]


def conversation(seed, index, count=rough_count):
    """Talk number `index` of the training text of a seed; never one that the exam may ask."""
    draw = Draw("train", seed, index)
    at = draw.below(sum(share for share, _ in MIX))
    for share, skill in MIX:
        if at < share:
            break
        at -= share
    talk = recalling(draw, False, count) if skill is None else skill(draw, False)
    if draw.chance(16) and not talk.options:
        talk.options["thinking_effort"] = draw.of(["low", "high"])
    return talk


# What training takes its steps from: what is short, and recall in longer texts: (tokens of a
# conversation, at least and at most; questions at most).
LESSONS = {"short": None, "mid": (768, 2304, 8), "long": (5632, 8576, 16)}
SHORT_MIX = [(8, skills.chatting), (40, skills.copying), (20, skills.copying_bytes), (20, skills.adding),
             (8, skills.comparing),
             (22, skills.instructed), (14, skills.instructed_copying), (12, skills.turning),
             (20, tool_skills.calling), (10, tool_skills.reporting), (16, None)]


def lesson(seed, kind, index, count):
    """Conversation number `index` of one kind of lesson; never one that the exam may ask."""
    draw = Draw("train", seed, kind, index)
    if LESSONS[kind]:
        low, high, questions = LESSONS[kind]
        return skills.searching(draw, draw.between(low, high), count, draw.between(questions // 2, questions))
    at = draw.below(sum(share for share, _ in SHORT_MIX))
    for share, skill in SHORT_MIX:
        if at < share:
            break
        at -= share
    if skill is None:
        return skills.searching(draw, draw.between(200, 544), count, draw.between(1, 3))
    talk = skill(draw, False)
    if draw.chance(16) and not talk.options:
        talk.options["thinking_effort"] = draw.of(["low", "high"])
    return talk


def plain(request):
    segments, _ = render({**request, "add_generation_prompt": False})
    return re.sub(r"[\d\x80-\U0010ffff]+", " ", "\n".join(text for text, control in segments if not control))


def letters():
    draw, told = Draw("letters"), {}
    while len(told) < 6:
        key, (who, thing, _) = skills.told_value(draw, not told)
        told.setdefault((who, thing), key)
    body = skills.haystack(draw, draw.shuffled(told.values()), RECALL_TOKENS_MAX, rough_count)
    who, thing = next(iter(told))
    return f"{body}\n\nWhat is the {thing} of {who}?\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--count", type=int)
    what.add_argument("--letters", action="store_true")
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--requests", action="store_true")
    args = parser.parse_args()
    if args.letters:
        sys.stdout.write(letters())
        return
    for index in range(args.first, args.first + args.count):
        request = conversation(args.seed, index).request()
        line = plain(request) if args.plain else json.dumps(
            {**request, "add_generation_prompt": False}, ensure_ascii=False)
        sys.stdout.buffer.write(line.encode() + b"\n")


if __name__ == "__main__":
    main()
