"""Segments to token ids in Python, as the project's tokenizer encodes them.

For places where no binary of the project runs. The general categories come from `unicodedata`,
whose version may differ for letters that no generated text holds.
"""
import base64
import functools
import json
import pathlib
import re
import sys
import unicodedata


@functools.cache
def pattern():
    """The split pattern of k3/tokenizer, with its classes spelled out for `re`."""
    upper, lower, letters, numbers, han = [], [], [], [], []
    for code in range(sys.maxunicode + 1):
        if 0xD800 <= code < 0xE000:
            continue
        letter, kind = chr(code), unicodedata.category(chr(code))
        if kind[0] == "L":
            letters.append(code)
        if kind[0] == "N":
            numbers.append(code)
        is_han = unicodedata.name(letter, "").startswith("CJK ") and kind in ("Lo", "Nl")
        if is_han:
            han.append(code)
        elif kind in ("Lu", "Lt", "Lm", "Lo") or kind[0] == "M":
            upper.append(code)
        if not is_han and (kind in ("Ll", "Lm", "Lo") or kind[0] == "M"):
            lower.append(code)

    def spelled(codes):
        runs, out = [], ""
        for code in codes:
            if runs and runs[-1][1] == code - 1:
                runs[-1][1] = code
            else:
                runs.append([code, code])
        for first, last in runs:
            out += f"\\U{first:08x}-\\U{last:08x}"
        return out

    u, l, lt, n, h = map(spelled, (upper, lower, letters, numbers, han))
    lead, suffix = f"[^\r\n{lt}{n}]?", "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    return re.compile("|".join([
        f"[{h}]+", f"{lead}[{u}]*[{l}]+{suffix}", f"{lead}[{u}]+[{l}]*{suffix}", f"[{n}]{{1,3}}",
        f" ?[^\\s{lt}{n}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"]))


class Tokenizer:
    def __init__(self, folder):
        folder = pathlib.Path(folder)
        lines = (folder / "tiktoken.model").read_text().split("\n")
        self.ranks = {base64.b64decode(t): int(r) for t, r in (line.split() for line in lines if line)}
        config = json.loads((folder / "tokenizer_config.json").read_text())
        self.specials = {entry["content"]: int(i) for i, entry in config["added_tokens_decoder"].items()}
        self.tokens = {rank: token for token, rank in self.ranks.items()}
        self.names = {i: name for name, i in self.specials.items()}
        self.piece = functools.lru_cache(maxsize=1 << 18)(self.merge)

    def merge(self, piece):
        """The ids of one piece: the pair of the lowest rank is merged first."""
        parts = [bytes([b]) for b in piece.encode()]
        while len(parts) > 1:
            best = min(range(len(parts) - 1),
                       key=lambda i: self.ranks.get(parts[i] + parts[i + 1], 1 << 30))
            joined = parts[best] + parts[best + 1]
            if joined not in self.ranks:
                break
            parts[best:best + 2] = [joined]
        return [self.ranks[p] for p in parts]

    def encode(self, text):
        out = []
        for piece in pattern().findall(text):
            out += self.piece(piece)
        return out

    def count(self, text):
        return len(self.encode(text))

    def encode_segments(self, segments, learned=()):
        """(ids, said): `said` is 1 where an id belongs to a learned part."""
        said_segments = {i for first, last in learned for i in range(first, last)}
        ids, said = [], []
        for i, (text, control) in enumerate(segments):
            more = [self.specials[text]] if control else self.encode(text)
            ids += more
            said += [int(i in said_segments)] * len(more)
        return ids, said

    def decode(self, ids):
        return b"".join(self.tokens[i] if i in self.tokens else self.names[i].encode()
                        for i in ids).decode(errors="replace")
