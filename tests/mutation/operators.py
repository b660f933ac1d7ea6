"""One-line faults of a module: every place where a small wrong change is possible, as a replacement of exact source bytes.

Guarantee: the same source gives the same mutants in the same order; each parses; a diff shows only the change, since the rest of the
source stays byte for byte. Left alone, since no test should hold it: docstrings, annotations, what a raise, a log line or an assert
says, f-strings, imports, TYPE_CHECKING blocks, protocols, arguments that guard, dress up or save work only (QUIET), and what
says how far the work is. Inside SQL the comparisons, connectives and orders are changed, a literal is not.
Cost: some 10 ms a module. Source of the operators: those of mutmut and cosmic-ray; a sum with a string or list loses its right side
instead of becoming a difference, and a returned value changes within its annotated type, so that no mutant dies of a TypeError alone
where it need not.
"""

from __future__ import annotations

import ast
import difflib
import re
from dataclasses import dataclass

COMPARED = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"), ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="),
    ast.In: ("in", "not in"), ast.NotIn: (r"not\s+in", "in"), ast.Is: ("is", "is not"), ast.IsNot: (r"is\s+not", "is"),
}  # fmt: skip
ARITHMETIC = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "+"), ast.Div: ("/", "*"), ast.FloorDiv: ("//", "*"), ast.Mod: ("%", "*"),
    ast.Pow: ("**", "*"), ast.LShift: ("<<", ">>"), ast.RShift: (">>", "<<"), ast.BitAnd: ("&", "|"), ast.BitXor: ("^", "&"),
}  # fmt: skip
CALLED = {"min": "max", "max": "min", "any": "all", "all": "any", "sorted": "list", "floor": "ceil", "ceil": "floor", "argmin": "argmax"}
SPEAKS = {"log", "progress", "expect", "warning", "debug", "info", "print", "cast", "TypeVar"}  # calls that only tell
QUIET = {
    "strict", "encoding", "errors", "check", "indent", "ensure_ascii", "exist_ok", "parents", "missing_ok", "where", "do", "kind", "desc",
    "columns", "mmap_mode", "daemon",
}  # fmt: skip
SQL = re.compile(r"\b(SELECT|WHERE|JOIN|LIKE|ORDER BY|GROUP BY)\b|contains\(|<>")
IN_SQL = (
    (r"<>", "="), (r"<=", "<"), (r">=", ">"), (r"(?<![<>=!])=(?![=>])", "<>"), (r"\bAND\b", "OR"), (r"\bOR\b", "AND"), (r"\bDESC\b", ""),
    (r"\bDISTINCT\b", ""), (r"\bLEFT JOIN\b", "JOIN"), (r"\bNOT IN\b", "IN"), (r"\bIS NOT NULL\b", "IS NULL"), (r"\bmin\(", "max("),
    (r"\bmax\(", "min("), (r"\bIS DISTINCT FROM\b", "="),
)  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """A replacement of source[start:end] by `new`. function: the dotted name of what it lies in, "" at module level."""

    path: str
    function: str
    operator: str
    start: int
    end: int
    new: str
    before: str
    after: str

    def applied(self, source: bytes) -> bytes:
        return source[: self.start] + self.new.encode() + source[self.end :]

    def diff(self, source: bytes) -> str:
        """The unified diff of the lines that change, with no context but the function's name."""
        old, new = source.decode().splitlines(), self.applied(source).decode().splitlines()
        lines = list(difflib.unified_diff(old, new, lineterm="", n=0))[2:]
        return "\n".join([f"{self.path} {self.function or '(module)'} [{self.operator}]", *lines])


def mutants_of(path: str, source: bytes) -> list[Mutant]:
    """All mutants of a module, in the order of the source."""
    walk = _Walk(path, source)
    walk.block(ast.parse(source).body, "")
    found: dict[tuple[int, int, str], Mutant] = {}
    for mutant in sorted(walk.found, key=lambda m: (m.start, m.end, m.operator, m.new)):
        if _parses(mutant.applied(source)):
            found.setdefault((mutant.start, mutant.end, mutant.new), mutant)
    return list(found.values())


