"""What step number `step` learns from: a pure function of seed and step, so that a run that
resumes reads on where it stopped. Processes of their own prepare steps ahead."""
import multiprocessing
import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import text  # noqa: E402
from chat import render  # noqa: E402
from tokens import Tokenizer  # noqa: E402

ROW_MULTIPLE = 32
# Tokens of a pass, all of its sequences and padding: a whole number of the longest.
PASS_TOKENS = 69632
# A kind's longest sequence and how many a pass may hold.
LIMITS = {"short": (1024, 512), "mid": (2560, 96), "long": (8704, 16)}
FILLERS = {"short": "short", "mid": "short", "long": "mid"}
READ, SAID, PADDING = 0, 1, 2

_tokenizer = None


def read_tokenizer(folder):
    global _tokenizer
    _tokenizer = Tokenizer(folder)


def kinds(step, steps):
    """The passes of a step: short texts first, longer ones as the run goes on."""
    done = step / steps
    if done < 0.15:
        return ("short",)
    if done < 0.4:
        return ("short", "mid") if step % 2 else ("short",)
    if done < 0.6:
        return ("short", "mid")
    # Long texts are learned soon and keep little of a pass for copying and rules, which need the most of all.
    return ("short", ("mid", "long", "short", "long")[step % 4])


def one_pass(seed, kind, number, tokens):
    """(ids u16 [tokens], said u8 [tokens], length of each sequence, skill of each): as many whole
    conversations as fit, the rest of another kind's; the last sequence is what padding is left."""
    ids = np.zeros(tokens, np.uint16)
    said = np.full(tokens, PADDING, np.uint8)
    longest, most = LIMITS[kind]
    lengths, skills, at, drawing = [], [], 0, kind
    misses, index = 0, number * 4096
    while len(lengths) < most - 1 and tokens - at >= 160 and misses < 12:
        talk = text.lesson(seed, drawing, index, _tokenizer.count)
        index += 1
        row, mask = _tokenizer.encode_segments(*render({**talk.request(), "add_generation_prompt": False}))
        width = -(-len(row) // ROW_MULTIPLE) * ROW_MULTIPLE
        if width > longest or at + width > tokens:
            misses += 1
            if misses % 3 == 0:
                drawing = FILLERS[drawing]
            continue
        ids[at:at + len(row)], said[at:at + len(row)] = row, mask
        lengths.append(width)
        skills.append(talk.skill)
        at += width
    if at < tokens:
        for width in range(at, tokens, longest):
            lengths.append(min(longest, tokens - width))
    return ids, said, lengths, skills


def step_passes(seed, step, steps, tokens):
    return [(kind, *one_pass(seed, kind, step * 4 + i, tokens)) for i, kind in enumerate(kinds(step, steps))]


def _one(args):
    return step_passes(*args)


def batches(folder, seed, first, last, steps, tokens, workers):
    """The passes of steps [first, last) in order; without workers in this process."""
    asked = [(seed, step, steps, tokens) for step in range(first, last)]
    if not workers:
        read_tokenizer(folder)
        yield from map(_one, asked)
        return
    with multiprocessing.get_context("spawn").Pool(workers, read_tokenizer, (folder,)) as pool:
        # Bounded ahead: at most four steps a worker wait.
        waiting = [pool.apply_async(_one, (one,)) for one in asked[:4 * workers]]
        for i in range(len(asked)):
            yield waiting.pop(0).get()
            if i + 4 * workers < len(asked):
                waiting.append(pool.apply_async(_one, (asked[i + 4 * workers],)))
