"""The rules of the house as functions: a module's name and source in, complaints out."""

import ast
import re
import sys
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

PACKAGES = ("bert_core", "workflows", "serving")

CORE_IMPORTS = {"bert_core", "torch", "tokenizers", "numpy", "pydantic", "safetensors"}
CORE_NEVER = ("ray", "mlflow", "fastapi", "starlette", "transformers", "workflows", "serving")
SERVING_NEVER = ("ray.train", "workflows")
# Both find models at MLflow; the reading half of the registry is with those who only read.
OF_SERVING_IN_WORKFLOWS = "serving.registry"
# A server's process has no MLflow: only the one that fetches for it comes near.
NEAR_MLFLOW_IN_SERVING = {"serving.watch", "serving.registry"}
RAY_TRAIN_MODULES = {"workflows.clusters.workers"}
MLFLOW_MODULES = re.compile(
    r"workflows\.(runs\.\w+|promotion\.champion|reproduction\.recorded_run"
    r"|versions\.(registration|lineage|model_pyfunc))|serving\.registry"
)

UNWANTED_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "base", "manager"}
PICKLES = ("pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal", "ray.cloudpickle")
MOST_LINES = 500

TYPES_IGNORED = re.compile(r"# (type|pyright): ?ignore")

MACHINE_PATH = re.compile(r"(?<![\w.~\-])/(?:home|root|work|Users)/\w\w")  # a name, not x


@dataclass(frozen=True)
class Import:
    """One imported name: `from ray import train` gives `ray` and `ray.train`."""

    name: str
    line: int
    at_import: bool  # runs when the module is imported: not in a function, not for types only


def imports_of(source):
    """Every import of a source text, also those by `import_module("...")`."""
    return list(_imports(ast.parse(source).body, at_import=True))


def _imports(nodes, at_import):
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, at_import)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield Import(module, node.lineno, at_import)
            for alias in node.names:
                yield Import(f"{module}.{alias.name}", node.lineno, at_import)
        elif isinstance(node, ast.Call) and _called(node) in ("import_module", "__import__"):
            names = [each.value for each in node.args if isinstance(each, ast.Constant)]
            yield from (Import(str(name), node.lineno, at_import) for name in names[:1])
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            yield from _imports(node.body, at_import=False)
            yield from _imports(node.orelse, at_import)
        else:
            inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _imports(ast.iter_child_nodes(node), at_import and not inside)


def import_circle(sources):
    """The modules of one circle of imports, the first again at the end; [] where there is none.

    `sources` maps names to texts. Imports in functions and for types alone count too: a reader
    follows them all.
    """
    graph = {}
    for module, source in sources.items():
        names = set()
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        graph[module] = (names & sources.keys()) - {module}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def import_complaints(module, source):
    """What a module imports although its package must not, or not at the top."""
    package = module.split(".")[0]
    found = imports_of(source)
    complaints = [
        f"line {line}: relative import; write the full name"
        for name, line in {(each.name, each.line) for each in found}
        if name.startswith(".") and name.strip(".") == ""
    ]
    for each in found:
        top = each.name.split(".")[0]
        if package == "bert_core":
            if _under(each.name, CORE_NEVER):
                complaints.append(f"line {each.line}: bert_core never imports {each.name}")
            elif each.at_import and top not in CORE_IMPORTS | sys.stdlib_module_names:
                complaints.append(f"line {each.line}: import {each.name} inside the function")
        if package in ("serving", "workflows"):
            complaint = _halves_complaint(module, each.name)
            complaints += [f"line {each.line}: {complaint}"] if complaint else []
        if _under(each.name, ("ray.train",)) and module not in RAY_TRAIN_MODULES:
            complaints.append(f"line {each.line}: only clusters/workers.py imports ray.train")
        if _under(each.name, ("mlflow",)):
            if not MLFLOW_MODULES.fullmatch(module):
                complaints.append(f"line {each.line}: MLflow is for tracking and registry alone")
            elif each.at_import:
                complaints.append(f"line {each.line}: import {each.name} inside the function")
        if _under(each.name, PICKLES):
            complaints.append(f"line {each.line}: no {each.name}: reading it executes code")
    return complaints


def _halves_complaint(module, imported):
    """What is wrong with an import by the half that serves, or by the half that trains."""
    if module.startswith("workflows."):
        wrong = _under(imported, ("serving",)) and not _under(imported, (OF_SERVING_IN_WORKFLOWS,))
        return f"of serving, workflows import {OF_SERVING_IN_WORKFLOWS} alone" if wrong else ""
    if _under(imported, SERVING_NEVER):
        return f"serving never imports {imported}"
    is_near_mlflow = _under(imported, tuple(NEAR_MLFLOW_IN_SERVING))
    if is_near_mlflow and module not in NEAR_MLFLOW_IN_SERVING:
        return "a server's process has no MLflow"
    return ""


def unsafe_calls(source):
    """Calls that load what does not fit, or execute what they read."""
    complaints = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = _called(node)
        keywords = {word.arg: getattr(word.value, "value", None) for word in node.keywords}
        if keywords.get("strict") is False and name not in ("zip", "map"):
            complaints.append(f"line {node.lineno}: strict=False hides what does not fit")
        if keywords.get("allow_pickle") is True:
            complaints.append(f"line {node.lineno}: allow_pickle=True executes what it reads")
        if keywords.get("weights_only") is False:
            complaints.append(f"line {node.lineno}: weights_only=False executes what it reads")
        if ast.unparse(node.func) == "torch.load" and keywords.get("weights_only") is not True:
            complaints.append(f"line {node.lineno}: torch.load without weights_only=True")
    return complaints


def naming_complaints(module):
    """Names that say nothing about what a module is for."""
    return [
        f"{part} says nothing about what the module is for"
        for part in module.split(".")
        if part in UNWANTED_NAMES
    ]


def length_complaints(source):
    """Files that nobody reads to the end."""
    lines = source.count("\n")
    return [f"{lines} lines, more than {MOST_LINES}: divide it"] if lines > MOST_LINES else []


def unexplained_ignores(source):
    """Type checking that is switched off with no reason on the line or the one above."""
    lines = ["", *source.splitlines()]
    return [
        f"line {number}: say why the types are ignored"
        for number in range(1, len(lines))
        if TYPES_IGNORED.search(lines[number])
        and not re.search(r"ignore(\[[\w, ]+\])? - \w", lines[number])
        and "# " not in lines[number - 1]
    ]


def machine_paths(text):
    """Absolute paths that exist on one machine only."""
    return [match.group() for match in MACHINE_PATH.finditer(text)]


def repeated_defaults(preset, defaults, prefix=""):
    """The dotted names of settings that a preset sets to what they are anyway."""
    found = []
    for name, value in preset.items():
        default = defaults[name]
        if isinstance(value, dict) and isinstance(default, dict):
            found += repeated_defaults(value, default, f"{prefix}{name}.")
        elif value == default:
            found.append(prefix + name)
    return found


def said_by(name, files):
    """Whether one of some settings files speaks of a setting, given by its dotted name."""
    section, _, field = name.rpartition(".")
    return any(field in (content.get(section, {}) if section else content) for content in files)


def _under(name, packages):
    return any(name == package or name.startswith(package + ".") for package in packages)


def _called(node):
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
