#include <gtest/gtest.h>

#include <ctime>
#include <string>

#include "text/template/chat_template.h"
#include "text/template/jinja/format.h"
#include "text/template/jinja/unicode.h"

namespace celer {
namespace {

using Json = nlohmann::ordered_json;

const Json& Variables() {
  static const Json variables = Json::parse(R"({
    "s": "Hello World", "u": "Ünï 日本 😀", "l": [3, 1, 2], "d": {"b": 1, "a": "x", "items": 5},
    "words": ["pear", "Apple", "fig"], "nil": null, "f": 2.5, "i": 7, "yes": true,
    "people": [{"name": "Bo", "age": 30}, {"name": "al", "age": 25}]})");
  return variables;
}

Result<std::string> RenderText(std::string_view source, const jinja::Limits& limits = {}) {
  auto program = ChatTemplate::Compile(source);
  if (!program) return program.error();
  ChatTemplate::Options options;
  options.extra = Variables();
  options.limits = limits;
  return program->Render(Json::array(), nullptr, options);
}

std::string Text(std::string_view source) {
  const auto text = RenderText(source);
  return text ? *text : "ERROR " + text.error().message();
}

struct Case {
  const char* source;
  const char* want;
};

void Check(std::initializer_list<Case> cases) {
  for (const Case& c : cases) EXPECT_EQ(Text(c.source), c.want) << c.source;
}

TEST(Jinja, NumbersPrintAsInPython) {
  Check({{"{{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 % -3 }}", "3 -4 2 -2"},
         {"{{ 7 / 2 }} {{ 6 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 2 ** 3 ** 2 }}", "3.5 3.0 1024 0.5 64"},
         {"{{ 0.1 + 0.2 }} {{ 1e16 }} {{ 1e15 }} {{ 1e-5 }} {{ 0.0001 }}",
          "0.30000000000000004 1e+16 1000000000000000.0 1e-05 0.0001"},
         {"{{ -0.0 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 1_000 }} {{ 0x1F }} {{ 0b11 }}",
          "-0.0 3.0 0.5 1000 31 3"},
         {"{{ 2.5|round }} {{ 3.5|round }} {{ 2.675|round(2) }} {{ 42.4|round(0, 'ceil') }} {{ "
          "1234|round(-2) }}",
          "2.0 4.0 2.67 43.0 1200"},
         {"{{ '12'|int }} {{ 'x'|int(3) }} {{ '0x1f'|int(0, 16) }} {{ '3.9'|int }} {{ ' 1_0 '|int }} {{ "
          "'x'|float }}",
          "12 3 31 3 10 0.0"},
         {"{{ true + true }} {{ 1 == true }} {{ 1 == 1.0 }} {{ 18446744073709551615 + 1 }}",
          "2 True True 18446744073709551616"}});
}

TEST(Jinja, ValuesPrintAsInPython) {
  Check({{"{{ [1, 'a', none, true, 2.0, (1,), {}] }}", "[1, 'a', None, True, 2.0, (1,), {}]"},
         {"{{ {'a': [1], 2: \"it's\"} }}", "{'a': [1], 2: \"it's\"}"},
         {"{{ ['\\n\\t\\\\', '\"', '\\'\"', 'é', '\\x00', '\\u200b'] }}",
          R"(['\n\t\\', '"', '\'"', 'é', '\x00', '\u200b'])"},
         {"{{ d.items() }}{{ d.keys()|list }}",
          "dict_items([('b', 1), ('a', 'x'), ('items', 5)])['b', 'a', 'items']"},
         {"{{ range(3) }}{{ range(5, 0, -2)|list }}{{ nil }}{{ nope }}", "range(0, 3)[5, 3, 1]None"}});
}

