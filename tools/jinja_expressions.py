"""Renders a table of expressions with Jinja, for crates/definitions/tests/fixtures/jinja.json.

Usage: python tools/jinja_expressions.py OUT.json

`task` uses the environment of lm-evaluation-harness (lm_eval/utils.py), and `chat` that of transformers
(utils/chat_template_utils.py). The result is `null` if Jinja raises an exception. Needs jinja2.
"""

import json
import re
import sys

from jinja2 import BaseLoader, Environment, StrictUndefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

ROWS = [
    {
        "q": "Hello World's end", "s": "it's 5", "l": ["b", "a", "c", "a"], "i": 7, "f": 2.5,
        "d": {"k": "v", "n": [1, 2], "items": "I"}, "b": True, "n": None, "e": "",
        "ll": [{"t": "x", "v": 1}, {"t": "y", "v": 2}], "u": "naïve ﬁ İ ß ς", "w": "  pad\t\n",
        "html": "<a href='x'>&amp; \"q\"</a>", "big": 1234567890123, "neg": -3, "h": "#### 1,234.50",
    },
    {
        "q": "second\nline two\n\nthree", "s": 'say "hi"', "l": ["z"], "i": -7, "f": 1e20,
        "d": {"k": "w", "n": [], "items": "J"}, "b": False, "n": None, "e": "", "ll": [],
        "u": "日本語 テスト", "w": "x", "html": "plain", "big": 0, "neg": 0, "h": "none",
    },
]

