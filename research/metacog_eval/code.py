"""Code generation: what a snippet prints (found by running it), and short functions (checked by running them)."""

from research.metacog_eval.functions import FUNCTIONS
from research.metacog_eval.templates import EASY, HARD, MEDIUM, Template, snippet

DIGIT = range(2, 10)
TWO = range(11, 90)
WORDS = ("cat", "dog", "sun", "tree", "milk", "bird", "lamp", "fish", "book", "star", "rain", "door", "moon", "ship")
LONG = ("python", "garden", "window", "planet", "bottle", "market", "silver", "winter", "pocket", "rocket")
DOUBLED = ("banana", "mississippi", "bookkeeper", "coffee", "committee", "success", "tennessee", "balloon")

SNIPPETS = [
    snippet("print-sum", EASY, "print($a + $b)", a=DIGIT, b=DIGIT),
    snippet("print-number", EASY, "x = $a\nprint(x)", a=range(3, 99)),
    snippet("print-word", EASY, 'print("$w")', w=WORDS),
    snippet("print-product", EASY, "print($a * $b)", a=range(2, 6), b=DIGIT),
    snippet("variable-word", EASY, 'name = "$w"\nprint(name)', w=LONG),
    snippet("add-one", EASY, "x = $a\nprint(x + 1)", a=range(2, 40)),
    snippet("length", EASY, 'print(len("$w"))', w=(*WORDS, *LONG)),
    snippet("max", EASY, "print(max($a, $b))", lambda a, b: a != b, a=TWO, b=TWO),
    snippet("upper", EASY, 'print("$w".upper())', w=WORDS),
    snippet("concatenate", EASY, 'print("$v" + "$w")', lambda v, w: v != w, v=WORDS, w=WORDS),
    snippet("compare", EASY, "print($a > $b)", lambda a, b: a != b, a=TWO, b=TWO),
    snippet("last-assignment", EASY, "x = $a\nx = $b\nprint(x)", lambda a, b: a != b, a=TWO, b=TWO),
    snippet("two-variables", MEDIUM, "a = $a\nb = $b\nprint(a + b)", a=DIGIT, b=DIGIT),
    snippet(
        "index",
        MEDIUM,
        "x = [$a, $b, $c]\nprint(x[$i])",
        lambda a, b, c, i: len({a, b, c}) == 3,
        a=TWO,
        b=TWO,
        c=TWO,
        i=(0, 1, 2, -1),
    ),
    snippet("list-sum", MEDIUM, "print(sum([$a, $b, $c]))", a=DIGIT, b=DIGIT, c=DIGIT),
    snippet(
        "list-length",
        MEDIUM,
        "x = [$items]\nprint(len(x))",
        items=[", ".join(map(str, range(k, k + n))) for k in (3, 5, 8) for n in range(2, 7)],
    ),
    snippet("repeat", MEDIUM, 'print("$w" * $n)', w=("ab", "no", "xy", "hey", "la", "go"), n=(2, 3)),
    snippet(
        "if-else",
        MEDIUM,
        'x = $a\nif x > $b:\n    print("$v")\nelse:\n    print("$w")',
        lambda a, b, v, w: v != w and a != b,
        a=range(2, 20),
        b=range(2, 20),
        v=WORDS,
        w=WORDS,
    ),
    snippet("first-letter", MEDIUM, 'print("$w"[0])', w=(*WORDS, *LONG)),
    snippet("increment", MEDIUM, "x = $a\nx += $b\nprint(x)", a=DIGIT, b=DIGIT),
    snippet("integer-division", MEDIUM, "print($a // $b)", lambda a, b: a > b, a=range(7, 30), b=range(2, 6)),
    snippet(
        "min",
        MEDIUM,
        "print(min($a, $b, $c))",
        lambda a, b, c: len({a, b, c}) == 3,
        a=TWO,
        b=TWO,
        c=TWO,
    ),
    snippet(
        "lookup",
        MEDIUM,
        'd = {"$v": $a, "$w": $b}\nprint(d["$key"])',
        lambda v, w, key, a, b: v != w and a != b and key in (v, w),
        v=WORDS,
        w=WORDS,
        key=WORDS,
        a=TWO,
        b=TWO,
    ),
    snippet("loop-sum", HARD, "s = 0\nfor i in range($n):\n    s += i\nprint(s)", n=range(4, 12)),
    snippet("slice", HARD, 'print("$w"[$i:$j])', lambda w, i, j: i < j, w=LONG, i=(1, 2, 3), j=(3, 4, 5)),
    snippet("reverse", HARD, 'print("$w"[::-1])', w=LONG),
    snippet("modulo", HARD, "print($a % $b)", a=TWO, b=range(4, 10)),
    snippet("swap", HARD, "a, b = $a, $b\na, b = b, a + b\nprint(a * b)", a=DIGIT, b=DIGIT),
    snippet("comprehension", HARD, "print([i * $k for i in range($n)])", k=DIGIT, n=(3, 4, 5)),
    snippet("call", HARD, "def f(x):\n    return x * $a - $b\n\nprint(f(f($c)))", a=(2, 3, 4), b=DIGIT, c=DIGIT),
    snippet("while", HARD, "n = $n\nk = 0\nwhile n > 1:\n    n = n // 2\n    k += 1\nprint(k)", n=range(9, 200)),
    snippet(
        "sorted",
        HARD,
        "print(sorted([$a, $b, $c, $d])[1])",
        lambda a, b, c, d: len({a, b, c, d}) == 4,
        a=TWO,
        b=TWO,
        c=TWO,
        d=TWO,
    ),
    snippet(
        "count-letter",
        HARD,
        'print("$w".count("$c"))',
        lambda w, c: c in w,
        w=DOUBLED,
        c=("n", "s", "e", "o", "k", "p", "m", "l"),
    ),
    snippet(
        "nested", HARD, "n = 0\nfor i in range($a):\n    for j in range(i):\n        n += 1\nprint(n)", a=range(3, 12)
    ),
    snippet(
        "filter",
        HARD,
        "print(sum(x for x in [$a, $b, $c, $d] if x % 2 == 0))",
        lambda a, b, c, d: 0 < sum(v % 2 for v in (a, b, c, d)) < 4,
        a=TWO,
        b=TWO,
        c=TWO,
        d=TWO,
    ),
]

TEMPLATES: list[Template] = [*SNIPPETS, *FUNCTIONS]