TEST(Jinja, JsonIsWhatJsonDumpsWrites) {
  Check({{"{{ d|tojson }}", R"({"b": 1, "a": "x", "items": 5})"},
         {"{{ d|tojson(sort_keys=true, separators=(',', ':')) }}", R"({"a":"x","b":1,"items":5})"},
         {"{{ [1, [], {}, [2.0, none]]|tojson(indent=2) }}",
          "[\n  1,\n  [],\n  {},\n  [\n    2.0,\n    null\n  ]\n]"},
         {"{{ 'é<\\n\\x01\"'|tojson }}{{ '😀'|tojson(ensure_ascii=true) }}",
          "\"é<\\n\\u0001\\\"\"\"\\ud83d\\ude00\""},
         {"{{ {1: true, none: 1e100}|tojson }}", R"({"1": true, "null": 1e+100})"}});
}

TEST(Jinja, TextIsCountedInCodePoints) {
  Check(
      {{"{{ u|length }} {{ u[4:6] }} {{ u[-1] }} {{ u[::-1] }} {{ u.find('本') }}", "8 日本 😀 😀 本日 ïnÜ 5"},
       {"{{ u|upper }} {{ 'STRASSE ÉÀ'|lower }} {{ 'straße ŉ'|upper }} {{ 'ǆ'|capitalize }}",
        "ÜNÏ 日本 😀 strasse éà STRASSE ʼN ǅ"},
       {"{{ '\\u3000 x\\u00a0'|trim }}|{{ 'xxaxx'.strip('x') }}|{{ 'ab'.center(5, 'é') }}", "x|a|ééabé"}});
}

TEST(Jinja, StringMethods) {
  Check(
      {{"{{ 'a,b,,c'.split(',') }}{{ ' a  b '.split() }}{{ 'a b c'.rsplit(' ', 1) }}",
        "['a', 'b', '', 'c']['a', 'b']['a b', 'c']"},
       {"{{ s.startswith(('x', 'He')) }} {{ s.endswith('d') }} {{ s.replace('l', 'L', 2) }} {{ s.title() }}",
        "True True HeLLo World Hello World"},
       {"{{ 'a-b c'|title }} {{ \"it's a\".title() }} {{ s.partition(' ') }}",
        "A-B C It'S A ('Hello', ' ', 'World')"},
       {"{{ '%05.1f|%-4s|%+d|%x|%r' % (f, 'a', 3, 255, 'q') }}", "002.5|a   |+3|ff|'q'"},
       {"{{ '{0}-{x:>4}-{1!r:^5}-{2:,.2f}'.format(1, 'a', 1234.5, x=2) }}", "1-   2- 'a' -1,234.50"},
       {"{{ 'aXXXXXXXXXXXXXXXXXXbXXXXXXXXXXXXXXXXXXc'.rsplit('X' * 18) }}{{ ('b' + 'ab' * 20).rfind('ab' * "
        "9) }}",
        "['a', 'b', 'c']23"},
       {"{{ 'aaa'.rsplit('aa') }}{{ 'abcab'.rsplit('ab') }}{{ 'xaxa'.rsplit('a', 1) }}",
        "['a', '']['', 'c', '']['xax', '']"},
       {"{{ 'a\\nb\\n\\nc'|indent(2) }}", "a\n  b\n\n  c"}});
}