TASK = r"""
{{q}}
{{s}} {{i}} {{f}} {{b}} {{n}} {{e}} {{big}} {{neg}}
{{l}} {{d}} {{ll}} {{u}}
{{[q]}} {{[s]}} {{[u]}} {{[w]}} {{[html]}}
{{q.title()}} {{q.upper()}} {{u.casefold()}} {{q.swapcase()}} {{u.upper()}} {{u.lower()}}
{{u.title()}} {{u.capitalize()}} {{u.swapcase()}} {{html.title()}}
{{q.upper()}}|{{q.lower()}}|{{q.capitalize()}}
{{q.swapcase()}}
{{u.casefold()}}
{{w.strip()}}|{{w.lstrip()}}|{{w.rstrip()}}
{{q.strip("He")}}|{{q.lstrip("sH")}}|{{q.rstrip("de")}}
{{q.split()}}
{{q.split(" ")}}
{{q.split("o", 1)}}
{{q.split("o", maxsplit=1)}}
{{q.split(sep=" ")}}
{{q.split(None, 1)}}
{{q.rsplit(" ", 1)}}
{{q.rsplit(None, 1)}}
{{q.splitlines()}}
{{q.splitlines(True)}}
{{"a\r\nb\x0bc\x1cd\u2028e".splitlines()}}
{{q.replace("l", "L")}}
{{q.replace("l","L",1)}}
{{"ab".replace("", "-")}}
{{q.startswith("H")}} {{q.startswith(("x", "s"))}} {{q.endswith("d")}} {{q.startswith("e", 1)}}
{{q.find("o")}} {{q.rfind("o")}} {{q.find("zz")}} {{q.find("o", 5)}} {{u.find(" ")}}
{{q.index("e")}} {{q.rindex("e")}}
{{q.index("zz")}}
{{q.count("e")}} {{"aaa".count("aa")}} {{"abc".count("")}}
{{q.isdigit()}} {{"12".isdigit()}} {{"²".isdigit()}} {{"".isdigit()}} {{"१२".isdigit()}}
{{q.isalpha()}} {{"ab".isalpha()}} {{"日本".isalpha()}} {{"".isalpha()}}
{{w.isspace()}} {{" ".isspace()}} {{"".isspace()}}
{{q.isupper()}}
{{"AB1".isupper()}} {{"ab1".islower()}} {{"1".isupper()}} {{u.islower()}} {{"Ab".islower()}}
{{"Hello World".istitle()}} {{"Hello world".istitle()}} {{"".istitle()}}
{{"a1".isalnum()}} {{"a 1".isalnum()}} {{"²".isalnum()}} {{"½".isnumeric()}} {{"12".isnumeric()}} {{"²".isdecimal()}} {{"12".isdecimal()}}
{{"abc".isascii()}} {{u.isascii()}} {{"".isascii()}}
{{"a_1".isidentifier()}} {{"1a".isidentifier()}}
{{"a\n".isprintable()}} {{"ab".isprintable()}}
{{q.removeprefix("Hello ")}}|{{q.removesuffix("end")}}
{{"5".zfill(3)}}
{{"-5".zfill(4)}} {{"+5".zfill(4)}} {{"".zfill(2)}} {{"12345".zfill(3)}}
{{"x".center(5,"*")}}
{{"xy".center(5)}}| {{"x".center(4)}}| {{"x".center(4, "*")}} {{"ab".center(1)}}
{{"abc".rjust(5)}}
{{"abc".ljust(5, ".")}} {{"abc".rjust(5, "0")}} {{"日本".ljust(4, "-")}}
{{"aXb".partition("X")}}
{{"aXbXc".rpartition("X")}} {{"abc".partition("X")}} {{"abc".rpartition("X")}}
{{"a\tb".expandtabs(4)}}
{{"a\tbc\t\nd\te".expandtabs()}}
{{", ".join(l)}} {{"-".join(["a"])}} {{"".join([])}}
{{", ".join([1, 2])}}
{{"{} and {}".format(i, q)}}
{{"{0} {1} {0}".format("a", "b")}}
{{"{a}-{b}".format(a=1, b="x")}}
{{"{:.2f} {:>5} {:<5}| {:^5}| {:05d}".format(2.5, "a", "b", "c", 42)}}
{{"{:,}".format(1234567)}} {{"{:.1%}".format(0.256)}} {{"{!r}".format("a")}}
{{"{{}} {}".format(1)}}
{{"%s and %s" % (i, q)}}
{{"%d%%" % 5}} {{"%.2f" % 2.5}} {{"%5s|%-5s|" % ("a", "b")}} {{"%s" % "x"}} {{"%03d" % 7}}
{{"%s" % l}}
{{"%(a)s" % {"a": 1}}}
{{"%s %s"|format(i, q)}}
{{"%.1f %d"|format(2.25, 3)}}
{{i % 3}} {{neg % 2}} {{7.5 % 2}} {{-7 % 3}}
{{"a" ~ i ~ f ~ b ~ n}}
{{f ~ ""}} {{1e-5 ~ ""}} {{1e16 ~ "x"}}
{{l ~ d}}
{{"it's" ~ [s]}} {{[u] ~ ""}}
{{1 + 2 ~ 3 * 2}}
{{"a" ~ 3 * 2 ~ -1}} {{"%s-%s" % (1, 2) ~ "x"}} {{("a" ~ 1) ~ ("b" ~ 2)}} {{"x" ~ ("a" if i > 0 else 1) ~ l[0]}}
{{"a" ~ -1 ~ "b" if b else "c"}}
{{(1 ~ 2)|int + 1}}
{{i + 1}} {{i - 1}} {{i * 2}} {{i / 2}} {{i // 2}} {{i ** 2}} {{-i}} {{+i}}
{{neg // 2}} {{7 // -2}} {{7.5 // 2}} {{1 / 3}} {{2 ** -1}} {{2 ** 0.5}}
{{10**20}}
{{2**100}}
{{2**62}} {{2**63}} {{2**64}}
{{1e16}} {{1e15}} {{0.0001}} {{0.00001}} {{1.0}} {{100.0}} {{1.5e300}} {{-0.0}}
{{0.1 + 0.2}} {{1/3}} {{2/3*100}}
{{f|int}} {{f|float}} {{f|round}} {{f|string}}
{{"a" + "b"}} {{l + ["q"]}} {{[1] * 3}} {{"ab" * 2}} {{"ab" * 0}} {{2 * "x"}}
{{"ab" * -1}}
{{(1, 2) + (3,)}} {{(1,) * 2}} {{()}} {{(1,)}} {{(1)}}
{{(1,"a")}}
{{[(1, "a"), ("b",)]}} {{{"a": (1, 2)}}}
{{True + 1}} {{True}} {{true}} {{false}} {{none}} {{None}}
{{1 == 1.0}} {{1 == true}} {{"1" == 1}} {{[1] == [1]}} {{(1,) == [1]}} {{{"a": 1} == {"a": 1.0}}}
{{1 < 2 < 3}} {{3 > 2 > 2}} {{1 < 2 == true}}
{{"a" < "b"}} {{"B" < "a"}} {{[1, 2] < [1, 3]}}
{{"a" < 1}}
{{n < 1}}
{{"H" in q}} {{"a" in l}} {{"k" in d}} {{"zz" not in l}} {{1 in [1.0]}} {{"" in ""}}
{{1 in "1"}}
{{not b}} {{b and i}} {{e or "x"}} {{n or l}} {{0 or ""}} {{b and ""}}
{{q[0]}} {{q[-1]}} {{q[0:3]}} {{q[-3:]}} {{q[::2]}} {{q[::-1]}} {{q[3:1]}} {{q[100:]}}
{{l[::-1]}} {{l[1:]}} {{l[:-1]}} {{l[5:]}} {{l[0]}} {{l[-1]}} {{l[:2]}}
{{[0,1,2,3,4,5,6][5:1:-1]}} {{[0,1,2,3,4,5,6][5:1:-2]}} {{[0,1,2,3,4,5,6][::-3]}} {{[0,1,2,3,4,5,6][:2:-1]}} {{[0,1,2,3,4,5,6][2::-1]}} {{[0,1,2,3,4,5,6][-2:0:-1]}} {{[0,1,2,3,4,5,6][10:2:-1]}} {{[0,1,2,3,4,5,6][1:4:-1]}}
{{"abcdefg"[5:1:-1]}} {{"abcdefg"[5:1:-2]}} {{"abcdefg"[::-3]}} {{"abcdefg"[:2:-1]}} {{"abcdefg"[2::-1]}} {{"abcdefg"[-2:0:-1]}} {{"abcdefg"[1:4:-1]}}|{{"abcdefg"[-100:100]}} {{"abcdefg"[-100:2:-1]}} {{"abcdefg"[2:-100:-1]}} {{""[::-1]}}
{{[1,2,3][-100:2]}} {{[1,2,3][-2:100:2]}} {{[1,2,3][:-100]}} {{(1,2,3)[::-1]}} {{(1,2,3)[1:]}} {{(1,2,3)[2:-100:-1]}}
{{n[0:2]}}
{{d.k}} {{d["k"]}} {{d["items"]}} {{d.n[0] if d.n else "none"}}
{{d.items}}
{{d.get("k")}} {{d.get("x")}} {{d.get("x", 5)}}
{{d.items()|list}} {{d.keys()|list}} {{d.values()|list}}
{{d.items()}} {{d.keys()}} {{d.values()}}
{% for k, v in d.items() %}{{k}}={{v}};{% endfor %}
{% for k in d %}{{k}};{% endfor %}
{% for x in d.items() %}{{x}}{% endfor %}
{{q.upper is defined}}
{{x is defined}} {{q is defined}} {{x is undefined}} {{d.zz is defined}} {{l[9] is defined}}
{{x|default("D")}} {{e|default("D")}} {{e|default("D", true)}} {{n|d("D")}} {{n|default("D", boolean=True)}}
{{x}}
{{d.zz}}
{{x ~ "a"}}
{{"a" if i>0}}
{{"a" if i>0 else "b"}}
{{("a" if i>0) ~ "|"}}
{{"a" if b else "b" if n else "c"}}
{{q|upper}} {{q|lower}} {{q|title}} {{q|capitalize}} {{i|upper}} {{n|lower}}
{{"foo bar-baz (qux) it's o'neil"|title}}
{{u|title}} {{u|upper}} {{u|capitalize}}
{{q|length}} {{l|length}} {{d|length}} {{u|count}} {{e|length}}
{{l|first}} {{l|last}} {{q|first}} {{q|last}} {{d|first}}
{{[]|first}}
{{l|join}} {{l|join(", ")}} {{[1,2.5,none,true]|join("-")}} {{ll|join(",", attribute="t")}} {{q|join("-")}}
{{l|sort}} {{l|sort(reverse=true)}} {{["b","A","c"]|sort}} {{["b","A","c"]|sort(case_sensitive=true)}} {{ll|sort(attribute="v", reverse=true)}}
{{[3,1.5,2]|sort}}
{{["a", 1]|sort}}
{{l|unique|list}} {{["a","A","b"]|unique|list}} {{["a","A"]|unique(case_sensitive=true)|list}}
{{l|reverse|list}} {{q|reverse}} {{l|reverse|join}}
{{l|reverse}}
{{l|map("upper")}}
{{l|map("upper")|list}} {{ll|map(attribute="t")|list}} {{ll|map(attribute="z", default="D")|list}} {{l|map("replace", "a", "b")|list}}
{{ll|map(attribute="z")|list}}
{{l|select("equalto", "a")|list}} {{[1,2,3,4]|select("odd")|list}} {{[0,1,""]|select|list}} {{[1,2,3]|reject("gt", 1)|list}}
{{ll|selectattr("v", "gt", 1)|list}} {{ll|rejectattr("v", "eq", 1)|map(attribute="t")|list}} {{ll|selectattr("t")|list|length}}
{{l|select("equalto", "a")}}
{{l|map("upper")|length}}
{{[1,2,3,4,5]|batch(2)|list}} {{[1,2,3]|batch(2, 0)|list}} {{[1,2,3,4,5]|slice(2)|list}} {{[1,2,3,4,5]|slice(3, "x")|list}}
{{[1,2]|batch(2)}}
{{ll|groupby("v")|list}} {% for g, items in ll|groupby("t") %}{{g}}{{items}}{% endfor %}
{{[{"a":"x","v":1},{"a":"X","v":2},{"a":"y","v":3}]|groupby("a")}}
{{[3,1,2]|min}} {{[3,1,2]|max}} {{["b","A"]|min}} {{["b","A"]|max}} {{ll|map(attribute="v")|sum}} {{[1.5,2]|sum}} {{[]|sum}} {{ll|sum(attribute="v", start=10)}}
{{["a","B"]|max(case_sensitive=true)}} {{ll|max(attribute="v") if ll else ""}}
{{[]|min}}
{{i|abs}} {{neg|abs}} {{-2.5|abs}} {{(-2.5)|abs}}
{{f|round(1)}} {{2.5|round}} {{3.5|round}} {{7|round}} {{2.675|round(2)}} {{2.1|round(0, "ceil")}} {{2.9|round(method="floor")}} {{1234.5678|round(2)}} {{-2.5|round}} {{0.5|round|int}}
{{1234.5|round(-2)}}
{{42.55|round(1, "floor")}} {{42.55|round(1, "ceil")}} {{7|round(1)}} {{7|round(0, "floor")}}
{{"7"|int}} {{"7.9"|int}} {{"x"|int}} {{"x"|int(5)}} {{" 7 "|int}} {{"1_000"|int}} {{7.9|int}} {{-7.9|int}} {{true|int}} {{none|int}} {{"1e3"|int}} {{""|int}} {{"inf"|int}} {{"१२"|int}}
{{"0x1A"|int(0,16)}}
{{"0x1A"|int(0, base=16)}} {{"ff"|int(base=16)}} {{"101"|int(base=2)}} {{"0b11"|int(0,2)}} {{"0o17"|int(0,8)}} {{"zz"|int(1,36)}}
{{1e20|int}} {{"123456789012345678901234567890"|int}}
{{"9223372036854775807"|int}} {{"9223372036854775808"|int}} {{9223372036854775807 + 1}} {{1e18|int}} {{1e19|int}}
{{"2.5"|float}} {{"x"|float}} {{"x"|float(1.5)}} {{7|float}} {{"1e3"|float}} {{" 2 "|float}} {{"nan"|float}} {{"inf"|float}} {{"1_0.5"|float}} {{none|float}}
{{i|string}} {{l|string}} {{n|string}} {{(i|string) + "x"}}
{{q|list}} {{d|list}} {{"abc"|list}}
{{q|replace("o","0")}} {{q|replace("o","0",1)}} {{q.replace("l","L",1)}}
{{q|replace("o","0",1)}}
{{i|replace("7", "8")}} {{q|replace("o", 1)}}
{{w|trim}}| {{q|trim("He")}} {{"xxaxx"|trim("x")}}
{{q|truncate(8)}}
{{q|truncate(8, true)}} {{q|truncate(8, false, "!")}} {{q|truncate(12)}} {{q|truncate(16, leeway=0)}} {{"foo bar baz qux"|truncate(9)}} {{"foo bar baz qux"|truncate(9, True)}} {{"foo bar baz qux"|truncate(11)}} {{"foo bar baz qux"|truncate(11, False, "...", 0)}} {{"foobarbazqux"|truncate(5, end="")}}
{{q|wordcount}}
{{u|wordcount}} {{"a-b c_d"|wordcount}} {{""|wordcount}}
{{q|wordwrap(5)}}
{{q|center(30)}}|{{q|center(5)}}|{{"ab"|center(5)}}|{{i|center(4)}}|
{{q|indent}} {{q|indent(2)}} {{q|indent(2, true)}} {{q|indent(2, first=true)}} {{q|indent(2, blank=true)}} {{q|indent("> ")}}
{{html|e}} {{html|escape}} {{html|striptags}} {{html|safe}} {{html|urlencode}}
{{html|escape}}
{{html|forceescape}}
{{html|e|upper}}
{{(html|e) + "<"}}
{{(html|e) ~ "<"}}
{{html|striptags}}
{{"<p>a  b</p>\n<!-- c --> &lt;d&gt; &eacute; &#65;"|striptags}}
{{html|urlencode}} {{"a b/c?d=é&"|urlencode}} {{{"a b": 1, "c": "é/"}|urlencode}} {{[("a", 1)]|urlencode}}
{{d|tojson}}
{{u|tojson}}
{{d|tojson(indent=2)}}
{{html|tojson}} {{s|tojson}} {{f|tojson}} {{n|tojson}} {{b|tojson}} {{(1,2)|tojson}} {{[]|tojson}} {{{}|tojson}} {{l|tojson}}
{{ll|tojson(indent=1)}}
{{{"b": 1, "a": {"d": 1, "c": 2}}|tojson}} {{"\x7f😀\u2028"|tojson}}
{{d|dictsort}}
{{{"b": 1, "A": 2, "c": 0}|dictsort}} {{{"b": 1, "A": 2}|dictsort(true)}} {{{"b": 1, "a": 2}|dictsort(by="value")}} {{{"b": 1, "a": 2}|dictsort(reverse=true)}}
{{d|items|list}}
{{d|items}}
{{ 1000000|filesizeformat }}
{{ 999|filesizeformat }} {{1|filesizeformat}} {{1234567890|filesizeformat}} {{1048576|filesizeformat(true)}} {{0|filesizeformat}}
{{ "a b"|urlize }}
{{l|pprint}}
{{l|random}}
{{d|xmlattr}}
{{ {"b": 1, "a": 2, "c": {"z": 0, "y": 1}} }} {{ dict(z=1, a=2) }}
{% set g = l|map("upper") %}{{g|join}}|{{g|join}}
{% for k in d.keys() %}{{k}}{% endfor %}{{d.keys()|join("-")}}{{d.values()|length}}{{"k" in d.keys()}}
{{ {"items": 1}["items"] }} {{d.get("items")}} {{ll|map(attribute="v")|list}}
{{"a" if q is string and q|length > 3 else "b"}} {{ "x" if l else "y" }}
{{h|regex_replace("[^0-9.]", "")}}
{{q|regex_replace("[aeiou]","*")}}
{{q|regex_replace("(\w+) (\w+)", "\\2 \\1")}} {{q|regex_replace("(?P<a>o)", "<\\g<a>>")}} {{q|regex_replace("o", "0", 1)}}
{{q|regex_replace("o")}}
{{q|regex_replace(pattern="o", repl="\\n")}} {{q|regex_replace("^", "> ")}} {{q|regex_replace("x*", "-")}}
{{i is number}} {{f is number}} {{b is number}} {{q is string}} {{l is string}} {{i is integer}} {{f is integer}} {{b is integer}} {{f is float}} {{i is float}}
{{l is sequence}} {{q is sequence}} {{d is sequence}} {{i is sequence}} {{l is iterable}} {{q is iterable}} {{i is iterable}} {{d is mapping}} {{l is mapping}} {{n is none}} {{b is boolean}} {{i is boolean}} {{b is true}} {{b is false}} {{i is true}}
{{7 is odd}} {{7 is even}} {{-7 is odd}} {{6 is divisibleby 3}} {{6 is divisibleby(4)}} {{i is eq 7}} {{i is ne 7}} {{i is gt 3}} {{i is ge 7}} {{i is lt 3}} {{i is le 7}} {{"a" is in l}} {{i is equalto 7}} {{i is sameas 7}} {{n is sameas none}}
{{q is upper}} {{"AB" is upper}} {{"ab1" is lower}} {{"1" is lower}} {{u is lower}}
{{"upper" is filter}} {{"zzz" is filter}} {{"odd" is test}} {{q is callable}} {{range is callable}}
{{"a" is not defined}} {{x is not defined}} {{i is not none}} {{not x is defined}}
{{q is escaped}}
{{range(3)}} {{range(3)|list}} {{range(1, 7, 2)|list}} {{range(5, 0, -2)|list}} {{range(3)|length}} {{range(0)|list}} {{range(3)[1]}} {{2 in range(3)}}
{% for i in range(3) %}{{i}}{{loop.index}}{{loop.index0}}{{loop.revindex}}{{loop.revindex0}}{{loop.first}}{{loop.last}}{{loop.length}}{{loop.cycle("a","b")}};{% endfor %}
{% for x in l %}{{loop.previtem if not loop.first}}{{loop.nextitem|default("-")}}{{loop.changed(x)}};{% endfor %}
{% for x in l if x != "a" %}{{loop.index}}{{x}}{% else %}none{% endfor %}
{% for x in [] %}{{x}}{% else %}none{% endfor %}
{% for a in [1,[2,[3]]] recursive %}{% if a is iterable %}({{loop(a)}}){% else %}{{a}}{{loop.depth}}{% endif %}{% endfor %}
{% for a, b in [(1, 2), [3, 4]] %}{{a}}{{b}}{% endfor %}
{% for c in "abc" %}{{c}}-{% endfor %}
{% for x in l|map("upper") %}{{x}}{{loop.last}}{% endfor %}
{% set x = 5 %}{{x}}{% set x = x + 1 %}{{x}}
{% set a, b = 1, 2 %}{{a}}{{b}}
{% set a, b = (1, [2]) %}{{a}}{{b}}
{% set x %}a{{i}}{% endset %}{{x}}|{{x|length}}
{% set x | upper %}a{{q}}{% endset %}{{x}}
{% set ns = namespace(x=0) %}{% for y in l %}{% set ns.x = ns.x + 1 %}{% endfor %}{{ns.x}}
{% set ns = namespace(items=[], found=false) %}{{ns.items}}{{ns.found}}{% set ns.items = ns.items + [1] %}{{ns.items}}
{% set ns = namespace() %}{% set ns.a = "x" %}{{ns.a}}{{ns.b is defined}}
{{namespace(x=1)}}
{% macro m(a,b="B") %}[{{a}}{{b}}]{% endmacro %}{{m("A")}}{{m("A",b="C")}}
{% macro m(a,b="B") %}[{{a}}{{b}}]{% endmacro %}
{% macro m(a) %}{{a}}{{varargs}}{{kwargs}}{% endmacro %}{{m(1, 2, x=3)}}
{% macro m(a) %}{{a is defined}}{% endmacro %}{{m()}}
{% macro m(a) %}<{{caller()}}{{a}}>{% endmacro %}{% call m(1) %}in{% endcall %}
{% macro m() %} x {% endmacro %}{{m()|trim}}|{{m() ~ "y"}}|{{m()|length}}
{% macro m(n) %}{{n}}{% if n > 0 %}{{m(n-1)}}{% endif %}{% endmacro %}{{m(3)}}
{% macro m(a) %}{{q}}{% endmacro %}{{m(1)}}
{{dict(a=1, b=2)}} {{dict({"a": 1}, b=2)}} {{dict([("a", 1)])}} {{dict()}}
{{joiner is defined}}
{% set j = joiner(", ") %}{% for x in l %}{{j()}}{{x}}{% endfor %}
{% set j = joiner() %}{{j()}}{{j()}}{{j()}}
{% set c = cycler("a", "b") %}{{c.next()}}{{c.next()}}{{c.next()}}{{c.current}}
{{cycler is defined}} {{range is defined}} {{dict is defined}} {{namespace is defined}} {{debug is defined}}
{{debug()}}
{{lipsum(n=1)}}
{{q|lines}}
{{q|split}}
{{i|bool}}
{{[l,l]|zip}}
{{q is startingwith "H"}}
{% if b %}yes{% elif n %}no{% else %}none{% endif %}
{% with a = 1, b = 2 %}{{a}}{{b}}{% endwith %}
{% filter upper %}a{{q}}{% endfilter %}
{% raw %}{{q}}{% endraw %} {# comment #}x
{%- if true -%} a {%- endif -%} b
a {{- " b " -}} c
{{ "a\nb\t\"c\" \\ \x41 \u00e9" }}
{{ 'it\'s' }} {{ "{{" }} {{ "%}" }}
{{ "a" "b" }}
{{1_000}} {{0x1F}} {{0b11}} {{0o17}} {{1e3}} {{1.5E2}}
{{ [1, 2,] }} {{ {"a": 1,} }} {{ {1: "a"} }} {{ {"a": {"b": [none, true]}} }}
{{ {1: "a"}[1] }} {{ {"a": 1}.a }} {{ {true: 1} }}
{{ [1, [2, [3]]][1][1][0] }}
{{ "abc"[1] }} {{ l[i] is defined }}
{{ q.split()[0].lower()|upper }}
{{ "Question: " + q + "\nAnswer:" }}
{{ l.index("z") if "z" in l else l.index("c") }} {{ l.count("a") }} {{(1,2).index(2)}} {{(1,1).count(1)}}
{{ l.append("x") }}
{{ loop }}
{{ self }}
{{ [1, 2, 3]|sum / 3 }} {{ "%.2f"|format([1,2]|sum / 3) }}
{{ "{:.3f}".format(1/3) }} {{ "{:d}".format(5) }} {{ "{:>8.2f}".format(3.14159) }} {{ "{:+d}".format(5) }} {{ "{:x}".format(255) }} {{ "{:e}".format(12345.678) }}
{{ "{}".format([1, "a"]) }} {{ "{}".format(none) }} {{ "{}".format(1e20) }} {{ "{}".format(true) }} {{"{}".format((1,))}}
{{ "%s %r" % ("a", "a") }} {{ "%x" % 255 }} {{ "%e" % 12345.678 }} {{ "%g" % 0.0001 }} {{ "%5.1f|" % 3.14159 }} {{ "%s" % 1e20 }} {{"%s" % none}} {{"%i" % 3.7}} {{"%s" % true}}
{{ q|upper|lower|title|length }}
{{ (q|length > 5) and (l|length > 1) }}
{{ q|default("x")|upper ~ "!" }}
{{ -i|abs }} {{ (-i)|abs }} {{ 2 + 3 * 4 ** 2 }} {{ -2 ** 2 }} {{ 2 ** 3 ** 2 }} {{ (2 + 3) * 4 }} {{10 - 2 - 3}} {{2 * 3 % 4}} {{7 // 2 * 2}}
{{ not true or true }} {{ not (true and false) }} {{ true and not false }} {{ 1 if true and false or true else 0 }}
{{ q == "x" or i == 7 and b }}
{{ d == {"n": [1, 2], "k": "v", "items": "I"} }}
{{ "ß"|upper }} {{ "ΑΣ"|lower }} {{ "ǆ"|title }} {{ "ŉ".upper() }}
{{ h.split("####")[-1].strip().replace(",", "")|float if "####" in h else h }}
{{ "abc" is string and "abc" }}
{{ [n, b, i, f] }} {{ [1e20, 1e-7, -0.0] }}
{{ ["a", "b"] | map("upper") | join(" ") }} {{ ll | map(attribute="v") | map("string") | join("+") }}
{{ "a,b;c"|replace(",", ";")|replace(";", " ") }}
{{"abcdef"[4:1:-2]}} {{""[::-1]}}| {{"abc"[-100:2:1]}} {{"abc"[::-2]}} {{(1,2,3,4)[3:0:-2]}} {{[1,2,3][true:]}}
{{range(10)[2:8:3]}} {{range(10)[::-4]|list}} {{range(5, 0, -1)[1:3]}} {{range(3)[5:]|list}}
{{q.split(" ")[-1:][0][:2]}} {{("a" ~ "bcd")[1:] ~ "z"[0:1]}} {{"abc"[1:]|upper}} {{-[1,2,3][1:][0]}} {{{"a": [1,2,3]}["a"][i - 6:]}}
{{[1,2,3][0:2] == [1,2]}} {{1 in [3,2,1][1:]}} {{[[1,2],[3,4]][0][1:]}} {{d.n[:1]}} {{"%s" % q[:2]}} {{q[:i - 5 if b else 1]}}
{{d[0:2]}}
{{i[0:2]}}
{{l|map("upper")[0:2]}}
{{x[0:2]}}
{{"abc"["a":]}}
{{true < 2}} {{1 < 2.5}} {{(1, 2) < (1, 3)}} {{[true, 2] < [true, 3]}} {{"b" > "a" >= "a"}} {{1 < 3 > 2}} {{3 < 2 < "a"}}
{{1 < 2 and i > 3 or f <= 2.5}} {{not 1 > 2}} {{(1 < 2) == (2 < 3)}} {{[1 < 2, 2 > 3]}} {{{"a": 1 < 2}}} {{"x" if i + 1 > 7 - 2 else "y"}}
{{[1] < (1,)}}
{{d < d}}
{{l < 1}}
{{1 >= "1"}}
{{[1, "a"] < [2, "b"]}} {{[1, "a"] < [1, "b"]}}
{{[1, "a"] < [1, 2]}}
{{x < 1}}
{{1 if i < 8 and 5 < i < 9 else 0}} {{(l|length) > 0 and "a" in l and not "q" in l}} {{"a" not in l or "b" in l}}
{{none in [none]}} {{1 in {1: 2}}} {{(1,) in [(1,)]}} {{"ll" in "Hello" and 2 in (1, 2)}} {{"b" in {"a": 1} or "a" in {"a": 1}}}
{{none in "none"}}
{{[1] in {1: 2}}}
{{1 in 5}}
{% for x in l if x in ["a", "b"] and x > "a" %}{{x}}{% endfor %}
{% for a, b in d.items() if a in ["k"] %}{{a}}{{b}}{% endfor %}
{% for a in l[1:] + l[:1] %}{{a}}{{loop.last}}{{loop.length}}{% endfor %}
{% for x in ll|selectattr("v", "gt", 0)|map(attribute="t") %}{{x}}{{loop.index}}/{{loop.length}}{{loop.revindex}}{{loop.last}}{% else %}none{% endfor %}
{% set g = l|map("upper") %}{% if g %}yes{% endif %}{{g|list}}{{g|list}}
{% if l|select("equalto", "zz") %}always{% endif %}
{{[3, "a", none]|sort}}
{{[none, none]|sort}}
{{[none]|sort}} {{[true, 0, 0.5]|sort}} {{[[2, "a"], [1, "b"]]|sort}} {{[(1, 2), (1, 1)]|sort}}
{{ll|sort(attribute="z")}}
{{ll|sort(attribute="t,v")}} {{[{"a": 2, "b": "x"}, {"a": 1, "b": "y"}]|sort(attribute="a,b")}}
{{[1, "a"]|min}}
{{[1, "a"]|max}}
{{["a", "A", "b"]|min}} {{["b", "B", "a"]|max}} {{["B", "b", "a"]|max}} {{[1, 1.0, true]|max}} {{[1.0, 1]|min}} {{q|max}} {{q|min}}
{{[1, 2, 3]|select("lt", 3)|list}} {{[1, 2, 3]|select(">=", 2)|list}} {{["b", "a"]|reject("greaterthan", "a")|list}} {{[true, 2]|select("lessthan", 2)|list}}
{{["a", 1]|select("gt", 0)|list}}
{{e|default("D", boolean=true)}} {{x|default(default_value="D")}} {{n|default("D", boolean=True)}} {{n|d("D", false)}} {{x|d}}|
{{"{:,}".format(1234567)}} {{"{:,}".format(-123)}} {{"{:,.2f}".format(1234567.891)}} {{"{:.1%}".format(0.256)}} {{"{:%}".format(0.5)}} {{"{:,d}".format(1000)}} {{"{:.0%}".format(0.125)}}
{{"{!r}".format("a")}} {{"{!s:>3}".format("a")}}
{{x|string}}
{{x|string|length}}
{{("a" if n)|string ~ "|"}} {{("a" if n) ~ ("b" if b)}}
{{q.upper is not defined}} {{d.k is defined}} {{d.zz is not defined}} {{d.title is defined}} {{d.get("k") is defined}}
{{l.count is defined}}
{{d.items is defined}}
""".strip("\n")

