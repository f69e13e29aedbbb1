"""What is in a page that celer wrote: the description and the JSON that its viewer shows (src/report/page.h)."""
import html.parser
import json
import pathlib
import re
import xml.etree.ElementTree as xml

SVG = "{http://www.w3.org/2000/svg}"


class WrittenPage(html.parser.HTMLParser):
    """Fails where elements are not closed, where anything would be loaded, and where a picture is no XML."""

    def __init__(self, path):
        super().__init__()
        self.open, self.scripts, self.script = [], {}, None
        self.source = pathlib.Path(path).read_text()
        self.feed(self.source)
        assert not self.open, self.open
        self.page, self.data = json.loads(self.scripts["page"]), json.loads(self.scripts["data"])
        self.texts = json.dumps(self.page, ensure_ascii=False)
        for outside in ("http://", "https://", "@import", "url("):
            assert outside not in self.scripts["script"] + self.scripts["style"], outside
        self.pictures = [xml.fromstring(svg) for svg in self.parts("picture") + self.parts("drawing")]
        for element in (element for picture in self.pictures for element in picture.iter()):
            for name in ("d", "x", "y", "cx", "cy", "r", "width", "height", "data-x", "data-y"):  # places are numbers
                assert not re.search("nan|inf", element.get(name, "")), element.attrib
        assert not re.search(r"\b(NaN|Infinity)\b", self.scripts["data"])

    def parts(self, kind):
        return [part[kind] for section in self.page["sections"] for part in section["parts"] if kind in part]

    def words(self):
        """All texts in the pictures."""
        return [text.text for picture in self.pictures for text in picture.iter(SVG + "text")]

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        assert "src" not in attrs and "href" not in attrs, f"{tag} refers to another file"
        if tag in ("script", "style"):
            self.script = attrs.get("id", tag)
            self.scripts[self.script] = ""
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> closes something else"
        self.script = None

    def handle_data(self, data):
        if self.script:
            self.scripts[self.script] += data