TEST(Jinja, ListsAndDicts) {
  Check(
      {{"{{ l|sort }}{{ words|sort }}{{ l|sort(reverse=true) }}{{ "
        "people|sort(attribute='age')|map(attribute='name')|join }}",
        "[1, 2, 3]['Apple', 'fig', 'pear'][3, 2, 1]alBo"},
       {"{{ l[1:] }}{{ l[::-1] }}{{ l[-1] }}{{ l[9] }}{{ l + [4] }}{{ [0] * 3 }}",
        "[1, 2][2, 1, 3]2[3, 1, 2, 4][0, 0, 0]"},
       {"{{ d.items is callable }} {{ d['items'] }} {{ d.a }} {{ d['zz'] is defined }} {{ d.get('zz', 3) }}",
        "True 5 x False 3"},
       {"{{ people|selectattr('age', 'gt', 26)|map(attribute='name')|list }}{{ [1, none, 0]|select|list }}",
        "['Bo'][1]"},
       {"{% for k, v in d|dictsort %}{{ k }}{{ v }},{% endfor %}", "ax,b1,items5,"},
       {"{{ [1, 2, 3]|batch(2)|list }}{{ 'abcde'|slice(2)|list }}{{ [1, 1.0, 2]|unique|list }}",
        "[[1, 2], [3]][['a', 'b', 'c'], ['d', 'e']][1, 2]"},
       {"{{ people|groupby('age')|map('first')|list }}{{ l|min }}{{ l|max }}{{ l|sum }}", "[25, 30]136"},
       {"{{ (l|map('string')) and 1 }}{{ 2 in l }}{{ 'b' in d }}{{ 'x' not in s }}{{ 'a' in nope }}",
        "1TrueTrueTrueFalse"},
       {"{{ 1 < 2 < 3 }}{{ 3 > 2 > 2 }}{{ [1, 2] < [1, 3] }}{{ 'a' == 1 }}", "TrueFalseTrueFalse"}});
}

TEST(Jinja, LoopsAndScopes) {
  Check(
      {{"{% for x in l %}{{ loop.index }}{{ loop.first }}{{ loop.last }}{{ loop.revindex }} {% endfor %}",
        "1TrueFalse3 2FalseFalse2 3FalseTrue1 "},
       {"{% for x in l if x > 1 %}{{ x }}{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }},{% else "
        "%}E{% endfor %}",
        "322,223,"},
       {"{% set x = 1 %}{% for i in l %}{% set x = i %}{% endfor %}{{ x }}", "1"},
       {"{% set ns = namespace(x=0) %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}", "6"},
       {"{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% endif "
        "%}{{ i }}{% endfor %}",
        "013"},
       {"{% for i in l %}{% continue %}{% else %}else{% endfor %}", "else"},
       {"{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}{% set a, b = 1, 2 %}{{ a }}{{ "
        "b }}",
        "12312"},
       {"{% for x in [{'c': [{'c': []}]}] recursive %}<{{ loop.depth }}{{ loop(x.c) }}>{% endfor %}",
        "<1<2>>"},
       {"{% with a = 1, b = i %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}", "17False"},
       {"{% set t %}a{{ i }}{% endset %}{{ t|length }}{% filter upper %}x{{ i }}{% endfilter %}", "2X7"},
       {"{% if nope %}1{% elif i == 7 %}2{% else %}3{% endif %}{{ 'y' if nope }}{{ 'n' if nope else 'm' }}",
        "2m"},
       {"{% generation %}{% set q = 1 %}g{% endgeneration %}{{ q is defined }}", "gFalse"}});
}

TEST(Jinja, ALoopFilterSeesWhatTheBodyDid) {
  Check(
      {{"{% set ns = namespace(stop=false) %}{% for x in l if not ns.stop %}{{ x }}{% set ns.stop = x == 1 "
        "%}{% endfor %}",
        "31"}});
}

TEST(Jinja, Macros) {
  Check({{"{% macro m(a, b='B', c=a) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }}{{ m(1, c=3) }}{{ m(b=2) "
          "}}",
          "1B11B32"},
         {"{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }}{{ m(*l, **{'y': 1}) }}",
          "(1, 2){'x': 3}(3, 1, 2){'y': 1}"},
         {"{% macro box(t) %}[{{ t }}:{{ caller('c') }}]{% endmacro %}{% call(x) box('T') %}{{ x }}{{ i }}{% "
          "endcall %}",
          "[T:c7]"},
         {"{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}", "3210"},
         {"{% macro m() %}{{ later }}{% endmacro %}{% set later = 5 %}{{ m() }}", "5"}});
}

