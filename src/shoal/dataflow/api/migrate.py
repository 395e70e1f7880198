"""The dataflow form of a program with `@app.agent` functions. Pure: text in, text and notes out.

`shoal migrate my_app.py` prints it, and `@app.agent` shows it in its warning. Conditions and results that are made of
the record's columns become expressions; whatever says more is kept as it is and called record by record. The results
are those of the agent. What needs a person has a note with its line.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from shoal.core.errors import InvalidError, problem
from shoal.dataflow.api.migrate_expressions import Translation, UntranslatableError

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef

_OLD_PACKAGE = "sabot"
_PACKAGE = "shoal"
#: The column of results that are no mapping.
_VALUE = "value"
#: Agents were called with real records only, and may do anything to the world.
_RECORDS = ".records(probe=False)"


@dataclass(frozen=True, slots=True)
class Note:
    """Something that a person should look at; or do, because the program does not work before."""

    line: int
    text: str
    by_hand: bool = False

    def __str__(self) -> str:
        return f"line {self.line}: {self.text}"


@dataclass(frozen=True, slots=True)
class Migration:
    """A program in its new form."""

    text: str
    notes: tuple[Note, ...]
    #: How many agents were rewritten.
    rewritten: int


@dataclass(frozen=True, slots=True)
class _Agent:
    """An agent as it stands in the text."""

    function: Function
    app: str
    topic: str
    name: str
    sink: str
    #: Arguments of the decorator that dataflows have no place for.
    others: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Rewritten:
    """The text of one dataflow."""

    text: str
    names: frozenset[str]
    notes: tuple[Note, ...] = ()


def migrate(source: str, *, filename: str = "program") -> Migration:
    """Rewrite a program. Raises `InvalidError` for what is no Python."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        raise InvalidError([problem(filename, None, f"is not Python: {error}")], what="migrate") from error
    notes: list[Note] = []
    names: set[str] = set()
    edits: list[tuple[int, int, list[str]]] = []
    moved: dict[str, _Agent] = {}
    for agent in (found for node in ast.walk(tree) if (found := _agent_of(node, source)) is not None):
        done = _rewrite(agent, source)
        if isinstance(done, Note):
            notes.append(done)
            continue
        first = min(each.lineno for each in agent.function.decorator_list) - 1
        indent = " " * agent.function.col_offset
        edits.append((first, agent.function.end_lineno or first, textwrap.indent(done.text, indent).splitlines()))
        notes += done.notes
        names |= done.names
        moved[agent.function.name] = agent
    sent, send_notes = _send_edits(tree, moved, source)
    notes += send_notes
    lines = sent.splitlines()
    imports = _import_edits(tree, names, notes)
    for start, end, new in sorted([*edits, *imports], reverse=True):
        lines[start:end] = new
    changed = bool(edits or imports)
    text = "\n".join(lines) + ("\n" if source.endswith("\n") or changed else "")
    return Migration(text, tuple(sorted(notes, key=lambda note: note.line)), len(moved))


def dataflow_form(source: str) -> str | None:
    """The new form of one decorated function, as text; None when it cannot be told."""
    text = textwrap.dedent(source)
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return None
    agent = _agent_of(tree.body[0], text) if tree.body else None
    done = None if agent is None else _rewrite(agent, text)
    return done.text if isinstance(done, _Rewritten) else None


# ---------------------------------------------------------------------------------------------------------
# Finding agents


def _agent_of(node: ast.AST, source: str) -> _Agent | None:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    for decorator in node.decorator_list:
        match decorator:
            case ast.Call(func=ast.Attribute(value=app, attr="agent"), args=arguments, keywords=keywords):
                said = {each.arg or "**": ast.get_source_segment(source, each.value) or "" for each in keywords}
                for place, each in zip(("topic", "name"), arguments, strict=False):
                    said[place] = ast.get_source_segment(source, each) or ""
                if "topic" not in said:
                    return None
                name = said.get("name", "None")
                return _Agent(
                    node,
                    app=ast.get_source_segment(source, app) or "app",
                    topic=said["topic"],
                    name=f'"{node.name}"' if name == "None" else name,
                    sink=said.get("sink", ""),
                    others=tuple(sorted(said.keys() - {"topic", "name", "sink"})),
                )
            case _:
                pass
    return None


