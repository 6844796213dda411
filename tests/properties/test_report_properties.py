"""Text from a run never becomes structure of the page: any text gives the same tags as a harmless one."""

import importlib.util
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from crunode.core.result import Estimate, Finding
from crunode.reporting.charts import Chart, Series
from crunode.reporting.fragments import run_page
from crunode.reporting.html import page_html
from crunode.reporting.result_views import result_view
from crunode.reporting.views import Answer, Picture, RunView, Table
from crunode.store.run_numbers import Number
from crunode.store.run_record import RunRecord

_HOME = Path(__file__).parents[1] / "unit" / "reporting" / "page_check.py"
_SPEC = importlib.util.spec_from_file_location("page_check", _HOME)
page_check = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(page_check)

PIECES = [
    "<",
    ">",
    '"',
    "'",
    "&",
    "&lt;",
    "</script>",
    "<script>",
    "-->",
    "<!--",
    "{{",
    "}}",
    "{%",
    "\x00",
    "\u202e",
    "]]>",
]
hostile = (
    st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=6)), min_size=1, max_size=8).map("".join).filter(len)
)


def everywhere(text):
    """A view with the text in every place that can hold text."""
    finding = {"code": text, "severity": text, "message": text, "remedy": text}
    record = RunRecord(
        kind="draws",
        subject=text,
        status=text,
        ok=True,
        summary=text,
        numbers=(Number(text, 1.0, 0.1, 0.1, True),),
        findings=(finding,),
        settings={"kernel": {"name": text}, "other": text},
        provenance={"git": text},
        tags=(text,),
        updated=1.0,
    )
    chart = Chart(text, text, text, [Series(text, [1, 2], [1.0, 2.0], dots=True)] * 2, note=text)
    named = Chart(text, text, text, [Series(text, [1, 2], [0.0, 1.0], dots=True)], names=[text, text])
    return RunView(
        name=text,
        record=record,
        answer=Answer(text, text, text, text, text),
        tables=(
            Table(text, (text, "b"), [(text, "1")], text, footnotes=(text,)),
            Table(text, (text,), [(text,)], text, True),
        ),
        charts=(chart, named),
        pictures=(Picture(text, b"1"),),
        reasons={"kernel": text},
        words=(text,) * 4,
        citations=(text,),
        problems=(text,),
    )


PLAIN = page_check.check(page_html([everywhere("x")] * 2)).tags


@settings(max_examples=60)
@given(hostile)
def test_any_text_gives_the_same_tags(text):
    page = page_check.check(page_html([everywhere(text)] * 2))
    assert page.tags == PLAIN


@settings(max_examples=40)
@given(hostile, hostile, st.floats(), st.floats(), st.floats())
def test_any_estimate_gives_a_page(name, other, value, se, systematic):
    finding = Finding("LLC101", "error", other, name)
    estimate = Estimate(
        name, value, se=se, systematic=systematic, findings=(finding,), spec={other: [name, {other: value}]}
    )
    page_check.check(run_page(result_view(estimate)), whole=False)
