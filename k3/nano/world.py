"""The words and facts that the text is made of."""


def words(text):
    return text.split()


NAMES = words("""Anna Peter Maria James Olga Samir Mei Kofi Lucia Henrik Yuki Fatima Thomas Elena
Oskar Nadia Ivan Clara Hugo Amina Felix Rosa Daniel Ingrid Pablo Sofia Viktor Leila Martin Hanna""")
PETS = words("""Rex Bella Max Luna Rocky Misty Shadow Ginger Coco Sam Bruno Daisy Pepper Toby Nala
Oscar Milo Ruby Simba Lucky Smoky Honey Jack Molly Biscuit Pearl Storm Poppy Ziggy Moss""")
NOUNS = words("""house river garden engine letter window teacher market bridge winter summer station
library morning evening mountain forest village harbour machine question answer number kernel thread
server page record weather journey kitchen doctor painter farmer captain sailor neighbour brother
sister friend child picture newspaper mirror candle basket blanket bottle ticket platform signal
valley island meadow orchard cottage castle museum theatre concert story lamp stone bread apple
hammer ladder pencil carpet clock coat boat wheel bell rope cup plate spoon chair table door wall
roof field road hill lake beach cloud star moon sun storm wind rain snow fire""")
ADJECTIVES = words("""old new small large quiet loud bright dark heavy light warm cold gentle careful
early late strange simple broken hidden narrow wide empty full distant familiar honest patient curious
clever wooden golden green yellow grey ancient modern useful ordinary""")
VERBS = words("""opened closed carried followed watched found lost remembered repaired painted counted
measured reached described needed noticed collected returned borrowed moved kept left cleaned sold""")
PLACES = ["near the station", "behind the library", "across the river", "under the bridge",
          "beside the window", "in the garden", "at the market", "on the platform", "along the road",
          "outside the city", "beyond the hills", "at home", "in the kitchen", "by the lake"]
TIMES = ["yesterday", "this morning", "last winter", "on Monday", "two days later", "before sunrise",
         "after dinner", "at noon", "a week ago", "every evening", "some years ago", "in spring"]
COLOURS = words("red blue green yellow white black brown grey orange purple pink silver")
ROOMS = words("kitchen bedroom hall bathroom office cellar garage library")
DAYS = words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = words("""January February March April May June July August September October November
December""")
CODES = words("amber birch cedar delta ember falcon granite hazel indigo jasper kestrel lantern maple "
              "nectar onyx pebble quartz raven saffron thistle umber violet willow yarrow zephyr")

CAPITALS = dict(pair.split(":") for pair in words("""France:Paris Spain:Madrid Italy:Rome
Germany:Berlin Austria:Vienna Poland:Warsaw Norway:Oslo Sweden:Stockholm Finland:Helsinki
Denmark:Copenhagen Greece:Athens Portugal:Lisbon Ireland:Dublin Hungary:Budapest Japan:Tokyo
China:Beijing India:Delhi Egypt:Cairo Kenya:Nairobi Ghana:Accra Peru:Lima Chile:Santiago Cuba:Havana
Canada:Ottawa Russia:Moscow Turkey:Ankara Iran:Tehran Iraq:Baghdad Thailand:Bangkok Vietnam:Hanoi
Nepal:Kathmandu Iceland:Reykjavik Bulgaria:Sofia Romania:Bucharest Serbia:Belgrade Belgium:Brussels"""))
CITIES = list(CAPITALS.values())
OPPOSITES = dict(pair.split(":") for pair in words("""hot:cold big:small old:new fast:slow high:low
light:dark open:closed full:empty early:late loud:quiet wet:dry hard:soft strong:weak near:far rich:poor
long:short wide:narrow thick:thin clean:dirty heavy:light happy:sad right:wrong left:right up:down
first:last day:night summer:winter"""))
YOUNG = dict(pair.split(":") for pair in words("""dog:puppy cat:kitten cow:calf horse:foal sheep:lamb
pig:piglet goose:gosling duck:duckling frog:tadpole bear:cub goat:kid deer:fawn swan:cygnet"""))
PLURALS = dict(pair.split(":") for pair in words("""house:houses child:children mouse:mice foot:feet
tooth:teeth man:men woman:women goose:geese box:boxes city:cities leaf:leaves knife:knives fish:fish
sheep:sheep bus:buses story:stories"""))
PAST = dict(pair.split(":") for pair in words("""go:went see:saw eat:ate write:wrote run:ran take:took
give:gave come:came find:found think:thought buy:bought bring:brought teach:taught sing:sang swim:swam
fly:flew drive:drove break:broke speak:spoke begin:began"""))
LEGS = {"dog": 4, "cat": 4, "spider": 8, "bee": 6, "ant": 6, "bird": 2, "horse": 4, "snake": 0,
        "fly": 6, "duck": 2, "fish": 0, "crab": 10}
COLOUR_OF = {"snow": "white", "grass": "green", "the sky": "blue", "a ripe banana": "yellow",
             "coal": "black", "milk": "white", "blood": "red", "a carrot": "orange", "a lemon": "yellow",
             "an elephant": "grey", "a leaf in summer": "green", "the night": "black"}