def _rewrite(agent: _Agent, source: str) -> _Rewritten | Note:
    function = agent.function
    arguments = function.args.args
    if len(arguments) != 1 or function.args.vararg or function.args.kwarg or function.args.kwonlyargs:
        text = f"{function.name} takes not one record but more; it was left as it is"
        return Note(function.lineno, text, by_hand=True)
    if len(function.decorator_list) > 1:
        text = f"{function.name} has other decorators, too; it was left as it is"
        return Note(function.lineno, text, by_hand=True)
    loop = next((each for each in _own(function) if isinstance(each, ast.AsyncFor)), None)
    if loop is not None and isinstance(loop.iter, ast.Name) and loop.iter.id == arguments[0].arg:
        text = f"{function.name} goes through a stream by itself; make it a function of one record"
        return Note(loop.lineno, text, by_hand=True)
    try:
        done = _as_expressions(agent, arguments[0].arg)
    except UntranslatableError:
        done = _as_records(agent, source)
    return replace(done, notes=(*done.notes, *_dropped_arguments(agent)))


def _dropped_arguments(agent: _Agent) -> Iterator[Note]:
    """What the decorator said and a dataflow does not."""
    for name in agent.others:
        hint = "say it at start: --parallelism" if "concurrency" in name else "nothing here corresponds to it"
        yield Note(agent.function.lineno, f"{name} was left out; {hint}")


