"""toml_compare.py TOML_DUMP: hearth's TOML reader against Python's tomllib.

Handmade documents, random valid ones and random damage to both: hearth must accept exactly what tomllib accepts and read
the same values. Where the two differ on purpose (see DIFFERENT_ON_PURPOSE) the document is left out. Exits 77 (skipped)
where Python has no tomllib."""

import datetime
import json
import math
import random
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import tomllib
except ImportError:
    print(f"SKIPPED: Python {sys.version.split()[0]} has no tomllib (3.11 and later do)")
    sys.exit(77)

# hearth refuses integers beyond 64 bits and decimal floats beyond a double, and accepts leap seconds, the year 0 and a byte
# order mark: as the specification says or allows. tomllib keeps big integers and turns 1e999 into infinity.
DIFFERENT_ON_PURPOSE = ("does not fit a 64-bit integer", "is too large for a double", "nested more than")

HANDMADE = [
    "", "\n", "# only a comment", "a = 1", "a = 1\r\nb = 2\r\n", "a=1#c", " a . b\t. c = 1", '"" = 1', "'' = 1", "1 = 2", "1.2 = 3",
    "- = 1\n_ = 2", "a = ''\nb = \"\"", "a = '''\nx'''", 'a = """\n\nx"""', 'a = """a\\\n   \n  b"""', 'a = """""x"""""',
    "a = '''''x'''''", 'a = """\\""""', "a = '\\'", 'a = "\\u00e9\\U0001F600\\u0000"', '"\\u0000" = 1\n"" = 2', 'a = "é😀"',
    "a = [1, 2.0, 'x', [], {}, true]", "a = [\n1, # c\n2,\n]", "a = [ # c\n]", "a = {b = 1, c.d = 2, c.e = {f = 3}}",
    "a = { }", "[a]\n[a.b]\n[c.d]\n[c]", "[a.b.c]\n[a]\nb.x = 1", "a.b = 1\na.c = 2", "[a]\nb.c = 1\n[a.b.d]",
    "[[a]]\nb = 1\n[[a]]\n[a.c]\n[[a.d]]\n[[a.d]]", "[[a.b]]\n[a]\nx = 1", "[ a . 'b' ]", "[[ a ]]", "a = 0x_1", "a = 0xDEAD_beef",
    "a = 0o17\nb = 0b1_0", "a = +0\nb = -0\nc = +0.0\nd = -0.0", "a = 1_000", "a = 1__0", "a = 1e3\nb = 1E-0_1\nc = 6.02e+23",
    "a = 1.e3", "a = .5", "a = 1.", "a = inf\nb = -inf\nc = +nan", "a = 01", "a = -01", "a = 0_1", "a = 0.1_2", "a = 1e", "a = 0x", "a = +0x1",
    "a = 1979-05-27", "a = 1979-05-27T07:32:00Z", "a = 1979-05-27 07:32:00.123456+01:30", "a = 07:32:00", "a = 07:32:00.5",
    "a = 1979-05-27t07:32:00z", "a = 1979-05-27 # c", "a = 2023-02-29", "a = 2024-02-29", "a = 1900-02-29", "a = 2000-02-29",
    "a = 2023-13-01", "a = 24:00:00", "a = 23:60:00", "a = 07:32", "a = 1979-05-27T07:32:00+24:00", "a = 1979-05-27T", "a = 07:32:00Z",
    "a = 1\na = 2", "a = 1\na.b = 2", "a.b = 1\n[a]", "[a]\n[a]", "[a]\nb = 1\n[a.b]", "[[a]]\n[a]", "[a]\n[[a]]", "a = []\n[[a]]",
    "a = [{}]\n[a.b]", "a = {}\na.b = 1", "a = {}\n[a.b]", "a = {b = 1, b = 2}", "a = {b.c = 1, b = 2}", "a = {b = {}, b.c = 2}",
    "a = {b = 1,}", "a = {b = 1\n}", "a = {,}", "[a.b]\n[a]\nb.c = 1", "[[a.b]]\n[a]\nb.c = 1", "[a]]", "[[a]", "[a", "[]", "[[]]", "[a.]", "[.a]",
    "a", "a =", "a = 1 b = 2", "= 1", "a. = 1", ".a = 1", "a..b = 1", "a = b", "a = True", "a = \"x", "a = 'x\n'", "a = \"\\q\"", 'a = "\\ud800"',
    'a = "\\U00110000"', 'a = "\\u12"', "a = [1 2]", "a = [1,,2]", "a = [,]", "a = [", "a = {", '"""a""" = 1', "a b = 1", "é = 1", "a = 1 # \x07",
    "a = '\x00'", "a = '\x7f'", "a = 'x\ry'", "\ra = 1", "a = '\t'", "a = \"\"\"\r\nx\r\ny\"\"\"", "[a]b = 1", "[a] # c", "a = 'x' 'y'",
    "a = 1979-05-27  07:32:00", "a = 1979-05-27 7:32:00", "[a]\nx.y = 1\n[a.x]", "[a.b.c]\n[a]\nb.x = 1\n[a.b]", "x.y = 1\n[x.z]", "a.b.c = 1\n[a.b.d]",
]


