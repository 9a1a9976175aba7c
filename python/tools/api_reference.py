"""Writes docs/python-api.md from the docstrings of the package; with --check only says whether it is up to date.

cargo xtask python && target/python/bin/python python/tools/api_reference.py
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType

PAGE = Path(__file__).resolve().parents[2] / "docs" / "python-api.md"
MODULES = [
    ("phalanx", "Running functions, and what all front ends share"),
    ("phalanx.torch", "PyTorch"),
    ("phalanx.torch.elastic", "Going on after a failure, with PyTorch"),
    ("phalanx.numpy", "NumPy"),
    ("phalanx.graph", "Static programs, with Paddle's names"),
    ("phalanx.graph.layers", "Layers of static programs"),
    ("phalanx.graph.optimizer", "Optimizers of static programs"),
    ("phalanx.graph.io", "Readers of static programs"),
    ("phalanx.exceptions", "Errors"),
]
HEAD = """\
# Python reference

Written by `python/tools/api_reference.py` from the docstrings. Do not edit: run it again. [python.md](python.md) is where to begin.
"""


def names(module: ModuleType) -> list[str]:
    """What the module offers."""
    offered = getattr(module, "__all__", None)
    return sorted(offered if offered is not None else (n for n in vars(module) if not n.startswith("_")), key=str.lower)


def signature(what: object) -> str:
    """Arguments as they are written, without where their types come from."""
    try:
        text = str(inspect.signature(what))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ""
    text = re.sub(r"<class '([^']*)'>", lambda m: m.group(1).rsplit(".", 1)[-1], text)
    text = re.sub(r"ProcessSet\(process_set_id=0[^)]*\)", "global_process_set", text)
    text = re.sub(r"<([\w.]+)[^>]*>", r"\1", text)
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)


def prose(text: str) -> str:
    """A docstring as Markdown: examples become code, roles become names."""
    lines: list[str] = []
    in_code = False
    for line in text.splitlines():
        is_code = line.startswith((">>> ", "... ", ">>>")) or (in_code and line.strip() != "")
        if is_code != in_code:
            lines.append("```python" if is_code else "```")
            in_code = is_code
        lines.append(line)
    if in_code:
        lines.append("```")
    text = "\n".join(lines)
    text = re.sub(r":\w+:`([^`]*)`", r"`\1`", text)
    return re.sub(r"(?<!`)``([^`\n]+)``(?!`)", r"`\1`", text)


def describe(name: str, what: object) -> str | None:
    """One entry of the page."""
    doc = inspect.getdoc(what)
    if inspect.isclass(what):
        shown = [f"### class {name}{signature(what)}"]
        shown += [prose(doc)] if doc and "__doc__" in vars(what) else []
        for method, value in vars(what).items():
            is_public = not method.startswith("_") and (inspect.isfunction(value) or isinstance(value, property))
            inner = inspect.getdoc(value) if is_public else None
            if inner:
                call = signature(value) if inspect.isfunction(value) else ""
                shown.append(f"- `{name}.{method}{call}`: {prose(inner).splitlines()[0]}")
        return "\n\n".join(shown)
    if callable(what):
        return f"### {name}\n\n`{name}{signature(what)}`" + (f"\n\n{prose(doc)}" if doc else "")
    return None


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for path, title in MODULES:
        module = importlib.import_module(path)
        parts.append(f"## `{path}`: {title}\n")
        doc = inspect.getdoc(module)
        if doc:
            parts.append(prose(doc) + "\n")
        for name in names(module):
            entry = describe(name, getattr(module, name))
            if entry:
                parts.append(entry + "\n")
    return "\n".join(parts)


def main() -> None:
    text = page()
    if "--check" in sys.argv[1:]:
        if not PAGE.exists() or PAGE.read_text() != text:
            sys.exit(f"{PAGE.name} is not what the docstrings say: run python/tools/api_reference.py")
        return
    PAGE.write_text(text)
    print(f"{PAGE.name}: {text.count(chr(10) + '### ')} entries")


if __name__ == "__main__":
    main()