def _own(function: Function) -> Iterator[ast.AST]:
    """Everything in a function but what is in functions inside of it."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            waiting += ast.iter_child_nodes(node)


# ---------------------------------------------------------------------------------------------------------
# As expressions


def _as_expressions(agent: _Agent, record: str) -> _Rewritten:
    """`if condition: yield value`, made of columns."""
    translation = Translation(record)
    steps: list[str] = []
    body = _without_docstring(agent.function.body)
    while len(body) == 1 and isinstance(body[0], ast.If) and not body[0].orelse:
        steps.append(f".filter({translation.condition(body[0].test)})")
        body = body[0].body
    if len(body) != 1:
        raise UntranslatableError
    value = _result(body[0])
    names, remarks = translation.names, list(translation.remarks)
    notes: list[Note] = []
    try:
        steps += _projection(value, translation)
        names, remarks = translation.names, translation.remarks
    except UntranslatableError:
        if not steps or not isinstance(body[0], ast.Expr) or not _is_simple(value):
            raise
        steps.append(f"{_RECORDS}.map(lambda {record}: {ast.unparse(value)})")
        notes.append(_record_note(agent, value.lineno))
    notes += [Note(line, text) for line, text in remarks]
    return _dataflow(agent, steps, names | {"Stream"}, notes)


def _is_simple(value: ast.expr) -> bool:
    """Whether it can stand in a lambda."""
    return not any(isinstance(each, ast.Await | ast.Yield | ast.YieldFrom | ast.NamedExpr) for each in ast.walk(value))


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    match body:
        case [ast.Expr(value=ast.Constant(value=str())), *rest]:
            return rest
        case _:
            return body


def _result(statement: ast.stmt) -> ast.expr:
    match statement:
        case ast.Expr(value=ast.Yield(value=ast.expr() as value)) | ast.Return(value=ast.expr() as value):
            return value
        case _:
            raise UntranslatableError


def _projection(value: ast.expr, translation: Translation) -> list[str]:
    """The step that makes the result of a record."""
    if translation.is_record(value):
        return []
    if not isinstance(value, ast.Dict):
        if isinstance(value, ast.Constant) and value.value is None:
            raise UntranslatableError
        return [f".select({_VALUE}={translation.value(value)})"]
    columns: dict[str, str] = {}
    whole = bool(value.keys) and value.keys[0] is None and translation.is_record(value.values[0])
    for key, each in list(zip(value.keys, value.values, strict=True))[int(whole) :]:
        if not isinstance(key, ast.Constant) or not isinstance(key.value, str) or not key.value.isidentifier():
            raise UntranslatableError
        columns[key.value] = translation.value(each)
    if not columns:
        raise UntranslatableError
    if whole:
        return [f".with_columns({', '.join(f'{name}={text}' for name, text in columns.items())})"]
    names = [name for name, text in columns.items() if text == f'col("{name}")']
    if len(names) == len(columns):
        return [f".select({', '.join(repr(name).replace(chr(39), chr(34)) for name in names)})"]
    return [f".select({', '.join(f'{name}={text}' for name, text in columns.items())})"]


# ---------------------------------------------------------------------------------------------------------
# Record by record


def _record_note(agent: _Agent, line: int) -> Note:
    text = f"{agent.function.name} is called record by record, as before; expressions over columns would be far faster"
    return Note(line, text)


def _as_records(agent: _Agent, source: str) -> _Rewritten:
    """The function as it is, called for each record."""
    function = agent.function
    inner = f"{function.name}_record"
    own = list(_own(function))
    lines = source.splitlines()[function.lineno - 1 : function.end_lineno]
    text = textwrap.dedent("\n".join(lines))
    waits = any(isinstance(each, ast.Await | ast.AsyncFor | ast.AsyncWith) for each in own) or any(
        isinstance(each, ast.comprehension) and each.is_async for each in own
    )
    head = "async def " if isinstance(function, ast.AsyncFunctionDef) else "def "
    text = text.replace(f"{head}{function.name}", f"{head if waits else 'def '}{inner}", 1)
    yields = any(isinstance(each, ast.Yield | ast.YieldFrom) for each in own)
    returns = any(isinstance(each, ast.Return) and each.value is not None for each in own)
    notes = [_record_note(agent, function.lineno)]
    if returns and not yields and waits:
        notes.append(Note(function.lineno, f"a list that {function.name} returns becomes a row for each of its items"))
    end = ".to_callback(lambda batch: None)" if not (yields or returns or agent.sink) else None
    step = f".flat_map({inner})"
    if returns and not yields and not waits:
        step = _returning_step(function, inner, own)
    flow = _dataflow(agent, [f"{_RECORDS}{step}"], frozenset({"Stream"}), notes, end=end)
    return _Rewritten(f"{text}\n\n\n{flow.text}", flow.names, flow.notes)


def _returning_step(function: Function, inner: str, own: list[ast.AST]) -> str:
    """The step for a function that returns one result, or none: agents take None for no result at all."""
    returned = [each for each in own if isinstance(each, ast.Return)]
    if isinstance(function.body[-1], ast.Return) and all(isinstance(each.value, ast.Dict) for each in returned):
        return f".map({inner})"
    return f".flat_map(lambda record: [each for each in [{inner}(record)] if each is not None])"


def _dataflow(
    agent: _Agent, steps: list[str], names: frozenset[str], notes: list[Note], *, end: str | None = None
) -> _Rewritten:
    function = agent.function
    if end is None and not agent.sink:
        topic = f"{function.name}_results"
        end = f'.to_kafka("{topic}")'
        notes.append(
            Note(function.lineno, f"results of {function.name} went nowhere; now they go to the topic {topic}")
        )
    elif end is None:
        end = f".to_kafka({agent.sink})"
    chain = [f"Stream.from_kafka({agent.topic})", *steps, end]
    docstring = ast.get_docstring(function)
    lines = [f"@{agent.app}.dataflow({agent.name})", f"def {function.name}():"]
    if docstring:
        lines.append(f'    """{docstring.splitlines()[0]}"""')
    lines += ["    return (", *(f"        {each}" for each in chain), "    )"]
    return _Rewritten("\n".join(lines), names, tuple(notes))


# ---------------------------------------------------------------------------------------------------------
# The rest of the program


def _import_edits(tree: ast.Module, names: set[str], notes: list[Note]) -> list[tuple[int, int, list[str]]]:
    """Imports from here instead of there, and of what the new text uses."""
    edits: list[tuple[int, int, list[str]]] = []
    imported: set[str] = set()
    last = _first_line(tree)
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            last = node.end_lineno or node.lineno
        if isinstance(node, ast.Import) and any(each.name.split(".")[0] == _OLD_PACKAGE for each in node.names):
            text = f"imports {_OLD_PACKAGE}; import what is used from {_PACKAGE}"
            notes.append(Note(node.lineno, text, by_hand=True))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in (_OLD_PACKAGE, _PACKAGE):
            imported |= {each.asname or each.name for each in node.names}
            if (node.module or "").split(".")[0] == _OLD_PACKAGE:
                said = ", ".join(f"{e.name} as {e.asname}" if e.asname else e.name for e in node.names)
                edits.append((node.lineno - 1, node.end_lineno or node.lineno, [f"from {_PACKAGE} import {said}"]))
    missing = sorted(names - imported)
    if missing:
        edits.append((last, last, [f"from {_PACKAGE} import {', '.join(missing)}"]))
    return edits


def _first_line(tree: ast.Module) -> int:
    """The line behind which imports may stand: that of the docstring."""
    match tree.body:
        case [ast.Expr(value=ast.Constant(value=str())) as docstring, *_]:
            return docstring.end_lineno or 0
        case _:
            return 0


def _send_edits(tree: ast.Module, moved: dict[str, _Agent], source: str) -> tuple[str, list[Note]]:
    """The program with what is sent to agents sent to their topics."""
    lines = source.splitlines()
    notes: list[Note] = []
    sends = [
        (node, node.value.id)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr == "send"
    ]
    for node, name in sorted(sends, key=lambda each: (each[0].lineno, each[0].col_offset), reverse=True):
        if name not in moved:
            continue
        said = f"{moved[name].app}.topic({moved[name].topic}).send"
        line = lines[node.lineno - 1].encode()  # places are counted in bytes
        lines[node.lineno - 1] = (line[: node.col_offset] + said.encode() + line[node.end_col_offset :]).decode()
        text = f"{name}.send went to the function while the app did not run; now it goes to the topic always"
        notes.append(Note(node.lineno, text))
    return "\n".join(lines), notes