class _Walk:
    """One pass over a syntax tree."""

    def __init__(self, path: str, source: bytes) -> None:
        self.path, self.source, self.found, self.function = path, source, list[Mutant](), ""
        self.line_starts = [0]
        for line in source.splitlines(keepends=True):
            self.line_starts.append(self.line_starts[-1] + len(line))
        self.returns: ast.expr | None = None

    def span(self, node: ast.expr | ast.stmt | ast.keyword) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self.line_starts[node.lineno - 1] + node.col_offset, self.line_starts[node.end_lineno - 1] + node.end_col_offset

    def text(self, node: ast.expr | ast.stmt) -> str:
        start, end = self.span(node)
        return self.source[start:end].decode()

    def add(self, operator: str, start: int, end: int, new: str) -> None:
        first = self.source.rfind(b"\n", 0, start) + 1
        last = self.source.find(b"\n", end)
        last = len(self.source) if last < 0 else last
        before = self.source[first:last].decode()
        after = (self.source[first:start] + new.encode() + self.source[end:last]).decode()
        squeezed = " ".join(before.split()), " ".join(after.split())
        if squeezed[0] != squeezed[1]:
            self.found.append(Mutant(self.path, self.function, operator, start, end, new, *squeezed))

    def replace(self, operator: str, node: ast.expr | ast.stmt, new: str) -> None:
        self.add(operator, *self.span(node), new)

    # -- statements --------------------------------------------------------------------------------------------------------------

    def block(self, body: list[ast.stmt], name: str) -> None:
        for number, node in enumerate(body):
            if number == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
                continue  # a docstring
            outer = self.function
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                self.function = f"{name}.{node.name}" if name else node.name
            self.statement(node)
            self.function = outer

    def statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Import() | ast.ImportFrom() | ast.Assert() | ast.Pass() | ast.Global() | ast.Nonlocal():
                return
            case ast.Raise():
                self.replace("deleted", node, "pass")
                return
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                return
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                outer, self.returns = self.returns, node.returns
                for default in [*node.args.defaults, *(d for d in node.args.kw_defaults if d is not None)]:
                    self.expression(default)
                self.block(node.body, self.function)
                self.returns = outer
                return
            case ast.ClassDef():
                if not any(isinstance(base, ast.Name) and base.id == "Protocol" for base in node.bases):
                    self.block(node.body, self.function)
                return
            case ast.Assign(targets=[ast.Name(id="__all__" | "STAGE")]):
                return
            case ast.Expr(value=ast.Constant()):
                return  # the docstring of a field
            case ast.Expr(value=ast.Call() as call):
                if _tells(call):
                    return
                self.replace("deleted", node, "pass")
            case ast.AugAssign():
                self.replace("deleted", node, "pass")
                if type(node.op) in ARITHMETIC and isinstance(node.op, ast.Add | ast.Sub) and not _sequence(node.value):
                    old, new = ARITHMETIC[type(node.op)]
                    self.between("arithmetic", self.span(node.target)[1], self.span(node.value)[0], re.escape(old) + "=", f"{new}=")
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
                self.replace("deleted", node, "pass")
            case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
                self.returned(value)
            case ast.Break():
                self.replace("loop", node, "continue")
            case ast.Continue():
                self.replace("loop", node, "break")
            case ast.If() | ast.While():
                self.condition(node.test)
        for field, child in ast.iter_fields(node):
            if field in ("annotation", "returns", "decorator_list", "type_comment"):
                continue
            if isinstance(child, ast.expr):
                self.expression(child)
            elif isinstance(child, list):
                self.children(child)

    def children(self, nodes: list[ast.AST]) -> None:
        for node in nodes:
            if isinstance(node, ast.stmt):
                self.block([node], self.function)
            elif isinstance(node, ast.expr):
                self.expression(node)
            elif isinstance(node, ast.withitem):
                self.expression(node.context_expr)
            elif isinstance(node, ast.ExceptHandler):
                self.children(list(node.body))
            elif isinstance(node, ast.match_case):
                if node.guard is not None:
                    self.condition(node.guard)
                    self.expression(node.guard)
                self.children(list(node.body))

    def returned(self, value: ast.expr) -> None:
        """Another value of the annotated type where there is one, else None."""
        kind = self.returns.id if isinstance(self.returns, ast.Name) else ""
        if isinstance(self.returns, ast.Subscript) and isinstance(self.returns.value, ast.Name):
            kind = self.returns.value.id
        own = self.text(value)
        new = {
            "bool": f"not ({own})", "int": f"({own}) + 1", "float": f"({own}) + 1", "str": f'({own}) + "x"', "list": f"({own})[:-1]" if own != "[]" else "[None]",
            "dict": "{}", "set": "set()", "frozenset": "frozenset()",
        }.get(kind, "None")  # fmt: skip
        if not (isinstance(value, ast.Constant | ast.Compare | ast.BoolOp) and kind in ("bool", "int", "float")) and own != new:
            self.replace("returned", value, new)

    # -- expressions -------------------------------------------------------------------------------------------------------------

    def condition(self, test: ast.expr) -> None:
        """A condition turned round; comparisons and `not` are turned by operators of their own."""
        if not (isinstance(test, ast.Compare) and len(test.ops) == 1) and not isinstance(test, ast.UnaryOp | ast.Constant):
            self.replace("negated", test, f"not ({self.text(test)})")

    def between(self, operator: str, start: int, end: int, pattern: str, new: str) -> None:
        """Replaces an operator that stands between two operands, past brackets and comments."""
        gap = re.sub(rb"#[^\n]*", lambda comment: b" " * len(comment[0]), self.source[start:end]).decode("latin-1")
        found = re.search(pattern, gap)
        if found:
            self.add(operator, start + found.start(), start + found.end(), new)

    def expression(self, node: ast.expr) -> None:
        match node:
            case ast.JoinedStr():
                text = self.text(node)
                if SQL.search(text):
                    self.sql(node)
                return
            case ast.Constant():
                self.constant(node)
                return
            case ast.Compare():
                left = node.left
                for op, right in zip(node.ops, node.comparators, strict=True):
                    pattern, new = COMPARED[type(op)]
                    words = rf"\b{pattern}\b" if pattern[0].isalpha() else rf"(?<![<>=!]){re.escape(pattern)}(?!=)"
                    self.between("compared", self.span(left)[1], self.span(right)[0], words, new)
                    if isinstance(right, ast.Constant) and isinstance(right.value, str) and right.value:
                        self.replace("string", right, '"x"')
                    left = right
            case ast.BinOp():
                self.binary(node)
            case ast.BoolOp():
                old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
                for left, right in zip(node.values, node.values[1:], strict=False):
                    self.between("boolean", self.span(left)[1], self.span(right)[0], rf"\b{old}\b", new)
            case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert()):
                if not (isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant)):
                    self.replace("unary", node, f"({self.text(node.operand)})")
            case ast.IfExp():
                self.condition(node.test)
            case ast.Slice():
                for bound in (node.lower, node.upper):
                    if bound is not None:
                        self.replace("slice", bound, "")
                if node.step is not None:
                    self.replace("slice", node.step, "1")
            case ast.Call():
                self.call(node)
                return
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                for part in node.generators:
                    for test in part.ifs:
                        self.replace("unfiltered", test, "True")
                        self.expression(test)
                    self.expression(part.iter)
        for field, child in ast.iter_fields(node):
            if field == "generators" or field == "annotation":
                continue
            for one in child if isinstance(child, list) else [child]:
                if isinstance(one, ast.expr):
                    self.expression(one)

    def binary(self, node: ast.BinOp) -> None:
        start, end = self.span(node.left)[1], self.span(node.right)[0]
        if isinstance(node.right, ast.Constant) and node.right.value == "\n":
            pass  # the end of a file's last line
        elif isinstance(node.op, ast.BitOr) or (isinstance(node.op, ast.Add) and (_sequence(node.left) or _sequence(node.right))):
            self.replace("dropped", node, self.text(node.left))  # of strings, lists, dicts, sets: the right side is lost
        elif type(node.op) in ARITHMETIC:
            old, new = ARITHMETIC[type(node.op)]
            self.between("arithmetic", start, end, re.escape(old), new)

    def call(self, node: ast.Call) -> None:
        name = _callee(node)
        if _tells(node):
            return
        if name in CALLED and not (name == "sorted" and node.keywords):
            start, end = self.span(node.func)
            self.add("called", end - len(name), end, CALLED[name])
        for keyword in node.keywords:
            if keyword.arg is not None and keyword.arg not in QUIET:
                start, end = self.span(keyword)
                rest = re.match(rb"\s*,\s*", self.source[end:])
                before = re.search(rb",\s*$", self.source[:start])
                if rest:
                    self.add("argument", start, end + rest.end(), "")
                elif before:
                    self.add("argument", before.start(), end, "")
                else:
                    self.add("argument", start, end, "")
        self.expression(node.func)
        for argument in node.args:
            self.expression(argument)
        for keyword in node.keywords:
            if keyword.arg not in QUIET:
                self.expression(keyword.value)

    def constant(self, node: ast.Constant) -> None:
        match node.value:
            case bool():
                self.replace("constant", node, str(not node.value))
            case int():
                self.replace("constant", node, str(node.value + 1))
            case float():
                self.replace("constant", node, repr(node.value * 2 if node.value else 1.0))
            case "":
                self.replace("string", node, '"x"')
            case str() if SQL.search(node.value):
                self.sql(node)

    def sql(self, node: ast.expr) -> None:
        """The words of a statement as they stand in the source; what an f-string computes in braces is left alone."""
        start, end = self.span(node)
        text = self.source[start:end].decode("latin-1")
        head = re.match(r"\w*(\"\"\"|'''|\"|')", text)
        braces = [(m.start(), m.end()) for m in re.finditer(r"\{[^{}]*\}", text)] if isinstance(node, ast.JoinedStr) else []
        for pattern, new in IN_SQL:
            for found in re.finditer(pattern, text):
                inside = any(a <= found.start() < b for a, b in braces)
                if not inside and found.start() >= (head.end() if head else 0):
                    self.add("sql", start + found.start(), start + found.end(), new)


def _callee(call: ast.Call) -> str:
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _tells(call: ast.Call) -> bool:
    """Whether a call only says how far the work is."""
    of = call.func.value if isinstance(call.func, ast.Attribute) else None
    return _callee(call) in SPEAKS or (isinstance(of, ast.Name) and of.id == "meter")


def _sequence(node: ast.expr) -> bool:
    """Whether an operand is a string, list, tuple by its form."""
    if isinstance(node, ast.BinOp):
        return _sequence(node.left) or _sequence(node.right)
    if isinstance(node, ast.Call):
        return _callee(node) in ("str", "list", "tuple", "sorted", "join")
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str | bytes)
    return isinstance(node, ast.JoinedStr | ast.List | ast.Tuple | ast.ListComp)


def _parses(source: bytes) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True
