"""A real browser, and the playground's page in it, used as a person would."""

import shutil
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")


@contextmanager
def open_browser():
    """Chromium as the system has it, without a window."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip("Chromium is not installed here")
    with sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-gpu", "--renderer-process-limit=1"]
        browser = playwright.chromium.launch(executable_path=program, args=options)
        yield browser
        browser.close()


class Visitor:
    """A person with a tab of their own, from a server that they may ask.

    Whatever the page requests and complains of is noted, and `check` looks through it.
    """

    def __init__(self, browser, server, *, width=1280, scheme="light"):
        self.origin = f"http://{server.host}:{server.port}"
        self.address = server.address
        # A context of each visitor would be a process of its own.
        context = browser.contexts[0] if browser.contexts else browser.new_context()
        self.page = context.new_page()
        self.page.set_default_timeout(30_000)
        self.resize(width)
        self.page.emulate_media(color_scheme=scheme)
        self.requests, self.complaints = [], []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", self._note)

    def _note(self, message):
        # A refused request is noted by the browser itself; what the page makes of it is tested.
        is_refusal = message.text.startswith("Failed to load resource")
        if message.type in ("error", "warning") and not is_refusal:
            self.complaints.append(message.text)

    def open(self, task="", *, slash="/"):
        """Opens the page of a task, from the address bar."""
        self.page.goto("about:blank")
        self.page.goto(f"{self.address}{slash}#/{task}")
        self.page.wait_for_selector("h1, #start .problem, #key:not([hidden])")
        return self.page

    def go(self, title):
        """Clicks on the link to another page, and waits for it."""
        self.page.get_by_role("link", name=title, exact=True).click()
        self.page.get_by_role("heading", level=1, name=title, exact=True).wait_for()

    def choose(self, label, value):
        """Takes a value of a menu."""
        self.page.get_by_label(label, exact=True).select_option(value)

    def type(self, label, text):
        """Clicks on a field and types."""
        self.page.get_by_label(label, exact=True).click()
        self.page.keyboard.insert_text(text)

    def ask(self):
        """Presses the button, and waits for what comes of it."""
        self.page.get_by_role("button", name="Ask", exact=True).click()
        self.wait()

    def wait(self):
        """Waits until a question has been answered or refused."""
        self.page.wait_for_selector("main article:not([aria-busy])")

    @property
    def answer(self):
        """The part of the page that shows the answer."""
        return self.page.get_by_role("region", name="Answer", exact=True)

    def use(self, task, model=None):
        """Takes the first example of a task, which is asked at once."""
        self.open(task)
        if model is not None:
            self.choose("Model", model)
        self.page.locator(".examples button").first.click()
        self.page.wait_for_selector(".facts > div")
        self.wait()

    def resize(self, width):
        """Makes the window so wide."""
        self.page.set_viewport_size({"width": width, "height": 800})

    def darken(self):
        """Has the system prefer dark colours."""
        self.page.emulate_media(color_scheme="dark")

    @property
    def ground(self):
        """The page's background: red, green and blue, 0 to 255."""
        code = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g)"
        return tuple(map(int, self.page.evaluate(code)))

    @property
    def overflow(self):
        """By how many pixels the page is wider than the window."""
        return self.page.evaluate("document.documentElement.scrollWidth - window.innerWidth")

    def faults(self):
        """What axe-core finds, serious or not: rules, and where."""
        found = Axe().run(self.page).response
        assert tuple(map(int, found["testEngine"]["version"].split("."))) >= (4, 8)
        return [
            (violation["id"], violation["impact"], [node["html"] for node in violation["nodes"]])
            for violation in found["violations"]
        ]

    def check(self):
        """No other server was asked, and neither script nor policy complained."""
        strangers = {
            request
            for request in self.requests
            if request != "about:blank"
            and f"{urlsplit(request).scheme}://{urlsplit(request).netloc}" != self.origin
        }
        self.page.close()
        assert not strangers
        assert not self.complaints
