"""What every page must be: whole, accessible, and without anything from outside."""

import re
from html.parser import HTMLParser

VOID = {"meta", "img", "br", "hr", "link", "input"}
URLS = ("src", "href", "action", "formaction", "data", "poster", "srcset", "xlink:href", "background")


class Page(HTMLParser):
    """A parsed page. `tags` has each tag with the names of its attributes, in order."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.stack, self.errors, self.words, self.headings, self.ids = [], [], [], [], [], []
        self.scripts, self.links, self.attributes = [], [], []
        self.feed(text)
        self.close()
        self.errors += [f"{tag} is never closed" for tag in self.stack]

    def handle_starttag(self, tag, attrs, closed=False):
        self.tags.append((tag, tuple(name for name, _ in attrs)))
        found = dict(attrs)
        self.attributes += attrs
        if "id" in found:
            self.ids.append(found["id"])
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        for name, value in attrs:
            if name.startswith("on") or name in ("style", "srcdoc"):
                self.errors.append(f"{tag} has {name}")
            if name in URLS:
                self.links.append(value)
        if tag == "th" and found.get("scope") not in ("col", "row"):
            self.errors.append("a th without scope")
        if tag == "img" and not found.get("alt"):
            self.errors.append("an img without alt")
        if (
            tag == "svg"
            and found.get("class") != "field"
            and not (found.get("role") == "img" and found.get("aria-label"))
        ):
            self.errors.append("an svg without role and label")
        if tag == "table":
            self.stack.append(tag)
            return
        if not closed and tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs, closed=True)

    def handle_endtag(self, tag):
        if not self.stack or self.stack[-1] != tag:
            self.errors.append(f"</{tag}> closes {self.stack[-1:]}")
        else:
            self.stack.pop()
        if tag in ("td", "th", "dt", "dd"):
            self.words.append(" ")

    def handle_data(self, data):
        if self.stack and self.stack[-1] == "script":
            self.scripts.append(data)
        elif not self.stack or self.stack[-1] != "style":
            self.words.append(data)

    @property
    def text(self):
        return " ".join("".join(self.words).split())


def check(text, whole=True):
    """Parse a page, or a piece of one, and see that it is as it must be."""
    page = Page(text)
    assert page.errors == []
    assert len(page.ids) == len(set(page.ids))
    steps = [b - a for a, b in zip(page.headings, page.headings[1:], strict=False)]
    assert all(step <= 1 for step in steps), page.headings
    assert all(link.startswith(("#", "data:image/png;base64,")) for link in page.links), page.links
    assert all(link[1:] in page.ids for link in page.links if link.startswith("#"))
    if whole:
        from crunode.reporting.fragments import asset

        assert page.scripts == [asset("page.js")]
        assert page.headings[0] == 1
        assert page.headings.count(1) == 1
    else:
        assert page.scripts == []
    return page