def random_key(rng):
    return rng.choice(["a", "b", "c", "d1", "long-key_2", '"q k"', "'l.k'", '"\\u00fc"', "7"])


def random_string(rng):
    pieces = ["x", "hello ", "é", "😀", "#", "=", "[", "'", "0", "\\t", '\\"', "\\\\", "\\u20AC", "\\U0001F60a", "\t"]
    body = "".join(rng.choice(pieces) for _ in range(rng.randrange(6)))
    kind = rng.randrange(4)
    if kind == 0:
        return '"' + body + '"'
    if kind == 1:
        return '"""' + rng.choice(["", "\n"]) + body + rng.choice(["", "\nmore", " \\\n   joined", '"', '""']) + '"""'
    plain = body.replace("'", "")
    return "'" + plain + "'" if kind == 2 else "'''" + rng.choice(["", "\n"]) + plain + rng.choice(["", "\n", "'", "''"]) + "'''"


def random_scalar(rng):
    kind = rng.randrange(6)
    if kind == 0:
        return random_string(rng)
    if kind == 1:
        n = rng.choice([0, 1, 42, 10**rng.randrange(19), 2**63 - 1, rng.randrange(2**40)])
        return rng.choice([str(n), f"-{n}", f"+{n}", f"{n:_}", hex(n), oct(n), bin(n)])
    if kind == 2:
        return rng.choice([repr(rng.uniform(-1e6, 1e6)), f"{rng.uniform(0, 1):.17e}", "inf", "-inf", "nan", "1e-400", "9_9.5_0e1_0",
                           repr(rng.random() * 10.0 ** rng.randrange(-300, 300))])
    if kind == 3:
        return rng.choice(["true", "false"])
    date = f"{rng.randrange(1, 10000):04}-{rng.randrange(1, 13):02}-{rng.randrange(1, 32):02}"
    time = f"{rng.randrange(24):02}:{rng.randrange(60):02}:{rng.randrange(60):02}" + rng.choice(["", ".5", ".123456789"])
    zone = rng.choice(["", "Z", "z", f"{rng.choice('+-')}{rng.randrange(24):02}:{rng.randrange(60):02}"])
    return rng.choice([date, time, date + rng.choice("Tt ") + time + zone])


def random_value(rng, depth=0):
    roll = rng.random()
    if depth > 3 or roll < 0.7:
        return random_scalar(rng)
    if roll < 0.85:
        gap = rng.choice(["", " ", "\n", " # c\n"])
        items = [random_value(rng, depth + 1) for _ in range(rng.randrange(4))]
        return "[" + gap + ("," + gap).join(items) + (rng.choice(["", ","]) if items else "") + gap + "]"
    pairs = [f"{dotted(rng)} = {random_value(rng, depth + 1)}" for _ in range(rng.randrange(4))]
    value = "{" + ", ".join(pairs) + "}"
    return value if "\n" not in value or rng.random() < 0.5 else "{}"