TEST(Jinja, WhitespaceControl) {
  Check({{"a\n  {% if true %}\n  b\n  {% endif %}\nc\n", "a\n  b\nc"},
         {"a \n {%- if true -%} \n b {%- endif %} c", "ab c"},
         {"  {%+ if true +%}\n x{% endif %}", "  \n x"},
         {"{{ 1 }}\n{{- 2 -}}\n{# c #}\n3", "123"},
         {"{% raw %}{{ x }}{% endraw %}\n|{%- raw -%} y {%- endraw -%} z", "{{ x }}|yz"},
         {"a\r\n{% if true %}\r\nb{% endif %}", "a\nb"},
         {"{{ {'a': {'b': 1}}.a.b }}{{ '}}' }}", "1}}"}});
}

TEST(Jinja, ErrorsNameTheLineAndTheCause) {
  Check(
      {{"a\n\n{{ nope.x }}", "ERROR chat template line 3: 'nope' is undefined"},
       {"{{ raise_exception('no system role') }}",
        "ERROR chat template line 1 rejects this conversation: no system role"},
       {"{% if x %}", "ERROR chat template line 1: the template ends before '{% endif %}'"},
       {"x\n{{ 1 +\n}}", "ERROR chat template line 3: unexpected '}}'"},
       {"{{ 1|nofilter }}", "ERROR chat template line 1: there is no filter 'nofilter'"},
       {"{% if false %}{{ 1|nofilter }}{% endif %}ok", "ok"},
       {"{{ 'a' + 1 }}", "ERROR chat template line 1: '+' is not defined between str and int"},
       {"{{ l.append(1) }}",
        "ERROR chat template line 1: SecurityError: access to attribute 'append' of a list is unsafe"},
       {"{% set d.x = 1 %}",
        "ERROR chat template line 1: cannot set 'd.x': only attributes of a namespace() can be set"},
       {"{{ 1 // 0 }}", "ERROR chat template line 1: division by zero"},
       {"{% break %}", "ERROR chat template line 1: 'break' stands outside of a loop"},
       {"{% if false %}{% include 'x' ignore missing %}{% endif %}{% if no %}{% from 'x' import a %}{% endif "
        "%}",
        ""},
       {"{% include 'x' %}",
        "ERROR chat template line 1: the tag 'include' needs another template, and a chat template has none"},
       {"{{ l|random }}",
        "ERROR chat template line 1: the filter 'random' is not supported: a prompt must not depend on "
        "chance"},
       {"{# never closed", "ERROR chat template line 1: a comment '{#' is not closed by '#}'"},
       {"{{ 'never closed }}", "ERROR chat template line 1: a string is not closed"}});
}

TEST(Jinja, NothingOfTheHostIsReachable) {
  for (const char* source :
       {"{{ ''.__class__.__mro__ }}", "{{ l.__class__() }}", "{{ range.__globals__ }}",
        "{{ (1).__class__.__base__.__subclasses__() }}", "{{ raise_exception.__globals__['os'] }}",
        "{{ namespace.__init__.__globals__ }}", "{{ '{0.__class__.__init__}'.format(s).x() }}",
        "{{ self.__dict__ }}", "{{ lipsum.__globals__ }}", "{{ cycler.__init__() }}",
        "{{ s|attr('__class__')|attr('mro') }}x{{ s.__class__.y }}"}) {
    const auto text = RenderText(source);
    EXPECT_TRUE(!text || text->find("class") == std::string::npos)
        << source << " gives " << (text ? *text : "");
  }
}

