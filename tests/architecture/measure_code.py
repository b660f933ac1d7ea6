"""How large the code is: `python -m tests.architecture.measure_code`. Statements, files, and modules that one other module imports.

A statement is one of the syntax tree, docstrings aside, so layout and comments do not count. An import is read as for the code digest
(stages/record/contract/source_code.py); an import by a package's own __init__ or by a test is none.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from pathlib import Path

from flows.cli.printing import print_table
from stages.record.contract.source_code import PROJECT, imports_of

PRODUCT = ("flows", "stages", "dashboards")


def statements(source: str) -> int:
    r"""Statements of a module without those that are only a text.

    >>> statements("'doc'\ndef f():\n    'doc'\n    return 1\n")
    2
    """
    return sum(isinstance(node, ast.stmt) and not _is_text(node) for node in ast.walk(ast.parse(source)))


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def sources(*folders: str) -> list[Path]:
    """The modules below folders that are not empty."""
    found = (path for folder in folders for path in (PROJECT / folder).rglob("*.py"))
    return sorted(path for path in found if path.stat().st_size)


def imported_once() -> list[str]:
    """Modules of the product that exactly one other module of the product imports."""
    names = {".".join(path.relative_to(PROJECT).with_suffix("").parts) for path in sources(*PRODUCT) if path.name != "__init__.py"}
    importers = Counter(read for name in names for read in imports_of(name) if read in names and read != name)
    return sorted(name for name, times in importers.items() if times == 1)


def main() -> int:
    """Prints the figures, and with --list the modules."""
    rows = []
    for what, folders in (("product", PRODUCT), ("tests", ("tests",))):
        texts = [path.read_text(encoding="utf-8") for path in sources(*folders)]
        rows.append(
            {"code": what, "files": len(texts), "lines": sum(text.count("\n") for text in texts), "statements": sum(map(statements, texts))}
        )
    print_table(rows)
    once = imported_once()
    print(f"{len(once)} modules of the product have one importer")
    if "--list" in sys.argv[1:]:
        print("\n".join(once))
    return 0


if __name__ == "__main__":
    sys.exit(main())