# Templates with several lines. The table above has one template per line.
MULTILINE = [
    "{% if true %}\n x\n{% endif %}\n",
    "{% for x in l %}\n- {{ x }}\n{%- endfor %}\n",
    "a\r\nb {{q}}\r\n",
    "{{ q }}\n\n",
    "{#- c -#}\n x {%+ if true %} y {% endif %}",
]

CHAT_MULTILINE = ["  {% if b %}\n x\n  {% endif %}\n{{q}}\n"]

CHAT = r"""
{{d|tojson}}
{{u|tojson}}
{{d|tojson(indent=2)}}
{{html|tojson}}
{{d|tojson(ensure_ascii=true)}} {{u|tojson(ensure_ascii=true)}}
{{d|tojson(sort_keys=true)}}
{{d|tojson(separators=(",", ":"))}}
{{x}}|{{x is defined}}|{{x|string}}|{{x ~ "a"}}|{{x|default("D")}}
{{x.y is defined}}
{% for y in l %}{% if y == "a" %}{% continue %}{% endif %}{{y}}{% break %}{% endfor %}
{{"a" if i > 0}}
{% set ns = namespace(t="") %}{% for y in l %}{% set ns.t = ns.t ~ y %}{% endfor %}{{ns.t}}
{% macro m(a) %}[{{a}}]{% endmacro %}{{m(q)}}
{{l.append("x")}}
{{d.items()|list}}
{{q|trim|replace("l", "L", 1)}}
{{raise_exception("no")}}
""".strip("\n")


