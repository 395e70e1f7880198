"""Python over one record as an expression over columns: `order["total"] > 5` becomes `col("total") > 5`.

Called by `shoal.dataflow.api.migrate`. What has no counterpart raises `UntranslatableError`.
"""

from __future__ import annotations

import ast

_OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Eq: "==",
    ast.NotEq: "!=",
}
_METHODS = {"upper": "fn.upper", "lower": "fn.lower", "strip": "fn.trim"}


class UntranslatableError(Exception):
    """Python that says more than an expression can."""


class Translation:
    """Turns syntax into text. `names` are those that the text uses."""

    def __init__(self, record: str) -> None:
        self._record = record
        self._names: set[str] = set()
        #: Lines with what a person should know about them.
        self.remarks: list[tuple[int, str]] = []

    @property
    def names(self) -> frozenset[str]:
        """What has to be imported."""
        return frozenset(self._names)

    def is_record(self, node: ast.expr) -> bool:
        """Whether it is the record itself."""
        return isinstance(node, ast.Name) and node.id == self._record

    def column(self, node: ast.expr) -> str | None:
        """The column that it is, and nothing else; None when it is more."""
        match node:
            case ast.Subscript(value=value, slice=ast.Constant(value=str() as name)) if self.is_record(value):
                return name
            case ast.Attribute(value=value, attr=name) if self.is_record(value):
                return name
            case ast.Call(
                func=ast.Attribute(value=value, attr="get"), args=[ast.Constant(value=str() as name)], keywords=[]
            ) if self.is_record(value):
                return name
            case _:
                return None

    def value(self, node: ast.expr) -> str:
        """An expression, also where it is a constant."""
        if isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float | str | bytes):
            self._names.add("lit")
            return f"lit({_quoted(node)})"
        if isinstance(node, ast.Constant):
            raise UntranslatableError  # a null has no type of its own
        if _is_constant_name(node):
            self._names.add("lit")
            return f"lit({ast.unparse(node)})"
        return self.expression(node)

    def condition(self, node: ast.expr) -> str:
        """The text of an expression that is true or false. Python takes any value for one; an expression does not."""
        if not _is_truth(node):
            raise UntranslatableError
        return self.expression(node)

    def expression(self, node: ast.expr) -> str:
        """The text of an expression."""
        column = self.column(node)
        if column is not None:
            self._names.add("col")
            return f'col("{column}")'
        match node:
            case ast.Constant(value=bool() | int() | float() | str() | bytes()):
                return _quoted(node)
            case ast.Name() if _is_constant_name(node):
                return node.id
            case ast.BoolOp(op=op, values=values) if all(_is_truth(each) for each in values):
                return f" {'&' if isinstance(op, ast.And) else '|'} ".join(self._part(each) for each in values)
            case ast.UnaryOp():
                return self._unary(node)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                return f"{self._part(left)} {_OPERATORS[type(op)]} {self._part(right)}"
            case ast.Compare():
                return self._comparison(node)
            case _:
                return self._call(node)

    def _unary(self, node: ast.UnaryOp) -> str:
        if isinstance(node.op, ast.USub):
            return f"-{self._part(node.operand)}"
        if not isinstance(node.op, ast.Not) or not _is_truth(node.operand):
            raise UntranslatableError
        self._remark_nulls(node)
        return f"~{self._part(node.operand)}"

    def _remark_nulls(self, node: ast.AST) -> None:
        line = getattr(node, "lineno", 0)
        text = (
            "a null is neither equal nor unequal: rows with one are left out here; add | col(…).is_null() to keep them"
        )
        if (line, text) not in self.remarks:
            self.remarks.append((line, text))

    def _part(self, node: ast.expr) -> str:
        text = self.expression(node)
        return f"({text})" if isinstance(node, ast.BoolOp | ast.BinOp | ast.Compare) else text

    def _comparison(self, node: ast.Compare) -> str:
        """`a < b < c` is two comparisons."""
        sides = [node.left, *node.comparators]
        if not any(self.is_record(each) for each in ast.walk(node) if isinstance(each, ast.expr)):
            raise UntranslatableError  # Python would compare at once
        pairs = list(zip(sides, node.ops, sides[1:], strict=False))
        texts = [self._pair(left, op, right) for left, op, right in pairs]
        return texts[0] if len(texts) == 1 else " & ".join(f"({each})" for each in texts)

    def _pair(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> str:
        match op, right:
            case ast.Is() | ast.Eq(), ast.Constant(value=None):
                return f"{self._part(left)}.is_null()"
            case ast.IsNot() | ast.NotEq(), ast.Constant(value=None):
                return f"{self._part(left)}.is_valid()"
            case ast.In() | ast.NotIn(), ast.List() | ast.Tuple() | ast.Set():
                values = [_quoted(each) for each in right.elts if isinstance(each, ast.Constant)]
                if len(values) != len(right.elts):
                    raise UntranslatableError
                text = f"{self._part(left)}.isin([{', '.join(values)}])"
                if isinstance(op, ast.NotIn):
                    self._remark_nulls(left)
                return text if isinstance(op, ast.In) else f"~{text}"
            case _ if type(op) in _OPERATORS:
                if isinstance(op, ast.NotEq):
                    self._remark_nulls(left)
                return f"{self._part(left)} {_OPERATORS[type(op)]} {self._part(right)}"
            case _:
                raise UntranslatableError

    def _call(self, node: ast.expr) -> str:
        """A few methods of text that have a function of the same meaning."""
        match node:
            case ast.Call(func=ast.Attribute(value=value, attr=name), args=[], keywords=[]) if name in _METHODS:
                self._names.add("fn")
                return f"{_METHODS[name]}({self.expression(value)})"
            case ast.Call(
                func=ast.Attribute(value=value, attr="startswith" | "endswith" as name),
                args=[ast.Constant(value=str()) as text],
                keywords=[],
            ):
                self._names.add("fn")
                function = "starts_with" if name == "startswith" else "ends_with"
                return f"fn.{function}({self.expression(value)}, {_quoted(text)})"
            case _:
                raise UntranslatableError


def _is_truth(node: ast.expr) -> bool:
    """Whether it is true or false whatever the record holds."""
    match node:
        case ast.Compare():
            return True
        case ast.BoolOp(values=values):
            return all(_is_truth(each) for each in values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _is_truth(operand)
        case ast.Call(func=ast.Attribute(attr="startswith" | "endswith")):
            return True
        case _:
            return False


def _is_constant_name(node: ast.expr) -> bool:
    """A name in capitals holds the same at every record."""
    return isinstance(node, ast.Name) and node.id.isupper()


def _quoted(node: ast.Constant) -> str:
    """A constant as people write it here: text in double quotes."""
    text = ast.unparse(node)
    if isinstance(node.value, str) and '"' not in text and "\\" not in text:
        return f'"{node.value}"'
    return text
