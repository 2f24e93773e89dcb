"""No row of a claim has a bound that no number can break.

The sources are parsed. The measured expression of each row gets the range of values that its form
allows: a norm is not negative, a fraction lies between 0 and 1, an expression of literals is
constant. A bound that holds on the whole range decides nothing, and neither does a constant.
"""

import ast
import dataclasses
import math
from pathlib import Path

import pytest

import pullback_lab.papers

FOLDER = Path(pullback_lab.papers.__file__).parent
FILES = sorted(FOLDER.rglob("*.py"))
ROWS = ("at_least", "at_most", "equals")
NOT_NEGATIVE = {
    *("abs", "norm", "distance", "len", "count_nonzero", "matrix_rank", "std", "ptp", "exp"),
    *("sqrt", "asymmetry", "effective_rank"),
}
FRACTIONS = {"isfinite", "bool", "accuracy"}
# The result lies in the range of the arguments.
PASSED_ON = {"max", "min", "mean", "median", "float", "int", "asarray", "array", "ravel"}
PURE = {"np", "math"}


@dataclasses.dataclass(frozen=True)
class Range:
    """The values that an expression can take."""

    low: float = -math.inf
    high: float = math.inf
    constant: bool = False

    def __or__(self, other):
        return Range(min(self.low, other.low), max(self.high, other.high))


UNKNOWN = Range()


class Scope:
    """Names and the expressions that they stand for, where there is one only."""

    def __init__(self, body, outer=None):
        self.outer = outer
        self.found = {}
        self.elements = {}
        for part in _own(body):
            self._read(part)

    def _read(self, node):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._assign(target, node.value)
        elif isinstance(node, ast.AugAssign | ast.For | ast.comprehension | ast.withitem):
            target = getattr(node, "target", None) or getattr(node, "optional_vars", None)
            for name in ast.walk(target) if target is not None else ():
                if isinstance(name, ast.Name):
                    self.found[name.id] = None
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "append":
            if isinstance(node.func.value, ast.Name):
                self.elements.setdefault(node.func.value.id, []).append(node.args[0])

    def _assign(self, target, value):
        if isinstance(target, ast.Name):
            # A second assignment leaves the name unknown.
            self.found[target.id] = None if target.id in self.found else value
        elif isinstance(target, ast.Tuple):
            same = isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts)
            for i, part in enumerate(target.elts):
                self._assign(part, value.elts[i] if same else ast.Name("unknown"))

    def look_up(self, name):
        if name in self.elements and isinstance(self.found.get(name), ast.List):
            return ast.Tuple(self.elements[name], ast.Load())
        if name in self.found:
            return self.found[name]
        return None if self.outer is None else self.outer.look_up(name)


def _own(nodes):
    """Nodes and what is in them, without functions and classes."""
    for node in nodes:
        if not isinstance(node, ast.FunctionDef | ast.Lambda | ast.ClassDef):
            yield node
            yield from _own(ast.iter_child_nodes(node))


def range_of(node, scope, depth=0):
    """The range of an expression."""
    if depth > 20 or node is None:
        return UNKNOWN
    inner = lambda child: range_of(child, scope, depth + 1)
    match node:
        case ast.Constant(value=bool() | int() | float() as value):
            return Range(float(value), float(value), True)
        case ast.Name(id=name):
            return inner(scope.look_up(name))
        case ast.Tuple(elts=parts) | ast.List(elts=parts) if parts:
            return _hull([inner(part) for part in parts])
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            found = inner(operand)
            return Range(-found.high, -found.low, found.constant)
        case ast.UnaryOp(op=ast.Not()) | ast.BoolOp():
            return Range(0.0, 1.0)
        case ast.Compare(left=left, comparators=[right]):
            same = ast.dump(left) == ast.dump(right)
            constant = inner(left).constant and inner(right).constant
            return Range(0.0, 1.0, same or constant)
        case ast.BinOp(left=left, op=op, right=right):
            return _combined(op, inner(left), inner(right))
        case ast.IfExp(body=first, orelse=second):
            return inner(first) | inner(second)
        case ast.GeneratorExp(elt=element) | ast.ListComp(elt=element):
            return inner(element)
        case ast.Subscript(value=value):
            return inner(value)
        case ast.Attribute(attr="inf" | "nan"):
            return Range(math.inf, math.inf, True)
        case ast.Attribute(attr="size" | "shape" | "ndim"):
            return Range(0.0)
        case ast.Call(func=function, args=arguments):
            return _called(function, arguments, inner)
    return UNKNOWN


