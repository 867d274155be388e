"""Conversations with tools: calls with typed arguments, and answers from their results."""
import json

import world
from draw import Draw, drawn
from skills import Talk, answer, call, user

STRING, INTEGER, BOOLEAN = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}


def choice(*values):
    return {"type": "string", "enum": list(values)}


def declared(name, about, properties, required=None):
    return {"type": "function", "function": {
        "name": name, "description": about,
        "parameters": {"type": "object", "properties": properties,
                       "required": required or list(properties)}}}


TOOLS = {t["function"]["name"]: t for t in [
    declared("get_weather", "The weather of a city", {"city": STRING, "unit": choice("c", "f")}),
    declared("set_light", "Switches a lamp", {"room": STRING, "on": BOOLEAN}),
    declared("set_timer", "Starts a timer", {"minutes": INTEGER, "label": STRING}),
    declared("add_event", "Adds an event to the calendar", {"title": STRING, "day": STRING, "hour": INTEGER}),
    declared("send_message", "Sends a message", {"to": STRING, "text": STRING}),
    declared("order", "Orders goods", {"item": STRING, "count": INTEGER, "gift": BOOLEAN}),
    declared("find_route", "The way between two cities", {"start": STRING, "end": STRING}),
    declared("look_up", "Looks a person up", {"name": STRING}),
    declared("set_heat", "Sets the heat of a room", {"room": STRING, "degrees": INTEGER}),
    declared("play", "Plays a song", {"song": STRING, "loud": BOOLEAN}),
]}


def wish(draw: Draw):
    """(tool, arguments, the user's words)."""
    name = draw.of(list(TOOLS))
    city, room, who = draw.of(world.CITIES), draw.of(world.ROOMS), draw.of(world.NAMES)
    noun, yes = draw.of(world.NOUNS), draw.chance(2)
    count = draw.between(2, 99)
    if name == "get_weather":
        unit = draw.of(["c", "f"])
        return name, {"city": city, "unit": unit}, \
            f"What is the weather in {city}, in {'Celsius' if unit == 'c' else 'Fahrenheit'}?"
    if name == "set_light":
        return name, {"room": room, "on": yes}, \
            f"Please switch the light in the {room} {'on' if yes else 'off'}."
    if name == "set_timer":
        return name, {"minutes": count, "label": noun}, f"Start a timer for {count} minutes, called {noun}."
    if name == "add_event":
        day, hour, title = draw.of(world.DAYS), draw.between(6, 22), draw.of(["lunch", "walk", "lesson"])
        title = f"{title} with {who}"
        return name, {"title": title, "day": day, "hour": hour}, \
            f"Put {title} on {day} at {hour} into my calendar."
    if name == "send_message":
        text = f"The {noun} is {draw.of(world.PLACES)}."
        return name, {"to": who, "text": text}, f'Tell {who} this: "{text}"'
    if name == "order":
        return name, {"item": noun, "count": count, "gift": yes}, \
            f"Order {count} times {noun}, {'as a gift' if yes else 'not as a gift'}."
    if name == "find_route":
        end = draw.of([c for c in world.CITIES if c != city])
        return name, {"start": city, "end": end}, f"How do I get from {city} to {end}?"
    if name == "look_up":
        return name, {"name": f"{who} {draw.of(world.PETS)}"}, ""
    if name == "set_heat":
        degrees = draw.between(15, 28)
        return name, {"room": room, "degrees": degrees}, f"Set the {room} to {degrees} degrees."
    song = f"The {draw.of(world.ADJECTIVES)} {noun}"
    return name, {"song": song, "loud": yes}, f'Play "{song}"{" loudly" if yes else " quietly"}.'


def result_of(draw, name, arguments):
    """(what the tool says, the answer made of it)."""
    number = draw.between(2, 95)
    if name == "get_weather":
        sky = draw.of(["sun", "rain", "snow", "wind", "fog"])
        return {"degrees": number, "sky": sky}, \
            f"It is {number} degrees in {arguments['city']}, with {sky}."
    if name == "find_route":
        hours, line = draw.between(1, 30), draw.of(world.COLOURS)
        return {"line": line, "hours": hours}, f"Take the {line} line. It takes {hours} hours."
    if name == "look_up":
        city = draw.of(world.CITIES)
        return {"city": city, "room": number}, f"{arguments['name']} is in {city}, room {number}."
    if name == "order":
        return {"ok": True, "price": number * 10}, f"It is ordered and costs {number * 10}."
    ok = not draw.chance(4)
    if ok:
        return {"ok": True}, "It is done."
    why = f"the {draw.of(world.NOUNS)} is {draw.of(['broken', 'lost', 'busy', 'away'])}"
    return {"ok": False, "error": why}, f"It did not work: {why}."


def declared_some(draw, name):
    others = [t for t in TOOLS if t != name]
    return [TOOLS[t] for t in draw.shuffled([name, *draw.some(others, draw.below(4))])]


def wished(draw, held):
    def make():
        name, arguments, words = wish(draw)
        words = words or f"Where do I find {arguments['name']}?"
        return f"{name} {json.dumps(arguments)}", (name, arguments, words)
    return drawn(make, held)


def shown(arguments):
    return ", ".join(f"{key} {json.dumps(value, ensure_ascii=False)}" for key, value in arguments.items())


def calling(draw: Draw, held):
    """Ends in the call; one in eight trainings has a question that needs no tool."""
    key, (name, arguments, words) = wished(draw, held)
    tools = declared_some(draw, name)
    if not held and draw.chance(8):
        asked, said, _ = draw.of(world.FACTS)
        return Talk("tools", [user(asked), answer(said, "I know this. No tool is needed.")], "", tools)
    said = answer("", f"I call {name} with {shown(arguments)}.")
    said["tool_calls"] = [call(name, arguments)]
    return Talk("tools", [user(words), said], key, tools)


def reporting(draw: Draw, held):
    """Ends in the answer made of a call's result."""
    key, (name, arguments, words) = wished(draw, held)
    said = answer("", f"I call {name} with {shown(arguments)}.")
    said["tool_calls"] = [call(name, arguments)]
    result, told = result_of(draw, name, arguments)
    text = json.dumps(result)
    return Talk("results", [user(words), said,
                            {"role": "tool", "tool_call_id": "call_1", "content": text},
                            answer(told, f"The result is {text}.")], key, declared_some(draw, name))
