"""Do the files of a room keep to the order in which they may import each other?"""

from __future__ import annotations

import ast
import graphlib
import pathlib

import wellfed

SOURCE = pathlib.Path(wellfed.__file__).parent


def imports_of(tree: ast.AST) -> set[str]:
    """Give what runs when the file does, and what its functions import later; types only are nobody's need."""
    found: set[str] = set()
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if (
            isinstance(node, ast.If)
            and isinstance(node.test, ast.Name)
            and node.test.id == "TYPE_CHECKING"
        ):
            waiting += node.orelse
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        waiting += ast.iter_child_nodes(node)
    return found


def graph_of(folder: pathlib.Path, package: str) -> dict[str, set[str]]:
    """Give the files that each file of a package imports."""
    files = {
        ".".join((package, *path.relative_to(folder).with_suffix("").parts)).removesuffix(
            ".__init__"
        ): path
        for path in folder.rglob("*.py")
    }
    wanted = {name: imports_of(ast.parse(path.read_text())) for name, path in files.items()}
    # `from a.b import c` names the package a.b, too; only what stands in its own file is an import of it.
    return {
        name: {each for each in all_of if each in files and each != name}
        for name, all_of in wanted.items()
    }


def circle_in(graph: dict[str, set[str]]) -> list[str]:
    """Give one circle, or nothing."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def test_no_file_imports_itself_by_a_detour():
    """Not when it is loaded, and not in a function either: a circle says that a value stands in the wrong file."""
    assert circle_in(graph_of(SOURCE, "wellfed")) == []


def test_a_circle_is_found(tmp_path):
    """Hidden in a function; one of types only is none."""
    (tmp_path / "a.py").write_text("def f():\n    from p.b import x\n")
    (tmp_path / "b.py").write_text("if TYPE_CHECKING:\n    from p.a import f\n")
    (tmp_path / "c.py").write_text("import p.b\n")
    harmless = circle_in(graph_of(tmp_path, "p"))
    (tmp_path / "b.py").write_text("import p.c\n")

    assert harmless == []
    assert set(circle_in(graph_of(tmp_path, "p"))) == {"p.b", "p.c"}
