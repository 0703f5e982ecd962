"""The built pages, opened in a browser that reaches nothing but them."""

import os
import re
import shutil
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import nbformat
import pytest
import yaml
from playwright.sync_api import sync_playwright

from tests.build import ROOT, make

TOC = yaml.safe_load((ROOT / "_toc.yml").read_text())
PAGES = [TOC["root"], *(page["file"] for part in TOC["parts"] for page in part["chapters"])]
QUIET = (
    "--headless --no-sandbox --disable-gpu --disable-background-networking "
    "--disable-component-update --disable-sync --no-first-run"
)
PHONE = {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The folder of the book, built with every chapter at its smallest settings."""
    build = tmp_path_factory.mktemp("book")
    built = make("book", "PRESET=smoke", f"BUILD={build}")
    assert built.returncode == 0, built.stdout
    return build / "html"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments) -> None:
        pass


@pytest.fixture(scope="module")
def address(site):
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=site)) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def chromium():
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(
            "Chromium was not found (Debian: apt-get install chromium)"
        )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=QUIET.split())
        yield browser
        browser.close()


@pytest.fixture
def page(chromium, address):
    """An empty page; what goes wrong while a test uses it fails the test."""
    problems = []

    def only_here(route):
        if route.request.url.startswith((address, "data:")):
            route.continue_()
        else:
            problems.append(f"asked for {route.request.url}")
            route.abort()

    page = chromium.new_page(base_url=address)
    page.route("**/*", only_here)
    page.on("requestfailed", lambda request: problems.append(f"no answer: {request.url}"))
    page.on("response", lambda r: r.status >= 400 and problems.append(f"{r.status}: {r.url}"))
    page.on("pageerror", lambda error: problems.append(f"script: {error}"))
    page.on("console", lambda m: m.type == "error" and problems.append(f"console: {m.text}"))
    yield page
    page.close()
    assert not problems


def visit(page, name: str) -> None:
    page.goto(f"/{name}.html", wait_until="networkidle")
    page.evaluate("window.MathJax?.startup.promise")


def source(name: str) -> str:
    """The Markdown of a page, without its code."""
    if (ROOT / f"{name}.md").exists():
        text = (ROOT / f"{name}.md").read_text()
    else:
        notebook = nbformat.read(ROOT / f"{name}.ipynb", as_version=4)
        text = "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    return re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.DOTALL)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_shows_its_mathematics_tables_and_figures(page, name):
    visit(page, name)
    # Equations come in elements of class math; one that MathJax left alone has no mjx-container.
    raw = ".math:not(:has(mjx-container))"
    assert page.locator(raw).all_inner_texts() == []
    assert page.locator("mjx-merror").all_inner_texts() == []
    assert (page.locator("mjx-container").count() > 0) == ("$" in source(name))

    cells = page.locator(".cell_output p").all_inner_texts()
    assert [text for text in cells if text.startswith("|")] == [], "a table left as it was typed"

    images = page.eval_on_selector_all(
        "img", "found => found.map(i => ({src: i.src, alt: i.alt, width: i.naturalWidth}))"
    )
    for image in images:
        assert image["width"] > 0, image
        # Sphinx fills a missing text with the file's name.
        assert image["alt"] and not image["alt"].endswith((".svg", ".png")), image


@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_a_phone(page, name):
    page.set_viewport_size(PHONE)
    visit(page, name)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_a_figure_keeps_its_transparent_background_in_the_dark(page):
    page.emulate_media(color_scheme="dark")
    visit(page, "notebooks/01-energy")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    styles = page.eval_on_selector_all(
        "div.cell_output img",
        "found => found.map(getComputedStyle).map(s => [s.backgroundColor, s.filter])",
    )
    assert styles and all(style == ["rgba(0, 0, 0, 0)", "none"] for style in styles)


def test_search_finds_a_word_of_a_chapter(page):
    page.goto("/search.html?q=Lagrangian", wait_until="networkidle")
    page.locator("#search-results li a").first.wait_for()
    links = page.eval_on_selector_all("#search-results li a", "found => found.map(a => a.href)")
    assert any("/notebooks/01-energy.html" in link for link in links)


@pytest.mark.parametrize("name", [name for name in PAGES if name.startswith("notebooks/")])
def test_a_chapter_can_be_downloaded_as_it_was_executed(page, site, name):
    visit(page, name)
    link = page.locator("a.btn-download-source-button").get_attribute("href")
    notebook = nbformat.read((site / name).parent / link, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]
    assert code and all(cell.execution_count for cell in code)


def test_the_site_loads_nothing_from_elsewhere_and_holds_no_unused_mathjax(site):
    loaded = re.compile(r"""<(?:script|link|img|iframe)\b[^>]*(?:src|href)=["'](?:https?:)?//""")
    assert not [path for path in site.rglob("*.html") if loaded.search(path.read_text())]
    assert {path.name for path in (site / "_static/mathjax").glob("*.js")} == {"tex-chtml.js"}