def _hull(ranges):
    found = ranges[0]
    for other in ranges[1:]:
        found = found | other
    return Range(found.low, found.high, all(one.constant for one in ranges))


def _combined(op, a, b):
    constant = a.constant and b.constant
    match op:
        case ast.Add():
            return Range(a.low + b.low, a.high + b.high, constant)
        case ast.Sub():
            return Range(a.low - b.high, a.high - b.low, constant)
        case ast.Mult() | ast.Div() | ast.Pow() if a.low >= 0 and b.low >= 0:
            return Range(0.0, constant=constant)
    return Range(constant=constant)


def _called(function, arguments, inner):
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    parts = [inner(argument) for argument in arguments]
    root = function
    while isinstance(root, ast.Attribute):
        root = root.value
    method = isinstance(function, ast.Attribute) and getattr(root, "id", "") not in PURE
    if method and name in PASSED_ON:
        parts = [inner(function.value)]
    pure = not method and (getattr(root, "id", "") in PURE or name in PASSED_ON | NOT_NEGATIVE)
    constant = pure and bool(parts) and all(part.constant for part in parts)
    if name in FRACTIONS:
        return Range(0.0, 1.0, constant)
    if name == "cosine":
        return Range(-1.0, 1.0, constant)
    if name in NOT_NEGATIVE:
        return Range(0.0, constant=constant)
    if name in PASSED_ON and parts:
        found = _hull(parts)
        return Range(found.low, found.high, constant)
    if name == "sum" and parts and parts[0].low >= 0:
        return Range(0.0, constant=constant)
    return Range(constant=constant)


def complaints(source):
    """What is wrong with the rows of a module, in words."""
    tree = ast.parse(source)
    module = Scope(tree.body)
    found = []
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    for function in functions:
        scope = Scope(function.body, module)
        for node in _own(function.body):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ROWS:
                if words := _complaint(node.func.id, *node.args[1:3], scope):
                    found.append(f"line {node.lineno}: {ast.unparse(node.args[0])}: {words}")
    return found


def _complaint(kind, measured, bound, scope):
    value, limit = range_of(measured, scope), range_of(bound, scope)
    if ast.dump(measured) == ast.dump(bound):
        return "the number is compared with itself"
    if value.constant:
        return "the number is a constant"
    if limit.constant and not math.isfinite(limit.low):
        return "the bound is not finite"
    if kind == "at_least" and limit.constant and limit.high <= value.low:
        return f"the number is always at least {value.low:g}"
    if kind == "at_most" and limit.constant and limit.low >= value.high:
        return f"the number is always at most {value.high:g}"
    return ""


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_every_bound_can_be_broken(path):
    assert complaints(path.read_text()) == []


def test_rows_are_found():
    count = sum(
        getattr(node.func, "id", "") in ROWS
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
    )
    assert count > 350


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("share = np.mean(x > 0)\n    yield at_least('', share, 0.0)", "always at least 0"),
        ("yield at_most('', np.mean([a > b for a in x]), 1.0)", "always at most 1"),
        (
            "depth, layer = 3, 2\n    after = depth - layer\n"
            "    yield equals('', depth - layer, after)",
            "constant",
        ),
        ("yield at_least('', np.cbrt(1e-9) / 1e-9, 1e5)", "constant"),
        ("yield equals('', np.linalg.matrix_rank(np.array([[2.0, 1.0]])), 1)", "constant"),
        ("yield at_least('', x.norm(), x.norm())", "compared with itself"),
        ("yield equals('', x == x, True)", "constant"),
        ("gaps = []\n    gaps.append(abs(x))\n    yield at_least('', max(gaps), 0.0)", "least 0"),
        ("yield at_least('', SIZE, 2)", "constant"),
        ("yield at_most('', x, math.inf)", "not finite"),
    ],
)
def test_a_vacuous_bound_is_found(body, words):
    (found,) = complaints(f"SIZE = 3\ndef run(x, b):\n    {body}")
    assert words in found


@pytest.mark.parametrize(
    "body",
    [
        "share = np.mean(x > 0)\n    yield at_least('', share, 1.0)",
        "yield at_least('', (x - b).min(), 0.0)",
        "yield at_most('', np.abs(x).max(), 1e-9)",
        "yield equals('', len(x), SIZE)",
        "y = 0.0\n    y = max(y, x)\n    yield at_most('', y, 1e-9)",
    ],
)
def test_a_bound_that_decides_is_allowed(body):
    assert complaints(f"SIZE = 3\ndef run(x, b):\n    {body}") == []