def regex_replace(string, pattern, repl, count=0):
    return re.sub(pattern, repl, string, count=count)


def task_environment():
    environment = Environment(loader=BaseLoader, undefined=StrictUndefined, keep_trailing_newline=True)
    environment.filters["regex_replace"] = regex_replace
    return environment


def chat_environment():
    def raise_exception(message):
        raise ValueError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    return environment


def rendered(environment, template):
    texts = []
    for row in ROWS:
        try:
            text = environment.from_string(template).render(**json.loads(json.dumps(row)))
        except Exception:  # noqa: BLE001: any exception of Jinja means that there is no text.
            text = None
        # Exclude texts with memory addresses, which are not reproducible.
        texts.append(None if text is not None and re.search(r" at 0x[0-9a-f]+>|<Macro |<class ", text) else text)
    return texts


def cases(environment, templates):
    return [{"template": template, "expected": rendered(environment, template)} for template in templates]


def main(out):
    table = {
        "rows": ROWS,
        "task": cases(task_environment(), TASK.split("\n") + MULTILINE),
        "chat": cases(chat_environment(), CHAT.split("\n") + CHAT_MULTILINE),
    }
    with open(out, "w", encoding="utf-8") as file:
        json.dump(table, file, ensure_ascii=False, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main(sys.argv[1])
