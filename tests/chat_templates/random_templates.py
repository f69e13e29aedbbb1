"""Random small templates: expressions of every kind, and statements around them. Many are wrong on purpose: then
both renderers must refuse."""
import random
import re

VARIABLES = {
    "s": "Hello World",
    "t": "  pad\tded \n",
    "u": "Ünïcödé ßtraße 日本 😀 éÉ",
    "empty": "",
    "html": "<a href=\"x\">'&'</a>",
    "lines": "one\ntwo\n\n  four\r\nfive",
    "csv": "a,b,,c,a",
    "num": "42",
    "i": 7,
    "neg": -3,
    "zero": 0,
    "f": 2.5,
    "g": -0.1,
    "big": 1e22,
    "tiny": 1.5e-7,
    "yes": True,
    "no": False,
    "nil": None,
    "l": [3, 1, 2],
    "words": ["pear", "Apple", "fig", "apple"],
    "mixed": [1, "a", None, 2.5, [1, 2], {"k": "v"}],
    "none_list": [],
    "d": {"b": 1, "a": "x", "C": [1, 2], "items": 5},
    "nested": {"a": {"b": {"c": "deep"}}, "list": [{"n": 1}, {"n": 2}, {"m": 3}]},
    "people": [{"name": "Bo", "age": 30, "t": True}, {"name": "al", "age": 25}, {"name": "Cy", "age": 30, "t": False}],
    "unicode_map": {"ключ": "値", "q\"uote": "\\ \u007f \u0001 \u2028"},
    "prose": "The quick-brown fox -- a well-known jumper--leaps over (the) lazy dog's e-mail; see x-y and --flag  now.\n\nIt's self-\tcontained, über-groß\u00a0und naïve-ish…",
    "entities": "<p class=x>A &amp; B &lt;i&gt; &copy; &raquo &notit; &#x41;&#66; &#128; &#0; &bogus; &</p><!-- gone > --> tail <unclosed",
    "links": "See (https://example.com/a?b=c&d), www.python.org. mail me@x.org or mailto:a.b@c.de <http://[::1]:80/> foo.com/x) ftp://h.x/ @a@b http://1.2.3.4:8080 https://ex.am/(a(b)c) example.info",
    "deep": {"z": [list(range(12)), {"k": "word " * 20, "a": ["x" * 30] * 4}], "b": "one\ntwo " * 12, "a": None, "t": [1.5, True, ["é" * 40, "y" * 50]]},
}

STRINGS = ["s", "t", "u", "empty", "html", "lines", "csv", "num", "prose", "entities", "links"]
NUMBERS = ["i", "neg", "zero", "f", "g", "big", "tiny", "yes", "no"]
LISTS = ["l", "words", "mixed", "none_list", "people"]
DICTS = ["d", "nested", "unicode_map"]
MARKUP = ["(html|safe)", "(s|safe)", "(html|escape)", "('<b>%s</b>'|safe)", "('{} <i>'|safe)", "(u|e)"]

