"""What the model is to learn. Each skill makes one conversation that ends in the answer to learn.

A skill is a function (draw, held) -> Talk; `held` picks the side of the border in draw.py. What is
simply known (small talk, facts) has no border: it is in the training text and in no exam.
"""
import json
from dataclasses import dataclass, field

import world
from draw import Draw, drawn


@dataclass
class Talk:
    """A request with its answer as the last message. `key` is what the border was drawn by."""
    skill: str
    messages: list
    key: str = ""
    tools: list = field(default_factory=list)
    options: dict = field(default_factory=dict)

    def request(self):
        out = {"messages": self.messages, **self.options}
        if self.tools:
            out["tools"] = self.tools
        return out


def user(text):
    return {"role": "user", "content": text}


def system(text):
    return {"role": "system", "content": text}


def answer(text, thought=None):
    out = {"role": "assistant", "content": text}
    if thought:
        out["reasoning_content"] = thought
    return out


def chatting(draw: Draw, _held):
    """Small talk, facts, and short plain stories."""
    kind = draw.below(8)
    if kind == 0:
        said = draw.of(list(world.TALK))
        return Talk("talk", [user(said), answer(draw.of(world.TALK[said]), "A short friendly reply is enough.")])
    if kind == 1:
        asked = draw.of(list(world.WHY))
        return Talk("facts", [user(asked), answer(world.WHY[asked], "I know this.")])
    if kind == 2:
        count = draw.between(2, 6)
        told = " ".join(world.sentence(draw) for _ in range(count))
        return Talk("story", [user(f"Tell me a story in {count} sentences."),
                              answer(told, f"I tell {count} sentences.")])
    asked, said, _ = draw.of(world.FACTS)
    return Talk("facts", [user(asked), answer(said, "I know this.")])


# ---- copying -----------------------------------------------------------------------------------

def foreign_word(draw):
    """One to three Han characters or one emoji: what the vocabulary spells byte by byte."""
    if draw.chance(4):
        return chr(draw.between(0x1F600, 0x1F64F))
    return "".join(chr(draw.between(0x4E00, 0x9FA5)) for _ in range(draw.between(1, 3)))


def foreign_words(draw):
    return [foreign_word(draw) for _ in range(draw.between(1, 4))]


def word_list(draw):
    count = draw.between(2, 8)
    pool = draw.of([world.NOUNS, world.CODES, world.NAMES, world.COLOURS + world.ADJECTIVES,
                    [str(i) for i in range(100)], None])
    if pool is None:
        return foreign_words(draw)
    return draw.some(pool, count)


def copying(draw: Draw, held, words=word_list):
    def make():
        items = words(draw)
        how = draw.of(["copy", "copy", "reverse"])
        return f"{how} {' '.join(items)}", (items, how)
    key, (items, how) = drawn(make, held)
    shown = " ".join(items)
    if how == "copy":
        asked = draw.of(["Copy this: {}", "Say the same words: {}", "Repeat after me: {}"])
        return Talk("copy", [user(asked.format(shown)), answer(shown, "I copy every word in order.")], key)
    back = " ".join(reversed(items))
    asked = draw.of(["Say this backwards: {}", "Reverse the order of these words: {}"])
    steps = "; ".join(f"{i} {word}" for i, word in enumerate(items, 1))
    return Talk("copy", [user(asked.format(shown)), answer(back, f"{steps}. Now from {len(items)} to 1.")], key)


def copying_bytes(draw: Draw, held):
    talk = copying(draw, held, foreign_words)
    talk.skill = "copy-bytes"
    return talk


# ---- numbers -----------------------------------------------------------------------------------

def addition_steps(a, b):
    """The column addition of a and b in words of a thought."""
    left, right = str(a)[::-1], str(b)[::-1]
    steps, carry = [], 0
    for i in range(max(len(left), len(right))):
        x, y = (int(n[i]) if i < len(n) else 0 for n in (left, right))
        total = x + y + carry
        held = f" + {carry}" if carry else ""
        steps.append(f"{x} + {y}{held} = {total}, write {total % 10}")
        carry = total // 10
        if carry:
            steps[-1] += f", carry {carry}"
    if carry:
        steps.append(f"write {carry}")
    return "; ".join(steps) + f". The sum is {a + b}."


def sum_of(draw, low, high, held):
    def make():
        a, b = draw.between(low, high), draw.between(low, high)
        return f"sum {min(a, b)} {max(a, b)}", (a, b)
    return drawn(make, held)