def dotted(rng):
    return rng.choice([".", " . "]).join(random_key(rng) for _ in range(rng.choice([1, 1, 1, 2, 3])))


def random_document(rng):
    lines = []
    for _ in range(rng.randrange(1, 9)):
        roll = rng.random()
        if roll < 0.6:
            lines.append(f"{dotted(rng)} = {random_value(rng)}{rng.choice(['', ' # c'])}")
        elif roll < 0.75:
            lines.append(f"[{dotted(rng)}]")
        elif roll < 0.9:
            lines.append(f"[[{dotted(rng)}]]")
        else:
            lines.append(rng.choice(["", "  ", "# comment é"]))
    return rng.choice(["\n", "\n", "\r\n"]).join(lines) + rng.choice(["", "\n"])


def damaged(rng, text):
    if not text:
        return rng.choice("=[]{}\"'#.")
    at = rng.randrange(len(text))
    roll = rng.randrange(3)
    if roll == 0:
        return text[:at] + text[at + 1:]
    if roll == 1:
        return text[:at] + rng.choice("=[]{}\"'#.,\\\n\r_+-:0e \t\x01a") + text[at:]
    return text[:at]


def canonical(value):
    """The value as toml_dump prints it; a datetime stays a Python object."""
    if isinstance(value, bool):
        return ["boolean", value]
    if isinstance(value, str):
        return ["string", value]
    if isinstance(value, int):
        return ["integer", str(value)]
    if isinstance(value, float):
        return ["float", "nan" if math.isnan(value) else repr(value)]
    if isinstance(value, list):
        return ["array", [canonical(item) for item in value]]
    if isinstance(value, dict):
        return ["table", sorted([[key, canonical(item)] for key, item in value.items()], key=lambda pair: pair[0])]
    return ["datetime", value.isoformat()]


def from_dump(value):
    kind, content = value
    if kind == "array":
        return [kind, [from_dump(item) for item in content]]
    if kind == "table":
        return [kind, sorted([[key, from_dump(item)] for key, item in content], key=lambda pair: pair[0])]
    if kind == "float":
        return canonical(float(content))
    if kind == "datetime":
        return canonical(tomllib.loads("x = " + content)["x"])
    return value


def on_purpose(dumped, text):
    error = dumped.get("error", "") if isinstance(dumped, dict) else ""
    return any(part in error for part in DIFFERENT_ON_PURPOSE) or ":60" in text or "0000-" in text


def main():
    rng = random.Random(20240229)
    documents = list(HANDMADE)
    for _ in range(1500):
        documents.append(random_document(rng))
        documents.append(damaged(rng, documents[-1]))
    documents += [damaged(rng, text) for text in HANDMADE for _ in range(4)]
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for i, text in enumerate(documents):
            paths.append(Path(folder, f"{i}.toml"))
            paths[-1].write_bytes(text.encode())
        printed = subprocess.run([sys.argv[1], *map(str, paths)], stdout=subprocess.PIPE, check=True).stdout
    lines = printed.decode().split("\n")[:-1]
    assert len(lines) == len(documents), f"{len(lines)} lines for {len(documents)} documents"
    valid = skipped = wrong = 0
    for text, line in zip(documents, lines):
        dumped = json.loads(line)
        if on_purpose(dumped, text):
            skipped += 1
            continue
        try:
            expected = canonical(tomllib.loads(text))
        except (tomllib.TOMLDecodeError, ValueError) as error:
            expected = {"error": str(error)}
        refused = isinstance(expected, dict)
        valid += not refused
        same = isinstance(dumped, dict) if refused else not isinstance(dumped, dict) and from_dump(dumped) == expected
        if not same:
            wrong += 1
            print(f"--- differs:\n{text!r}\ntomllib: {expected}\nhearth:  {dumped}")
    print(f"{len(documents)} documents, {valid} valid, {skipped} left out, {wrong} differ")
    assert valid > 300, "too few valid documents to mean anything"
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