// As jinja2's ImmutableSandboxedEnvironment: the name alone is undefined, its use is refused.
TEST(Jinja, DunderAccessIsASecurityError) {
  Check(
      {{"[{{ s.__class__ }}{{ s['__class__'] }}{{ s|attr('__class__') }}{{ d.__len__ }}{{ nope.__class__ }}]",
        "[]"},
       {"{{ {'__class__': 5}.__class__ }}{{ {'__class__': 5}['__class__'] }}{{ {'__foo__': 5}.__foo__ }}",
        "55"},
       {"{{ s.__class__ is defined }}{{ people|map(attribute='__class__')|list }}",
        "False[Undefined, Undefined]"}});
  for (const char* source :
       {"{{ s.__class__.__mro__ }}", "{{ s['__class__']['__mro__'] }}", "{{ s.__class__() }}",
        "{{ s.__len__() }}", "{{ l.append(1) }}", "{{ d.__class__.x }}", "{{ (s|attr('__class__')).mro() }}",
        "{{ people|map(attribute='__class__.__mro__')|list }}", "{{ s.__class__ + 'a' }}",
        "{{ '{0.__class__.__mro__}'.format(s) }}"})
    EXPECT_NE(Text(source).find("SecurityError: access to attribute '"), std::string::npos) << source;
  EXPECT_EQ(Text("{{ nope.__foo__ }}"), "ERROR chat template line 1: 'nope' is undefined");
}

TEST(Jinja, BlocksAndAutoescape) {
  Check(
      {{"{% set q = 1 %}{% for x in l %}{% block b scoped %}{{ x }}{% endblock b %}{% endfor %}", "312"},
       {"{% set q = 1 %}{% for x in l %}{% block b %}{{ x }}{{ q }}{% set q = 5 %}{% endblock %}{% endfor %}",
        "111"},
       {"{% block b %}<{{ i }}>{% endblock %}{{ self.b()|upper }}{{ self.c is defined }}", "<7><7>False"},
       {"{% block b %}{% endblock %}{% block b %}{% endblock %}",
        "ERROR chat template line 1: the block 'b' is defined twice"},
       {"{% autoescape true %}{{ '<' }}{{ '<'|safe }}{{ '<' ~ '>'|safe }}{% endautoescape %}{{ '<' }}",
        "&lt;<&lt;><"},
       {"{% autoescape yes %}{{ ['<', '>'|safe]|join('&') }}{{ '<'|replace('<', '>') }}{% endautoescape %}",
        "&lt;&amp;>&gt;"},
       {"{% macro m(a) %}<{{ a }}>{% endmacro %}{% autoescape true %}{{ m('<') }}{% set c %}<{% endset %}{{ "
        "c }}"
        "{% filter upper %}<a{% endfilter %}{% endautoescape %}",
        "<<><<A"},
       {"{{ ('<%s>'|safe) % '&' }} {{ '{}<'|safe|replace('<', '>') }} {{ ('{}'|safe).format('<') }}",
        "<&amp;> {}> &lt;"},
       {"{% filter length %}abc{% endfilter %}",
        "ERROR chat template line 1: a call or filter block must give a string, not int"}});
}

TEST(Jinja, RarerFilters) {
  Check(
      {{"{{ '<p>A &amp;  B &copy; &#x41; &notit;</p><!-- x > -->'|striptags }}", "A & B \u00a9 A \u00acit;"},
       {"{{ 'a well-known thing--or two'|wordwrap(8) }}", "a well-\nknown\nthing--\nor two"},
       {"{{ 'abcdefgh ij'|wordwrap(4, false) }}|{{ 'abcdefgh ij'|wordwrap(4, wrapstring='/') }}",
        "abcdefgh\nij|abcd/efgh/ij"},
       {"{{ 1|filesizeformat }} {{ 1500|filesizeformat }} {{ 2048|filesizeformat(true) }} "
        "{{ '1e24'|filesizeformat }} {{ -0.5|filesizeformat }}",
        "1 Byte 1.5 kB 2.0 KiB 1.0 YB 0 Bytes"},
       {"<a{{ {'b': '\"', 'c': none, 'd': 1}|xmlattr }}>", "<a b=\"&#34;\" d=\"1\">"},
       {"{{ {'b c': 1}|xmlattr }}",
        "ERROR chat template line 1: xmlattr: 'b c' is not the name of an attribute"},
       {"{{ 'see (www.x.org), a@b.cd'|urlize(4) }}",
        "see (<a href=\"https://www.x.org\" rel=\"noopener\">www....</a>), "
        "<a href=\"mailto:a@b.cd\">a@b.cd</a>"},
       {"{{ {'b': ['x' * 40, 'y' * 40], 'a': 1}|pprint }}",
        "{'a': 1,\n 'b': ['xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx',\n"
        "       'yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy']}"},
       {"{{ 'Stra\u00dfe \u0130'.casefold() }} {{ '%a' % 'é' }} {{ (7).bit_length() }} {{ i.real }}",
        "strasse i\u0307 '\\xe9' 3 7"}});
}

