"""Texts that every machine with Python has, for what is measured on text: its documentation, licence and docstrings."""

from __future__ import annotations

import ast
import importlib.util
import pydoc_data.topics
import sysconfig
from pathlib import Path

MAX_CHARACTERS = 480_000  # of each text
DOCUMENTED = (  # modules whose docstrings are long and prose for the most part
    "argparse", "ast", "calendar", "codecs", "collections", "configparser", "csv", "dataclasses", "datetime", "decimal",
    "difflib", "doctest", "email.message", "enum", "fractions", "functools", "heapq", "http.client", "http.cookies",
    "inspect", "ipaddress", "logging", "mailbox", "nntplib", "optparse", "os", "pathlib", "pickle", "pickletools",
    "platform", "plistlib", "pprint", "random", "shlex", "shutil", "smtplib", "socket", "socketserver", "ssl",
    "statistics", "string", "subprocess", "tarfile", "tempfile", "textwrap", "threading", "tkinter", "trace",
    "traceback", "turtle", "typing", "unittest.case", "unittest.mock", "urllib.request", "uuid", "warnings", "xml.dom",
    "xmlrpc.client", "zipfile",
)  # fmt: skip


def default_texts() -> dict[str, str]:
    """By name: Python's documentation by topics, its licence, and the docstrings of its library."""
    found = {"pydoc_data.topics": "\n\n".join(pydoc_data.topics.topics.values())[:MAX_CHARACTERS]}
    licence = Path(sysconfig.get_path("stdlib")) / "LICENSE.txt"
    if licence.is_file():
        found["LICENSE.txt"] = licence.read_text("utf-8")
    found["docstrings"] = "\n\n".join(filter(None, map(_docstrings, DOCUMENTED)))[:MAX_CHARACTERS]
    return found


def _docstrings(module: str) -> str:
    """Of a module, its classes and functions, in the order of its source; "" where this Python has none of it."""
    try:
        spec = importlib.util.find_spec(module)
    except ImportError:
        return ""
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        return ""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    tree = ast.parse(Path(spec.origin).read_text("utf-8"))
    nodes = [node for node in ast.walk(tree) if isinstance(node, documented)]
    nodes.sort(key=lambda node: getattr(node, "lineno", 0))
    return "\n\n".join(text for node in nodes if (text := ast.get_docstring(node)))
