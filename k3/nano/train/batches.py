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

ROW_MULTIPLE = 64  # rows are padded to whole chunks of the delta rule

_tokenizer = None


def _open(folder):
    global _tokenizer
    _tokenizer = Tokenizer(folder)


def padded(count):
    return -(-count // ROW_MULTIPLE) * ROW_MULTIPLE


def grouped(rows, tokens_max):
    """Rows (ids, said) of like length together; a group padded holds at most `tokens_max` tokens,
    or one row."""
    groups, rows = [], sorted(rows, key=lambda row: len(row[0]), reverse=True)
    while rows:
        count = max(1, tokens_max // padded(len(rows[0][0])))
        groups.append(rows[:count])
        rows = rows[count:]
    return groups


def batch(seed, step, conversations, tokens_max, longest):
    """The groups of one step, each (ids, said) [rows, width], u16 and u8; said 2 is padding.
    Conversations of more than `longest` tokens are left out."""
    rows = []
    for index in range(step * conversations, (step + 1) * conversations):
        request = {**text.conversation(seed, index, _tokenizer.count).request(),
                   "add_generation_prompt": False}
        ids, said = _tokenizer.encode_segments(*render(request))
        if len(ids) <= longest:
            rows.append((ids, said))
    out = []
    for group in grouped(rows, tokens_max):
        width = padded(len(group[0][0]))
        ids = np.zeros((len(group), width), np.uint16)
        said = np.full((len(group), width), 2, np.uint8)
        for i, (row, mask) in enumerate(group):
            ids[i, :len(row)], said[i, :len(row)] = row, mask
        out.append((ids, said))
    return out


def _one(args):
    return batch(*args)


def batches(folder, seed, first, last, conversations, tokens_max, longest, workers):
    """The batches of steps [first, last) in order; without workers in this process."""
    asked = [(seed, step, conversations, tokens_max, longest) for step in range(first, last)]
    if not workers:
        _open(folder)
        yield from map(_one, asked)
        return
    with multiprocessing.get_context("spawn").Pool(workers, _open, (folder,)) as pool:
        # Bounded ahead: at most four batches a worker wait.
        waiting = [pool.apply_async(_one, (one,)) for one in asked[:4 * workers]]
        for i in range(len(asked)):
            yield waiting.pop(0).get()
            if i + 4 * workers < len(asked):
                waiting.append(pool.apply_async(_one, (asked[i + 4 * workers],)))