TEST(Jinja, StrftimeTakesTheFlagsOfTheCLibrary) {
  auto program = ChatTemplate::Compile(
      "{{ strftime_now('%-d %B %Y|%_m|%^b|%03d|%f%z%Z%-z|%%') }}|{{ strftime_now('%9999d')|length }}");
  ASSERT_TRUE(program);
  ChatTemplate::Options options;
  options.now = 1735905600;  // 2025-01-03 12:00 UTC
  EXPECT_EQ(*program->Render(Json::array(), nullptr, options), "3 January 2025| 1|JAN|003|000000|%|0");
}

// Each would take forever, or all memory, if it were not stopped.
TEST(Jinja, TemplateBombsAreStopped) {
  const char* bombs[] = {
      "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% "
      "endfor %}{% endfor %}",
      "{% set ns = namespace(s='x') %}{% for a in range(99999) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
      "{% set ns = namespace(s=['x']) %}{% for a in range(99999) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
      "{% set ns = namespace(s=['x']) %}{% for a in range(99999) %}{% set ns.s = [ns.s, ns.s] %}{% endfor "
      "%}{{ ns.s }}",
      "{% set ns = namespace(s=['x']) %}{% for a in range(60) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ "
      "ns.s }}",
      "{% set ns = namespace(s=['x']) %}{% for a in range(60) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ "
      "ns.s|tojson }}",
      "{% set a = namespace(s=[1]) %}{% set b = namespace(s=[1]) %}{% for i in range(60) %}{% set a.s = "
      "[a.s, a.s] %}{% set b.s = [b.s, b.s] %}{% endfor %}{{ a.s == b.s }}",
      "{% set a = namespace(s=(1,)) %}{% for i in range(60) %}{% set a.s = (a.s, a.s) %}{% endfor %}{{ {a.s: "
      "1} }}",
      "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
      "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
      "{% macro a(n) %}{{ caller() }}{% call a(1) %}{{ a(2) }}{% endcall %}{% endmacro %}{% call a(0) %}x{% "
      "endcall %}",
      "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
      "{{ 'x' * 10**12 }}",
      "{{ [0] * 10**12 }}",
      "{{ 'abc' * 10**30 }}",
      "{{ range(10**9) }}",
      "{{ range(0 - 10**18, 10**18, 1) }}",
      "{{ 'x'.center(10**12) }}{{ 'x'.zfill(10**12) }}",
      "{{ '%1000000000d' % 1 }}",
      "{{ '%*d' % (10**15, 1) }}",
      "{{ '%.100000000f' % 1.5 }}",
      "{{ '{:>1000000000}'.format(1) }}",
      "{{ '{:99999999999999999999}'.format(1) }}",
      "{{ '{:.999999999}'.format(1.5) }}",
      "{{ ('x' * 10**7).replace('x', 'y' * 10**7) }}",
      "{{ ('x' * 10**7).replace('', 'y' * 10**7) }}",
      "{{ ('x' * 10**7)|join('y' * 10**6) }}",
      "{{ ('x\\n' * 10**7)|indent(10**6) }}",
      "{{ [[[1]]]|tojson(indent=10**8) }}",
      "{{ 10 ** 10 ** 10 }}",
      "{{ 2 ** 1000000000 }}",
      "{{ ('a' * 10**7)|list|map('upper')|list|sort }}",
      "{{ range(99999)|list|sort|map('string')|join|list|length }}{% for x in range(99999) %}{{ "
      "range(99999)|list|sort }}{% endfor %}",
      "{% for x in range(99999) %}{{ ('ab' * 10**6) in ('a' * 10**7) }}{% endfor %}",
      "{% for x in range(99999) %}{{ ('ab' * 10**6).strip('x' * 10**6) }}{% endfor %}",
      "{% for x in range(99999) %}{{ s.split('') }}{% endfor %}",
      "{% set ns = namespace() %}{% set ns.n = ns %}{{ ns }}",
      "{% set ns = namespace(c=cycler(1)) %}{% for i in range(9999) %}{% set ns.c = cycler(ns.c) %}{% endfor "
      "%}{{ 1 + '' }}",
      "{% set ns = namespace(m=[].count) %}{% for i in range(9999) %}{% set ns.m = [ns.m].count %}{% endfor "
      "%}",
      "{% for x in range(99999) %}{{ ('a' * 10**7) in ('a' * 5 * 10**6 + 'b' + 'a' * 10**7 + 'b') }}{{ ('a' "
      "* 10**6 + 'b') in ('a' * 10**7) }}{% endfor %}",
      "{% for x in range(99999) %}{{ ('a' * 10**7).rsplit('b' + 'a' * 10**6) }}{{ ('a' * 10**7).rfind('b' + "
      "'a' * 10**6) }}{{ ('a' * 10**7).split('a' * 10**6 + 'b') }}{% endfor %}",
      "{% for x in range(99999) %}{{ ('a' * 10**7).replace('a' * 10**6 + 'b', '') }}{{ ('a' * "
      "10**7).count('a' * 10**6 + 'b') }}{% endfor %}",
      "{{ ('a' * 10**7).split('a')|length }}",
      "{{ ('\\n' * 10**7).splitlines()|length }}",
      "{{ ('a ' * 5 * 10**6).split()|length }}",
      "{{ ('a' * 10**7)|list|length }}",
      "{{ strftime_now('%c' * 10**7) }}",
      "{% block b %}{{ self.b() }}{{ self.b() }}{% endblock %}",
      "{% for x in range(99999) %}{{ ('a-' * 10**6)|wordwrap(1) }}{{ ('-' * 10**6)|wordwrap(3) }}{% endfor "
      "%}",
      "{% for x in range(99999) %}{{ ('<a' * 10**6)|striptags }}{{ ('&a' * 10**6)|striptags }}{% endfor %}",
      "{% for x in range(99999) %}{{ ('(' * 10**6 ~ ')' * 10**6)|urlize }}{{ ('www.' * 10**5)|urlize }}{% "
      "endfor %}",
      "{% set ns = namespace(s=['x']) %}{% for a in range(60) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ "
      "ns.s|pprint }}",
      "{% for x in range(99999) %}{{ ('word ' * 10**6)|pprint }}{{ (('a' * 10**6)|safe) % () }}{% endfor %}",
  };
  jinja::Limits limits;
  limits.steps = 3'000'000;  // less than by default, to save time
  limits.string_bytes = 16 << 20;
  for (const char* source : bombs) {
    const std::clock_t start = std::clock();  // of this process: a busy machine must not fail the test
    const auto text = RenderText(source, limits);
    const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    EXPECT_FALSE(text) << source << " gives " << text->substr(0, 100);
    EXPECT_LT(seconds, 20) << source;
  }
}

