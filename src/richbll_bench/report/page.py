"""All sections as one page that needs nothing else: no network, no other file."""

from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from richbll_bench.replacing import replacing
from richbll_bench.report.cost import duration
from richbll_bench.report.section import Section


def page(sections: Sequence[Section], *, tiny: bool = False) -> str:
    """The page; the same sections make the same text."""
    templates = Environment(
        loader=PackageLoader("richbll_bench.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    costs = [section.cost for section in sections if section.cost is not None]
    return templates.get_template("template.html").render(
        sections=[section for section in sections if not section.empty],
        waiting=[section for section in sections if section.empty],
        num_records=sum(cost.num_records for cost in costs),
        duration=duration(sum(cost.seconds for cost in costs)),
        tiny=tiny,
    )


def write_page(path: Path, sections: Sequence[Section], *, tiny: bool = False) -> None:
    """Write the page, whole or not at all."""
    text = page(sections, tiny=tiny)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