METHODS = [
    "upper()", "lower()", "title()", "capitalize()", "swapcase()", "strip()", "lstrip()", "rstrip()", "strip('Hed ')",
    "split()", "split(',')", "split(None, 1)", "rsplit(' ', 1)", "rsplit()", "rsplit(None, 1)", "split('l', 1)[0]", "split('l')[-1]",
    "splitlines()", "splitlines(true)", "startswith('He')", "startswith(('a', 'H'))", "endswith('d')", "endswith('')",
    "startswith('l', 2)", "find('o')", "find('zz')", "rfind('o')", "find('o', 5)", "find('', 3)", "index('o')", "count('l')",
    "count('')", "replace('l', 'LL')", "replace('', '-')", "replace('o', '', 1)", "join(['a', 'b'])", "join(words)", "join(s)",
    "zfill(14)", "ljust(14, '.')", "rjust(14, '*')", "center(14, '-')", "center(15)", "partition(' ')", "rpartition('o')",
    "removeprefix('He')", "removesuffix('ld')", "isdigit()", "isalpha()", "isalnum()", "isspace()", "isupper()", "islower()",
    "istitle()", "isascii()", "isnumeric()", "isdecimal()", "isprintable()", "isidentifier()", "expandtabs(4)", "format(1)", "casefold()", "casefoldx()", "append(1)", "format(html)", "format(html|safe)", "replace('l', '<')", "join(['<', 1])", "ljust(20, '<')",
    "items()", "keys()", "values()", "get('a')", "get('zz')", "get('zz', 5)", "copy()", "index(1)", "count(1)", "pop()", "update({})",
    "items()|list", "keys()|list", "values()|list", "x", "a", "b", "name", "0", "real_", "__class__", "__len__", "__foo__", "__class__.__mro__", "__class__()", "_private", "__class__.x", "append.x",
    "real", "imag", "numerator", "denominator", "bit_length()", "conjugate()",
]
FILTERS = [
    "upper", "lower", "title", "capitalize", "trim", "trim('Hd')", "length", "count", "string", "int", "int(5)", "int(0, 16)", "float",
    "float(1.5)", "abs", "round", "round(1)", "round(0, 'ceil')", "round(1, 'floor')", "round(-1)", "first", "last", "list", "reverse|list", "reverse",
    "sort", "sort(reverse=true)", "sort(case_sensitive=true)", "sort(attribute='age')", "sort(attribute='age,name')", "unique|list",
    "join", "join(', ')", "join('-', attribute='name')", "default('D')", "default('D', true)", "d('x')", "replace('l', 'r')",
    "replace('l', 'r', 1)", "tojson", "tojson(indent=2)", "tojson(indent=0)", "tojson(ensure_ascii=true)", "tojson(sort_keys=true)",
    "tojson(separators=(',', ':'))", "tojson(indent='--')", "map('upper')|list", "map(attribute='name')|list", "map(attribute='zz', default='?')|list",
    "map('string')|join(',')", "select|list", "reject|list", "select('string')|list", "select('equalto', 1)|list", "reject('none')|list",
    "selectattr('age')|list", "selectattr('age', 'gt', 26)|list", "selectattr('t', 'defined')|map(attribute='name')|list",
    "rejectattr('age', 'equalto', 30)|list", "items|list", "dictsort", "dictsort(true)", "dictsort(false, 'value')", "dictsort(reverse=true)",
    "indent", "indent(2)", "indent(2, true)", "indent('> ', true, true)", "safe", "escape", "e", "forceescape", "min", "max", "sum", "sum(start=10)",
    "sum(attribute='age')", "batch(2)|list", "batch(2, 'x')|list", "slice(2)|list", "slice(3, 'f')|list", "groupby('age')|list", "groupby('age')|map('first')|list",
    "format(1)", "format('x', 2)", "wordcount", "center(20)", "truncate(5)", "truncate(8, true)", "truncate(6, false, '..', 0)", "urlencode", "attr('upper')",
    "attr('__class__')", "attr('__class__')|attr('x')", "attr('items')", "attr('zz')", "map(attribute='__class__')|list", "map('attr', '__class__')|list",
    "striptags", "filesizeformat", "filesizeformat(true)", "pprint", "xmlattr", "xmlattr(false)", "urlize", "urlize(10)", "urlize(15, true, '_top')", "urlize(rel='a b', extra_schemes=['ftp://', 'x'])",
    "urlize(none, extra_schemes=['ftp:'])",
    "wordwrap", "wordwrap(20)", "wordwrap(7)", "wordwrap(1)", "wordwrap(10, false)", "wordwrap(12, break_on_hyphens=false)", "wordwrap(9, wrapstring='<br>')", "wordwrap(0)", "wordwrap(15, true, '|', false)",
    "safe|replace('l', '<')", "safe|string", "safe|upper", "safe|title", "safe|truncate(5, true, '<')", "safe|indent('<', true)", "safe|list", "safe|first", "safe|last", "safe|join('<')", "safe|format('<', html)", "random(1)",
    "wordcount()", "lower|title", "max(attribute='age')", "min(case_sensitive=true)", "first|upper", "length|string",
]
TESTS = [
    "defined", "undefined", "none", "string", "mapping", "iterable", "sequence", "number", "integer", "float", "boolean", "true", "false",
    "odd", "even", "divisibleby 3", "divisibleby(2)", "eq(7)", "equalto 'a'", "ne none", "gt 2", "lt(3)", "ge 7", "le 2.5", "in [1, 7, 'a']", "in 'Hello World'",
    "callable", "sameas true", "sameas none", "lower", "upper", "escaped", "filter", "test", "lessthan 5", "greaterthan 1", "== 7", "in d",
]
BINARY = ["+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "and", "or"]
SLICES = ["[0]", "[-1]", "[1:]", "[:2]", "[:-1]", "[::-1]", "[::2]", "[-3:-1]", "[5:1]", "[10:]", "['a']", "['items']", "[none]", "[1.5]", "[-1::-2]", "[:]", "[99]", "[true]", "['n'~'ame']", "[i]", "[nope]", "[nope:2]"]
FORMATS = [
    "'%s-%s' % (i, s)", "'%d' % f", "'%05.2f|%-8s|%+d' % (f, s, i)", "'%x %X %o %e %g %G' % (i, 255, 8, f, tiny, big)", "'%r' % s", "'%s' % l", "'%s %s' % l", "'%(a)s' % d",
    "'%%' % ()", "'%c%c' % (65, 'z')", "'%5s|%-5s|%.2s' % ('a', 'b', 'cde')", "'%s' % (none,)", "'%i' % 'x'", "'%*d' % (5, 3)", "'%#x % d %.3d' % (255, 5, 7)", "'%10.3e|%-10.1f|' % (f, g)",
    "'{} {}'.format(i, s)", "'{0}{1}{0}'.format('a', 'b')", "'{x}-{y!r}'.format(x=1, y='q')", "'{:>8}|{:<8}|{:^8}|{:*^9}'.format(s[:3], 'b', 'c', 'd')", "'{:.2f} {:e} {:g} {:%}'.format(f, f, tiny, 0.25)",
    "'{:,} {:_} {:05d} {:+d} {:x} {:#x} {:b} {:o}'.format(1234567, 1234567, 42, 7, 255, 255, 5, 8)", "'{:08.3f} {:.3} {:10.4g}'.format(f, 3.14159, 12345.678)", "'{a[b][c]} {l[0]}'.format(a=nested.a, l=l)",
    "'{:{w}}|'.format('x', w=5)", "'{{}} {}'.format(1)", "'{'.format(1)", "'{:d}'.format('x')", "'{!s:>5}'.format(none)", "'{.upper}'.format(s)[:4]", "'{:.3s}'.format('abcdef')", "'{}'.format(l)", "'{:>5}'.format(true)", "'{}'.format(true)",
    "'{:.0f} {:.0f} {:.1f}'.format(0.5, 1.5, 0.25)", "'{:n}'.format(5)", "'{:c}'.format(65)", "'{:,.2f}'.format(1234567.891)", "'{:012,}'.format(1234567)", "'{:.10g} {:.17g}'.format(0.1, 0.1)", "'{:.5}'.format(1e10)", "'{:.1}'.format(5.0)", "'{0.a}'.format(nested)",
]
DATES = ["%-d %B %Y", "%d %b %Y", "%-m/%-d/%y %-I:%M %p", "%_d|%e|%k|%l", "%^a %^B %#Z %#p", "%010Y|%5d|%-5d|%_5H", "%Ey %Od %EY", "%Y%%%f%z%Z", "%", "a%", "%Q %E %-", "%c|%x|%X|%D|%F|%T|%R|%r", "%s %G-%V %u %w %U %W %j", "%n%t%h%C%g%P%y", "%0e %-j %3S", "é %d ü", "%200d", "%5000d", "%-z", ""]
LITERALS = ["1", "0", "-2", "3.0", "1e3", "1_000", "0x1F", "0b101", "0o17", "1.5e-5", "100000000000000000000", "'a'", '"b\\n\\t\\x41\\u00e9\\\\"', "'it''s'", "''", "true", "False", "none", "None", "[]", "[1, 'a']", "(1,)", "(1, 2)", "()", "{}", "{'a': 1, 'b': [2]}", "{1: 2, 'x': none, true: 3}", "range(4)", "range(5, 0, -2)", "undefined_name", "dict(a=1)", "'%s'", "0.1", "1e16", "123456789.125", "1e-5"]


class Maker:
    def __init__(self, seed):
        self.r = random.Random(seed)

    def name(self):
        return self.r.choice(self.r.choice([STRINGS, NUMBERS, LISTS, DICTS, STRINGS, LISTS, ["nil", "nope"]]))

    def atom(self):
        return self.r.choice([self.name, self.name, lambda: self.r.choice(LITERALS), lambda: self.r.choice(MARKUP)])()

    def expr(self, depth=3):
        r = self.r
        if depth <= 0:
            return self.atom()
        kind = r.randrange(16)
        if kind == 14:
            return "%s.%s" % (r.choice(MARKUP), r.choice(METHODS))
        if kind == 15:
            return r.choice([
                lambda: "strftime_now('%s')" % r.choice(DATES),
                lambda: "(%s ~ %s ~ %s)" % (self.atom(), r.choice(MARKUP), self.atom()),
                lambda: "(%s %% (%s, %s))" % (r.choice(MARKUP), self.atom(), self.atom()),
                lambda: "(%s + %s)" % (r.choice(MARKUP), self.atom()),
                lambda: "[%s, %s, %s]|join(%s)" % (self.atom(), r.choice(MARKUP), self.atom(), self.atom()),
                lambda: "deep|pprint", lambda: "deep.%s|pprint" % r.choice(["z", "b", "t", "a"]), lambda: "(%s, %s)|pprint" % (self.name(), self.name()),
                lambda: "%d|filesizeformat%s" % (10 ** r.randrange(0, 30) * r.randrange(1, 99), r.choice(["", "(true)"])),
                lambda: "{'a': %s, 'b c': none, 'd': %s}|xmlattr" % (self.atom(), self.atom()),
                lambda: "('%a|%r|%s' % (u, html, nil))", lambda: "'{!a} {!r}'.format(u, s)",
            ])()
        if kind < 3:
            return "%s|%s" % (self.expr(depth - 1) if r.random() < 0.3 else self.atom(), r.choice(FILTERS))
        if kind < 5:
            return "%s.%s" % (self.name(), r.choice(METHODS))
        if kind == 5:
            return "%s%s" % (self.name(), r.choice(SLICES))
        if kind < 8:
            return "(%s %s %s)" % (self.expr(depth - 1), r.choice(BINARY), self.expr(depth - 1))
        if kind == 8:
            return "(%s is %s%s)" % (self.expr(depth - 2), r.choice(["", "", "not "]), r.choice(TESTS))
        if kind == 9:
            return "(%s if %s%s)" % (self.expr(depth - 1), self.expr(depth - 1), " else " + self.expr(depth - 1) if r.random() < 0.8 else "")
        if kind == 10:
            return r.choice(["not %s", "-%s", "+%s", "[%s]", "(%s)", "(%s,)", "{'k': %s}"]) % self.expr(depth - 1)
        if kind == 11:
            return r.choice(FORMATS)
        if kind == 12:
            return "%s.%s" % (self.name(), r.choice(["a.b.c", "list[0].n", "a", "0", "name", "items", "zz", "zz.y"]))
        return "%s %s %s %s %s" % (self.atom(), r.choice(["<", "<=", "=="]), self.atom(), r.choice(["<", ">", "!="]), self.atom())

    def statement(self, depth=2):
        r = self.r
        e = self.expr
        if depth <= 0:
            return self.output()
        body = lambda: self.space() + self.statement(depth - 1) + self.space()
        tag = self.tag
        kind = r.randrange(20)
        if kind == 15:
            return tag("autoescape " + r.choice(["true", "true", "false", "i", "zero", "nope", "'x'"])) + "{{ html }}{{ html|safe }}" + body() + tag("endautoescape") + "{{ html }}"
        if kind == 16:
            name = r.choice(["alpha", "beta", "gamma"])
            return tag("set q = i") + tag("for x in l") + tag("block %s%s" % (name, r.choice(["", " scoped", " required"]))) + "[{{ x is defined }}{{ q }}" + body() + "]" + tag("endblock" + r.choice(["", " " + name, " wrong"])) + tag("endfor") + r.choice(["", "{{ self.%s() }}" % name, "{{ self.none }}", "{{ super() }}"])
        if kind == 17:
            return tag("macro n(a)") + "<{{ a }}" + r.choice(["", "{{ caller(a) }}", "{{ varargs }}{{ kwargs }}"]) + ">" + tag("endmacro") + tag("autoescape " + r.choice(["true", "false", "yes"])) + r.choice(["{{ n(html) }}", "{{ n(html|safe) ~ html }}", tag("call(v) n(html)") + "{{ v }}" + body() + tag("endcall"), "{{ n('<')|upper }}", "{{ [n('<'), '>']|join('&') }}", "{{ n(html, '<', b='>') }}"]) + tag("set cap" + r.choice(["", "|upper", "|length", "|replace('<', '{')"])) + "<&>{{ html }}" + tag("endset") + "{{ cap }}{{ cap is escaped }}" + tag("filter " + r.choice(["upper", "escape", "length", "replace('<', '>')", "striptags", "wordwrap(5)"])) + "<b>{{ html }}</b>" + tag("endfilter") + tag("endautoescape")
        if kind == 18:
            return tag("if " + r.choice(["no", "no", "yes"])) + tag(r.choice(["include 'x'", "include 'x' ignore missing", "include ['a', 'b']", "import 'x' as y", "from 'x' import a, b as c", "from 'x' import a with context", "include", "from 'x' import _a"])) + tag("endif") + body()
        if kind == 19:
            return tag("for x in %s recursive" % r.choice(["nested.list", "[{'n': '<'}]"])) + "{{ loop.index ~ loop.depth0 ~ x.n }}" + tag("if loop.depth < 3") + "({{ loop([{'n': html}, {'n': 2}]) }})" + tag("endif") + body() + tag("else") + "E" + tag("endfor")
        if kind == 0:
            return tag("if " + e(1)) + body() + tag("elif " + e(1)) + body() + tag("else") + body() + tag("endif")
        if kind == 1:
            return tag("for x in " + self.iterable()) + "{{ loop.index }}{{ x }}" + body() + tag("else") + "E" + tag("endfor")
        if kind == 2:
            return tag("for x in %s if %s" % (self.iterable(), r.choice(["x", "x is string", "loop is defined", "x != 1", "not ns.done"]))) + "{{ loop.index0 ~ loop.revindex ~ loop.length ~ loop.last ~ loop.first }};" + tag("set ns.done = true") + tag("endfor")
        if kind == 3:
            return tag("for a, b in %s" % r.choice(["d.items()", "d|items", "people", "[(1, 2), (3, 4)]", "nested.items()", "d|dictsort", "[[1]]"])) + "{{ a }}={{ b }}," + tag("endfor")
        if kind == 4:
            return tag("set v = " + e(2)) + "{{ v }}" + tag("for x in words") + "{{ fresh is defined }}{{ v }}" + body() + tag("set fresh = x") + tag("set v = x") + tag("endfor") + "{{ fresh }}{{ v }}" + tag("for x in l") + tag("set v = x") + tag("endfor") + "{{ v }}"
        if kind == 5:
            return tag("set ns.n = 0") + tag("for x in " + self.iterable()) + tag("set ns.n = ns.n + 1") + tag("if x == 1") + tag(r.choice(["break", "continue"])) + tag("endif") + "{{ x }}" + tag("else") + "none" + tag("endfor") + "{{ ns.n }}"
        if kind == 6:
            return tag("macro m(a, b=%s, c='C')" % self.atom()) + "[{{ a }}|{{ b }}|{{ c }}" + r.choice(["", "{{ varargs }}", "{{ kwargs }}", "{{ caller() }}"]) + "]" + tag("endmacro") + r.choice(["{{ m(1) }}", "{{ m(1, 2, 3, 4) }}", "{{ m(c=1, z=2) }}", "{{ m() }}", tag("call m(5)") + "body {{ i }}" + tag("endcall"), "{{ m(*l) }}", "{{ m(**{'a': 1}) }}", "{{ m.name }}{{ m.arguments }}"])
        if kind == 7:
            return tag("set block") + body() + tag("endset") + "<{{ block }}>{{ block|length }}"
        if kind == 8:
            return tag("filter " + r.choice(["upper", "trim", "replace('a', 'b')", "indent(2)", "upper|lower"])) + body() + tag("endfilter")
        if kind == 9:
            return tag("with q = %s, w = i" % self.atom()) + "{{ q }}{{ w }}" + body() + tag("endwith") + "{{ q }}"
        if kind == 10:
            return tag("for x in %s" % r.choice(["l", "words", "s"])) + "{{ loop.cycle('a', 'b') }}{{ loop.changed(x) }}{{ loop.previtem }}/{{ loop.nextitem }}" + body() + tag("endfor")
        if kind == 11:
            return "{#%s comment %s#}" % (r.choice(["", "-"]), r.choice(["", "-", "+"])) + body()
        if kind == 12:
            return tag("raw").replace("+%}", "%}") + " {{ x }} {% y %} " + tag("endraw")
        if kind == 13:
            return tag("generation") + body() + tag("set inner = 1") + tag("endgeneration") + "{{ inner is defined }}"
        return tag("set a, b = %s, %s" % (self.atom(), self.atom())) + "{{ a }}{{ b }}" + tag("for x in nested.list recursive") + "{{ x.n }}" + tag("if x.n == 1") + "({{ loop([{'n': 5}]) }})" + tag("endif") + "{{ loop.depth }}" + tag("endfor")

    def iterable(self):
        return self.r.choice(["l", "words", "s", "d", "mixed", "none_list", "range(3)", "nope", "nil", "people|map(attribute='name')", "l|reverse", "d.items()", "(1, 2)", "u", self.expr(1)])

    def space(self):
        return self.r.choice(["", "", " ", "\n", "  \n", "\n  ", "\n\n\t", "x\n ", " y ", "é\n"])

    def tag(self, inside):
        r = self.r
        return "{%" + r.choice(["", "", "-", "+"]) + r.choice([" ", "", "\n"]) + inside + " " + r.choice(["", "", "-", "+"]) + "%}" + self.space()

    def output(self):
        r = self.r
        return "{{" + r.choice([" ", "- "]) + self.expr() + r.choice([" ", " -"]) + "}}"

    def template(self):
        parts = ["{% set ns = namespace(n=1) %}"]
        for _ in range(self.r.randrange(1, 4)):
            parts.append(self.space() + self.statement(self.r.randrange(0, 3)))
        return "".join(parts) + self.space()


def generate(count, seed):
    maker = Maker(seed)
    for i in range(count):
        template = "{{ %s }}" % maker.expr() if i % 2 == 0 else maker.template()
        yield {"template": template, "messages": [], "extra": VARIABLES, "add_generation_prompt": False}


def is_unspecified(text):
    """Text that shows the address or the inside of a Python object."""
    return re.search(r"0x[0-9a-f]{6,}|&lt;built-in|<built-in|bound method|<generator|<class|<function|acro|LoopContext|ist_reverseiterator", text, re.I) is not None