TEST(Jinja, ManyVariablesArePaidFor) {
  std::string source;
  for (int i = 0; i < 40000; ++i) source += "{% set v" + std::to_string(i) + "=1 %}";
  EXPECT_FALSE(RenderText(source));
}

TEST(Jinja, LimitsAreNamedInTheError) {
  jinja::Limits limits;
  limits.steps = 1000;
  limits.string_bytes = 100;
  EXPECT_EQ(RenderText("{% for a in range(999) %}{% endfor %}", limits).error().message(),
            "chat template line 1: template exceeded 1000 steps; it loops or grows without end");
  EXPECT_EQ(RenderText("{{ 'x' * 101 }}", limits).error().message(),
            "chat template line 1: template makes a string of more than 100 bytes");
  EXPECT_EQ(RenderText("{% macro m() %}{{ m() }}{% endmacro %}\n{{ m() }}").error().message(),
            "chat template line 1: template exceeded a depth of 600; a macro may call itself without end");
}

TEST(Jinja, DeepSyntaxIsRefused) {
  const auto repeat = [](const std::string& piece, int n) {
    std::string out;
    for (int i = 0; i < n; ++i) out += piece;
    return out;
  };
  for (const std::string& source :
       {"{{ " + repeat("(", 100000) + "1" + repeat(")", 100000) + " }}", "{{ " + repeat("[", 100000),
        "{{ " + repeat("not ", 100000) + "1 }}", "{{ " + repeat("-", 100000) + "1 }}",
        "{{ a" + repeat(".b", 100000) + " }}", "{{ a" + repeat("|trim", 100000) + " }}",
        "{{ a" + repeat("()", 100000) + " }}", "{{ a" + repeat("[0]", 100000) + " }}",
        repeat("{% if 1 %}", 50000), repeat("{% for a in b %}", 50000),
        "{{ " + repeat("1 if 1 else ", 50000) + "1 }}", "{{ " + repeat("{1:", 100000),
        "{% set " + repeat("(", 100000), "{{ a" + repeat(" is string", 1000) + " }}",
        std::string(2 << 20, 'x')}) {
    EXPECT_FALSE(RenderText(source)) << source.substr(0, 60);
  }
  // Long, but not deep.
  EXPECT_EQ(Text("{{ 0" + repeat(" + 1", 5000) + " }}"), "5000");
  EXPECT_EQ(Text("{{ ''" + repeat(" ~ 'a'", 1000) + " }}"), std::string(1000, 'a'));
}

