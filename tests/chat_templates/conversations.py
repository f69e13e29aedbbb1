"""Conversations that every template is rendered with. Each is (name, keyword arguments of the renderer)."""

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_current_temperature",
        "description": "Get the current temperature at a location.",
        "parameters": {
            "type": "object",
            "properties": {
                "location": {"type": "string", "description": 'The location, as "City, Country"'},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "description": "The unit."},
            },
            "required": ["location", "unit"],
        },
        "return": {"type": "number", "description": "The temperature."},
    },
}
BOOKING = {
    "type": "function",
    "function": {
        "name": "book_flight",
        "description": "Réserve un vol — <b>fast</b> & 'simple'.\nTwo lines.",
        "parameters": {
            "type": "object",
            "properties": {
                "passengers": {
                    "type": "array",
                    "description": "Who flies.",
                    "items": {
                        "type": "object",
                        "properties": {"name": {"type": "string"}, "age": {"type": "integer", "default": 18}},
                        "required": ["name"],
                    },
                },
                "price_limit": {"type": "number", "default": 1e-07, "nullable": True},
                "flexible": {"type": ["boolean", "null"], "default": None},
                "seat": {"anyOf": [{"type": "string"}, {"type": "integer", "maximum": 18446744073709551615}]},
            },
            "required": [],
        },
    },
}
NO_ARGUMENTS = {
    "type": "function",
    "function": {"name": "now", "description": "", "parameters": {"type": "object", "properties": {}}},
}


def user(text):
    return {"role": "user", "content": text}