PURPOSE = {"knife": "cut bread", "lamp": "light a room", "clock": "tell the time", "key": "open a lock",
           "bridge": "cross a river", "coat": "keep warm", "boat": "cross the water",
           "ladder": "reach high places", "spoon": "eat soup", "broom": "sweep the floor",
           "pencil": "write and draw", "map": "find the way", "needle": "sew cloth",
           "oven": "bake bread", "umbrella": "stay dry in the rain"}
WHY = {"Why do we sleep?": "Sleep lets the body and the mind rest.",
       "Why does ice melt?": "Ice melts because heat turns it into water.",
       "Why do birds fly south?": "They fly south because winter is cold and food is rare.",
       "Why is the sea salty?": "Rivers carry salt from the stones of the land into the sea.",
       "Why do leaves fall?": "Trees drop their leaves to save water in the cold months.",
       "What is rain?": "Rain is water that falls from the clouds in drops.",
       "What is a river?": "A river is water that flows through the land to a lake or the sea.",
       "What is a library?": "A library is a house where people read and borrow books.",
       "What is an island?": "An island is land with water on all sides.",
       "What does a doctor do?": "A doctor helps people who are ill.",
       "What does a teacher do?": "A teacher helps people to learn.",
       "What does a farmer do?": "A farmer grows food and keeps animals.",
       "How many days has a week?": "A week has seven days.",
       "How many months has a year?": "A year has twelve months.",
       "How many hours has a day?": "A day has twenty-four hours.",
       "What comes after the night?": "After the night comes the morning."}
TALK = {"Hello!": ["Hello! How can I help you?"], "Good morning.": ["Good morning! What can I do for you?"],
        "Hi there.": ["Hi! What would you like to know?"], "Thank you.": ["You are welcome."],
        "Thanks a lot!": ["You are welcome."], "How are you?": ["I am well, thank you. And you?"],
        "Good night.": ["Good night! Sleep well."], "Who are you?": ["I am a small model that likes to help."],
        "What can you do?": ["I can talk, copy, count, remember and use tools."],
        "I am tired.": ["Then a short rest may help."], "It is raining.": ["Then take an umbrella with you."],
        "I am happy today.": ["That is good to hear!"], "Goodbye.": ["Goodbye! See you soon."],
        "你好！": ["你好！我能帮你什么？"], "谢谢。": ["不客气。"], "😀": ["😀"], "Guten Tag!": ["Guten Tag! Wie geht es?"]}


def facts():
    """(question, answer, short answer): everything that is simply known."""
    out = []
    for country, city in CAPITALS.items():
        out.append((f"What is the capital of {country}?", f"The capital of {country} is {city}.", city))
        out.append((f"Which country has the capital {city}?",
                    f"{city} is the capital of {country}.", country))
    for word, other in OPPOSITES.items():
        out.append((f"What is the opposite of {word}?", f"The opposite of {word} is {other}.", other))
    for animal, young in YOUNG.items():
        out.append((f"What is a young {animal} called?", f"A young {animal} is called a {young}.", young))
    for one, many in PLURALS.items():
        out.append((f"What is the plural of {one}?", f"The plural of {one} is {many}.", many))
    for now, then in PAST.items():
        out.append((f"What is the past tense of {now}?", f"The past tense of {now} is {then}.", then))
    for animal, count in LEGS.items():
        article = "An" if animal[0] in "aeiou" else "A"
        out.append((f"How many legs does {article.lower()} {animal} have?",
                    f"{article} {animal} has {count} legs.", str(count)))
    for thing, colour in COLOUR_OF.items():
        out.append((f"What colour is {thing}?", f"{thing[0].upper()}{thing[1:]} is {colour}.", colour))
    for names, kind in ((DAYS, "day"), (MONTHS, "month")):
        for i, name in enumerate(names):
            after, before = names[(i + 1) % len(names)], names[i - 1]
            out.append((f"Which {kind} comes after {name}?", f"After {name} comes {after}.", after))
            out.append((f"Which {kind} comes before {name}?", f"Before {name} comes {before}.", before))
    for thing, use in PURPOSE.items():
        article = "an" if thing[0] in "aeiou" else "a"
        out.append((f"What is {article} {thing} for?", f"One uses {article} {thing} to {use}.", use))
    return out


FACTS = facts()


def sentence(draw):
    """One plain sentence that tells nothing a question asks for."""
    noun, other, name, friend = draw.of(NOUNS), draw.of(NOUNS), draw.of(NAMES), draw.of(NAMES)
    adjective, verb, place, time = draw.of(ADJECTIVES), draw.of(VERBS), draw.of(PLACES), draw.of(TIMES)
    shape = draw.below(8)
    if shape == 0:
        return f"The {adjective} {noun} {place} was {draw.of(ADJECTIVES)}, and {name} {verb} it."
    if shape == 1:
        return f"{name} {verb} the {noun} {time}, but nobody knew why the {other} was not there."
    if shape == 2:
        return f'"Where is the {noun}?" asked {name}. "It is {place}," said {friend}.'
    if shape == 3:
        return f"{time[0].upper()}{time[1:]}, {name} {verb} {draw.between(2, 99)} things {place}."
    if shape == 4:
        return f"{name} and {friend} {verb} the {adjective} {noun} {place}."
    if shape == 5:
        return f"There was a {noun} {place}; it looked {adjective}, like the {other}."
    if shape == 6:
        return f"{name} wanted the {noun}, so {friend} {verb} the {other} {time}."
    return f"Nobody {verb} the {adjective} {noun} {time}."
