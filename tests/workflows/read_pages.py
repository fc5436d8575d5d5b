"""A report's page as a reader of HTML sees it: tables, addresses, headings, words."""

from html.parser import HTMLParser

EMPTY = {"meta", "br", "path", "line", "rect", "use"}


class Page(HTMLParser):
    """Checks that what is opened is closed; collects tables, addresses, headings and scripts."""

    def __init__(self):
        super().__init__()
        self.open, self.tables, self.addresses, self.headings, self.words = [], {}, [], [], []
        self.points, self.scripts = [], 0

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.addresses += [
            value for name, value in attrs if name in ("src", "href", "xlink:href", "action")
        ]
        self.scripts += tag == "script"
        if tag == "table":
            self.table = self.tables.setdefault(given.get("class", ""), [])
        if tag == "tr":
            self.table.append([])
            if "data-point" in given:
                self.points.append(given["data-point"])
        if tag in ("td", "th"):
            self.table[-1].append("")
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag):
        if tag not in EMPTY:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if {"td", "th"} & set(self.open):
            self.table[-1][-1] += data
        if "h2" in self.open:
            self.headings.append(data)
        if not {"script", "style"} & set(self.open):
            self.words.append(data)