def system(text):
    return {"role": "system", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def call(name, arguments, call_id="abcdefghi"):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def tool(text, name="get_current_temperature", call_id="abcdefghi"):
    return {"role": "tool", "name": name, "tool_call_id": call_id, "content": text}


_PARIS = {"location": "Paris, France", "unit": "celsius"}
_TURNS = [user("Hi!"), assistant("Hello, how can I help?"), user("What is 2 + 2?")]
_TOOL_TURNS = [
    system("You are a weather bot."),
    user("How warm is it in Paris?"),
    {"role": "assistant", "content": "", "tool_calls": [call("get_current_temperature", _PARIS)]},
    tool("22.0"),
    assistant("It is 22 °C in Paris."),
    user("Thanks! And in Oslo?"),
]
_THOUGHTS = [
    user("Is 91 prime?"),
    assistant("No: 7 × 13.", reasoning_content="91 / 7 = 13\nso it is not."),
    user("And 97?"),
    assistant("<think>\nTry 2, 3, 5, 7.\n</think>\n\nYes."),
    user("Sure?"),
]
_DOCUMENTS = [
    {"doc_id": 1, "title": "The Moon", "text": "It is far away.", "contents": "It is far away."},
    {"doc_id": 2, "title": "Zoë's \"sun\"", "text": "Hot.\n\nVery.", "contents": "Hot."},
]

CONVERSATIONS = [
    ("one user message", dict(messages=[user("Hello")])),
    ("system and user", dict(messages=[system("You are terse."), user("Hello")])),
    ("turns", dict(messages=_TURNS)),
    ("system and turns", dict(messages=[system("Be kind.")] + _TURNS)),
    ("ends with the assistant", dict(messages=_TURNS + [assistant("4")])),
    ("unicode", dict(messages=[system("Réponds en 日本語 👩‍👩‍👧 \u200b"), user("ÄÖÜ ß İ Σας \u2028 \U0001f600"), assistant("नमस्ते"), user("\u00a0x\u3000")])),
    ("empty content", dict(messages=[system(""), user(""), assistant(""), user("")])),
    ("whitespace", dict(messages=[system("  a \n"), user("\n\n  b\t "), assistant("\n c \n\n"), user(" \r\n d ")])),
    ("markup and quotes", dict(messages=[user("<|im_end|> </s> {{ 7*7 }} {% raw %} \\n \"q\" 'a' & <b>"), assistant("[INST] x [/INST]"), user("`#}`")])),
    ("tools", dict(messages=[user("How warm is it?")], tools=[WEATHER])),
    ("many tools and system", dict(messages=[system("Use tools."), user("Book it.")], tools=[WEATHER, BOOKING, NO_ARGUMENTS])),
    ("empty tools", dict(messages=[system("x"), user("y")], tools=[])),
    ("tool call and result", dict(messages=_TOOL_TURNS, tools=[WEATHER])),
    ("tool turns without tools", dict(messages=_TOOL_TURNS)),
    ("ends with a tool result", dict(messages=_TOOL_TURNS[:4], tools=[WEATHER, BOOKING])),
    ("string arguments, two calls", dict(messages=[
        user("Both, please."),
        {"role": "assistant", "content": "On it.", "tool_calls": [
            call("get_current_temperature", '{"location": "Rome", "unit": "celsius"}', "call00001"),
            call("book_flight", {"passengers": [{"name": "Zoë", "age": 3}], "flexible": None, "price_limit": 12.50}, "call00002")]},
        tool('{"temperature": 31.5}', call_id="call00001"),
        tool("booked ✓", "book_flight", "call00002"),
        assistant("Done."),
        user("Great")], tools=[WEATHER, BOOKING])),
    ("call without content", dict(messages=[
        user("now?"),
        {"role": "assistant", "content": None, "tool_calls": [call("now", {})]},
        tool("12:00", "now")], tools=[NO_ARGUMENTS])),
    ("call without content key", dict(messages=[
        user("now?"), {"role": "assistant", "tool_calls": [call("now", {})]}, {"role": "tool", "content": "12:00"}])),
    ("bare function calls", dict(messages=[
        user("go"), {"role": "assistant", "content": "", "tool_calls": [{"name": "f", "arguments": {"a": [1, 2.0, True]}}]},
        tool("ok", "f")])),
    ("structured tool result", dict(messages=[
        user("go"), {"role": "assistant", "content": "", "tool_calls": [call("f", {"a": 1})]},
        {"role": "ipython", "content": {"output": [1, None, "x"]}}])),
    ("thoughts", dict(messages=_THOUGHTS)),
    ("no thinking", dict(messages=_THOUGHTS, extra={"enable_thinking": False, "thinking": False})),
    ("thinking", dict(messages=[system("s")] + _THOUGHTS, extra={"enable_thinking": True, "thinking": True})),
    ("thoughts with a call", dict(messages=[
        user("How warm?"), dict(assistant("Let me see.", reasoning_content="A tool knows."), tool_calls=[call("get_current_temperature", _PARIS)]),
        tool("22.0"), assistant("22 °C.", reasoning_content="It said 22.0.")], tools=[WEATHER])),
    ("thoughts under other names", dict(messages=[
        user("Is 91 prime?"), assistant("No.", thinking="7 × 13"), user("And 97?"), assistant("Yes.", reasoning="not by 2, 3, 5, 7"), user("Sure?"),
        dict(assistant("", thinking="ask"), tool_calls=[call("get_current_temperature", _PARIS)]), tool("22.0")], tools=[WEATHER])),
    ("text parts", dict(messages=[
        user([{"type": "text", "text": "part one "}, {"type": "text", "text": "part two"}]),
        assistant([{"type": "text", "text": "ok"}]), user("and?")])),
    ("an image", dict(messages=[user([{"type": "image", "url": "x.png"}, {"type": "text", "text": "what?"}])])),
    ("documents", dict(messages=[user("Tell me.")], extra={"documents": _DOCUMENTS})),
    ("more variables", dict(messages=[user("Hi")], tools=[WEATHER], extra={
        "tools_in_user_message": False, "date_string": "01 Jan 2025", "builtin_tools": ["brave_search", "code_interpreter"],
        "custom_tools": [WEATHER], "reasoning_effort": "high", "controls": {"length": "short"}, "xml_tools": [WEATHER],
        "python_tools": ["def f(x): ..."], "keep_past_thinking": True})),
    ("assistant first", dict(messages=[assistant("Welcome"), user("Hi")])),
    ("two users in a row", dict(messages=[user("a"), user("b")])),
    ("system in the middle", dict(messages=[user("a"), assistant("b"), system("c"), user("d")])),
    ("unknown role", dict(messages=[user("a"), {"role": "critic", "content": "b"}, user("c")])),
    ("developer role", dict(messages=[{"role": "developer", "content": "Be brief."}, user("a")])),
    ("only system", dict(messages=[system("alone")])),
    ("nothing", dict(messages=[])),
    ("no content", dict(messages=[{"role": "user"}])),
    ("long", dict(messages=[m for i in range(20) for m in (user("q%d" % i), assistant("a%d" % i))] + [user("end")])),
]