TEST(Jinja, OddInputIsRefusedOrHarmless) {
  for (const char* source : {"{{",
                             "{%",
                             "{#",
                             "{{ }}",
                             "{% %}",
                             "{{ 1 2 }}",
                             "{{ 'a }}",
                             "{{ a. }}",
                             "{{ a[ }}",
                             "{{ a[] }}",
                             "{{ (1 }}",
                             "{{ )",
                             "{% for %}",
                             "{% for x in %}",
                             "{% set %}",
                             "{% set 1 = 2 %}",
                             "{% macro %}",
                             "{% endif %}",
                             "{% else %}",
                             "{% raw %}",
                             "{{ ** }}",
                             "{{ a(b=1, 2) }}",
                             "{{ a(**b, c) }}",
                             "{{ a(x=1, x=2) }}",
                             "{% macro m(a=1, b) %}{% endmacro %}",
                             "{{ '\\ud800' }}",
                             "{{ '\\x4' }}",
                             "{{ 1e999 }}",
                             "{{ 999999999999999999999999999999999999999999 }}",
                             "{{ $ }}",
                             "{{ a is }}",
                             "{{ a is b is c }}",
                             "{{ a | }}",
                             "{% call x %}{% endcall %}",
                             "{% for loop in l %}{% endfor %}",
                             "\xff",
                             "{{ '\xc3\x28' }}"})
    EXPECT_FALSE(ChatTemplate::Compile(source)) << source;
}

TEST(Format, FloatRepr) {
  for (const auto& [value, want] : std::initializer_list<std::pair<double, const char*>>{
           {0.0, "0.0"},
           {-0.0, "-0.0"},
           {1.0, "1.0"},
           {123456789.125, "123456789.125"},
           {1e22, "1e+22"},
           {5e-324, "5e-324"},
           {1.7976931348623157e308, "1.7976931348623157e+308"},
           {9999999999999998.0, "9999999999999998.0"},
           {0.00012345, "0.00012345"}})
    EXPECT_EQ(jinja::FloatRepr(value), want);
}

}  // namespace
}  // namespace celer
