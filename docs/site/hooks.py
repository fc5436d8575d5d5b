"""MkDocs hooks: pages from outside docs/, and links that work on GitHub and in the site."""

import posixpath
import re
from functools import cache
from pathlib import Path

import commands
import python_api
import routes
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

REPOSITORY = Path(__file__).parents[2]
FROM_ELSEWHERE = {"infra/README.md": "infra.md", "CONTRIBUTING.md": "contributing.md"}
"""Files outside docs/ that are pages of the site, and where."""
INSTEAD = {"README.md": "index.md", "docs": "index.md"}
"""Links to these lead to another page of the site."""

_FENCE = re.compile(r"(^```.*?^```\n|`[^`\n]+`(?!\]))", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Adds generated pages to the navigation, and guides that it does not list."""
    listed = str(config.nav)
    guides = sorted((REPOSITORY / "docs").glob("guides/*.md"))
    new_guides = [f"guides/{path.name}" for path in guides if f"guides/{path.name}" not in listed]
    stages = [
        {stage: [{verb: f"commands/{verb}.md"} for verb in verbs]}
        for stage, verbs in commands.STAGES.items()
    ]
    groups = [{title: f"http/{name}.md"} for title, name, _ in _route_pages()]
    for section in config.nav or ():
        section.get("Guides", []).extend(new_guides)
        for entry in section.get("Reference", ()):
            if "Commands" in entry:
                entry["Commands"] = [{"Overview": "commands/index.md"}, *stages]
            if "HTTP" in entry:
                entry["HTTP"] = [{"Overview": "api.md"}, *groups]
    return config


@cache
def _route_pages() -> list[tuple[str, str, str]]:
    return list(routes.pages())


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that do not lie in docs/, and the generated ones."""
    for path, uri in FROM_ELSEWHERE.items():
        files.append(File.generated(config, uri, abs_src_path=str(REPOSITORY / path)))
    for name, markdown in commands.pages():
        files.append(File.generated(config, f"commands/{name}.md", content=markdown))
    files.append(File.generated(config, "python.md", content=python_api.page()))
    for _, name, markdown in _route_pages():
        files.append(File.generated(config, f"http/{name}.md", content=markdown))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrites links for the site.

    A link to a page or file of the site becomes relative to this page, and if its text is the
    page's path, the text becomes the page's title. One to another file of the repository leads to
    `extra.repository`; without it the file's path stands there as text. What leads nowhere stays
    as it is, for MkDocs to warn of.
    """
    if page.is_homepage:
        page.meta["hide"] = ["navigation"]
    source = page.file.abs_src_path
    if source is None:
        return markdown  # generated
    folder = Path(source).relative_to(REPOSITORY).parent

    def rewritten(link: re.Match[str]) -> str:
        image, text, target = link.groups()
        if "://" in target or target.startswith(("#", "mailto:")):
            return link[0]
        given, hash_sign, anchor = target.partition("#")
        path = posixpath.normpath(posixpath.join(folder.as_posix(), given))
        uri = FROM_ELSEWHERE.get(path) or INSTEAD.get(path) or path.removeprefix("docs/")
        if files.get_file_from_path(uri) is not None:
            start = posixpath.dirname(page.file.src_uri) or "."
            if text in (path, given) and path.endswith(".md"):
                text = _title(path)
            return f"{image}[{text}]({posixpath.relpath(uri, start)}{hash_sign}{anchor})"
        if not (REPOSITORY / path).exists():
            return link[0]
        if address := config.extra["repository"].rstrip("/"):
            kind = "tree" if (REPOSITORY / path).is_dir() else "blob"
            return f"[{text}]({address}/{kind}/main/{path}{hash_sign}{anchor})"
        return f"`{path}`" if text.strip("`") in path else f"{text} (`{path}`)"

    parts = _FENCE.split(markdown)
    parts[::2] = [_LINK.sub(rewritten, part) for part in parts[::2]]
    return "".join(parts)


@cache
def _title(path: str) -> str:
    """The first heading of a page."""
    return (REPOSITORY / path).read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def on_post_build(config: MkDocsConfig) -> None:
    """Takes the addresses of a CDN out of the theme's script.

    It would load a library from there for diagrams, which no page has, and in old browsers.
    """
    for script in Path(config.site_dir).glob("assets/javascripts/bundle.*.js"):
        text = script.read_text(encoding="utf-8")
        script.write_text(text.replace("https://unpkg.com/", "not-loaded/"), encoding="utf-8")
