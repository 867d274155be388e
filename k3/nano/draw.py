"""Numbers drawn from a seed, the same on every machine, and the border between training and exam."""
import hashlib

MASK = 2**64 - 1
HELD_SHARE = 8  # one key in so many belongs to the exam


class Draw:
    """splitmix64; `Draw(seed, name, index)` starts a sequence of its own for each set of words."""

    def __init__(self, *words):
        digest = hashlib.sha256("\x1f".join(map(str, words)).encode()).digest()
        self.state = int.from_bytes(digest[:8], "little")

    def next(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)

    def below(self, bound):
        return (self.next() >> 16) % bound

    def between(self, low, high):
        """An integer in [low, high]."""
        return low + self.below(high - low + 1)

    def of(self, choices):
        return choices[self.below(len(choices))]

    def chance(self, one_in):
        return self.below(one_in) == 0

    def shuffled(self, items):
        out = list(items)
        for i in range(len(out) - 1, 0, -1):
            j = self.below(i + 1)
            out[i], out[j] = out[j], out[i]
        return out

    def some(self, items, count):
        """`count` different items, in the order drawn."""
        if count > len(items):
            raise ValueError(f"{count} of {len(items)} items")
        out, seen = [], set()
        while len(out) < count:
            at = self.below(len(items))
            if at not in seen:
                seen.add(at)
                out.append(items[at])
        return out


def is_held(key):
    """Whether what is asked belongs to the exam. A key is the words that make a question what it
    is (the two numbers, the list to copy, the sentence to recall), without its wording."""
    return hashlib.sha256(key.encode()).digest()[0] % HELD_SHARE == 0


def drawn(make, held):
    """The first of `make()`'s (key, value) that lies on the wanted side of the border."""
    while True:
        key, value = make()
        if is_held(key) == held:
            return key, value
