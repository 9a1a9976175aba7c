"""Writes docs/python-api.md from the docstrings of the package; with --check only says whether it is up to date.

cargo xtask python && target/python/bin/python python/tools/api_reference.py
"""

from __future__ import annotations

import enum
import importlib
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

PAGE = Path(__file__).resolve().parents[2] / "docs" / "python-api.md"
MODULES = [
    ("phalanx", "Running functions, and what all front ends share"),
    ("phalanx.torch", "PyTorch"),
    ("phalanx.torch.elastic", "Recovery from failures, with PyTorch"),
    ("phalanx.numpy", "NumPy"),
    ("phalanx.ray", "Ranks in a Ray cluster"),
    ("phalanx.parallax", "Models on many workers, with Parallax's names"),
    ("phalanx.distributed", "Tasks of a cluster"),
    ("phalanx.graph", "Static programs, with Paddle's names"),
    ("phalanx.graph.layers", "Layers of static programs"),
    ("phalanx.graph.optimizer", "Optimizers of static programs"),
    ("phalanx.graph.io", "Readers of static programs, and files"),
    ("phalanx.graph.saving", "Saving and loading static programs"),
    ("phalanx.graph.initializer", "Initial values of parameters"),
    ("phalanx.graph.regularizer", "Decay of parameters"),
    ("phalanx.graph.clip", "Gradient clipping"),
    ("phalanx.graph.unique_name", "Generated names"),
    ("phalanx.data", "Data sets and samplers"),
    ("phalanx.distributed", "Sessions, hooks and evaluators, with TensorLayer's names"),
    ("phalanx.summary", "Event files for TensorBoard"),
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


def fields(what: Any) -> list[str]:
    """A table of what can be set, and the values of enumerations."""
    known = getattr(what, "_fields", None)
    if not isinstance(known, dict):
        return []
    rows = ["| field | type | default | meaning |", "|---|---|---|---|"]
    for name, (default, kinds) in known.items():
        if name.startswith("_"):
            continue
        kind = " or ".join("None" if k is type(None) else k.__name__.lstrip("_") for k in kinds)
        kind = next((n for n, v in vars(what).items() if v in kinds), kind)
        rows.append(f"| `{name}` | {kind} | `{default!r}` | {what._meanings[name]} |")
    for name, (only, why) in what._fixed.items():
        rows.append(f"| `{name}` | | `{only!r}` | {why}; nothing else is taken |")
    shown = ["\n".join(rows)]
    for name, value in vars(what).items():
        if inspect.isclass(value) and issubclass(value, enum.Enum):
            values = ", ".join(f"`{one.name}`" for one in value)
            shown.append(f"`{what.__name__}.{name}`: {values}. {prose(inspect.getdoc(value) or '')}")
    return shown


def described(text: str) -> str:
    """A docstring as part of a list."""
    first, *rest = prose(text).splitlines()
    return "\n".join([first, *(f"  {line}" if line else "" for line in rest)])


def members(what: type) -> dict[str, Any]:
    """What a class has of its own, and from classes that users do not see."""
    found = dict(vars(what))
    for base in what.__mro__[1:]:
        if any(part.startswith("_") for part in base.__module__.split(".")):
            found |= {name: value for name, value in vars(base).items() if name not in found}
    return found


def describe(name: str, what: object) -> str | None:
    """One entry of the page."""
    doc = inspect.getdoc(what)
    if inspect.isclass(what) and what.__name__ != name:
        return f"### {name}\n\nAnother name of `{what.__name__}`."
    if inspect.isclass(what):
        shown = [f"### class {name}{signature(what)}"]
        shown += [prose(doc)] if doc and "__doc__" in vars(what) else []
        shown += fields(what)
        for method, value in members(what).items():
            value = getattr(value, "__func__", value)
            is_public = not method.startswith("_") and (inspect.isfunction(value) or isinstance(value, property))
            inner = inspect.getdoc(value) if is_public else None
            if inner:
                call = signature(value) if inspect.isfunction(value) else ""
                shown.append(f"- `{name}.{method}{call}`: {described(inner)}")
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
            sys.exit(f"{PAGE.name} differs from the docstrings: run python/tools/api_reference.py")
        return
    PAGE.write_text(text)
    print(f"{PAGE.name}: {text.count(chr(10) + '### ')} entries")


if __name__ == "__main__":
    main()
