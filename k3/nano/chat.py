"""A conversation as the segments that the project's own chat renderer makes of it.

Only what the generator emits is covered: text content, tools, efforts, thoughts, calls with
arguments given as a JSON object's text, results that name their call. A segment is
(text, is_control); every one is encoded by itself.
"""
import json

OPEN, CLOSE, SEP, END = "<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"
EFFORT = ("`thinking_effort` guides on how much to think in your thinking channel (not including the "
          "response channel), supported values include `low`, `medium`, `high`, and `max`.\n"
          "Now the system is invoked with `thinking_effort={}`.")
TOOLS = ("# Tools\nHere are the available tools, described in JSONSchema.\n\n```json\n{}\n```")


class Segments(list):
    def control(self, marker):
        self.append((marker, True))

    def text(self, body):
        if body:
            self.append((body, False))

    def open(self, tag, **attributes):
        self.control(OPEN)
        self.text(tag)
        for key, value in attributes.items():
            self.text(f" {key}")
            self.text('="')
            self.text(str(value).replace("&", "&amp;").replace('"', "&quot;"))
            self.text('"')
        self.control(SEP)

    def close(self, tag):
        self.control(CLOSE)
        self.text(tag)
        self.control(SEP)

    def end(self):
        self.close("message")
        self.control(END)

    def system(self, kind, body):
        self.open("message", role="system", type=kind)
        self.text(body)
        self.end()


def argument(value):
    """(type, text) of a call's argument."""
    if isinstance(value, str):
        return "string", value
    kinds = {bool: "boolean", int: "number", float: "number", type(None): "null", dict: "object",
             list: "array"}
    return kinds[type(value)], json.dumps(value, ensure_ascii=False)


def assistant(out, message, thinking):
    """Writes one answer; the index of the first segment after the part that a prompt ends with."""
    out.open("message", role="assistant")
    if thinking:
        out.open("think")
        start = len(out)
        out.text((message.get("reasoning_content") or ""))
        out.close("think")
        out.open("response")
    else:
        out.open("response")
        start = len(out)
    out.text(message.get("content") or "")
    out.close("response")
    if message.get("tool_calls"):
        out.open("tools")
        for index, call in enumerate(message["tool_calls"], 1):
            out.open("call", tool=call["function"]["name"], index=index)
            for key, value in json.loads(call["function"]["arguments"]).items():
                kind, text = argument(value)
                out.open("argument", key=key, type=kind)
                out.text(text)
                out.close("argument")
            out.close("call")
        out.close("tools")
    out.end()
    return start


def render(request):
    """(segments, learned): `learned` lists [first, last) of the segments a model should say: the
    answers, without those whose thoughts are left out."""
    thinking = request.get("thinking", {"type": "enabled"})["type"] == "enabled"
    out, learned = Segments(), []
    if request.get("tools"):
        out.system("tool-declare", TOOLS.format(json.dumps(
            request["tools"], sort_keys=True, separators=(",", ":"), ensure_ascii=False)))
    effort = request.get("thinking_effort", "max")
    if thinking and effort is not None:
        out.system("thinking-effort", EFFORT.format(effort))
    calls, results = [], 0
    for message in request["messages"]:
        role = message["role"]
        if role == "assistant":
            start = assistant(out, message, thinking)
            if not thinking or message.get("reasoning_content"):
                learned.append((start, len(out)))
            calls, results = message.get("tool_calls") or [], 0
        elif role == "tool":
            results += 1
            name = next(c["function"]["name"] for c in calls if c["id"] == message["tool_call_id"])
            out.open("message", role="tool", tool=name, index=results)
            out.text(message["content"])
            out.end()
        else:
            out.open("message", role=role)
            out.text(message["content"])
            out.end()
    if request.get("add_generation_prompt", True):
        out.open("message", role="assistant")
        out.open("think" if thinking else "response")
    return out, learned