def adding(draw: Draw, held, digits=None):
    digits = digits or draw.of([2, 2, 2, 3, 4] if held else [1, 2, 2, 2, 3, 4])
    # Sums of single digits are the table that all others need: none of them is held.
    if digits == 1:
        key, (a, b) = "", (draw.below(10), draw.below(10))
    else:
        key, (a, b) = sum_of(draw, 10 ** (digits - 1), 10 ** digits - 1, held)
    asked = draw.of(["What is {} + {}?", "Add {} and {}.", "How much is {} plus {}?"])
    return Talk("add", [user(asked.format(a, b)), answer(str(a + b), addition_steps(a, b))], key)


def comparing_steps(a, b):
    if len(str(a)) != len(str(b)):
        return f"{a} has {len(str(a))} digits, {b} has {len(str(b))}. More digits is larger."
    steps = []
    for x, y in zip(str(a), str(b)):
        sign = "=" if x == y else ">" if x > y else "<"
        steps.append(f"{x} {sign} {y}")
        if x != y:
            break
    return "Same length. " + ", ".join(steps) + "."


def comparing(draw: Draw, held):
    def make():
        digits = draw.between(1, 4)
        low, high = (0, 9) if digits == 1 else (10 ** (digits - 1) // draw.of([1, 1, 4]), 10 ** digits - 1)
        a, b = draw.between(low, high), draw.between(low, high)
        return f"compare {min(a, b)} {max(a, b)}", (a, b if a != b else b + 1)
    key, (a, b) = drawn(make, held)
    which = draw.of(["larger", "smaller"])
    said = max(a, b) if which == "larger" else min(a, b)
    return Talk("compare", [user(f"Which is {which}, {a} or {b}?"),
                            answer(str(said), f"{comparing_steps(a, b)} The {which} one is {said}.")], key)


# ---- recall ------------------------------------------------------------------------------------

THINGS = ["code", "number", "password", "room", "ticket"]


def told_value(draw, held):
    """(key, (who, thing, value)); the key is the sentence that tells the value."""
    def make():
        who, thing = draw.of(world.NAMES), draw.of(THINGS)
        value = draw.of([str(draw.between(1000, 99999)), "-".join(draw.some(world.CODES, 2))])
        return f"The {thing} of {who} is {value}.", (who, thing, value)
    return drawn(make, held)


def haystack(draw, told, tokens, count):
    """About `tokens` tokens of sentences with the told ones at drawn places."""
    left = tokens - sum(count(" " + sentence) for sentence in told)
    filler = []
    while left > 0:
        filler.append(world.sentence(draw))
        left -= count(" " + filler[-1])
    if filler:
        filler.pop()
    places = sorted(draw.below(len(filler) + 1) for _ in told)
    for shift, (place, sentence) in enumerate(zip(places, told)):
        filler.insert(place + shift, sentence)
    return " ".join(filler)


def recalling(draw: Draw, held, tokens, count):
    """A value asked for that was told somewhere in about `tokens` tokens, among others like it."""
    tokens -= 160  # the prompt around the text
    wanted = 2 if draw.chance(4) else 1
    told = {}
    # What is asked for lies on one side of the border; the others may only lie in training.
    for i in range(wanted + draw.between(1, 7)):
        key, (who, thing, value) = told_value(draw, held and i < wanted)
        told.setdefault((who, thing), (key, value))
    asked = list(told)[:wanted]
    text = haystack(draw, draw.shuffled([key for key, _ in told.values()]), tokens, count)
    names = " and ".join(f"the {thing} of {who}" for who, thing in asked)
    question = f"What {'is' if len(asked) == 1 else 'are'} {names}?"
    values = ", ".join(told[one][1] for one in asked)
    thought = "I look in the text. " + " ".join(told[one][0] for one in asked)
    if draw.chance(3):
        return Talk("recall", [system(text), user(question), answer(values, thought)], told[asked[0]][0])
    body = f"{text}\n\n{question}" if draw.chance(2) else f"Read this: {text}\n\n{question}"
    return Talk("recall", [user(body), answer(values, thought)], told[asked[0]][0])


QUESTION_TOKENS = 80  # about, of a question with its answer and thought


def searching(draw: Draw, tokens, count, questions):
    """A text of training with up to `questions` questions, one after the other, each with its answer and
    thought: about `tokens` tokens in all. The first question stands as that of `recalling`."""
    told = {}
    for _ in range(draw.between(2, 8) if draw.chance(2) else draw.between(2, 2 * questions + 6)):
        key, (who, thing, value) = told_value(draw, False)
        told.setdefault((who, thing), (key, value))
    asked = draw.shuffled(list(told))[:questions]
    text = haystack(draw, draw.shuffled([key for key, _ in told.values()]),
                    tokens - 80 - QUESTION_TOKENS * len(asked), count)
    turns = []
    while asked:
        some = [asked.pop() for _ in range(2 if len(asked) > 1 and draw.chance(4) else 1)]
        names = " and ".join(f"the {thing} of {who}" for who, thing in some)
        turns += [user(f"What {'is' if len(some) == 1 else 'are'} {names}?"),
                  answer(", ".join(told[one][1] for one in some),
                         "I look in the text. " + " ".join(told[one][0] for one in some))]
    if draw.chance(3):
        return Talk("recall", [system(text), *turns])
    first = turns[0]["content"]
    turns[0] = user(f"{text}\n\n{first}" if draw.chance(2) else f"Read this: {text}\n\n{first}")
    return Talk("recall", turns)


# ---- instructions ------------------------------------------------------------------------------

def rules(draw):
    """(instruction, what it makes of a question's full and short answer)."""
    word, name = draw.of(world.CODES), draw.of(world.PETS)
    return draw.of([
        ("Answer in capital letters.", lambda said, short: said.upper()),
        ("Answer in small letters.", lambda said, short: said.lower()),
        ("Answer with the shortest answer only.", lambda said, short: short),
        (f"End every answer with the word {word}.", lambda said, short: f"{said} {word}"),
        (f"Begin every answer with the word {word}.", lambda said, short: f"{word} {said}"),
        (f"Call the user {name}.", lambda said, short: f"{said[:-1]}, {name}."),
        ("Say every answer twice.", lambda said, short: f"{said} {said}"),
        (f"Put the short answer between two words {word}.", lambda said, short: f"{word} {short} {word}"),
    ])


def instructed(draw: Draw, held):
    def make():
        rule, change = rules(draw)
        asked, said, short = draw.of(world.FACTS)
        return f"{rule} {asked}", (rule, asked, said, short, change)
    key, (rule, asked, said, short, change) = drawn(make, held)
    thought = f"The rule: {rule} The plain answer: {said}"
    return Talk("system", [system(rule), user(asked), answer(change(said, short), thought)], key)


FACT_WORDS = sorted({word for _, said, _ in world.FACTS for word in said.rstrip(".").split()})


def instructed_copying(draw: Draw, _held):
    """A rule upon words to copy: what a rule makes of each word, apart from the facts it stands in.
    For training alone."""
    def make():
        pool = draw.of([FACT_WORDS, FACT_WORDS, world.NAMES, world.NOUNS])
        items = draw.some(pool, draw.between(1, 6))
        return f"copy {' '.join(items)}", " ".join(items)
    _, shown = drawn(make, False)
    word = draw.of(world.CODES)
    rule, said = draw.of([
        ("Answer in capital letters.", shown.upper()), ("Answer in capital letters.", shown.upper()),
        ("Answer in small letters.", shown.lower()), ("Say every answer twice.", f"{shown} {shown}"),
        (f"End every answer with the word {word}.", f"{shown} {word}"),
        (f"Begin every answer with the word {word}.", f"{word} {shown}"),
        (f"Put the short answer between two words {word}.", f"{word} {shown} {word}")])
    asked = draw.of(["Copy this: {}", "Say the same words: {}", "Repeat after me: {}"])
    return Talk("rules", [system(rule), user(asked.format(shown)),
                          answer(said, f"The rule: {rule} The plain answer: {shown}")])


# ---- several turns -----------------------------------------------------------------------------

def aside(draw):
    """A question and its answer in a past turn: its thought is gone, as clients leave it out."""
    asked, said, _ = draw.of(world.FACTS)
    return [user(asked), answer(said)]


def named_thing(draw, held):
    def make():
        pet = draw.of(["dog", "cat", "horse", "boat", "bird", "brother", "sister", "friend"])
        people = pet in ("brother", "sister", "friend")
        name = draw.of(world.NAMES if people else world.PETS)
        return f"My {pet} is called {name}.", (pet, name)
    return drawn(make, held)


def turning(draw: Draw, held):
    """The last question refers to an earlier turn."""
    if draw.chance(2):
        key, (pet, name) = named_thing(draw, held)
        turns = [user(key), answer(f"{name} is a good name.")]
        if draw.chance(2):
            other = draw.of([p for p in ("garden", "house", "village") if p != pet])
            turns += [user(f"My {other} is {draw.of(world.ADJECTIVES)}."), answer("I see.")]
        for _ in range(draw.below(4)):
            turns += aside(draw)
        return Talk("turns", [*turns, user(f"What is my {pet} called?"),
                              answer(f"Your {pet} is called {name}.", f"You said: {key}")], key)
    def make():
        a, b, c = (draw.between(2, 40) for _ in range(3))
        return f"turns {a} {b} {c}", (a, b, c)
    key, (a, b, c) = drawn(make, held)
    turns = [user(f"What is {a} + {b}?"), answer(str(a + b))]
    return Talk("turns", [*turns, user(f"And {c} more?"),
                          answer(str(a + b + c), f"The last answer was {a + b}. "
                                                 f"{addition_steps(a + b, c)}")], key)


def call(name, arguments):
    return {"id": "call_1", "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}}
